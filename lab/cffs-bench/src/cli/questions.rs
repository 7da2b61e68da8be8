//! `cffs-bench questions`.

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use cffs_bench::questions::{Plan, Question};

#[derive(Args)]
#[command(after_help = "Example: cffs-bench questions --only groups-aged --quick")]
pub struct QuestionsArguments {
    /// The questions; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Question>,
    #[command(flatten)]
    plan: Plan,
}

impl QuestionsArguments {
    pub fn run(self) -> Result<()> {
        self.plan.check()?;
        let asked = if self.only.is_empty() { Question::value_variants() } else { &self.only };
        let mut faults = Vec::new();
        for question in asked {
            let name = question.name();
            println!("## {name}\n");
            let tables = question.ask(&self.plan).unwrap_or_else(|error| {
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
