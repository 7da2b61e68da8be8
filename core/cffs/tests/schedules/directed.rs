//! Workloads of two threads for rules that the common work rarely needs.

use cffs::lock::Rule;
use cffs::lock::schedule::{self, Body};
use cffs::units::InodeNo;
use cffs::vfs::{Caller, Marks, NewKind, OpenOptions, RenameMode, Volume, XattrMode};

use crate::files::{allow_races, is_uniform};
use crate::volumes::{Opening, open, starts};
use crate::work::{self, Work};

/// Longer than the pieces in which data is appended.
const APPEND_BYTES: usize = (1 << 20) + 1000;
const APPENDS: usize = 2;
const RENAMES: usize = 8;
const LOOKUPS: usize = 12;
const MARKS: usize = 2;
const BLOCK: [u8; 4096] = [1; 4096];
/// More blocks than a nearly full volume has.
const BLOCKS: u64 = 20;
const ATTRIBUTES: usize = 4;
/// More than a block.
const ATTRIBUTE_BYTES: usize = 5000;

/// A workload: runs the schedule of a seed, with a rule broken if one is given.
pub type Directed = fn(u64, Option<Rule>) -> Result<(), String>;

/// Each workload, with the rule that it needs.
pub const ALL: [(Rule, Directed); 4] = [
    (Rule::DirectoryHeld, rename_and_look_up),
    (Rule::AppendsTogether, append),
    (Rule::MarksInTurn, mark),
    (Rule::PromiseHeld, fill),
];

fn two<'a>(one: impl FnOnce() + Send + 'a, other: impl FnOnce() + Send + 'a) -> Vec<Body<'a>> {
    vec![Box::new(one), Box::new(other)]
}

fn start(options: OpenOptions) -> Volume {
    open(&starts(Work::Plain)[0].device(), options)
}

fn make(volume: &Volume, name: &[u8]) -> InodeNo {
    let new = work::new(NewKind::Regular);
    volume.make(&Caller::ROOT, InodeNo::ROOT, name, &new).expect("made").ino
}

/// One thread renames a file forth and back, and looks up the name that it no longer has. The other looks up
/// both names.
fn rename_and_look_up(seed: u64, broken: Option<Rule>) -> Result<(), String> {
    let volume = start(Opening::default().options());
    let (dir, names) = (InodeNo::ROOT, [b"0", b"1"]);
    // The reference keeps the file in memory.
    make(&volume, names[0]);
    let rename = || {
        for step in 0..RENAMES {
            let (from, to) = (names[step % 2], names[(step + 1) % 2]);
            let gone = volume.lookup(dir, to).is_err();
            assert!(gone, "a name that is gone is found");
            let mode = RenameMode::NoReplace;
            volume.rename(&Caller::ROOT, dir, from, dir, to, mode).expect("renamed");
        }
    };
    let look_up = || {
        for step in 0..LOOKUPS {
            if let Some(found) = allow_races(volume.lookup(dir, names[step % 2])) {
                volume.release(found.ino, 1);
            }
        }
    };
    schedule::run(seed, broken, two(rename, look_up)).map(drop)
}

/// Both threads append to one file.
fn append(seed: u64, broken: Option<Rule>) -> Result<(), String> {
    // No epoch is needed.
    let volume = start(OpenOptions { dirty_bytes_max: 64 << 20, ..Opening::default().options() });
    let file = make(&volume, b"log");
    let append = |fill: u8| {
        let volume = &volume;
        move || {
            let piece = vec![fill; APPEND_BYTES];
            for _ in 0..APPENDS {
                let (written, _) = volume.append(&Caller::ROOT, file, &piece).expect("appended");
                assert_eq!(written, APPEND_BYTES);
            }
        }
    };
    schedule::run(seed, broken, two(append(1), append(2)))?;
    let mut bytes = vec![0; 2 * APPENDS * APPEND_BYTES + 1];
    let len = volume.read(file, 0, &mut bytes).expect("read");
    let are_whole = bytes[..len].chunks(APPEND_BYTES).all(is_uniform);
    match len == bytes.len() - 1 && are_whole {
        true => Ok(()),
        false => Err("pieces of two appends are mixed".into()),
    }
}

/// Both threads set and remove a mark of the same name.
fn mark(seed: u64, broken: Option<Rule>) -> Result<(), String> {
    let volume = start(Opening::default().options());
    let marks = Marks::of(&volume);
    let mark = || {
        for _ in 0..MARKS {
            allow_races(marks.set("one"));
            allow_races(marks.remove("one"));
        }
        allow_races(marks.set("one"));
    };
    schedule::run(seed, broken, two(mark, mark))?;
    match marks.list().expect("listed").iter().all(|mark| mark.count.is_some()) {
        true => Ok(()),
        false => Err("a mark has a count that the volume has not given".into()),
    }
}

/// On a nearly full volume, one thread writes contents, and the other one attributes that need several
/// blocks. The epoch finds space for all that was accepted.
fn fill(seed: u64, broken: Option<Rule>) -> Result<(), String> {
    let full = starts(Work::Plain).iter().find(|start| start.is_full).expect("a kind is full");
    let options = OpenOptions { dirty_bytes_max: 64 << 20, ..Opening::default().options() };
    let volume = open(&full.device(), options);
    let (contents, attributes) = (make(&volume, b"contents"), make(&volume, b"attributes"));
    let write = || {
        for block in 0..BLOCKS {
            let at = block * BLOCK.len() as u64;
            allow_races(volume.write(&Caller::ROOT, contents, at, &BLOCK));
        }
    };
    let set = || {
        for number in 0..ATTRIBUTES {
            let (name, value) = (format!("user.{number}"), [1; ATTRIBUTE_BYTES]);
            let name = name.as_bytes();
            allow_races(volume.set_xattr(&Caller::ROOT, attributes, name, &value, XattrMode::Any));
        }
    };
    schedule::run(seed, broken, two(write, set))?;
    volume.sync().map_err(|error| error.to_string())
}
