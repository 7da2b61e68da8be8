//! Opening a volume in whatever state it was left.
//!
//! Offers [`open`], the way in for every front end. Stands on `vfs` and `fsck`: a volume that was
//! not left clean is recovered first, within what a crash can explain. Damage beyond that is not
//! touched here, since mending it may lose something; that is for a person to decide.

use std::sync::Arc;

use crate::clock::Clock;
use crate::device::BlockDevice;
use crate::error::{Error, Result};
use crate::format::superblock::State;
use crate::fsck::{self, CheckOptions, Repair};
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
    let options = CheckOptions { repair: Repair::Preen, force: true, ..CheckOptions::default() };
    let report = fsck::check(device, &options, &())?;
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
