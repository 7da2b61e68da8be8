//! `cffs-bench scale`.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;

use cffs_bench::peer::{Peer, find_cffs};
use cffs_bench::scale::report::Report;
use cffs_bench::scale::{Part, Plan, Sizes};

use super::interrupt;

#[derive(Args)]
pub struct ScaleArguments {
    /// Small sizes, for first results.
    #[arg(long)]
    quick: bool,
    /// The parts; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Sizes for the one part given by --only, ascending: clients, names, files or GiB.
    #[arg(long, value_delimiter = ',', requires = "only")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    sizes: Vec<u64>,
    /// The directory for images.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    scratch: PathBuf,
    /// The directory for the report; if it is not given, the report is only printed.
    #[arg(long)]
    output: Option<PathBuf>,
    /// The `cffs` binary.
    #[arg(long, default_value_os_t = find_cffs())]
    cffs: PathBuf,
}

impl ScaleArguments {
    pub fn run(self) -> Result<()> {
        let sizes = self.sizes()?;
        if self.only != [Part::Directory] && !rustix::process::geteuid().is_root() {
            bail!("this mounts volumes, which only root may do; --only directory needs no root");
        }
        let interrupt = interrupt()?;
        let plan = Plan {
            sizes,
            operations: if self.quick { 3_200 } else { 40_000 },
            small_files: if self.quick { 1_000 } else { 10_000 },
            scratch: self.scratch,
            memory: PathBuf::from("/dev/shm"),
            cffs: self.cffs,
        };
        let started = Instant::now();
        let measured = plan.run(&interrupt);
        if measured.samples.is_empty() {
            bail!("nothing was measured");
        }
        let version = Peer::Cffs.version(&plan.cffs);
        let report = Report::new(measured, version, started.elapsed().as_secs_f64());
        println!("{}", report.markdown());
        if let Some(directory) = self.output {
            report.write(&directory)?;
            println!("written to {}", directory.display());
        }
        if report.failures.is_empty() { Ok(()) } else { bail!("some parts could not be measured") }
    }

    fn sizes(&self) -> Result<Sizes> {
        let sizes = if self.quick { Sizes::quick() } else { Sizes::full() };
        match (self.sizes.as_slice(), self.only.as_slice()) {
            ([], []) => Ok(sizes),
            ([], parts) => Ok(sizes.only(parts)),
            (given, [part]) if given.is_sorted_by(|a, b| a < b) => Ok(Sizes::of(*part, given)),
            (_, [_]) => bail!("--sizes must ascend"),
            _ => bail!("--sizes needs exactly one part, given by --only"),
        }
    }
}
