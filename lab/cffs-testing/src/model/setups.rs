//! The volumes of random runs: options for making and opening them, and the number of runs.

use cffs::format::superblock::{Compression, Policy};
use cffs::mkfs::MkfsOptions;
use cffs::tuning::LARGE_DIR_BYTES;
use cffs::vfs::OpenOptions;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use super::runner::Setup;

/// The requested number of cases, or the default.
pub fn config(cases: u32, regressions: &'static str) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig {
        cases: asked.unwrap_or(cases),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(regressions))),
        max_shrink_time: 60_000,
        ..ProptestConfig::default()
    }
}

fn mkfs_options() -> impl Strategy<Value = MkfsOptions> {
    let features = (any::<bool>(), any::<bool>(), prop_oneof![Just(512u16), Just(60), Just(3000)]);
    let policy = prop_oneof![
        Just(Policy::Directory),
        Just(Policy::Hint),
        Just(Policy::None),
        Just(Policy::Scattered),
        Just(Policy::Owner),
        Just(Policy::Time),
        Just(Policy::Process)
    ];
    let sector = prop_oneof![Just(512u32), Just(1024), Just(4096)];
    let fragment = prop_oneof![Just(512u32), Just(1024), Just(4096)];
    let segment = prop_oneof![Just(4096u32), Just(65_536), Just(1 << 20)];
    let groups = prop_oneof![Just(256u32), Just(1024), Just(32_768)];
    let compression = prop_oneof![
        Just(None),
        Just(Some(Compression::Off)),
        Just(Some(Compression::Zstd(1))),
        Just(Some(Compression::Zstd(3)))
    ];
    (features, policy, sector, fragment, segment, (groups, compression)).prop_map(
        |(features, policy, sector, fragment_bytes, segment_bytes, (cg, compression))| {
            let (embed, inline, inline_bytes_max) = features;
            MkfsOptions {
                embed,
                inline,
                inline_bytes_max,
                policy,
                sector_bytes: Some(sector),
                fragment_bytes,
                segment_bytes,
                cg_blocks: cg.max(segment_bytes / 4096),
                compression,
                uuid: Some([7; 16]),
                hash_seed: Some([9; 16]),
                ..MkfsOptions::default()
            }
        },
    )
}

fn open_options() -> impl Strategy<Value = OpenOptions> {
    let cache = prop_oneof![Just(64u64 << 10), Just(1 << 20), Just(64 << 20)];
    let dirty = prop_oneof![1 => Just(4096u64), 2 => Just(256 << 10), 3 => Just(64 << 20)];
    let leaves = prop_oneof![Just(0u64), Just(1 << 20)];
    let early = prop_oneof![Just(0u64), Just(1), Just(100 << 10)];
    let large = prop_oneof![Just(0u64), Just(LARGE_DIR_BYTES)];
    let all = (cache, dirty, leaves, early, large);
    all.prop_map(|(cache_bytes, dirty_bytes_max, fsync_leaves_bytes, early_bytes, large)| {
        OpenOptions {
            cache_bytes,
            dirty_bytes_max,
            fsync_leaves_bytes,
            early_bytes,
            large_dir_bytes: large,
            ..OpenOptions::default()
        }
    })
}

pub fn setup(device_bytes: impl Strategy<Value = u64>) -> impl Strategy<Value = Setup> {
    (mkfs_options(), open_options(), device_bytes).prop_map(|(mkfs, open, device_bytes)| Setup {
        mkfs,
        open,
        device_bytes,
    })
}
