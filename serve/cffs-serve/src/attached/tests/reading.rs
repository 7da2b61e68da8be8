//! Requests of programs that read.

use cffs::wire::{Handle, Kind, Memory, Outcome, Query, Reply, Request};

use super::super::walk::Walk;
use super::requests::Program;
use super::*;

const FILE: Handle = Handle(2);
const ALL: Memory = Memory { offset: 0, len: 1 << 20 };

fn walk(path: &str) -> Request {
    let (dir, result) = (Handle::ROOT, FILE);
    Request::Query(Query::Walk { dir, path: path.into(), follow: true, result })
}

fn read(len: u32) -> Request {
    let contents = Memory { offset: 0, len };
    Request::Query(Query::Read { node: FILE, at: 0, contents })
}

fn many(program: &Program, paths: &[String]) -> Vec<(u16, Outcome)> {
    let paths = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
    let query = Query::ReadMany { dir: Handle::ROOT, paths, contents: ALL };
    match program.ask(&Request::Query(query)) {
        Reply::Many(outcomes) => outcomes,
        other => panic!("{other:?}"),
    }
}

fn set_mode(volume: &Volume, ino: InodeNo, permissions: u32) {
    let changes = SetAttr { permissions: Some(permissions), ..SetAttr::default() };
    volume.set_attr(ME, ino, &changes).expect("set");
}

#[test]
fn a_handle_that_has_read_may_continue_reading() {
    let volume = volume();
    let sessions = sessions(&volume);
    let file = make_file(&volume, InodeNo::ROOT, "file");
    volume.write(ME, file, 0, b"contents").expect("written");
    set_mode(&volume, file, 0o600);
    let program = Program::new(&sessions, Privileges::default());
    assert!(matches!(program.ask(&walk("file")), Reply::Attr(_)));
    assert!(matches!(program.fails(&read(100)), Error::AccessDenied));
    set_mode(&volume, file, 0o604);
    assert_eq!(program.ask(&read(100)), Reply::Count(8));
    set_mode(&volume, file, 0o600);
    assert_eq!(program.ask(&read(100)), Reply::Count(8), "as through a descriptor");
    assert!(matches!(program.ask(&walk("file")), Reply::Attr(_)), "another handle");
    assert!(matches!(program.fails(&read(100)), Error::AccessDenied));
    let outside = Memory { offset: ALL.len - 4, len: 8 };
    let beyond = Query::Read { node: FILE, at: 0, contents: outside };
    set_mode(&volume, file, 0o604);
    assert_eq!(cffs::vfs::errno(&program.fails(&Request::Query(beyond))), 22, "EINVAL");
    sessions.end().expect("ended");
}

#[test]
fn a_link_in_a_shared_directory_is_followed_as_the_kernel_can() {
    let volume = volume();
    let sessions = sessions(&volume);
    let file = make_file(&volume, InodeNo::ROOT, "file");
    volume.write(ME, file, 0, b"contents").expect("written");
    let shared = make_dir(&volume, InodeNo::ROOT, "shared", 0o1777);
    let mine = me(Privileges::default()).uid;
    let third = mine + 2000;
    for (name, uid) in [("mine", mine), ("directory's", user_id()), ("of a third", third)] {
        make(&volume, shared, name, &new(NewKind::Symlink(b"../file"), 0o777, uid));
        make(&volume, shared, &format!("{name} dir"), &new(NewKind::Symlink(b".."), 0o777, uid));
    }
    let program = Program::new(&sessions, Privileges::default());
    let is_followed = |path: &str| match program.ask(&walk(path)) {
        Reply::Attr(_) => true,
        Reply::Fault(fault) if matches!(Error::from(fault.clone()), Error::AccessDenied) => false,
        other => panic!("{other:?}"),
    };
    assert!(is_followed("shared/mine") && is_followed("shared/directory's"));
    assert!(!is_followed("shared/of a third") && !is_followed("shared/of a third dir/"));
    assert!(is_followed("shared/of a third dir/file"), "not at the end of the path");
    for mode in [0o777, 0o1775] {
        set_mode(&volume, shared, mode);
        assert!(is_followed("shared/of a third"), "{mode:o}");
    }
    sessions.end().expect("ended");
}

#[test]
fn a_request_for_many_files_is_bounded() {
    let volume = volume();
    let sessions = sessions(&volume);
    for name in ["a", "b", "c"] {
        let file = make_file(&volume, InodeNo::ROOT, name);
        volume.write(ME, file, 0, &vec![1; 400 << 10]).expect("written");
    }
    let large = make_file(&volume, InodeNo::ROOT, "large");
    volume.write(ME, large, 0, &vec![1; (1 << 20) + 1]).expect("written");
    make_dir(&volume, InodeNo::ROOT, "dir", 0o755);
    let program = Program::new(&sessions, Privileges::default());
    let paths =
        |names: &[&str]| -> Vec<String> { names.iter().map(|name| (*name).to_owned()).collect() };
    let mut outcomes = many(&program, &paths(&["large", "a", "missing", "b", "c"]));
    outcomes.sort_by_key(|(position, _)| *position);
    let [(0, Outcome::TooLarge), (1, first), (2, Outcome::Fault(_)), (3, second)] = &outcomes[..]
    else {
        panic!("{outcomes:?}");
    };
    let mut offsets = [first, second].map(|outcome| match outcome {
        Outcome::Contents(Memory { offset, len: 0x6_4000 }) => *offset,
        other => panic!("{other:?}"),
    });
    offsets.sort_unstable();
    assert_eq!(offsets, [0, 0x6_4000]);
    // Each name of a path is a step.
    let long = format!("{}a", "./".repeat(2000));
    let ways: Vec<String> = (0..15).map(|_| long.clone()).collect();
    let answered = many(&program, &ways).len();
    assert!((1..15).contains(&answered), "{answered} of paths with 2,000 names each");
    let missing: Vec<String> = (0..1024).map(|number| format!("missing {number}")).collect();
    assert_eq!(many(&program, &missing).len(), 1024, "short errors fit");
    assert!(many(&program, &[]).is_empty());
    assert!(!volume.is_referenced(large, 0), "no reference is left");
    sessions.end().expect("ended");
}

#[test]
fn a_listing_needs_the_rights_to_read_and_to_search() {
    let volume = volume();
    let sessions = sessions(&volume);
    let dir = make_dir(&volume, InodeNo::ROOT, "dir", 0o755);
    let inside = make_file(&volume, dir, "inside");
    let program = Program::new(&sessions, Privileges::default());
    assert!(matches!(program.ask(&walk("dir")), Reply::Attr(_)));
    let list = |cookie| Request::Query(Query::List { dir: FILE, cookie });
    let Reply::Entries(entries, true) = program.ask(&list(0)) else { panic!("not listed") };
    assert_eq!((&entries[0].name[..], entries[0].attr.ino), (&b"inside"[..], inside));
    let cookie = entries[0].cookie;
    assert_eq!(program.ask(&list(cookie)), Reply::Entries(Vec::new(), true));
    for mode in [0o751, 0o754, 0o750] {
        set_mode(&volume, dir, mode);
        assert!(matches!(program.fails(&list(0)), Error::AccessDenied), "{mode:o}");
    }
    assert!(!volume.is_referenced(inside, 0), "no reference is left");
    let made = program.made(Handle::ROOT, "no directory", Kind::Regular, Handle(3));
    assert!(made.nlink == 1);
    let wrong = Query::List { dir: Handle(3), cookie: 0 };
    assert!(matches!(program.fails(&Request::Query(wrong)), Error::NotDirectory));
    sessions.end().expect("ended");
}

#[test]
fn a_ticket_to_read_gives_no_right_to_change() {
    let volume = volume();
    let sessions = sessions(&volume);
    let file = make_file(&volume, InodeNo::ROOT, "file");
    volume.write(ME, file, 0, b"contents").expect("written");
    let user = me(Privileges::ALL);
    let ticket = |number| {
        let asking = Asking { access: Access::ReadOnly, ..user.clone().into() };
        let asked = sessions.ask_to_read(InodeNo::ROOT, number, user.uid, || Ok(asking));
        match Invitation::decode(&asked.expect("asked")) {
            Ok(Invitation::Ticket { socket, ticket }) => (socket, ticket),
            other => panic!("{other:?}"),
        }
    };
    let program = Program::attached(ticket(5));
    assert!(!sessions.sharing.is_on(), "the kernel may go on caching");
    let change = Request::Unlink { dir: Handle::ROOT, name: b"file".to_vec() };
    assert!(matches!(program.fails(&change), Error::ReadOnly));
    // Asking with its number, at another mount that is writable, changes nothing.
    sessions.ask(InodeNo::ROOT, 5, user.uid, || Ok(user.clone().into())).expect("asked");
    assert!(matches!(program.fails(&change), Error::ReadOnly));
    assert!(matches!(program.ask(&walk("file")), Reply::Attr(_)));
    assert_eq!(program.ask(&read(100)), Reply::Count(8));
    let (socket, ticket) = ticket(6);
    let removed = ask(&greeted(&socket), &remove_call(ticket, "file")).0;
    assert!(matches!(removed, Some(Answer::Refused(_))), "{removed:?}");
    assert!(is_there(&volume, InodeNo::ROOT, "file"));
    drop(program);
    sessions.end().expect("ended");
}

#[test]
fn a_path_continues_at_the_directories_of_the_one_before() {
    let volume = volume();
    let [a, b] = ["a", "b"].map(|name| make_dir(&volume, InodeNo::ROOT, name, 0o755));
    let deep = make_dir(&volume, a, "deep", 0o755);
    for (dir, name) in [(deep, "1"), (deep, "2"), (a, "3"), (b, "1")] {
        make_file(&volume, dir, name);
    }
    for (name, target) in [("link", &b"deep"[..]), ("up", b"../b"), ("away", b"/b")] {
        make(&volume, a, name, &new(NewKind::Symlink(target), 0o777, user_id()));
    }
    let paths = [
        "a/deep/1",
        "a/deep/2",
        "a/3",
        "a/deep/1",
        "a//deep/2/",
        "a/deep",
        "a/deep/",
        "a/link/1",
        "a/link/2",
        "a/deep/../3",
        "a/deep/1",
        "a/./deep/1",
        "a/deep/./1",
        "a/up/1",
        "a/up/2",
        "a/away/1",
        "a/deep/1/x",
        "a/deep/1",
        "a/missing/1",
        "a/deep/2",
        "b/1",
        "",
        "/",
        "..",
        "a",
        "../a/deep/1",
        "a/deep/1",
    ];
    let user = user();
    let mut together = Walk::new(&volume, &user);
    for path in paths {
        let found = |walk: &mut Walk<'_>| {
            let found = walk.find(InodeNo::ROOT, path.as_bytes(), true);
            found.map(|found| found.attr.ino).map_err(|error| error.to_string())
        };
        assert_eq!(found(&mut together), found(&mut Walk::new(&volume, &user)), "{path}");
    }
    drop(together);
    let is_referenced = [a, b, deep].into_iter().any(|dir| volume.is_referenced(dir, 0));
    assert!(!is_referenced, "no reference is kept");

    let mut walk = Walk::new(&volume, &user);
    let mut find = |path: &str| {
        let found = walk.find(InodeNo::ROOT, path.as_bytes(), true).map(drop);
        (found, walk.steps())
    };
    assert!(matches!(find("a/deep/1"), (Ok(()), 3)));
    assert!(matches!(find("a/deep/2"), (Ok(()), 4)), "one name was looked up");
    set_mode(&volume, deep, 0o077);
    assert!(matches!(find("a/deep/1"), (Err(Error::AccessDenied), _)), "as of openat(2)");
}
