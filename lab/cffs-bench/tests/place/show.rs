//! The predictions of `place show`, compared with a disk's counts.

use cffs_place::predict::{Requests, predict};
use cffs_place::tree;

use crate::trees::{PEERS, Tree, cold_reads, read_plainly, turn, volume};

#[test]
fn a_cold_read_takes_what_is_predicted_within_a_tenth() {
    let _turn = turn();
    let mut wrong = Vec::new();
    for peer in PEERS {
        for kind in [Tree::Fresh, Tree::Interleaved, Tree::Aged, Tree::OneOfMany] {
            let Some(mut volume) = volume(peer) else { return };
            let root = kind.make(&volume);
            let known = cffs_place::volume::Volume::of(&root).expect("known");
            let (directories, unseen) = tree::walk(&root, true, |_| {}).expect("walk");
            assert!(unseen.is_empty(), "{unseen:?}");
            let findings = predict(&known, &directories);
            let none = Requests::default();
            let requests = findings.iter().fold(none, |sum, found| sum.plus(&found.requests));
            let counted = cold_reads(&mut volume, |_| read_plainly(&root));
            let off = requests.total().abs_diff(counted) as f64 / counted as f64;
            let line =
                format!("{peer} {kind:?}: {counted} counted, {} {requests:?}", requests.total());
            println!("{line}");
            if off > 0.1 {
                wrong.push(line);
            }
            volume.dismantle().expect("dismantle");
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
