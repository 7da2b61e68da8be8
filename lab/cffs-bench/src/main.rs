//! `cffs-bench`: the emulated disk, one workload, or the whole comparison.

mod cli;

use clap::Parser;

fn main() -> anyhow::Result<()> {
    cli::Arguments::parse().run()
}
