//! Waits for the end of a volume's server, for commands that return when the image is complete.
//!
//! ```text
//!   ask for shutdown reports ──▶ end the server ──▶ reports:  Closed    0, when its process has ended
//!                                                           Failed    1, what is lost
//!                                                           Serving   1, who still uses the volume
//!                                                           the end   1, the server died
//! ```
//!
//! If the server cannot be queried (it has died, or belongs to another user), the state of the image
//! determines the result.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cffs::device::BlockDevice;
use cffs::device::file::{Access, FileDevice, OpenError};
use cffs::format::Superblock;
use cffs::format::superblock::{SUPERBLOCK_BYTES, State};
use cffs_serve::served::shutdown::{Heard, ShutdownListener, ShutdownReport};

use crate::mounts;
use crate::output::note;

pub const INTERVAL: Duration = Duration::from_millis(20);
/// How long a server may take to notice that it has no users left.
pub const NOTICE: Duration = Duration::from_secs(5);
/// How long a server may take before a note is printed.
const QUIET: Duration = Duration::from_secs(2);
/// How long a server that cannot be queried may take to complete the image.
const PATIENCE: Duration = Duration::from_secs(60);

/// Notes on standard error about a server that takes long to end.
pub struct Waiting<'a> {
    command: &'static str,
    image: &'a Path,
    began: Instant,
    /// The last reason for waiting, as reported by the server.
    what: String,
    said: Option<String>,
}

impl<'a> Waiting<'a> {
    pub fn new(command: &'static str, image: &'a Path) -> Waiting<'a> {
        Waiting { command, image, began: Instant::now(), what: String::new(), said: None }
    }

    /// Records the reason for waiting, if the server reported one.
    pub fn hear(&mut self, heard: &Heard) {
        if let Heard::Report(ShutdownReport::Waiting(what)) = heard {
            self.what.clone_from(what);
        }
    }

    /// Prints that the command waits, once per reason.
    pub fn note(&mut self) {
        if self.began.elapsed() < QUIET || self.said.as_ref() == Some(&self.what) {
            return;
        }
        let (command, image) = (self.command, self.image.display());
        let separator = if self.what.is_empty() { "" } else { ": " };
        note!("cffs {command}: waiting until {image} is complete{separator}{}", self.what);
        self.said = Some(self.what.clone());
    }
}

/// Waits for the server's last shutdown report; `heard` is the last one before. Until the server closes the
/// volume, `silence` is called repeatedly with the time waited, and may abort the wait.
pub fn last_report(
    mut waiting: Waiting,
    listener: &mut ShutdownListener,
    mut heard: Heard,
    silence: impl Fn(Duration) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (command, image) = (waiting.command, waiting.image.display());
    let mut is_closing = false;
    loop {
        waiting.hear(&heard);
        match heard {
            Heard::Report(ShutdownReport::Closed) => {
                if !listener.wait_for_exit(NOTICE) {
                    note!(
                        "cffs {command}: {image} is complete and free, but its server has not ended"
                    );
                }
                return Ok(());
            }
            Heard::Report(ShutdownReport::Failed(why)) => {
                listener.wait_for_exit(NOTICE);
                bail!("{image}: {why} {image}");
            }
            Heard::Report(ShutdownReport::Closing | ShutdownReport::Waiting(_)) => {
                is_closing = true;
            }
            Heard::Report(ShutdownReport::Serving) => {}
            Heard::Nothing => {
                if !is_closing {
                    silence(waiting.began.elapsed())?;
                }
                waiting.note();
            }
            // It was replaced, and its successor completes the image; or it died.
            Heard::End => {
                return match state_when_free(command, waiting.image)? {
                    None | Some(State::InUse) => bail!(died(waiting.image)),
                    Some(_) => Ok(()),
                };
            }
        }
        heard = listener.listen(INTERVAL);
    }
}

/// The message about a server that ended too early.
fn died(image: &Path) -> String {
    let image = image.display();
    format!(
        "the server of {image} ended before the image was complete; the next mount recovers it, or: \
         cffs fsck -p {image}"
    )
}

/// Waits until no process has the image open, for a server that could not be queried. Fails unless the image
/// was closed cleanly and can be flushed, or cannot be accessed.
pub fn last_state(command: &'static str, image: &Path) -> anyhow::Result<()> {
    match state_when_free(command, image)? {
        None => return Ok(()),
        Some(State::InUse) => bail!(died(image)),
        Some(_) => {}
    }
    // If the server ended because a flush failed, reads still return data that the device may lose with its
    // write cache.
    File::open(image).and_then(|file| file.sync_data()).with_context(|| {
        let image = image.display();
        format!(
            "{image} cannot be flushed, and may not be complete; when it can: cffs fsck -p {image}"
        )
    })
}

/// Waits until no process has the image open and returns its state. `None` if that is unknown: the image
/// cannot be accessed, or was mounted again at once.
pub fn state_when_free(command: &'static str, image: &Path) -> anyhow::Result<Option<State>> {
    let device = match FileDevice::open_waiting(image, Access::ReadOnly, QUIET) {
        Err(OpenError::InUse { .. }) => {
            if mounts::of_source(image).is_some() {
                return Ok(None);
            }
            let began = Instant::now() - QUIET;
            Waiting { began, ..Waiting::new(command, image) }.note();
            FileDevice::open_waiting(image, Access::ReadOnly, PATIENCE)
        }
        outcome => outcome,
    };
    let device = match device {
        Ok(device) => device,
        Err(error @ OpenError::InUse { .. }) => return Err(error.into()),
        Err(_) => return Ok(None),
    };
    let mut bytes = [0; SUPERBLOCK_BYTES];
    device.read_at(0, &mut bytes)?;
    Ok(Superblock::decode(&bytes, 0).ok().map(|superblock| superblock.state))
}
