//! `cffs-bench web`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use cffs_bench::disk::Profile;
use cffs_bench::peer::find_cffs;
use cffs_bench::web::Plan;
use cffs_bench::web::report::Report;
use cffs_bench::web::site::Extent;

use super::interrupt;

#[derive(Args)]
pub struct WebArguments {
    /// A small site, for first results.
    #[arg(long)]
    quick: bool,
    /// The device to emulate.
    #[arg(long, value_enum, default_value = "hdd7200")]
    profile: Profile,
    /// The seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The directory for backing files; preferably on a tmpfs.
    #[arg(long, default_value = "/dev/shm")]
    scratch: PathBuf,
    /// The directory for the report; if it is not given, the report is only printed.
    #[arg(long)]
    output: Option<PathBuf>,
    /// The `cffs` binary; `place` is in the same directory.
    #[arg(long, default_value_os_t = find_cffs())]
    cffs: PathBuf,
}

impl WebArguments {
    pub fn run(self) -> Result<()> {
        if !rustix::process::geteuid().is_root() {
            bail!("this mounts volumes and limits memory, which only root may do");
        }
        let (pages, visits, memory) = match self.quick {
            true => (400, 150, vec![8 << 20, 16 << 20]),
            false => (2_000, 1_000, vec![8 << 20, 16 << 20, 32 << 20, 64 << 20]),
        };
        let plan = Plan {
            extent: Extent { pages, visits, seed: self.seed },
            memory,
            profile: self.profile,
            scratch: self.scratch,
            cffs: self.cffs,
        };
        let report = Report::new(&plan, plan.run(&*interrupt()?)?);
        println!("{}", report.markdown());
        if let Some(directory) = self.output {
            report.write(&directory)?;
            println!("written to {}", directory.display());
        }
        Ok(())
    }
}
