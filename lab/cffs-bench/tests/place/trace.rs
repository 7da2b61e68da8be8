//! `place trace`: the order in which files are opened, and packing in that order.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::PathBuf;

use cffs_bench::peer::Peer;
use cffs_bench::workload::Site;
use cffs_bench::workload::random::Random;
use cffs_place::pack::{Options, pack};
use cffs_place::predict::Layout;
use cffs_place::trace::trace;
use cffs_place::tree::FileEntry;

use crate::trees::{interleaved, turn, volume};

fn traced(command: &[&str]) -> Vec<PathBuf> {
    let command: Vec<OsString> = command.iter().map(OsString::from).collect();
    let mut paths = Vec::new();
    let (status, seen) = trace(&command, |path| {
        paths.push(path.to_owned());
        Ok(())
    })
    .expect("trace");
    assert!(status.success() && !seen.overflowed, "{status} {seen:?}");
    assert_eq!(seen.files as usize, paths.len());
    paths
}

#[test]
fn a_hundred_thousand_opens_are_seen_in_order() {
    let _turn = turn();
    let Some(volume) = volume(Peer::Xfs) else { return };
    const OPENS: usize = 100_000;
    let root = volume.root();
    let paths: Vec<PathBuf> =
        (0..OPENS).map(|i| root.join(format!("d{:02}/f{i:06}", i * 7 % 50))).collect();
    for directory in 0..50 {
        fs::create_dir(root.join(format!("d{directory:02}"))).expect("a directory");
    }
    paths.iter().for_each(|path| drop(File::create(path).expect("a file")));
    let list = root.join("list");
    let lines: Vec<&str> = paths.iter().map(|path| path.to_str().expect("UTF-8")).collect();
    fs::write(&list, lines.join("\n")).expect("the list");
    let command = format!("xargs cat <{} >/dev/null", list.display());
    let seen = traced(&["sh", "-c", &command]);
    // The programs and their libraries may also be on such a file system.
    let ours: Vec<&PathBuf> = seen.iter().filter(|path| path.starts_with(root)).collect();
    assert_eq!(ours[0], &list);
    assert!(ours[1..].iter().copied().eq(&paths), "{} of {OPENS} opens seen", ours.len() - 1);
    volume.dismantle().expect("dismantle");
}

#[test]
fn files_that_other_programs_open_are_not_seen() {
    let _turn = turn();
    let Some(volume) = volume(Peer::Ext4) else { return };
    let [ours, theirs] = ["ours", "theirs"].map(|name| volume.root().join(name));
    fs::write(&ours, "ours").expect("write");
    fs::write(&theirs, "theirs").expect("write");
    let wait =
        format!("while [ ! -e {0}.go ]; do sleep 0.02; done; cat {0} >/dev/null", ours.display());
    let seen = std::thread::scope(|scope| {
        let tracing = scope.spawn(|| traced(&["sh", "-c", &wait]));
        for _ in 0..20 {
            let other = std::process::Command::new("cat").arg(&theirs).output().expect("cat");
            assert!(other.status.success());
        }
        fs::write(ours.with_extension("go"), "").expect("go");
        tracing.join().expect("tracing")
    });
    assert!(seen.contains(&ours) && !seen.contains(&theirs), "{seen:?}");
    volume.dismantle().expect("dismantle");
}

#[test]
fn the_files_of_a_trace_are_packed_in_its_order() {
    let _turn = turn();
    let Some(volume) = volume(Peer::Ext4) else { return };
    let root = interleaved(&volume, 60, 5);
    let mut random = Random::new(9);
    let mut set: Vec<String> =
        (0..300).map(|i| format!("{}/d{}/f{:04}", root.display(), i % 5, i / 5)).collect();
    random.shuffle(&mut set);
    set.truncate(200);
    let quiet_cat = ["sh", "-c", "exec cat \"$@\" >/dev/null", "cat"];
    let command: Vec<&str> = quiet_cat.into_iter().chain(set.iter().map(|path| &**path)).collect();
    let mut trace = traced(&command);
    trace.retain(|path| path.starts_with(&root));
    assert_eq!(trace, set.iter().map(PathBuf::from).collect::<Vec<_>>());
    let look = |path: &PathBuf| FileEntry::look(path.clone(), true).expect("look").expect("a file");
    let group: Vec<FileEntry> = trace.iter().map(look).collect();
    let known = cffs_place::volume::Volume::of(&root).expect("known");
    pack(&known, vec![group], &Options::default(), &|| {}, &|| false).expect("pack");
    let after: Vec<FileEntry> = trace.iter().map(look).collect();
    let layout = Layout::of(after.iter());
    assert_eq!((layout.runs, layout.adjacent), (1, 199), "{layout:?}");
    volume.dismantle().expect("dismantle");
}
