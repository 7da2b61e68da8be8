//! How the server of a volume ends, for the commands that end one and return when its image is complete.
//!
//! ```text
//!   ask the server for its last word ──▶ end it ──▶ hear it:  Closed    0, when its process has ended
//!                                                           Failed    1, what is lost
//!                                                           Serving   1, who still uses the volume
//!                                                           the end   1, the server died
//! ```
//!
//! Without a server that can be asked (it has died, or belongs to a user who keeps others out), what the
//! image says has to do.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cffs::device::BlockDevice;
use cffs::device::file::{Access, FileDevice, OpenError};
use cffs::format::Superblock;
use cffs::format::superblock::{SUPERBLOCK_BYTES, State};
use cffs_serve::fuse::farewell::{Farewell, Heard, Word};

use crate::mounts;
use crate::output::note;

/// How often the state of things is looked at.
pub const INTERVAL: Duration = Duration::from_millis(20);
/// How long a server that nobody uses any more may take to notice.
pub const NOTICE: Duration = Duration::from_secs(5);
/// How long a server may take without a word to the user.
const QUIET: Duration = Duration::from_secs(2);
/// How long a server that cannot be asked may take to complete the image.
const PATIENCE: Duration = Duration::from_secs(60);

/// Notes on standard error about an end that takes its time.
pub struct Waiting<'a> {
    command: &'static str,
    image: &'a Path,
    began: Instant,
    /// What the server last said that it waits for.
    what: String,
    said: Option<String>,
}

impl<'a> Waiting<'a> {
    pub fn new(command: &'static str, image: &'a Path) -> Waiting<'a> {
        Waiting { command, image, began: Instant::now(), what: String::new(), said: None }
    }

    /// Keeps what the server said that it waits for, if it did.
    pub fn hear(&mut self, heard: &Heard) {
        if let Heard::Word(Word::Waiting(what)) = heard {
            self.what.clone_from(what);
        }
    }

    /// Prints that the volume is waited for, and what for if that is known, once for each.
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

/// Waits for what the server says last, after something that it said before. `silence` is called now and
/// then until the server closes the volume, with the time since, and may give up.
pub fn last_word(
    mut waiting: Waiting,
    farewell: &mut Farewell,
    mut heard: Heard,
    silence: impl Fn(Duration) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (command, image) = (waiting.command, waiting.image.display());
    let mut is_closing = false;
    loop {
        waiting.hear(&heard);
        match heard {
            Heard::Word(Word::Closed) => {
                if !farewell.wait_for_exit(NOTICE) {
                    note!(
                        "cffs {command}: {image} is complete and free, but its server has not ended"
                    );
                }
                return Ok(());
            }
            Heard::Word(Word::Failed(why)) => {
                farewell.wait_for_exit(NOTICE);
                bail!("{image}: {why} {image}");
            }
            Heard::Word(Word::Closing) => is_closing = true,
            Heard::Word(Word::Serving | Word::Waiting(_)) => {}
            Heard::Nothing => {
                if !is_closing {
                    silence(waiting.began.elapsed())?;
                }
                waiting.note();
            }
            Heard::End => bail!(died(waiting.image)),
        }
        heard = farewell.listen(INTERVAL);
    }
}

/// What to print about a server that ended too early.
fn died(image: &Path) -> String {
    let image = image.display();
    format!(
        "the server of {image} ended before the image was complete; the next mount recovers it, or: \
         cffs fsck -p {image}"
    )
}

/// What became of a volume whose server could not be asked: waits until nobody has the image, and fails
/// unless it was left clean and can be flushed, or is out of reach.
pub fn last_state(command: &'static str, image: &Path) -> anyhow::Result<()> {
    match state_when_free(command, image)? {
        None => return Ok(()),
        Some(State::InUse) => bail!(died(image)),
        Some(_) => {}
    }
    // The server may have ended because a flush failed, after which the device still shows what it may
    // lose with its write cache.
    File::open(image).and_then(|file| file.sync_data()).with_context(|| {
        let image = image.display();
        format!(
            "{image} cannot be flushed, and may not be complete; when it can: cffs fsck -p {image}"
        )
    })
}

/// Waits until nobody has the image and returns how it was left. `None` where that cannot be known: it
/// is out of reach, or was mounted again at once.
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
