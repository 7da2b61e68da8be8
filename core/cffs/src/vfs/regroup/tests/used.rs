//! Files that are read together come together, without a list.

use super::keyed::{hint, key_of};
use super::*;
use crate::inode::keys;
use crate::trace::set_process;

/// Documents have a part in each directory, and a directory is longer than the gaps that are read.
const PARTS: usize = 8;
const DOCUMENTS: usize = 150;

fn opened(device: &Device, observe: bool) -> Files {
    let options = OpenOptions { observe, ..OpenOptions::default() };
    let opened = crate::open(device.clone(), Arc::new(TestClock::default()), options);
    Files::new(Arc::new(opened.expect("it opens")))
}

fn part(document: usize, part: usize) -> String {
    format!("/d{part}/f{document:03}")
}

/// A volume with documents, each of whose parts is elsewhere.
fn documents() -> Device {
    let device = made(256 << 20, &MkfsOptions::default());
    let files = opened(&device, false);
    for at in 0..PARTS {
        files.make_dir(format!("/d{at}")).expect("made");
        for document in 0..DOCUMENTS {
            files.write(part(document, at), &[document as u8; 14_000]).expect("written");
        }
        files.volume().sync().expect("durable");
    }
    files.close().expect("closed");
    device
}

/// Reads all documents a few times, by four processes in turns, each document in another order of documents.
fn read_documents(files: &Files) {
    for round in 0..4 {
        for first in (0..DOCUMENTS).step_by(4) {
            for at in 0..PARTS {
                for process in 0..4.min(DOCUMENTS - first) {
                    let document = (first + process) * [1, 7, 11, 13][round] % DOCUMENTS;
                    set_process(process as u32 + 1);
                    files.read(part(document, at)).expect("read");
                }
            }
        }
    }
    set_process(0);
}

fn regroup_used(files: &Files) -> RegroupProgress {
    let go_on = &mut |_: &RegroupProgress| ControlFlow::Continue(());
    files.volume().regroup(Scattered::Used, &MOVE, go_on).expect("regrouped")
}

/// The requests and bytes for reading some documents, each from a cold cache, without those for finding them.
fn cost(device: &Device) -> (u64, u64) {
    let (mut requests, mut bytes) = (0, 0);
    for document in (0..DOCUMENTS).step_by(15) {
        let files = opened(device, false);
        let found: Vec<_> =
            (0..PARTS).map(|at| files.open(part(document, at)).expect("opened")).collect();
        let before = device.counts();
        for file in &found {
            assert_eq!(file.contents().expect("read"), [document as u8; 14_000]);
        }
        let made = device.counts() - before;
        (requests, bytes) = (requests + made.reads, bytes + made.read_bytes);
    }
    (requests, bytes)
}

#[test]
fn files_that_were_observed_to_be_read_together_are_moved_together_and_stay() {
    let device = documents();
    let before = cost(&device);
    let files = opened(&device, true);
    let seen = contents(&files);
    read_documents(&files);
    let first = regroup_used(&files);
    assert_eq!(first.moved_files, (DOCUMENTS * PARTS) as u64, "{first:?}");
    assert!(contents(&files) == seen, "what a user sees has changed");
    assert_eq!(regroup_used(&files).moved_files, 0);
    // A chain is a document, perhaps with its neighbours.
    let key = |document, at| key_of(&files, &part(document, at));
    for document in 0..DOCUMENTS {
        assert!(keys::is_learned(key(document, 0)));
        assert!((1..PARTS).all(|at| key(document, at) == key(document, 0)), "document {document}");
    }
    files.close().expect("closed");
    assert_clean(&device);
    let after = cost(&device);
    println!("{before:?} requests and bytes before, {after:?} after");
    assert!(after.0 * 3 <= before.0, "{before:?} requests and bytes before, {after:?} after");

    let files = opened(&device, false);
    let tree = regroup(files.volume());
    assert_eq!(tree.moved_files, 0, "a pass over the tree leaves them where they are: {tree:?}");
    files.close().expect("closed");
}

#[test]
fn readers_in_the_order_of_directories_and_what_is_not_observed_move_nothing() {
    let device = documents();
    let files = opened(&device, true);
    for _ in 0..4 {
        for at in 0..PARTS {
            for document in 0..DOCUMENTS {
                files.read(part(document, at)).expect("read");
            }
        }
    }
    let done = regroup_used(&files);
    assert_eq!(done.moved_files, 0, "{done:?}");
    assert!(done.files < 10, "only where the reader begins again: {done:?}");
    files.close().expect("closed");

    let files = opened(&device, false);
    read_documents(&files);
    assert!(files.volume().used.is_none(), "nothing is kept");
    let go_on = &mut |_: &RegroupProgress| ControlFlow::Continue(());
    let refused = files.volume().regroup(Scattered::Used, &MOVE, go_on);
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    files.close().expect("closed");
}

#[test]
fn a_hint_wins_over_what_is_observed() {
    let device = documents();
    let files = opened(&device, true);
    (0..DOCUMENTS).for_each(|document| hint(&files, &part(document, 0), String::from("pages")));
    read_documents(&files);
    // A hint that is set after the reads wins, too.
    (0..DOCUMENTS).for_each(|document| hint(&files, &part(document, 7), String::from("last")));
    let hinted = [0, 7].map(|at| key_of(&files, &part(3, at)));
    let places = || [0, 7].map(|at| places_of(&files, 3, at));
    let before = places();
    assert_eq!(regroup_used(&files).moved_files, (DOCUMENTS * (PARTS - 2)) as u64);
    assert_eq!([0, 7].map(|at| key_of(&files, &part(3, at))), hinted);
    assert_eq!(places(), before);
    files.close().expect("closed");
    assert_clean(&device);
}

fn places_of(files: &Files, document: usize, at: usize) -> Vec<std::ops::Range<u64>> {
    let ino = files.stat(part(document, at)).expect("found").ino;
    files.volume().admin().places(ino).expect("placed")
}

#[test]
fn an_idle_volume_moves_what_was_read_together_and_then_rests() {
    let device = documents();
    let files = opened(&device, true);
    read_documents(&files);
    let mut idle = IdleRegrouping::new(Duration::ZERO);
    let mut run = |watch: &mut dyn FnMut(&RegroupProgress) -> ControlFlow<()>| {
        idle.run(files.volume(), watch).expect("regrouped")
    };
    assert_eq!(run(&mut |_| ControlFlow::Break(())), None, "it may not begin");
    let mut has_begun = false;
    let ended = run(&mut |_| match std::mem::replace(&mut has_begun, true) {
        false => ControlFlow::Continue(()),
        true => ControlFlow::Break(()),
    });
    assert_eq!(ended.map(|done| done.moved_files), Some(0));
    let go_on = &mut |_: &RegroupProgress| ControlFlow::Continue(());
    let moved = run(go_on).map(|done| done.moved_files);
    assert_eq!(moved, Some((DOCUMENTS * PARTS) as u64), "it goes on where it was ended");
    let tree = run(go_on).expect("the tree");
    assert_eq!((tree.moved_files, tree.directories), (0, PARTS as u64 + 1));
    assert_eq!(run(go_on), None, "nothing has changed");
    files.read(part(0, 0)).expect("read");
    assert_eq!(run(go_on), None, "nothing new was found");
    files.close().expect("closed");
}
