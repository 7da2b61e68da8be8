//! Walks of programs.

use cffs::wire::{Found, Handle, Kind, LISTED_BYTES, Query, Reply, Request, Step};

use super::requests::Program;
use super::*;

const WALK: Handle = Handle(7);

fn descend(dir: Handle) -> Request {
    Request::Query(Query::Descend { dir, result: WALK })
}

fn go_on() -> Request {
    Request::Query(Query::Continue { walk: WALK })
}

/// Everything below the root, as text: `depth name`, or `depth !` for a directory that cannot be read. And
/// the number of answers, of which there may be more if the walk is slow.
fn walk(program: &Program) -> (Vec<String>, usize) {
    assert_eq!(program.ask(&descend(Handle::ROOT)), Reply::Done);
    let (mut all, mut answers) = (Vec::new(), 0);
    loop {
        let Reply::Steps(steps, is_end) = program.ask(&go_on()) else { panic!("no steps") };
        answers += 1;
        all.extend(steps.into_iter().map(|Step { depth, found }| match found {
            Found::Entry { name, .. } => format!("{depth} {}", String::from_utf8_lossy(&name)),
            Found::Fault(fault) => {
                assert!(matches!(Error::from(fault), Error::AccessDenied));
                format!("{depth} !")
            }
        }));
        if is_end {
            assert!(matches!(program.fails(&go_on()), Error::Stale), "the walk has ended");
            return (all, answers);
        }
    }
}

#[test]
fn a_walk_finds_everything_that_its_program_may_list() {
    let volume = volume();
    let sessions = sessions(&volume);
    let [a, b, closed] = [("a", 0o755), ("b", 0o755), ("closed", 0o751)]
        .map(|(name, permissions)| make_dir(&volume, InodeNo::ROOT, name, permissions));
    let deep = make_dir(&volume, a, "deep", 0o755);
    let hidden = make_file(&volume, closed, "hidden");
    for (dir, name) in [(a, "1"), (deep, "2"), (b, "3"), (InodeNo::ROOT, "last")] {
        make_file(&volume, dir, name);
    }
    make(&volume, b, "link", &new(NewKind::Symlink(b"../a"), 0o777, user_id()));
    let program = Program::new(&sessions, Privileges::default());
    let expected =
        ["1 a", "2 deep", "3 2", "2 1", "1 b", "2 3", "2 link", "1 closed", "1 !", "1 last"];
    assert_eq!(walk(&program).0, expected);
    let known = [a, b, closed, deep, hidden];
    assert!(!known.into_iter().any(|ino| volume.is_referenced(ino, 0)), "no reference is left");
    program.made(Handle::ROOT, "a file", Kind::Regular, Handle(3));
    assert!(matches!(program.fails(&descend(Handle(3))), Error::NotDirectory));
    assert!(matches!(program.fails(&descend(Handle(4))), Error::Stale));
    sessions.end().expect("ended");
}

#[test]
fn a_walk_continues_after_each_answer() {
    const FILES: usize = 600;
    let volume = volume();
    let sessions = sessions(&volume);
    let mut expected = Vec::new();
    for number in 0..3 {
        let name = format!("directory {number}");
        let dir = make_dir(&volume, InodeNo::ROOT, &name, 0o755);
        expected.push(format!("1 {name}"));
        for file in 0..FILES {
            make_file(&volume, dir, &format!("{file}"));
            expected.push(format!("2 {file}"));
        }
    }
    let program = Program::new(&sessions, Privileges::default());
    let (found, answers) = walk(&program);
    assert_eq!(found, expected);
    assert!(answers >= 3 * FILES * cffs::wire::ENTRY_BYTES / LISTED_BYTES, "{answers} answers");
    sessions.end().expect("ended");
}

#[test]
fn a_walk_that_is_given_up_keeps_no_directory() {
    let volume = volume();
    let sessions = sessions(&volume);
    let dir = make_dir(&volume, InodeNo::ROOT, "dir", 0o755);
    for file in 0..600 {
        make_file(&volume, dir, &format!("{file}"));
    }
    let program = Program::new(&sessions, Privileges::default());
    let is_kept = || volume.is_referenced(dir, 0);
    let begin = || {
        assert_eq!(program.ask(&descend(Handle::ROOT)), Reply::Done);
        assert!(matches!(program.ask(&go_on()), Reply::Steps(_, false)));
        assert!(is_kept(), "the walk is in this directory");
    };
    begin();
    (&program.stream).write_all(&Request::Forget { node: WALK }.encode()).expect("sent");
    assert!(matches!(program.fails(&go_on()), Error::Stale));
    assert!(!is_kept());
    begin();
    // Another walk gets the same handle.
    assert_eq!(program.ask(&descend(Handle::ROOT)), Reply::Done);
    assert!(!is_kept());
    begin();
    sessions.end().expect("ended");
    assert!(!is_kept(), "the session has ended");
}
