//! `cffs-bench units`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use cffs_bench::units::Contents;

#[derive(Args)]
#[command(after_help = "Example: cffs-bench units /usr/include")]
pub struct UnitsArguments {
    /// The sizes of units, in KiB.
    #[arg(long, value_delimiter = ',', default_value = "32,64,128,256")]
    kib: Vec<usize>,
    /// The levels of Zstandard.
    #[arg(long, value_delimiter = ',', default_value = "-5,1,3", allow_hyphen_values = true)]
    levels: Vec<i32>,
    /// The tree whose contents are compressed. They are kept in memory.
    tree: PathBuf,
}

impl UnitsArguments {
    pub fn run(self) -> Result<()> {
        let contents = Contents::of(&self.tree)?;
        let megabytes = contents.bytes as f64 / 1e6;
        println!("{} files, {megabytes:.1} MB\n", contents.files());
        println!(
            "| unit, KiB | level | of the contents | compress, MB/s | expand, MB/s | ms per unit |"
        );
        println!("| ---: | ---: | ---: | ---: | ---: | ---: |");
        for kib in self.kib {
            for level in &self.levels {
                let units = contents.measure(kib << 10, *level)?;
                let part = units.stored_bytes as f64 / contents.bytes as f64;
                let compress = megabytes / units.compress_seconds;
                let expand = units.expanded_bytes as f64 / 1e6 / units.expand_seconds;
                let each = units.expand_seconds * 1e3 / units.expanded as f64;
                println!(
                    "| {kib} | {level} | {part:.3} | {compress:.0} | {expand:.0} | {each:.3} |"
                );
            }
        }
        Ok(())
    }
}
