//! Opening a volume in any state, and checking an open one.
//!
//! Offers [`open`], with which every front end opens a volume, and [`check_in_use`]. Stands on `vfs` and
//! `fsck`: a volume that was not left clean is recovered first, as far as a crash explains its state. Other
//! damage is not repaired here: a repair may lose data, which a person has to decide.

use std::io::IoSlice;
use std::sync::Arc;

use crate::clock::Clock;
use crate::device::{BlockDevice, Excluded};
use crate::error::{Corruption, Error, Result};
use crate::format::superblock::{Damage, State};
use crate::fsck::{self, CheckOptions, Progress, Repair, Report};
use crate::journal;
use crate::vfs::{JournalMode, OpenOptions, Volume, mark, read_superblock};

/// Opens the volume on a device, and recovers it first if it is to be written and was not left
/// clean. Before that, it is marked as this process's, if the options name a host.
///
/// # Errors
///
/// [`Error::InUse`] if another process has it open for writing; [`Error::Unsupported`] if it has unknown
/// features, or damage that a crash does not explain; [`Error::Corruption`] if there is no volume.
pub fn open(
    device: Arc<dyn BlockDevice>,
    clock: Arc<dyn Clock>,
    options: OpenOptions,
) -> Result<Volume> {
    let is_journal_optional = options.read_only || options.journal == JournalMode::None;
    let device = journal::attach(device, is_journal_optional)?;
    let superblock = match &options.host {
        Some(host) if !options.read_only => {
            mark::claim(&*device, &**host, clock.now(), options.take_over)?
        }
        _ => read_superblock(&*device)?,
    };
    let (host, read_only) = (options.host.clone(), options.read_only);
    let excluded = device.hints().excludes.max(Excluded::OfHost);
    let user = host.as_ref().and_then(|host| mark::user(&superblock, &**host, excluded));
    if let (Some(user), true) = (user, read_only) {
        tracing::warn!("{user}; reads may be inconsistent while it writes");
    }
    let recovered = match superblock.state {
        State::InUse | State::Damaged if !read_only => recover(&*device),
        State::Clean if !read_only => fsck::check_kept(&*device, &superblock),
        _ => Ok(()),
    };
    let opened =
        recovered.and_then(|()| Volume::open(Arc::clone(&device), Arc::clone(&clock), options));
    match (&opened, host) {
        (Ok(volume), _) => {
            if let Some(damage) = volume.writer().superblock.get().damage {
                tracing::warn!("{damage}; cffs fsck on the unmounted volume checks and repairs it");
            }
        }
        (Err(error), host) if !read_only => {
            if let Error::Corruption(corruption) = error {
                remember(&*device, corruption, &*clock)?;
            }
            if let Some(host) = host {
                // Why it did not open is what matters.
                let _ = mark::release(&*device, &*host);
            }
        }
        (Err(_), _) => {}
    }
    opened
}

/// Records in the superblock why a volume cannot be opened, so that the next check is a full one.
fn remember(device: &dyn BlockDevice, corruption: &Corruption, clock: &dyn Clock) -> Result<()> {
    let Ok(mut superblock) = read_superblock(device) else { return Ok(()) };
    let now = clock.now().seconds.max(0) as u64;
    let (code, ino) = (corruption.code(), corruption.ino());
    superblock.damage = Some(Damage::met_again(superblock.damage, code, ino, now));
    let mut block = vec![0; superblock.block_bytes as usize];
    let encoded = superblock.encode();
    block[..encoded.len()].copy_from_slice(&encoded);
    device.write_at(0, &[IoSlice::new(&block)])?;
    device.sync()?;
    Ok(())
}

fn recover(device: &dyn BlockDevice) -> Result<()> {
    tracing::info!("the volume was not left clean; recovering it");
    let options = CheckOptions { repair: Repair::Preen, ..CheckOptions::default() };
    let report = fsck::check(device, &options, &())?;
    if let Some(why) = &report.full_because {
        tracing::info!("everything was checked: {why}");
    }
    let (requests, bytes) = (report.read_requests, report.read_bytes);
    tracing::info!(requests, bytes, fast = report.fast.is_some(), "recovered");
    for (code, count) in &report.recovered {
        tracing::info!(code = code.id(), count, "recovered");
    }
    match report.problems.iter().find(|problem| !problem.fixed) {
        None => Ok(()),
        Some(first) => Err(Error::Unsupported(format!(
            "the volume is damaged beyond what a crash explains ({first}); run cffs fsck -y on \
             it, or mount it read-only"
        ))),
    }
}

/// About the bytes that a check keeps in memory per inode, with its share of a directory
/// (`fsck::inventory`).
const CHECK_INODE_BYTES: u64 = 100;
/// About the number of fragments in use that a check keeps per byte.
const CHECK_FRAGMENTS_PER_BYTE: u64 = 4;

/// Fails if a check of an open volume would take more memory than the volume's cache.
fn check_fits(volume: &Volume) -> Result<()> {
    let stat = volume.stat_fs();
    let used = stat.fragments.saturating_sub(stat.free_fragments);
    let needed = stat.inodes * CHECK_INODE_BYTES + used / CHECK_FRAGMENTS_PER_BYTE;
    if needed <= volume.writer().options.cache_bytes {
        return Ok(());
    }
    let (needed, cache) = (needed.div_ceil(1 << 20), volume.writer().options.cache_bytes >> 20);
    Err(Error::Unsupported(format!(
        "checking {} inodes while they are in use takes about {needed} MiB of memory, and the cache \
         has {cache}: unmount the volume to check it, or mount it with cache={needed}M",
        stat.inodes
    )))
}

/// Checks the whole of an open volume as [`fsck::check`] does, and changes nothing.
///
/// First everything is made durable, including derived state. Then reads and changes continue in memory, but
/// nothing is written until the check is complete: calls that make something durable wait for it, as do
/// changes when they take all the memory that they may.
///
/// The memory of the check is bounded as the cache is: it fails for a volume with more inodes than fit in
/// it.
///
/// While files without a name are in use, differences in derived state are only counted (in
/// [`Report::recovered`]): nothing on the device shows the owner of their space.
pub fn check_in_use(volume: &Volume, contents: bool, progress: &dyn Progress) -> Result<Report> {
    check_fits(volume)?;
    let report = volume.writer().checkpoints().freeze(|device, has_unnamed| {
        let options = CheckOptions {
            force: true,
            contents,
            settled: !has_unnamed,
            ..CheckOptions::default()
        };
        fsck::check(device, &options, progress)
    })??;
    for problem in &report.problems {
        volume.writer().health.remember_damage(
            problem.code.number(),
            problem.place.ino(),
            &problem.to_string(),
        );
    }
    Ok(report)
}
