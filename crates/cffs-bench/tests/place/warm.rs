//! What reading in the order of the device saves where nothing is packed.

use std::fs;

use cffs_bench::peer::Peer;
use cffs_bench::workload::Site;
use cffs_bench::workload::random::Random;
use cffs_place::warm;

use crate::trees::{cold_reads, interleaved, turn, volume};

/// Files of all directories of a tree, in no order: what a training job or a web server reads. What is left
/// is nearly the time in which the disk streams the region that they lie in: a twelfth on a machine that does
/// nothing else. The disk turns on while a reader waits for the processor, so a loaded one saves less.
#[test]
fn a_set_across_directories_takes_a_fraction_of_the_busy_time() {
    let _turn = turn();
    let Some(mut volume) = volume(Peer::Ext4) else { return };
    let root = interleaved(&volume, 1000, 11);
    let mut random = Random::new(11);
    let set: Vec<_> = (0..2000)
        .map(|_| root.join(format!("d{}/f{:04}", random.below(11), random.below(1000))))
        .collect();
    let mut busy = |is_warm: bool| {
        volume.set_free(false);
        let before = volume.counters().expect("counters");
        let reads = cold_reads(&mut volume, |_| {
            if is_warm {
                let (files, _) = warm::files_below(&set).expect("files");
                warm::warm(files, u64::MAX, || {});
            }
            set.iter().for_each(|path| drop(fs::read(path).expect("read")));
        });
        let busy_ms = volume.counters().expect("counters").since(&before).busy_ns / 1_000_000;
        volume.set_free(true);
        println!("warm: {is_warm}: {reads} requests, busy for {busy_ms} ms");
        busy_ms
    };
    let (plain, ordered) = (busy(false), busy(true));
    assert!(ordered * 4 <= plain, "{ordered} ms instead of {plain} ms");
    volume.dismantle().expect("dismantle");
}
