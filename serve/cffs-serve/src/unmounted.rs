//! The control interface of a server without a mount, on its socket.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use cffs::error::Error;
use cffs::units::InodeNo;
use cffs::vfs::Volume;

use crate::served::control::{Control, Question, Request, refusal_text};
use crate::served::recording::Ask;
use crate::served::shutdown::{ShutdownReport, ShutdownReports};
use crate::served::{Served, closing};
use crate::socket::{self, Message, Reply};

/// How often a server that closes its volume looks for an outage of the store.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Answers commands until the process ends. They can query the server's identity, counters and exports, and
/// the status of a scrub and of a check; and they can sync, scrub and check the volume, change its exports,
/// and record its operations.
///
/// # Errors
///
/// Errors of [`socket::listen`].
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
        answer.unwrap_or_else(|error| Reply::Error(refusal_text(&error)))
    })
}

/// Closes the volume, and reports the outcome to listening commands.
///
/// # Errors
///
/// The reason why the volume is incomplete, the losses, and the command that helps. The caller appends that
/// command's argument, the volume's name.
pub fn close(served: &Served) -> Result<(), String> {
    served.shutdown.send(&ShutdownReport::Closing);
    let volume = served.volume();
    let closed = thread::scope(|scope| {
        let (end, ended) = mpsc::channel::<()>();
        scope.spawn(move || report_outage(served, &ended));
        let closed = volume.close();
        drop(end);
        closed
    });
    let Err(error) = closed else {
        served.shutdown.send(&ShutdownReport::Closed);
        return Ok(());
    };
    let failure = closing::failure(&volume, &error);
    report_failure(served, &failure);
    Err(failure)
}

/// Reports an outage of the store to listening commands, once. Returns when the sender of `ended` is dropped.
fn report_outage(served: &Served, ended: &Receiver<()>) {
    while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
        if let Some(outage) = served.outage() {
            return served.shutdown.send(&ShutdownReport::Waiting(outage));
        }
    }
}

/// Reports to listening commands why the volume is not closed.
pub fn report_failure(served: &Served, why: &str) {
    served.shutdown.send(&ShutdownReport::Failed(why.to_owned()));
}

fn answer(control: &Control, volume: &Arc<Volume>, message: &Message) -> Result<Reply, Error> {
    const UNKNOWN: Error = Error::Invalid(
        "a server without a mount does not do this; end it (cffs serve --stop) and mount the volume",
    );
    // The socket answers only its owner.
    let uid = rustix::process::geteuid().as_raw();
    let name = message.name.as_bytes();
    if let Some(ask) = Ask::made_by(name) {
        return Ok(Reply::Answer(ask.answer(volume, uid)?));
    }
    let Some(value) = &message.value else {
        let question = Control::question(name).filter(|question| {
            use Question::{Exports, Fsck, Info, Scrub, Stats, Sync};
            matches!(question, Info | Stats | Scrub | Fsck | Sync | Exports)
        });
        let answer = control.answer(volume, InodeNo::ROOT, question.ok_or(UNKNOWN)?, uid)?;
        let answer = serde_json::from_slice(&answer);
        return Ok(answer.map_or_else(|error| Reply::Error(error.to_string()), Reply::Answer));
    };
    let request = Request::from_attribute(name, value.as_bytes()).ok_or(UNKNOWN)??;
    use Request::{AddExport, RemoveExport, StartCheck, StartScrub, StopScrub};
    let is_job = matches!(request, StartScrub(_) | StopScrub | StartCheck { .. });
    if !is_job && !matches!(request, AddExport(_) | RemoveExport(_)) {
        return Err(UNKNOWN);
    }
    control.carry_out(volume, InodeNo::ROOT, request, uid)?;
    Ok(Reply::Answer(serde_json::Value::Null))
}
