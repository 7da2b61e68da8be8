//! The command line.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use cffs_bench::compare::Plan;
use cffs_bench::disk::{Profile, Stroke};
use cffs_bench::figures;
use cffs_bench::instructions::Instructions;
use cffs_bench::library::{self, LibraryPlan};
use cffs_bench::nfs::comparison::Comparison;
use cffs_bench::nfs::server::Programs;
use cffs_bench::peer::{Peer, Transport, find_cffs};
use cffs_bench::placement::Placement;
use cffs_bench::report::{Report, table};
use cffs_bench::serve::control;
use cffs_bench::serve::media::Media;
use cffs_bench::serve::server::DiskServer;
use cffs_bench::store_proxy::{self, Line};
use cffs_bench::workload::catalog::{Scale, Workload};
use cffs_bench::workload::contents::Contents;
use cffs_bench::workload::hot::Hot;

/// Measures C-FFS and its alternatives.
#[derive(Parser)]
#[command(name = "cffs-bench", version)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

mod changes;
mod questions;
mod scale;
mod units;
mod web;

use changes::ChangesArguments;
use questions::QuestionsArguments;
use scale::ScaleArguments;
use units::UnitsArguments;
use web::WebArguments;

#[derive(Subcommand)]
enum Command {
    /// Serve an emulated disk as the file DIR/disk.
    ///
    /// `losetup --find --show --direct-io=on DIR/disk` makes it a block device. The command runs
    /// until it is interrupted or DIR is unmounted.
    Disk(DiskArguments),
    /// Compare C-FFS with other file systems on an emulated disk. Needs root.
    ///
    /// Each run makes a new file system on a new disk, with cold caches. The figures are medians of at least
    /// three repetitions. Prints the table, and writes it with JSON into a directory.
    Compare(CompareArguments),
    /// Run the papers' benchmarks on C-FFS as a library, on a disk in virtual time.
    ///
    /// Exact and repeatable: measures only the device, without processor and kernel. Compares C-FFS with
    /// variants in which techniques are switched off.
    Library(LibraryArguments),
    /// Compare the list of what changed since a mark with a walk, on a disk in virtual time.
    Changes(ChangesArguments),
    /// Run single operations on C-FFS as a library, with warm caches and a device in memory.
    ///
    /// Measures the cost of the software itself; small and steady enough for a profiler.
    Hot {
        /// Operations of each kind.
        #[arg(long, default_value_t = 40_000)]
        operations: u64,
    },
    /// Compare `cffs serve` with nfs-ganesha over ext4, on emulated disks. Needs root.
    ///
    /// Uses fixed ports, and nfs-ganesha needs rpcbind: `make bench-nfs` fetches both, and runs this in a
    /// network namespace of its own.
    Nfs(NfsArguments),
    /// Measure the questions that the papers left open, and print the tables.
    ///
    /// Most of it runs in virtual time, without a mount, so the same program always gives the same figures.
    Questions(QuestionsArguments),
    /// Measure the tables in virtual time that README and docs quote, and compare them.
    #[command(after_help = "Example: cffs-bench figures --write")]
    Figures {
        /// Replace the tables in the documents.
        #[arg(long)]
        write: bool,
        /// The directory with README.md and docs/.
        #[arg(default_value = ".")]
        root: PathBuf,
    },
    /// Measure how costs grow: clients, names in a directory, files in a tree, volumes. Needs root.
    ///
    /// All parts together take 13 GB on the disk. The part `directory` does not need root.
    Scale(ScaleArguments),
    /// Compress the contents of a tree in units of several sizes, and print what that saves and costs.
    Units(UnitsArguments),
    /// Replay a web server's log for several layouts of its files and sizes of memory. Needs root.
    ///
    /// PLACE's experiment (section 4.1): on ext4 as the site was made, in one group, packed, and packed and
    /// warm; and on C-FFS.
    Web(WebArguments),
    /// Run a proxy in front of an object store: count requests, delay them, and lose answers.
    ///
    /// Prints the address at which it listens. `GET /.counts` there returns the counts as JSON.
    StoreProxy(StoreProxyArguments),
    /// Query the counters of a served disk, change its profile, or cut its power.
    Control {
        /// The socket that `cffs-bench disk --control` made.
        socket: PathBuf,
        /// `counters`, `profile`, `profile NAME`, or `cut SEED`.
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
    /// The file that holds the data; preferably on a tmpfs.
    #[arg(long)]
    backing: PathBuf,
    /// Create a control socket with this path.
    #[arg(long)]
    control: Option<PathBuf>,
    /// Keep the writes since the last flush in memory, so that `cut` can undo them.
    #[arg(long, requires = "control")]
    volatile: bool,
    /// An empty directory.
    directory: PathBuf,
}

#[derive(Args)]
struct StoreProxyArguments {
    /// The address of the server.
    upstream: SocketAddr,
    /// The address to listen at; port 0 means any free port.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Delay of each request in addition to its transfer, in milliseconds.
    #[arg(long, default_value_t = 30)]
    delay_ms: u64,
    /// Bandwidth of each direction, in millions of bytes per second.
    #[arg(long, default_value_t = 85, value_parser = clap::value_parser!(u64).range(1..))]
    megabytes_per_second: u64,
    /// Lose one of this many answers, at random, after the server has executed the request; 0 for none.
    #[arg(long, default_value_t = 0)]
    lose_one_in: u64,
    /// The seed of the choice of lost answers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl StoreProxyArguments {
    fn run(self) -> Result<()> {
        let listener = TcpListener::bind(self.listen)
            .with_context(|| format!("listening at {}", self.listen))?;
        println!("{}", listener.local_addr()?);
        let line = Line {
            delay: Duration::from_millis(self.delay_ms),
            bytes_per_second: self.megabytes_per_second * 1_000_000,
            loses_one_in: self.lose_one_in,
            seed: self.seed,
        };
        store_proxy::serve(listener, self.upstream, line)
    }
}

#[derive(Args)]
struct CompareArguments {
    /// Smaller workloads, for first results in minutes.
    #[arg(long)]
    quick: bool,
    /// The device to emulate.
    #[arg(long, value_enum, default_value = "hdd7200")]
    profile: Profile,
    /// Whether the volume is the whole disk on a smaller scale, or a slice of it.
    #[arg(long, value_enum, default_value = "whole")]
    stroke: Stroke,
    /// The file systems, by name; by default those that have bars for the device.
    #[arg(long, value_delimiter = ',')]
    peers: Vec<Peer>,
    /// The workloads; by default all that have bars.
    #[arg(long, value_enum, value_delimiter = ',')]
    workloads: Vec<Workload>,
    /// The transport of requests to C-FFS and to the server that does nothing.
    #[arg(long, value_enum, default_value = "rings")]
    transport: Transport,
    /// Measure the gain of a journal: changes the default file systems and workloads.
    #[arg(long)]
    journal: bool,
    /// Repetitions.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// The longest duration of a phase that only reads, in seconds; 3 if quick, otherwise 20.
    #[arg(long)]
    read_seconds_max: Option<u64>,
    /// The seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Fill files with pieces of the files below this directory, which must have at least 64 MiB in total.
    /// Without this option, contents are noise, which can be compressed only together with other files.
    #[arg(long, value_name = "DIRECTORY")]
    contents: Option<PathBuf>,
    /// The directory for the disks' data; should be a tmpfs with some gigabytes of free space.
    #[arg(long, default_value = "/dev/shm")]
    scratch: PathBuf,
    /// The directory for the report.
    #[arg(long, default_value = "docs/performance")]
    output: PathBuf,
    /// The `cffs` binary.
    #[arg(long, default_value_os_t = find_cffs())]
    cffs: PathBuf,
}

#[derive(Args)]
struct LibraryArguments {
    /// The disk.
    #[arg(long, value_enum, default_value = "st31200")]
    profile: Profile,
    /// Whether the volume is the whole disk on a smaller scale, or a slice of it.
    #[arg(long, value_enum, default_value = "whole")]
    stroke: Stroke,
    /// The size of the volume.
    #[arg(long, value_parser = size, default_value = "512M")]
    size: u64,
    /// Files in the small-file benchmark.
    #[arg(long, default_value_t = 10_000)]
    files: u64,
    /// The seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
struct NfsArguments {
    /// A smaller load, for first results.
    #[arg(long)]
    quick: bool,
    /// The disks.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "none,hdd7200")]
    profiles: Vec<Profile>,
    /// Repetitions.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// The directory into which the packages of nfs-ganesha were unpacked.
    #[arg(long, default_value = "target/tools/ganesha")]
    ganesha: PathBuf,
    /// The directory for the disks' data; should be a tmpfs with some gigabytes of free space.
    #[arg(long, default_value = "/dev/shm")]
    scratch: PathBuf,
    /// The directory for the report.
    #[arg(long, default_value = "docs/performance")]
    output: PathBuf,
    /// The `cffs` binary.
    #[arg(long, default_value_os_t = find_cffs())]
    cffs: PathBuf,
}

impl Arguments {
    pub fn run(self) -> Result<()> {
        match self.command {
            Command::Disk(arguments) => arguments.run(),
            Command::Compare(arguments) => arguments.run(),
            Command::Library(arguments) => arguments.run(),
            Command::Changes(arguments) => arguments.run(),
            Command::Hot { operations } => {
                let phases = library::hot(Hot { operations, clients: 1, pinned: false, seed: 1 })?;
                println!("{}", table::phases(&phases));
                if let Some(error) = Instructions::start().obstacle() {
                    println!("instructions cannot be counted: {error}");
                }
                Ok(())
            }
            Command::Nfs(arguments) => arguments.run(),
            Command::Questions(arguments) => arguments.run(),
            Command::Figures { write, root } => figures::run(&root, write),
            Command::Scale(arguments) => arguments.run(),
            Command::Units(arguments) => arguments.run(),
            Command::Web(arguments) => arguments.run(),
            Command::StoreProxy(arguments) => arguments.run(),
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
        let media = Media::open(&self.backing, self.size)?;
        let media = if self.volatile { media.volatile() } else { media };
        let server = DiskServer::start(self.profile, self.stroke, media, &self.directory)?;
        if let Some(socket) = &self.control {
            control::listen(socket, server.pacer().clone(), server.media().clone())?;
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

impl CompareArguments {
    fn run(self) -> Result<()> {
        if !rustix::process::geteuid().is_root() {
            bail!("the comparison mounts file systems, which only root may do");
        }
        let interrupt = interrupt()?;
        let scale = if self.quick { Scale::Quick } else { Scale::Full };
        let workloads = match self.workloads.is_empty() {
            true if self.journal => Workload::OF_THE_JOURNAL.to_vec(),
            true => Workload::of_the_bars(self.profile),
            false => self.workloads,
        };
        let peers = match self.peers.is_empty() {
            true if self.journal => Peer::OF_THE_JOURNAL.to_vec(),
            true => Peer::of_the_bars(self.profile),
            false => self.peers,
        };
        let read_seconds_max = self.read_seconds_max.unwrap_or(if self.quick { 3 } else { 20 });
        let plan = Plan {
            profile: self.profile,
            stroke: self.stroke,
            peers,
            workloads,
            scale,
            repetitions: self.repetitions,
            read_time_max: Duration::from_secs(read_seconds_max),
            seed: self.seed,
            contents: self.contents.as_deref().map(Contents::below).transpose()?,
            scratch: self.scratch,
            cffs: self.cffs,
            transport: self.transport,
            placement: Placement::here(),
        };
        plan.transport.prepare()?;
        let results = plan.run(&interrupt);
        let report = Report::new(&plan, &results);
        println!("{}", table::text(&report));
        if report.rows.is_empty() {
            bail!("nothing was measured");
        }
        report.write(&self.output)?;
        println!("written to {}", self.output.display());
        Ok(())
    }
}

impl LibraryArguments {
    fn run(self) -> Result<()> {
        let library = LibraryPlan {
            profile: self.profile,
            stroke: self.stroke,
            size: self.size,
            files: self.files,
            large_bytes: 64 << 20,
            journal_bytes: 0,
            each_durable: false,
            seed: self.seed,
        };
        let report = Report::of_library(&library, &library.run()?);
        println!("{}", table::text(&report));
        Ok(())
    }
}

impl NfsArguments {
    fn run(self) -> Result<()> {
        let interrupt = interrupt()?;
        let ganesha = self.ganesha.canonicalize();
        let ganesha = ganesha.with_context(|| format!("{}", self.ganesha.display()))?;
        let comparison = Comparison {
            scale: if self.quick { Scale::Quick } else { Scale::Full },
            profiles: self.profiles,
            repetitions: self.repetitions,
            scratch: self.scratch,
            programs: Programs { cffs: self.cffs, ganesha },
        };
        let report = comparison.run(&interrupt)?;
        println!("{}", report.markdown());
        report.write(&self.output)?;
        println!("written to {}", self.output.display());
        Ok(())
    }
}

/// Set by the first SIGINT, SIGTERM or SIGHUP; a second one ends the process at once. A process that serves a
/// disk must not end abruptly: a file system on the disk would wait for it forever.
fn interrupt() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
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
