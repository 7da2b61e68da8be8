//! `cffs-bench questions`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

use cffs_bench::peer::find_cffs;
use cffs_bench::questions::{Plan, Question, document};
use cffs_bench::workload::catalog::Scale;

#[derive(Args)]
#[command(after_help = "Example: cffs-bench questions --only groups-aged --quick")]
pub struct QuestionsArguments {
    /// Small sizes, for a first answer.
    #[arg(long)]
    quick: bool,
    /// The questions; all if none is named.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Question>,
    /// Where randomness starts.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directories of this machine whose files are counted.
    #[arg(long, value_delimiter = ',', default_value = "/usr,/etc")]
    trees: Vec<PathBuf>,
    /// Where this machine's configuration files are.
    #[arg(long, default_value = "/etc")]
    configuration: PathBuf,
    /// The `cffs` binary.
    #[arg(long, default_value_os_t = find_cffs())]
    cffs: PathBuf,
    /// The directory for questions.md and its charts, of all questions; only printed if not given.
    #[arg(long, conflicts_with = "only")]
    output: Option<PathBuf>,
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
        let is_asked = |question: &Question| self.only.is_empty() || self.only.contains(question);
        let mut answers = Vec::new();
        for &question in Question::all().iter().filter(|question| is_asked(question)) {
            eprintln!("questions: {} (seed {})", question.name(), self.seed);
            let findings = question.ask(&plan).with_context(|| question.name())?;
            answers.push((question, findings));
        }
        match self.output {
            Some(directory) => {
                document::write(&plan, &answers, &directory)?;
                println!("written to {}", directory.join("questions.md").display());
            }
            None => print!("{}", document::markdown(&plan, &answers)),
        }
        Ok(())
    }
}
