//! Signals that end commands and servers.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{process, thread};

use indicatif::ProgressBar;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::output::note;

/// The time after an interrupt in which a server usually reports its progress. It takes longer while its
/// device does not answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Calls `arrived` at each SIGINT and SIGTERM from now on, in a thread.
pub fn at_signals(arrived: impl Fn() + Send + 'static) -> io::Result<()> {
    let (mut signalled, sender) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
    }
    let wait = move || {
        while signalled.read_exact(&mut [0]).is_ok() {
            arrived();
        }
    };
    thread::Builder::new().name(String::from("signals")).spawn(wait)?;
    Ok(())
}

/// Whether SIGINT or SIGTERM has arrived at a command for which the server of a mount works.
///
/// The command then ends its request at the server and prints the server's report. If it has not ended after
/// a second, because the server or the kernel waits for the device, the program ends without the report.
pub struct Interrupt {
    has_arrived: Arc<AtomicBool>,
    bar: Arc<Mutex<Option<ProgressBar>>>,
}

impl Interrupt {
    /// Handles the signals from now on. `late` is printed if the program ends without a report.
    pub fn hear(late: String) -> io::Result<Interrupt> {
        let (has_arrived, bar) = (Arc::default(), Arc::default());
        let interrupt = Interrupt { has_arrived, bar };
        let (has_arrived, bar) = (Arc::clone(&interrupt.has_arrived), Arc::clone(&interrupt.bar));
        at_signals(move || {
            has_arrived.store(true, Ordering::Relaxed);
            thread::sleep(PATIENCE);
            if let Some(bar) = bar.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
                bar.finish_and_clear();
            }
            note!("{late}");
            // Ends the thread that waits, too: a server releases killed callers.
            process::exit(1);
        })?;
        Ok(interrupt)
    }

    /// Whether one of the signals has arrived.
    pub fn has_arrived(&self) -> bool {
        self.has_arrived.load(Ordering::Relaxed)
    }

    /// Clears this bar if the program ends without a report.
    pub fn will_clear(&self, bar: &ProgressBar) {
        *self.bar.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar.clone());
    }
}
