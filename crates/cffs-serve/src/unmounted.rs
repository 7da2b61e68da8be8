//! What commands ask of the server of a volume that is not mounted, and have it do.

use std::io;
use std::sync::Arc;

use cffs::error::Error;
use cffs::units::InodeNo;
use cffs::vfs::Volume;

use crate::fuse::closing;
use crate::fuse::control::{Control, Question, Request};
use crate::fuse::farewell::{Farewells, Word};
use crate::fuse::recording::Ask;
use crate::served::Served;
use crate::socket::{self, Message, Reply};

/// Those who want to know what becomes of the volume.
#[derive(Default)]
pub struct Listeners(Arc<Farewells>);

impl Listeners {
    /// Answers commands about the volume as long as the process lives: what it is, its counters, those of the
    /// calls that it serves, what it exports, and how a scrub stands; it is synced and scrubbed, its
    /// exports are changed, and what it does is recorded.
    ///
    /// # Errors
    ///
    /// Those of [`socket::listen`].
    pub fn listen(&self, served: &Arc<Served>) -> io::Result<()> {
        let control = Control::unmounted(Arc::clone(served));
        let volume = served.volume();
        let farewells = Arc::clone(&self.0);
        socket::listen(move |message| {
            if let Some(number) = Farewells::number(message.name.as_bytes()) {
                return match farewells.connect(number) {
                    Ok(()) => Reply::Answer(serde_json::Value::Null),
                    Err(error) => Reply::Error(error.to_string()),
                };
            }
            let answer = answer(&control, &volume, message);
            answer.unwrap_or_else(|error| Reply::Error(error.to_string()))
        })
    }

    /// Closes the volume, and says what became of it to those who asked.
    ///
    /// # Errors
    ///
    /// Why it is not complete, what is lost, and what to do; the volume's name is to follow.
    pub fn close(&self, volume: &Volume) -> Result<(), String> {
        self.0.say(&Word::Closing);
        let Err(error) = volume.close() else {
            self.0.say(&Word::Closed);
            return Ok(());
        };
        let failure = closing::failure(volume, &error);
        self.failed(&failure);
        Err(failure)
    }

    /// Says to those who asked that the volume is not closed, and why.
    pub fn failed(&self, why: &str) {
        self.0.say(&Word::Failed(why.to_owned()));
    }
}

fn answer(control: &Control, volume: &Arc<Volume>, message: &Message) -> Result<Reply, Error> {
    const UNKNOWN: Error = Error::Invalid("a server without a mount does not do this");
    // The socket answers its owner alone.
    let uid = rustix::process::geteuid().as_raw();
    let name = message.name.as_bytes();
    if let Some(ask) = Ask::made_by(name) {
        return Ok(Reply::Answer(ask.answer(volume, uid)?));
    }
    let Some(value) = &message.value else {
        let question = Control::question(name).filter(|question| {
            use Question::{Exports, Info, Scrub, Stats, Sync};
            matches!(question, Info | Stats | Scrub | Sync | Exports)
        });
        let answer = control.answer(volume, InodeNo::ROOT, question.ok_or(UNKNOWN)?, uid)?;
        let answer = serde_json::from_slice(&answer);
        return Ok(answer.map_or_else(|error| Reply::Error(error.to_string()), Reply::Answer));
    };
    let request = Request::from_attribute(name, value.as_bytes()).ok_or(UNKNOWN)??;
    use Request::{AddExport, RemoveExport, StartScrub, StopScrub};
    if !matches!(request, StartScrub(_) | StopScrub | AddExport(_) | RemoveExport(_)) {
        return Err(UNKNOWN);
    }
    control.carry_out(volume, InodeNo::ROOT, request, uid)?;
    Ok(Reply::Answer(serde_json::Value::Null))
}
