//! Opening a volume in whatever state it was left, and checking one that is open.
//!
//! Offers [`open`], the way in for every front end, and [`check_in_use`]. Stands on `vfs` and `fsck`:
//! a volume that was not left clean is recovered first, within what a crash can explain. Damage
//! beyond that is not touched here, since mending it may lose something; that is for a person to
//! decide.

use std::sync::Arc;

use crate::clock::Clock;
use crate::device::BlockDevice;
use crate::error::{Error, Result};
use crate::format::superblock::State;
use crate::fsck::{self, CheckOptions, Progress, Repair, Report};
use crate::vfs::{OpenOptions, Volume, read_superblock};

/// Opens the volume on a device, and recovers it first if it is to be written and was not left
/// clean.
pub fn open(
    device: Arc<dyn BlockDevice>,
    clock: Arc<dyn Clock>,
    options: OpenOptions,
) -> Result<Volume> {
    if !options.read_only && read_superblock(&*device)?.state != State::Clean {
        recover(&*device)?;
    }
    Volume::open(device, clock, options)
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

/// Checks the whole of an open volume as [`fsck::check`] does, and changes nothing.
///
/// First everything is made durable, with what is derived. Then reads and changes go on in memory,
/// but nothing is written until the check is complete: calls that make something durable wait for
/// it, as do changes when they take all the memory that they may.
///
/// While files without a name are in use, differences in what is derived are only counted (in
/// [`Report::recovered`]): nothing on the device tells whose the space of such files is.
pub fn check_in_use(volume: &Volume, contents: bool, progress: &dyn Progress) -> Result<Report> {
    volume.hold_still(|device, has_unnamed| {
        let options = CheckOptions {
            force: true,
            contents,
            settled: !has_unnamed,
            ..CheckOptions::default()
        };
        fsck::check(device, &options, progress)
    })?
}
