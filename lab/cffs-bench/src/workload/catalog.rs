//! The workloads by name, each with its size in a full and in a quick run.

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::Session;
use super::aging::Churn;
use super::apps::Apps;
use super::database::{Database, Journal};
use super::delivery::Delivery;
use super::durable::Durable;
use super::hot::Hot;
use super::large_file::LargeFile;
use super::scan::FreshTree;
use super::small_file::SmallFile;
use crate::disk::Profile;

/// A workload with its size, as the command line and the reports name it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Create, read, overwrite, remove 10,000 files of 1 KiB.
    #[value(name = "small-1k")]
    #[serde(rename = "small-1k")]
    Small1k,
    /// The same with 4 KiB.
    #[value(name = "small-4k")]
    #[serde(rename = "small-4k")]
    Small4k,
    /// The same with 16 KiB.
    #[value(name = "small-16k")]
    #[serde(rename = "small-16k")]
    Small16k,
    /// The thesis's benchmark: 1,000 files of 4 KB in 10 directories.
    Thesis,
    /// Write, read, overwrite one large file.
    LargeFile,
    /// find, du and a cold scan of a tree that was written at once.
    FreshTree,
    /// find, du and a cold scan after churn at 80% full.
    AgedTree,
    /// The small-file benchmark on a volume that was aged at 50%.
    #[value(name = "aged-50")]
    #[serde(rename = "aged-50")]
    Aged50,
    /// The small-file benchmark on a volume that was aged at 70%.
    #[value(name = "aged-70")]
    #[serde(rename = "aged-70")]
    Aged70,
    /// The small-file benchmark on a volume that was aged at 90%.
    #[value(name = "aged-90")]
    #[serde(rename = "aged-90")]
    Aged90,
    /// 200-byte files, each made durable, one thread.
    DurableTiny,
    /// 4 KiB files, each made durable, one thread.
    #[value(name = "durable-4k-1")]
    #[serde(rename = "durable-4k-1")]
    Durable4k1,
    /// 4 KiB files, each made durable, eight threads.
    #[value(name = "durable-4k")]
    #[serde(rename = "durable-4k")]
    Durable4k,
    /// Transactions of SQLite with a rollback journal.
    SqliteRollback,
    /// Transactions of SQLite with a write-ahead log.
    SqliteWal,
    /// Messages that are written, made durable, renamed, and made durable again.
    Delivery,
    /// Unpack a source tree.
    Unpack,
    /// Unpack, search, copy, git status, build, rm -rf.
    Apps,
    /// Single operations on warm caches, one client.
    #[value(name = "hot-1")]
    #[serde(rename = "hot-1")]
    Hot1,
    /// The same with the client pinned to a core.
    #[value(name = "hot-1-pinned")]
    #[serde(rename = "hot-1-pinned")]
    Hot1Pinned,
    /// Single operations on warm caches, two clients.
    #[value(name = "hot-2")]
    #[serde(rename = "hot-2")]
    Hot2,
}

/// The scale of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scale {
    /// As in the papers and for the bars.
    Full,
    /// A fraction of that, for first results.
    Quick,
}

impl Workload {
    /// The workloads that have bars for a device.
    pub fn of_the_bars(profile: Profile) -> Vec<Workload> {
        match profile {
            Profile::St31200 | Profile::AtlasIi => {
                vec![Workload::Small1k, Workload::Thesis, Workload::LargeFile]
            }
            Profile::None => vec![Workload::Hot1, Workload::Hot1Pinned, Workload::Hot2],
            Profile::Net3000 => vec![Workload::Small4k, Workload::AgedTree, Workload::Apps],
            _ => vec![
                Workload::Small1k,
                Workload::Small4k,
                Workload::Small16k,
                Workload::AgedTree,
                Workload::FreshTree,
                Workload::DurableTiny,
                Workload::Durable4k,
                Workload::LargeFile,
                Workload::Apps,
            ],
        }
    }

    /// The workloads that show the gain of a journal, and those that show that it costs nothing elsewhere.
    pub const OF_THE_JOURNAL: [Workload; 8] = [
        Workload::Durable4k1,
        Workload::DurableTiny,
        Workload::Durable4k,
        Workload::SqliteRollback,
        Workload::SqliteWal,
        Workload::Delivery,
        Workload::Unpack,
        Workload::LargeFile,
    ];

    /// The name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
    }

    /// The size of a suitable volume in bytes.
    pub fn volume_size(self, scale: Scale) -> u64 {
        const MIB: u64 = 1 << 20;
        match (self, scale) {
            // USENIX'97 §4.3 aged a small partition to increase the effect; XFS needs 300 MiB.
            (Workload::Aged50 | Workload::Aged70 | Workload::Aged90, _) => 512 * MIB,
            (Workload::AgedTree, Scale::Quick) => 512 * MIB,
            (_, Scale::Full) => 2048 * MIB,
            (_, Scale::Quick) => 1024 * MIB,
        }
    }

    /// The operations on warm caches, with the clients of this workload.
    pub fn hot(self, scale: Scale, seed: u64) -> Hot {
        Hot {
            operations: if scale == Scale::Full { 40_000 } else { 10_000 },
            clients: if self == Workload::Hot2 { 2 } else { 1 },
            pinned: self == Workload::Hot1Pinned,
            seed,
        }
    }

    /// Whether the workload measures single operations on warm caches.
    pub fn is_hot(self) -> bool {
        matches!(self, Workload::Hot1 | Workload::Hot1Pinned | Workload::Hot2)
    }

    /// Whether the workload has bars over kernel file systems that the cost of FUSE limits. Its contents must
    /// fit into memory.
    pub fn has_fuse_limit(self) -> bool {
        Workload::of_the_bars(Profile::Hdd7200).contains(&self)
    }

    pub fn run(self, session: &mut Session, scale: Scale, seed: u64) -> Result<()> {
        let pick = |full: u64, quick: u64| if scale == Scale::Full { full } else { quick };
        let small = |size| SmallFile { files: pick(10_000, 2_000), size, seed };
        let churn = |full, then| Churn {
            full,
            operations: pick(60_000, 15_000),
            directories: 200,
            seed,
            then,
        };
        let aged = |full| {
            let operations = pick(100_000, 20_000);
            Churn { operations, ..churn(full, Some(small(1024))) }
        };
        let durable = |files, size, threads| Durable { files, size, threads, seed };
        match self {
            Workload::Small1k => small(1024).run(session),
            Workload::Small4k => small(4096).run(session),
            Workload::Small16k => small(16_384).run(session),
            Workload::Thesis => SmallFile { files: 1000, size: 4096, seed }.run(session),
            Workload::LargeFile => {
                LargeFile { bytes: pick(512 << 20, 128 << 20), seed }.run(session)
            }
            Workload::FreshTree => {
                FreshTree { files: pick(20_000, 4_000), directories: 200, seed }.run(session)
            }
            Workload::AgedTree => churn(0.8, None).run(session),
            Workload::Aged50 => aged(0.5).run(session),
            Workload::Aged70 => aged(0.7).run(session),
            Workload::Aged90 => aged(0.9).run(session),
            Workload::DurableTiny => durable(pick(400, 100), 200, 1).run(session),
            Workload::Durable4k1 => durable(pick(400, 100), 4096, 1).run(session),
            Workload::Durable4k => durable(pick(1_600, 400), 4096, 8).run(session),
            Workload::SqliteRollback | Workload::SqliteWal => {
                let journal = match self {
                    Workload::SqliteWal => Journal::Wal,
                    _ => Journal::Rollback,
                };
                let time_max = Duration::from_secs(pick(10, 3));
                Database { journal, transactions: 1_000, time_max, seed }.run(session)
            }
            Workload::Delivery => {
                let time_max = Duration::from_secs(pick(10, 3));
                Delivery { messages: 1_000, size: 4096, time_max, seed }.run(session)
            }
            Workload::Unpack => {
                Apps { files: pick(10_000, 2_000), compiled: 0, seed }.unpack(session)
            }
            Workload::Apps => {
                Apps { files: pick(20_000, 2_000), compiled: pick(200, 8), seed }.run(session)
            }
            Workload::Hot1 | Workload::Hot1Pinned | Workload::Hot2 => {
                self.hot(scale, seed).run(session)
            }
        }
    }
}
