//! The control interface of a server without a mount, over its socket.

use std::io;
use std::sync::Arc;

use cffs::error::Error;
use cffs::units::InodeNo;
use cffs::vfs::Volume;

use crate::served::control::{Control, Question, Request};
use crate::served::recording::Ask;
use crate::served::shutdown::{ShutdownReport, ShutdownReports};
use crate::served::{Served, closing};
use crate::socket::{self, Message, Reply};

/// Answers commands about the volume while the process lives: its identity, counters and exports, and the
/// state of a scrub. Commands can sync and scrub the volume, change its exports, and record what it does.
///
/// # Errors
///
/// Those of [`socket::listen`].
pub fn listen(served: &Arc<Served>) -> io::Result<()> {
    let control = Control::new(Arc::clone(served), Arc::default());
    let served = Arc::clone(served);
    socket::listen(move |message| {
        if let Some(number) = ShutdownReports::number(message.name.as_bytes()) {
            return match served.shutdown.connect(number) {
                Ok(()) => Reply::Answer(serde_json::Value::Null),
                Err(error) => Reply::Error(error.to_string()),
            };
        }
        let answer = answer(&control, &served.volume(), message);
        answer.unwrap_or_else(|error| Reply::Error(error.to_string()))
    })
}

/// Closes the volume, and reports the outcome to the commands that listen.
///
/// # Errors
///
/// Why the volume is not complete, what is lost, and the command that helps. The caller appends the volume's
/// name, the argument of that command.
pub fn close(served: &Served) -> Result<(), String> {
    served.shutdown.send(&ShutdownReport::Closing);
    let volume = served.volume();
    let Err(error) = volume.close() else {
        served.shutdown.send(&ShutdownReport::Closed);
        return Ok(());
    };
    let failure = closing::failure(&volume, &error);
    report_failure(served, &failure);
    Err(failure)
}

/// Reports to the commands that listen that the volume is not closed, and why.
pub fn report_failure(served: &Served, why: &str) {
    served.shutdown.send(&ShutdownReport::Failed(why.to_owned()));
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
