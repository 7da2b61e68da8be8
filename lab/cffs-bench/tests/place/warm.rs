//! The savings of reading in device order without packing.

use std::fs;
use std::path::Path;

use cffs_bench::peer::{Peer, Volume};
use cffs_bench::workload::Site;
use cffs_bench::workload::random::Random;
use cffs_place::warm;

use crate::trees::{cold_reads, grown_together, interleaved, turn, volume};

/// Files of all directories of a tree in random order, as a training job or a web server reads them. The
/// remaining time is little more than the disk needs to stream their region. The disk keeps rotating while a
/// reader waits for the processor, so a loaded machine saves less than docs/PLACE.md says.
fn saved(volume: &mut Volume, root: &Path) -> f64 {
    let mut random = Random::new(11);
    let set: Vec<_> = (0..2000)
        .map(|_| (random.below(11), random.below(1000)))
        .map(|(directory, file)| root.join(format!("d{directory}/f{file:04}")))
        .collect();
    let mut busy = |is_warm: bool| {
        volume.set_free(false);
        let before = volume.counters().expect("counters");
        let reads = cold_reads(volume, |_| {
            if is_warm {
                let (files, _) = warm::files_below(&set).expect("files");
                warm::warm(files, u64::MAX, || {});
            }
            set.iter().for_each(|path| drop(fs::read(path).expect("read")));
        });
        let busy_ms = volume.counters().expect("counters").since(&before).busy_ns / 1_000_000;
        volume.set_free(true);
        println!("warm: {is_warm}: {reads} requests, busy for {busy_ms} ms");
        busy_ms as f64
    };
    let (plain, ordered) = (busy(false), busy(true));
    let saved = plain / ordered;
    println!("a part of 1 in {saved:.1}");
    saved
}

#[test]
fn a_set_across_directories_takes_a_fraction_of_the_busy_time() {
    let _turn = turn();
    let Some(mut volume) = volume(Peer::Ext4) else { return };
    let root = interleaved(&volume, 1000, 11);
    assert!(saved(&mut volume, &root) >= 4.0);
    volume.dismantle().expect("dismantle");
}

/// Smaller files occupy a smaller region, which is streamed in less time.
#[test]
fn a_set_across_directories_of_files_of_8_kib_takes_less_of_it() {
    let _turn = turn();
    let Some(mut volume) = volume(Peer::Ext4) else { return };
    let root = grown_together(&volume, 1000, 11, |_, _| 8192);
    assert!(saved(&mut volume, &root) >= 4.0);
    volume.dismantle().expect("dismantle");
}
