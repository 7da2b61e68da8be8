//! `cffs trace`: which operations cause which requests of the device.

use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use cffs::trace::record::{Reader, Record, TraceError};
use clap::{Args, Subcommand, ValueEnum};

use crate::output::note;

mod perfetto;
mod recording;
mod summary;
#[cfg(test)]
mod tests;

/// Record which operations of which programs cause which requests of the device
///
/// Every request of the device belongs to the operations that caused it: a read to the call that missed
/// the cache, or for which it was read ahead; a write, whenever it comes, to all the calls that changed
/// what it writes, each with its share; and what the log brings home later to those as well. The shares
/// of all operations add up to the requests of the device. A flush, the superblock and bitmaps belong to
/// the operation that has them written: an fsync, a sync, or the volume's background.
///
/// `record` fetches the trace from the server of a volume, mounted or served, while it is used; for root
/// and the user whose server it is. What it does not fetch in time is lost, and the trace says how much.
/// What NFS clients call belongs to no process of this machine, and is shown as the volume's. The other
/// commands read a trace from a file or, with -, from a pipe, in bounded memory.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs trace record -o make.trace mnt -- make -C mnt/src    while a command runs
  cffs trace record -o - mnt | cffs trace top -             until it is interrupted
  cffs trace record -o nfs.trace tree.cffs                  of a volume that cffs serve has
  cffs trace top make.trace                                 which operations cost how much
  cffs trace top --by process make.trace                    which programs
  cffs trace graph make.trace                               reads caused by creates, and the like
  cffs trace export --perfetto -o make.json make.trace      a timeline, for ui.perfetto.dev
  cffs trace record --listen 10.0.0.1:7070 mnt              on the machine that is measured
  cffs trace fetch -o far.trace 10.0.0.1:7070               on another one")]
pub struct Trace {
    /// What to do.
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Debug, Subcommand)]
enum TraceCommand {
    /// Record what happens on a volume that is mounted or served.
    Record(recording::RecordTrace),
    /// Fetch a trace from a `record --listen` on another machine.
    Fetch(recording::Fetch),
    /// Print what each kind of operation costs the device.
    Top(Top),
    /// Print what leads to which requests, as a tree.
    Graph(Graph),
    /// Convert a trace for other programs.
    Export(Export),
}

#[derive(Debug, Args)]
struct Top {
    /// What a row is.
    #[arg(long, value_enum, default_value = "operation")]
    by: By,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// The trace; - for standard input.
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// A kind of operation.
    Operation,
    /// All processes of one name.
    Process,
    /// A way by which requests come from operations.
    Way,
}

#[derive(Debug, Args)]
struct Graph {
    /// Print a graph for dot(1).
    #[arg(long)]
    dot: bool,
    /// The trace; - for standard input.
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
}

#[derive(Debug, Args)]
struct Export {
    /// As JSON that Perfetto and chrome://tracing read.
    #[arg(long, required = true)]
    perfetto: bool,
    /// Where to; - for standard output.
    #[arg(short = 'o', long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// The trace; - for standard input.
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
}

impl Trace {
    /// Carries it out.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            TraceCommand::Record(command) => return command.run(),
            TraceCommand::Fetch(command) => command.run()?,
            TraceCommand::Top(Top { by, json, trace }) => {
                let summary = summary::Summary::of(&mut Source::open(&trace)?)?;
                if json { summary.print_json(by)? } else { summary.print_table(by)? }
            }
            TraceCommand::Graph(Graph { dot, trace }) => {
                let summary = summary::Summary::of(&mut Source::open(&trace)?)?;
                if dot { summary.print_dot()? } else { summary.print_tree()? }
            }
            TraceCommand::Export(Export { output, trace, .. }) => {
                let mut out = recording::sink(&output)?;
                perfetto::export(&mut Source::open(&trace)?, &mut out)?;
                out.flush().with_context(|| output.display().to_string())?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A trace that is read.
struct Source<R = Box<dyn Read>> {
    name: String,
    reader: Reader<BufReader<R>>,
}

impl Source {
    fn open(path: &Path) -> anyhow::Result<Source> {
        let name = path.display().to_string();
        let inner: Box<dyn Read> = if path == Path::new("-") {
            if io::stdin().is_terminal() {
                bail!("a trace does not come from a terminal: give it by a file or a pipe");
            }
            Box::new(io::stdin().lock())
        } else {
            Box::new(File::open(path).with_context(|| name.clone())?)
        };
        Source::new(name, inner)
    }
}

impl<R: Read> Source<R> {
    fn new(name: String, inner: R) -> anyhow::Result<Source<R>> {
        let reader = Reader::new(BufReader::with_capacity(1 << 16, inner));
        Ok(Source { reader: reader.with_context(|| name.clone())?, name })
    }

    /// The next record. What was cut off or damaged ends there, with a note.
    fn next(&mut self) -> anyhow::Result<Option<Record>> {
        match self.reader.read() {
            Ok(record) => Ok(record),
            Err(error @ (TraceError::CutOff { .. } | TraceError::Damaged { .. })) => {
                note!("cffs: {}: {error}; what comes before it counts", self.name);
                Ok(None)
            }
            Err(error) => Err(error).with_context(|| self.name.clone()),
        }
    }
}
