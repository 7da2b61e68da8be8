//! `cffs-bench questions`.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use cffs_bench::peer::find_cffs;
use cffs_bench::questions::{Plan, Question};
use cffs_bench::workload::catalog::Scale;

#[derive(Args)]
#[command(after_help = "Example: cffs-bench questions --only groups-aged --quick")]
pub struct QuestionsArguments {
    /// Small sizes, for first results.
    #[arg(long)]
    quick: bool,
    /// The questions; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Question>,
    /// The seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directories of this machine whose files are counted.
    #[arg(long, value_delimiter = ',', default_value = "/usr,/etc")]
    trees: Vec<PathBuf>,
    /// The directory of this machine's configuration files.
    #[arg(long, default_value = "/etc")]
    configuration: PathBuf,
    /// The `cffs` binary.
    #[arg(long, default_value_os_t = find_cffs())]
    cffs: PathBuf,
}

impl QuestionsArguments {
    pub fn run(self) -> Result<()> {
        let scale = if self.quick { Scale::Quick } else { Scale::Full };
        let plan = Plan {
            scale,
            seed: self.seed,
            trees: self.trees,
            configuration: self.configuration,
            cffs: self.cffs,
        };
        plan.check()?;
        let asked = if self.only.is_empty() { Question::value_variants() } else { &self.only };
        let mut faults = Vec::new();
        for question in asked {
            let name = question.name();
            println!("## {name}\n");
            let tables = question.ask(&plan).unwrap_or_else(|error| {
                faults.push(format!("{name} was not measured: {error:#}"));
                Vec::new()
            });
            for table in tables {
                println!("{table}");
            }
        }
        ensure!(faults.is_empty(), "{}", faults.join("\n"));
        Ok(())
    }
}
