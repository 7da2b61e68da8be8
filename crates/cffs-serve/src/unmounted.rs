//! What commands ask of the server of a volume that is not mounted, and have it do.

use std::io;
use std::sync::Arc;

use cffs::error::Error;
use cffs::units::InodeNo;
use cffs::vfs::Volume;

use crate::fuse::control::{Control, Question, Request};
use crate::served::Served;
use crate::socket::{self, Message, Reply};

/// Answers commands about the volume as long as the process lives: what it is, its counters, those of the
/// calls that it serves, what it exports, and how a scrub stands; it is synced and scrubbed, and its exports
/// are changed.
///
/// # Errors
///
/// Those of [`socket::listen`].
pub fn listen(served: &Arc<Served>) -> io::Result<()> {
    let control = Control::unmounted(Arc::clone(served));
    let volume = Arc::clone(served.volume());
    socket::listen(move |message| {
        answer(&control, &volume, message).unwrap_or_else(|error| Reply::Error(error.to_string()))
    })
}

fn answer(control: &Control, volume: &Arc<Volume>, message: &Message) -> Result<Reply, Error> {
    const UNKNOWN: Error = Error::Invalid("a server without a mount does not do this");
    // The socket answers its owner alone.
    let uid = rustix::process::geteuid().as_raw();
    let name = message.name.as_bytes();
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
