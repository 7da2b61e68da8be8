//! Fetches a trace from a server, or from another machine.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cffs::trace::Detail;
use cffs_serve::served::{control, recording};
use clap::Args;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::names;
use crate::output::{self, note};

/// The pause before the next query of a server that had no more records.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long sending over a connection may block.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum number of processes whose names are looked up.
const PROCESSES_MAX: usize = 1 << 16;

#[derive(Debug, Args)]
pub(super) struct RecordTrace {
    /// The output file; - for standard output, such as a pipe.
    #[arg(short = 'o', long, value_name = "FILE", required_unless_present = "listen")]
    output: Option<PathBuf>,
    /// Send it to the first client that connects to this address (HOST:PORT), so that nothing is written on
    /// this machine. The connection is not authenticated: use it only in a network that you trust.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "output")]
    listen: Option<String>,
    /// Record every operation. Without this option, operations that find everything in memory and change
    /// nothing are only counted.
    #[arg(long)]
    all: bool,
    /// Stop after this many seconds.
    #[arg(long, value_name = "SECONDS", conflicts_with = "command")]
    seconds: Option<u64>,
    /// A mounted volume, by its image, its device, its URL, or any file on it; or an image or a URL that cffs
    /// serve serves.
    #[arg(value_name = "IMAGE|DEVICE|URL|DIR")]
    volume: PathBuf,
    /// Record while this command runs. When it has ended, everything is made durable, so that the trace
    /// contains the writes of its changes.
    #[arg(last = true)]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(super) struct Fetch {
    /// The output file; - for standard output, such as a pipe.
    #[arg(short = 'o', long, value_name = "FILE")]
    output: PathBuf,
    /// The address of `record --listen` (HOST:PORT).
    #[arg(value_name = "ADDRESS")]
    address: String,
}

/// A file or standard output, for a trace.
fn sink(path: &Path) -> anyhow::Result<Box<dyn Write>> {
    if path == Path::new("-") {
        if io::stdout().is_terminal() {
            bail!("a trace is not written to a terminal: use a file or a pipe");
        }
        return Ok(Box::new(output::stdout()));
    }
    let file = File::create(path).with_context(|| path.display().to_string())?;
    Ok(Box::new(BufWriter::new(file)))
}

impl Fetch {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let mut from = TcpStream::connect(&self.address).with_context(|| self.address.clone())?;
        let mut out = sink(&self.output)?;
        io::copy(&mut from, &mut out).with_context(|| self.address.clone())?;
        out.flush().with_context(|| self.output.display().to_string())
    }
}

impl RecordTrace {
    pub(super) fn run(mut self) -> anyhow::Result<ExitCode> {
        self.volume = names::to_ask(&self.volume)?;
        // Fails for a volume that is not served, before any file is created.
        control::identity(&self.volume).with_context(|| self.volume.display().to_string())?;
        let mut out = match (&self.listen, &self.output) {
            (Some(address), _) => listen(address)?,
            (None, Some(path)) => sink(path)?,
            (None, None) => bail!("give -o FILE or --listen ADDRESS"),
        };
        let is_over = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&is_over))?;
        }
        let detail = if self.all { Detail::All } else { Detail::Causes };
        recording::start(&self.volume, detail)
            .with_context(|| self.volume.display().to_string())?;
        let started = self.start_command();
        let mut process = match started {
            Ok(process) => process,
            Err(error) => {
                let _ = recording::stop(&self.volume);
                return Err(error);
            }
        };
        let fetched = self.fetch(&mut out, &is_over, process.as_mut());
        if fetched.is_err() {
            let _ = recording::stop(&self.volume);
        }
        fetched?;
        match process {
            Some(mut process) => Ok(ExitCode::from(code_of(process.wait()?))),
            None => Ok(ExitCode::SUCCESS),
        }
    }

    fn start_command(&self) -> anyhow::Result<Option<Child>> {
        let [program, arguments @ ..] = &self.command[..] else { return Ok(None) };
        let started = Command::new(program).args(arguments).spawn();
        Ok(Some(started.with_context(|| program.display().to_string())?))
    }

    /// Copies the trace until the recording ends.
    fn fetch(
        &self,
        out: &mut dyn Write,
        is_over: &AtomicBool,
        mut process: Option<&mut Child>,
    ) -> anyhow::Result<()> {
        let until = self.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let mut names = Names::default();
        let mut is_stopped = false;
        let mut has_ended_early = true;
        loop {
            let piece = recording::next(&self.volume).context("the volume is no longer served")?;
            out.write_all(&names.added_to(&piece.bytes)).context("the trace")?;
            if !piece.bytes.is_empty() {
                continue;
            }
            if !piece.is_on {
                break;
            }
            let has_exited = match &mut process {
                Some(process) => process.try_wait()?.is_some(),
                None => false,
            };
            let is_late = until.is_some_and(|until| Instant::now() >= until);
            if !is_stopped && (has_exited || is_late || is_over.load(Ordering::Relaxed)) {
                if has_exited {
                    control::sync(&self.volume)?;
                }
                recording::stop(&self.volume)?;
                (is_stopped, has_ended_early) = (true, false);
                continue;
            }
            out.flush().context("the trace")?;
            thread::sleep(POLL_INTERVAL);
        }
        if has_ended_early {
            note!("cffs: another command ended the recording");
        }
        out.flush().context("the trace")
    }
}

fn code_of(status: std::process::ExitStatus) -> u8 {
    status.code().map_or(1, |code| u8::try_from(code).unwrap_or(1))
}

/// Waits for a connection.
fn listen(address: &str) -> anyhow::Result<Box<dyn Write>> {
    let listener = TcpListener::bind(address).with_context(|| address.to_owned())?;
    note!("cffs: the recording begins when `cffs trace fetch {}` connects", listener.local_addr()?);
    let (connection, peer) = listener.accept()?;
    note!("cffs: {peer} fetches the trace");
    connection.set_write_timeout(Some(SEND_TIMEOUT))?;
    Ok(Box::new(BufWriter::new(connection)))
}

/// Adds the names of processes to a trace, each before the first operation of the process.
#[derive(Default)]
pub(super) struct Names {
    known: HashSet<u32>,
    /// The beginning of an incomplete line.
    rest: Vec<u8>,
}

impl Names {
    pub(super) fn added_to(&mut self, piece: &[u8]) -> Vec<u8> {
        self.rest.extend_from_slice(piece);
        let end = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<u8> = self.rest.drain(..end).collect();
        let mut out = Vec::with_capacity(lines.len());
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            if let Some(process) = caller(line).filter(|process| self.is_new(*process))
                && let Ok(name) = fs::read(format!("/proc/{process}/comm"))
            {
                let args = json!({ "name": output::printable(name.trim_ascii_end()) });
                let event =
                    json!({ "ph": "M", "name": "process_name", "pid": process, "args": args });
                out.extend_from_slice(format!("{event},\n").as_bytes());
            }
            out.extend_from_slice(line);
        }
        out
    }

    fn is_new(&mut self, process: u32) -> bool {
        self.known.len() < PROCESSES_MAX && self.known.insert(process)
    }
}

/// The calling process, if this line of a trace is an operation.
fn caller(line: &[u8]) -> Option<u32> {
    let line = std::str::from_utf8(line).ok()?;
    let (_, members) = line.split_once(r#""cat":"operation""#)?;
    let (_, rest) = members.split_once(r#""pid":"#)?;
    rest.split_once(',')?.0.parse().ok()
}
