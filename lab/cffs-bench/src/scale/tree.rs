//! Files in a tree, 1000 per directory: from an empty image to recovery after a crash.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use super::growth::{Costs, Measure, Sample};
use super::program::{self, Mount};
use super::{Part, Plan, announce, stream};

/// An upper estimate of the space that a file takes in an image, including metadata.
const BYTES_PER_FILE: u64 = 1500;
const VOLUME_BYTES_MIN: u64 = 1 << 30;
/// Directories that change before a crash.
const CHANGED_DIRECTORIES: u64 = 10;

/// Measures a tree of `files` files, in an image that is removed afterwards.
pub fn measure(plan: &Plan, files: u64) -> Result<Vec<Sample>> {
    announce(&format!("a tree of {files} files"));
    let needed = files * BYTES_PER_FILE;
    let space = rustix::fs::statvfs(&plan.scratch).context("ask for the space that is left")?;
    let left = space.f_bavail * space.f_frsize;
    if left < needed {
        bail!("{} has {} MiB of {} MiB", plan.scratch.display(), left >> 20, needed >> 20);
    }
    let place = TempDir::with_prefix_in("cffs-scale-", &plan.scratch)?;
    let image = place.path().join("tree.cffs");
    let size = (files * 2 * stream::FILE_BYTES as u64).max(VOLUME_BYTES_MIN);
    make(&plan.cffs, &image, size)?;

    let mut samples = Vec::new();
    let mut add = |step: &str, costs: Costs| {
        samples.push(Sample::new(Part::Tree, step, files, costs));
    };
    let mut costs = extract(&plan.cffs, &image, files)?;
    costs.insert(Measure::ImageBytes, fs::metadata(&image)?.blocks() as f64 * 512.0);
    add("import (tar --extract)", costs);
    add("full check (fsck -f -n)", check(&plan.cffs, &image, &["-f", "-n"])?);
    let (mount, costs) = Mount::new(&plan.cffs, &image, &place.path().join("mnt"))?;
    add("mount", costs);
    add("find", mount.measure(|top| find(top, files))?);
    let changed = mount.measure(|top| {
        change(top, files, plan.small_files, "first")?;
        mount.sync()
    });
    add(&format!("create {} files", plan.small_files), changed?);
    // The server may have begun to write these changes when it is killed.
    change(mount.point(), files, plan.small_files, "second")?;
    mount.crash()?;
    add("recovery (fsck -p)", check(&plan.cffs, &image, &["-p"])?);
    Ok(samples)
}

pub(super) fn make(cffs: &Path, image: &Path, bytes: u64) -> Result<Costs> {
    let mut mkfs = Command::new(cffs);
    mkfs.args(["mkfs", "-q", "-s", &bytes.to_string()]).arg(image);
    Ok(program::measure(&mut mkfs, |_| Ok(()))?.0)
}

/// Extracts a tree into an image.
pub(super) fn extract(cffs: &Path, image: &Path, files: u64) -> Result<Costs> {
    let mut tar = Command::new(cffs);
    tar.args(["tar", "--extract"]).arg(image);
    let feed = |stdin| stream::write(files, std::io::BufWriter::with_capacity(1 << 18, stdin));
    Ok(program::measure(&mut tar, feed)?.0)
}

/// Checks an image, and repairs it if `arguments` say so.
pub(super) fn check(cffs: &Path, image: &Path, arguments: &[&str]) -> Result<Costs> {
    let mut fsck = Command::new(cffs);
    fsck.arg("fsck").args(arguments).arg(image);
    Ok(program::measure(&mut fsck, |_| Ok(()))?.0)
}

/// Lists a tree by find(1), which must find all of it.
fn find(top: &Path, files: u64) -> Result<()> {
    let mut find = Command::new("find");
    let output = find.arg(top).args(["-type", "f", "-printf", "."]).stdin(Stdio::null()).output();
    let output = output.context("start find")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "find ended with {}: {complaint}", output.status);
    let found = output.stdout.len() as u64;
    ensure!(found == files, "find finds {found} files of {files}");
    Ok(())
}

/// Creates files in a few directories at equal distances in the tree.
fn change(top: &Path, files: u64, count: u64, name: &str) -> Result<()> {
    let directories = stream::directories(files).min(CHANGED_DIRECTORIES);
    let distance = stream::directories(files) / directories;
    for i in 0..count {
        let directory = top.join(stream::directory(i % directories * distance));
        let path = directory.join(format!("{name}{i:06}"));
        fs::write(&path, b"changed").with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}
