//! The mark of the process that has a volume open for writing (FORMAT: superblock; decision 009).
//!
//! Locks keep the programs of one host apart. The mark in the superblock covers the cases that no lock
//! covers: another host that reaches the same device, and a second path to it that the system does not show.
//!
//! ```text
//!            no mark ─ claim: write, sync, read again ──▶ this process ── close: cleared ──▶ no mark
//!               ▲                                             │
//!               │ gone: this host was booted since, or        │ crash
//!               │ its process is not alive                    ▼
//!               └──────────────────────────────────── left behind ── another host: take over, if asked to
//! ```
//!
//! For an idle volume, the mark costs no reads or writes. A writer that was taken over notices this before
//! its next checkpoint or write of the superblock, and stops.

use super::superblock::read_superblock;
use crate::clock::Timestamp;
use crate::device::{BlockDevice, Excluded};
use crate::error::{Error, Result};
use crate::format::Superblock;
use crate::format::superblock::Holder;
use crate::host::{Host, Standing};

/// Marks a volume as open for writing by this process, before any other change.
///
/// # Errors
///
/// [`Error::InUse`] if another process has it, or may have it, unless `take_over` is set; errors of the
/// device and of the superblock.
pub fn claim(
    device: &dyn BlockDevice,
    host: &dyn Host,
    now: Timestamp,
    take_over: bool,
) -> Result<Superblock> {
    let mut superblock = read_now(device)?;
    superblock.check_writable()?;
    if let Some(mark) = &superblock.holder {
        match (host.standing(mark), user(&superblock, host, device.hints().excludes)) {
            (Standing::Own, _) => return Ok(superblock),
            (_, Some(user)) if take_over => {
                tracing::warn!("{user}; it is taken over, as asked");
            }
            (_, Some(user)) => return Err(Error::InUse(user)),
            _ => {}
        }
    }
    let started = now.seconds.max(0) as u64;
    superblock.holder = Some(Holder { started, ..host.holder() });
    write(device, &superblock)?;
    match read_now(device)?.holder {
        found if found == superblock.holder => Ok(superblock),
        found => Err(overtaken(found.as_ref())),
    }
}

/// Removes the mark of this process, once everything is on the device.
///
/// # Errors
///
/// Those of the device, and of a superblock that cannot be read.
pub fn release(device: &dyn BlockDevice, host: &dyn Host) -> Result<()> {
    let mut superblock = read_now(device)?;
    let is_own = |mark: &Holder| host.standing(mark) == Standing::Own;
    if superblock.holder.as_ref().is_some_and(is_own) {
        superblock.holder = None;
        write(device, &superblock)?;
    }
    Ok(())
}

/// Describes the other process that has the volume open for writing, or may have it. `excluded` are the
/// programs that cannot have the device. If they are all, the mark is from a device that was copied, as the
/// clone of a version is.
pub fn user(superblock: &Superblock, host: &dyn Host, excluded: Excluded) -> Option<String> {
    let mark = superblock.holder.as_ref().filter(|_| excluded < Excluded::All)?;
    let Holder { pid, started, .. } = mark;
    let name = mark.name.escape_ascii();
    let since = Timestamp { seconds: *started as i64, nanoseconds: 0 };
    match host.standing(mark) {
        Standing::Own | Standing::Gone => None,
        Standing::Hidden if excluded >= Excluded::OfHost => None,
        Standing::Alive => Some(format!(
            "process {pid} of this host has had it open for writing since {since} UTC, or has had \
             what it was copied from"
        )),
        Standing::Hidden => Some(format!(
            "process {pid} of a container of this host has had it open for writing since {since} \
             UTC, or ended without closing it"
        )),
        Standing::Foreign => Some(format!(
            "host {name} (process {pid}) has had it open for writing since {since} UTC, or went down \
             without closing it"
        )),
    }
}

/// Fails if the volume has another mark than `own`: another process has taken it over.
pub(super) fn check(device: &dyn BlockDevice, own: &Holder) -> Result<()> {
    match read_now(device) {
        Ok(superblock) if superblock.holder.as_ref() != Some(own) => {
            Err(overtaken(superblock.holder.as_ref()))
        }
        // A superblock that cannot be read has no mark, and is about to be written again.
        Ok(_) | Err(Error::Corruption(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

fn overtaken(by: Option<&Holder>) -> Error {
    Error::InUse(match by {
        Some(Holder { name, pid, .. }) => {
            format!("host {} (process {pid}) has taken the volume over", name.escape_ascii())
        }
        None => String::from("another program has taken the volume over, and closed it"),
    })
}

/// The superblock on the device now, not a cached copy of this host.
fn read_now(device: &dyn BlockDevice) -> Result<Superblock> {
    device.control().drop_cached(0, device.geometry().sector_bytes.into());
    read_superblock(device)
}

fn write(device: &dyn BlockDevice, superblock: &Superblock) -> Result<()> {
    let mut sector = vec![0; device.geometry().sector_bytes as usize];
    let bytes = superblock.encode();
    sector.resize(sector.len().max(bytes.len()), 0);
    sector[..bytes.len()].copy_from_slice(&bytes);
    device.write_at(0, &[std::io::IoSlice::new(&sector)])?;
    Ok(device.sync()?)
}
