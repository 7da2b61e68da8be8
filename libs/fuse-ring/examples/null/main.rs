//! Mounts an empty file system in memory: an upper bound for the speed of others.
//!
//! ```text
//! null [--transport auto|dev|uring] [--threads N] [--elide-open] DIRECTORY
//! ```

mod tree;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use fuse_ring::{Config, MountOptions, Session, TransportChoice};

#[derive(Parser)]
#[command(about = "Mount an empty file system in memory")]
struct Arguments {
    /// Where to mount.
    directory: PathBuf,
    /// How to talk to the kernel.
    #[arg(long, value_enum, default_value = "auto")]
    transport: Choice,
    /// Threads that serve: in all on /dev/fuse, per core on io_uring.
    #[arg(long)]
    threads: Option<NonZeroUsize>,
    /// Let the kernel open files without asking.
    #[arg(long)]
    elide_open: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Choice {
    Auto,
    Dev,
    Uring,
}

fn main() -> std::io::Result<()> {
    let arguments = Arguments::parse();
    let mut config = Config { threads: arguments.threads, ..Config::default() };
    config.wishes.elide_open = arguments.elide_open;
    config.wishes.elide_opendir = arguments.elide_open;
    config.transport = match arguments.transport {
        Choice::Auto => TransportChoice::Auto,
        Choice::Uring => TransportChoice::Uring,
        Choice::Dev => TransportChoice::Dev,
    };
    let options = MountOptions { subtype: "null".into(), ..MountOptions::default() };
    let session = Session::mount(tree::Tree::default(), arguments.directory, &options, &config)?;
    println!("{:?} on {}", session.transport(), session.path().display());
    session.serve().map(drop)
}
