//! Volumes of several sizes. Preallocated large files and small files use 60% of each.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{FallocateFlags, fallocate};
use tempfile::TempDir;

use super::growth::{Costs, Sample};
use super::program::Mount;
use super::stream::{self, FILE_BYTES};
use super::tree::{check, extract, make};
use super::{Part, Plan, announce};

/// Large files, of this share of the volume each.
const LARGE_FILES: u64 = 12;
const LARGE_SHARE: u64 = 20;
/// The number of queries of the volume's free space.
const STATFS_CALLS: u64 = 1000;

/// Measures a volume of `gib` GiB, in a sparse image that is removed afterwards.
pub fn measure(plan: &Plan, gib: u64) -> Result<Vec<Sample>> {
    announce(&format!("a volume of {gib} GiB"));
    let place = TempDir::with_prefix_in("cffs-scale-", &plan.scratch)?;
    let image = place.path().join("volume.cffs");
    let point = place.path().join("mnt");
    let mut samples = Vec::new();
    let mut add = |step: &str, costs: Costs| {
        samples.push(Sample::new(Part::Volume, step, gib, costs));
    };
    add("mkfs", make(&plan.cffs, &image, gib << 30)?);
    extract(&plan.cffs, &image, plan.small_files)?;

    let (mount, _) = Mount::new(&plan.cffs, &image, &point)?;
    add("fallocate 60%", mount.measure(|top| allocate(top, (gib << 30) / LARGE_SHARE))?);
    mount.unmount()?;

    let (mount, costs) = Mount::new(&plan.cffs, &image, &point)?;
    add("mount", costs);
    add(&format!("{STATFS_CALLS} × statfs"), mount.measure(statfs)?);
    let create = |top: &Path| {
        create(top, plan.small_files)?;
        mount.sync()
    };
    add(&format!("create {} small files", plan.small_files), mount.measure(create)?);
    remove_some(mount.point(), plan.small_files)?;
    mount.crash()?;
    add("recovery (fsck -p)", check(&plan.cffs, &image, &["-p"])?);
    add("full check (fsck -f -n)", check(&plan.cffs, &image, &["-f", "-n"])?);
    Ok(samples)
}

fn allocate(top: &Path, bytes: u64) -> Result<()> {
    for i in 0..LARGE_FILES {
        let path = top.join(format!("large{i:02}"));
        let file = File::create(&path).with_context(|| format!("make {}", path.display()))?;
        let allocated = fallocate(&file, FallocateFlags::empty(), 0, bytes);
        allocated.with_context(|| format!("allocate {bytes} bytes for {}", path.display()))?;
    }
    Ok(())
}

fn statfs(top: &Path) -> Result<()> {
    (0..STATFS_CALLS).try_for_each(|_| {
        rustix::fs::statfs(top).map(|_| ()).context("ask the volume for its free space")
    })
}

fn create(top: &Path, files: u64) -> Result<()> {
    let top = top.join("new");
    fs::create_dir(&top)?;
    let mut buffer = [0; FILE_BYTES];
    for file in 0..files {
        let path = top.join(stream::path(file));
        if file % stream::FILES_PER_DIRECTORY == 0 {
            fs::create_dir(path.parent().context("a directory for the file")?)?;
        }
        stream::contents(file, &mut buffer);
        fs::write(&path, buffer).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// Removes every tenth file, so that a crash interrupts changes.
fn remove_some(top: &Path, files: u64) -> Result<()> {
    (0..files).step_by(10).try_for_each(|file| {
        let path = top.join("new").join(stream::path(file));
        fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))
    })
}
