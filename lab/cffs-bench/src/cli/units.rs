//! `cffs-bench units`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use cffs_bench::units::{Codec, Contents};

#[derive(Args)]
#[command(after_help = "Example: cffs-bench units /usr/include")]
pub struct UnitsArguments {
    /// The sizes of units, in KiB.
    #[arg(long, value_delimiter = ',', default_value = "32,64,128,256")]
    kib: Vec<usize>,
    /// The codecs: `lz4`, or `zstd:LEVEL`.
    #[arg(long, value_delimiter = ',', default_value = "lz4,zstd:-5,zstd:1,zstd:3")]
    codecs: Vec<Codec>,
    /// The tree whose contents are compressed. They are kept in memory.
    tree: PathBuf,
}

impl UnitsArguments {
    pub fn run(self) -> Result<()> {
        let contents = Contents::of(&self.tree)?;
        let megabytes = contents.bytes as f64 / 1e6;
        println!("{} files, {megabytes:.1} MB\n", contents.files());
        println!(
            "| unit, KiB | codec | of the contents | compress, MB/s | expand, MB/s | ms per unit |"
        );
        println!("| ---: | --- | ---: | ---: | ---: | ---: |");
        for kib in self.kib {
            for codec in &self.codecs {
                let units = contents.measure(kib << 10, *codec)?;
                let part = units.stored_bytes as f64 / contents.bytes as f64;
                let compress = megabytes / units.compress_seconds;
                let expand = units.expanded_bytes as f64 / 1e6 / units.expand_seconds;
                let each = units.expand_seconds * 1e3 / units.expanded as f64;
                println!(
                    "| {kib} | {codec} | {part:.3} | {compress:.0} | {expand:.0} | {each:.3} |"
                );
            }
        }
        Ok(())
    }
}
