//! The command line.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

use cffs_bench::disk::{Profile, Stroke};
use cffs_bench::serve::control;
use cffs_bench::serve::server::DiskServer;

/// Measures C-FFS and what people would use instead of it.
#[derive(Parser)]
#[command(name = "cffs-bench", version)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve an emulated disk as the file DIR/disk.
    ///
    /// `losetup --find --show --direct-io=on DIR/disk` makes it a block device. The command runs
    /// until it is interrupted or DIR is unmounted.
    Disk(DiskArguments),
    /// Ask a served disk for its counters, or change its profile.
    Control {
        /// The socket that `cffs-bench disk --control` made.
        socket: PathBuf,
        /// `counters`, `profile`, or `profile NAME`.
        #[arg(required = true)]
        command: Vec<String>,
    },
}

#[derive(Args)]
struct DiskArguments {
    /// The device to emulate.
    #[arg(long, value_enum, default_value = "hdd7200")]
    profile: Profile,
    /// Whether the volume is the whole disk on a smaller scale, or a slice of it.
    #[arg(long, value_enum, default_value = "whole")]
    stroke: Stroke,
    /// The size, with a suffix K, M, G or T (powers of 1024).
    #[arg(long, value_parser = size)]
    size: u64,
    /// The file that holds the data; best on a tmpfs.
    #[arg(long)]
    backing: PathBuf,
    /// Make a socket here that answers questions about the disk.
    #[arg(long)]
    control: Option<PathBuf>,
    /// An empty directory.
    directory: PathBuf,
}

impl Arguments {
    /// Does what was asked.
    pub fn run(self) -> Result<()> {
        match self.command {
            Command::Disk(arguments) => arguments.run(),
            Command::Control { socket, command } => {
                println!("{}", control::ask(&socket, &command.join(" "))?);
                Ok(())
            }
        }
    }
}

impl DiskArguments {
    fn run(self) -> Result<()> {
        let interrupt = interrupt()?;
        let server = DiskServer::start(
            self.profile,
            self.stroke,
            self.size,
            &self.backing,
            &self.directory,
        )?;
        if let Some(socket) = &self.control {
            control::listen(socket, server.pacer().clone())?;
        }
        eprintln!("{} is ready", server.file().display());
        while !interrupt.load(Ordering::Relaxed) && !server.is_over() {
            std::thread::sleep(Duration::from_millis(100));
        }
        let counters = server.pacer().counters();
        let stopped = server.stop();
        if let Some(socket) = &self.control {
            let _ = std::fs::remove_file(socket);
        }
        println!("{}", serde_json::to_string(&counters)?);
        stopped
    }
}

/// Set by the first SIGINT or SIGTERM; a second one ends the process at once.
fn interrupt() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone())
            .and_then(|_| signal_hook::flag::register(signal, flag.clone()))
            .context("hear signals")?;
    }
    Ok(flag)
}

/// A size in bytes with an optional binary suffix.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        other => return Err(format!("unknown suffix {other}")),
    };
    let number: u64 = digits.parse().map_err(|e| format!("{e}"))?;
    number.checked_mul(1 << shift).ok_or_else(|| String::from("too large"))
}
