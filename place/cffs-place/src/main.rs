//! `place`: shows and improves the placement of files on ext4, XFS and btrfs.
//!
//! Each module of [`commands`] defines one command's flags next to the code that carries it out, and calls
//! the library.

// These macros panic if they cannot write: see `output`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod commands;
mod output;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{CommandFactory, Parser, Subcommand};

use crate::output::note;

/// See and improve where files are stored on ext4, XFS and btrfs
///
/// Each small file costs a request to the device, unless the files are stored side by side and are read in
/// that order. This program shows what a cold read of a directory takes, moves files side by side, and reads
/// them in device order.
#[derive(Debug, Parser)]
#[command(name = "place", version, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  place show ~/src             what a cold read takes, per directory, and why
  place pack --dry-run ~/src   what would be moved
  place pack ~/src             files side by side, in place and while in use
  place warm ~/src && make -C ~/src
                               read it in the order of the device first
  git ls-files -z | place cat -0 - | wc
                               as cat(1), reading ahead in that order
  place trace -o t -- make     which files a command opens, in order
  place pack --trace t         those side by side
  place init /srv && place mkdir --group 3 /srv/logs
                               a directory in a chosen group
  place disk /dev/sdb          turns, seeks, bandwidth and buffer of a disk";

#[derive(Debug, Subcommand)]
enum Command {
    Show(commands::show::Show),
    Pack(commands::pack::Pack),
    Warm(commands::warm::Warm),
    Cat(commands::cat::Cat),
    Trace(commands::trace::Trace),
    Init(commands::init::Init),
    Groups(commands::groups::ShowGroups),
    Disk(commands::disk::MeasureDisk),
    Memory(commands::memory::MeasureMemory),
    Mkdir(commands::controlled::Mkdir),
    Create(commands::controlled::Create),
    Cp(commands::controlled::Cp),
    Mv(commands::controlled::Mv),
    #[command(hide = true)]
    Generate(commands::generate::Generate),
}

/// Set by the first SIGINT or SIGTERM; a second one ends the process at once.
#[derive(Clone)]
struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    fn hear() -> anyhow::Result<Interrupt> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone())?;
            signal_hook::flag::register(signal, flag.clone())?;
        }
        Ok(Interrupt(flag))
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    let result = match command {
        Command::Show(show) => show.run(),
        Command::Pack(pack) => Interrupt::hear().and_then(|interrupt| pack.run(&interrupt)),
        Command::Warm(warm) => warm.run(),
        Command::Cat(cat) => cat.run(),
        // An interrupt from the terminal ends the traced command, and then this program.
        Command::Trace(trace) => Interrupt::hear().and_then(|interrupt| trace.run(&interrupt)),
        Command::Init(init) => init.run(),
        Command::Groups(groups) => groups.run(),
        Command::Disk(disk) => disk.run(),
        Command::Memory(memory) => memory.run(),
        Command::Mkdir(mkdir) => mkdir.run(),
        Command::Create(create) => create.run(),
        Command::Cp(cp) => cp.run(),
        Command::Mv(mv) => mv.run(),
        Command::Generate(generate) => generate.run(Arguments::command()),
    };
    result.unwrap_or_else(|error| {
        if !is_broken_pipe(&error) {
            note!("place: {error:#}");
        }
        ExitCode::FAILURE
    })
}

/// Whether standard output was a pipe that its reader has closed, which is no failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let cause = cause.downcast_ref::<std::io::Error>();
        cause.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    })
}
