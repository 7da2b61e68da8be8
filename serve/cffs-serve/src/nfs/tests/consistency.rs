//! Weak cache consistency: pre-operation attributes are those immediately before the change, and are omitted
//! if another change intervened. A client that receives them considers its older cached data valid.

use std::sync::OnceLock;

use cffs::units::InodeNo;
use cffs::vfs::Caller;
use cffs::vfs::types::{SetAttr, SetTime};

use super::durability::Counting;
use super::*;
use crate::shared::Change;

const ALL: &str = "/:insecure,no_root_squash";

/// Two directories; in the first one a file with two names, a file created EXCLUSIVE, and an empty directory.
struct Tree {
    d: nfs_fh3,
    e: nfs_fh3,
    file: nfs_fh3,
}

impl Tree {
    fn new(served: &Served, client: &mut Client) -> Tree {
        let root = served.root();
        let (d, e) = (mkdir(client, &root, "d", 0o755), mkdir(client, &root, "e", 0o755));
        let file = create(client, &d, "f", 0o644);
        ok(now(client.link(&LINK3args { file: file.clone(), link: at(&d, "g") })));
        write_stable(client, &file);
        ok(now(client.create(&CREATE3args { where_: at(&d, "x"), how: exclusive() })));
        mkdir(client, &d, "s", 0o755);
        Tree { d, e, file }
    }
}

fn exclusive() -> createhow3 {
    createhow3::EXCLUSIVE(createverf3([3; 8]))
}

fn write_stable(client: &mut Client, file: &nfs_fh3) {
    ok(now(client.write(&write_args(file, 0, &[1; 6000], stable_how::FILE_SYNC))));
}

/// The attributes of a call's files in its reply, whether it succeeds or not.
type Said = Vec<(nfs_fh3, wcc_data)>;

macro_rules! said {
    ($answer:expr, $($file:expr => $field:ident),+) => {
        match now($answer).expect("an answer") {
            Nfs3Result::Ok(done) => vec![$(($file.clone(), done.$field)),+],
            Nfs3Result::Err((_, failed)) => vec![$(($file.clone(), failed.$field)),+],
        }
    };
}

fn set(client: &mut Client, file: &nfs_fh3, changes: sattr3) -> Said {
    let guard = Nfs3Option::None;
    let args = SETATTR3args { object: file.clone(), new_attributes: changes, guard };
    said!(client.setattr(&args), file => obj_wcc)
}

fn make(client: &mut Client, dir: &nfs_fh3, name: &str, how: createhow3) -> Said {
    said!(client.create(&CREATE3args { where_: at(dir, name), how }), dir => dir_wcc)
}

fn size(bytes: u64) -> sattr3 {
    sattr3 { size: Nfs3Option::Some(bytes), ..sattr3::default() }
}

fn rename(client: &mut Client, from: (&nfs_fh3, &str), to: (&nfs_fh3, &str)) -> Said {
    let args = RENAME3args { from: at(from.0, from.1), to: at(to.0, to.1) };
    said!(client.rename(&args), from.0 => fromdir_wcc, to.0 => todir_wcc)
}

fn remove(client: &mut Client, dir: &nfs_fh3, name: &str) -> Said {
    said!(client.remove(&REMOVE3args { object: at(dir, name) }), dir => dir_wcc)
}

fn remove_dir(client: &mut Client, dir: &nfs_fh3, name: &str) -> Said {
    said!(client.rmdir(&RMDIR3args { object: at(dir, name) }), dir => dir_wcc)
}

fn link(client: &mut Client, tree: &Tree, name: &str) -> Said {
    let args = LINK3args { file: tree.file.clone(), link: at(&tree.d, name) };
    said!(client.link(&args), tree.d => linkdir_wcc)
}

fn symlink(client: &mut Client, dir: &nfs_fh3) -> Said {
    let target = nfspath3(Opaque::borrowed(b"to"));
    let symlink = symlinkdata3 { symlink_attributes: sattr3::default(), symlink_data: target };
    said!(client.symlink(&SYMLINK3args { where_: at(dir, "n"), symlink }), dir => dir_wcc)
}

fn node(client: &mut Client, dir: &nfs_fh3) -> Said {
    let what = mknoddata3::NF3FIFO(sattr3::default());
    said!(client.mknod(&MKNOD3args { where_: at(dir, "n"), what }), dir => dir_wcc)
}

fn new_dir(client: &mut Client, dir: &nfs_fh3) -> Said {
    let args = MKDIR3args { where_: at(dir, "n"), attributes: sattr3::default() };
    said!(client.mkdir(&args), dir => dir_wcc)
}

fn written(client: &mut Client, file: &nfs_fh3, stable: stable_how) -> Said {
    said!(client.write(&write_args(file, 3, b"data", stable)), file => file_wcc)
}

fn commit(client: &mut Client, file: &nfs_fh3) -> Said {
    let args = COMMIT3args { file: file.clone(), offset: 0, count: 0 };
    said!(client.commit(&args), file => file_wcc)
}

type Run = fn(&mut Client, &Tree) -> Said;

/// Every procedure that returns them, also where it succeeds without a change.
const CALLS: [(&str, Run); 23] = [
    ("SETATTR, mode", |c, t| {
        set(c, &t.file, sattr3 { mode: Nfs3Option::Some(0o600), ..sattr3::default() })
    }),
    ("SETATTR, nothing", |c, t| set(c, &t.file, sattr3::default())),
    ("SETATTR, smaller", |c, t| set(c, &t.file, size(5))),
    ("SETATTR, the same size", |c, t| set(c, &t.file, size(6000))),
    ("WRITE, stable", |c, t| written(c, &t.file, stable_how::FILE_SYNC)),
    ("COMMIT", |c, t| commit(c, &t.file)),
    ("CREATE, guarded", |c, t| make(c, &t.d, "n", createhow3::GUARDED(sattr3::default()))),
    ("CREATE, unchecked", |c, t| make(c, &t.d, "n", createhow3::UNCHECKED(sattr3::default()))),
    ("CREATE of what exists", |c, t| make(c, &t.d, "f", createhow3::UNCHECKED(sattr3::default()))),
    ("CREATE of what exists, empty", |c, t| make(c, &t.d, "f", createhow3::UNCHECKED(size(0)))),
    ("CREATE, exclusive", |c, t| make(c, &t.d, "n", exclusive())),
    ("CREATE, exclusive, again", |c, t| make(c, &t.d, "x", exclusive())),
    ("MKDIR", |c, t| new_dir(c, &t.d)),
    ("SYMLINK", |c, t| symlink(c, &t.d)),
    ("MKNOD", |c, t| node(c, &t.d)),
    ("REMOVE", |c, t| remove(c, &t.d, "f")),
    ("RMDIR", |c, t| remove_dir(c, &t.d, "s")),
    ("RENAME", |c, t| rename(c, (&t.d, "f"), (&t.e, "n"))),
    ("RENAME in one directory", |c, t| rename(c, (&t.d, "f"), (&t.d, "n"))),
    ("RENAME of a directory", |c, t| rename(c, (&t.d, "s"), (&t.e, "n"))),
    ("RENAME over what it replaces", |c, t| rename(c, (&t.d, "x"), (&t.d, "f"))),
    ("RENAME of a file to its other name", |c, t| rename(c, (&t.d, "f"), (&t.d, "g"))),
    ("LINK", |c, t| link(c, t, "n")),
];

/// Calls that fail, and change nothing.
const FAILING: [(&str, Run); 6] = [
    ("CREATE of what exists", |c, t| make(c, &t.d, "f", createhow3::GUARDED(sattr3::default()))),
    ("REMOVE of nothing", |c, t| remove(c, &t.d, "nothing")),
    ("REMOVE of a directory", |c, t| remove(c, &t.d, "s")),
    ("RMDIR of a file", |c, t| remove_dir(c, &t.d, "f")),
    ("RENAME of nothing", |c, t| rename(c, (&t.d, "nothing"), (&t.e, "n"))),
    ("LINK to what exists", |c, t| link(c, t, "g")),
];

/// The attributes to compare: all pre-operation attributes that a reply may contain.
type State = (u64, nfstime3, nfstime3);

fn state(attributes: &fattr3) -> State {
    (attributes.size, attributes.mtime, attributes.ctime)
}

fn before(wcc: &wcc_data) -> Option<State> {
    match &wcc.before {
        Nfs3Option::Some(it) => Some((it.size, it.mtime, it.ctime)),
        Nfs3Option::None => None,
    }
}

fn after(wcc: &wcc_data) -> State {
    match &wcc.after {
        Nfs3Option::Some(it) => state(it),
        Nfs3Option::None => panic!("no attributes after the call"),
    }
}

#[test]
fn attributes_before_and_after_are_sent_to_a_client_that_is_alone() {
    for (name, run) in CALLS.into_iter().chain(FAILING) {
        let served = Served::new(&[ALL]);
        let mut client = served.client(0, 0);
        let tree = Tree::new(&served, &mut client);
        let files = [&tree.d, &tree.e, &tree.file];
        let there = files.map(|file| state(&attributes(&mut client, file)));
        let said = run(&mut client, &tree);
        assert!(!said.is_empty());
        for (file, wcc) in said {
            let index = files.iter().position(|it| **it == file).expect("one of them");
            assert_eq!(before(&wcc).as_ref(), Some(&there[index]), "{name}, before");
            assert_eq!(after(&wcc), state(&attributes(&mut client, &file)), "{name}, after");
        }
    }
}

pub(super) fn ino(served: &Served, file: &nfs_fh3) -> InodeNo {
    served.service.exported().handles.read(&file.data).expect("a handle").ino
}

/// A change by another caller.
fn touch(volume: &Volume, ino: InodeNo) {
    let now = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    volume.set_attr(&Caller::ROOT, ino, &now).expect("set");
}

/// While a call waits for the device, another one changes one of its files.
#[test]
fn a_reply_has_no_attributes_from_before_after_a_concurrent_change() {
    for (name, run) in CALLS {
        for index in 0..2 {
            let device = Arc::new(Counting::new(4 << 20));
            let served = Served::over(Arc::clone(&device) as _, &[ALL]);
            let mut client = served.client(0, 0);
            let tree = Tree::new(&served, &mut client);
            let files = [&tree.d, &tree.e, &tree.file];
            // Each file has data to be written, so that calls that change nothing wait as well.
            files.iter().for_each(|file| touch(&served.volume, ino(&served, file)));
            let there = files.map(|file| state(&attributes(&mut client, file)));
            let flushes = || device.flushes.load(Ordering::Acquire);
            let before_call = flushes();
            device.hold(true);
            let (said, slipped) = thread::scope(|scope| {
                let call = scope.spawn(|| run(&mut client, &tree));
                let deadline = std::time::Instant::now() + Duration::from_secs(60);
                while flushes() == before_call {
                    assert!(std::time::Instant::now() < deadline, "{name} waits for nothing");
                    thread::yield_now();
                }
                // The changed file: the call's file or, of two, the first or the second.
                let slipped = match name {
                    _ if name.starts_with("SETATTR") => &tree.file,
                    "WRITE, stable" | "COMMIT" => &tree.file,
                    _ if index == 1 && name.starts_with("RENAME") => &tree.e,
                    _ => &tree.d,
                };
                touch(&served.volume, ino(&served, slipped));
                device.hold(false);
                (call.join().expect("no panic"), slipped)
            });
            for (file, wcc) in said {
                let at = files.iter().position(|it| **it == file).expect("one of them");
                let expected = (file != *slipped).then(|| there[at]);
                assert_eq!(before(&wcc), expected, "{name}, {at}");
                let there = state(&attributes(&mut served.client(0, 0), &file));
                assert_eq!(after(&wcc), there, "{name}, after");
            }
        }
    }
}

/// Changes each file whose change it is notified of, as another caller might.
#[derive(Default)]
struct Slipping(OnceLock<Arc<Volume>>, AtomicBool);

impl Observer for Slipping {
    fn changed(&self, change: Change<'_>) {
        let Change::Contents(ino, ..) = change else { return };
        if self.1.load(Ordering::Acquire) {
            touch(self.0.get().expect("known"), ino);
        }
    }
    fn broken(&self) {}
}

/// The same for a WRITE that does not wait.
#[test]
fn an_unstable_write_has_no_attributes_from_before_after_a_concurrent_change() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    cffs::mkfs::make(&*device, &Default::default()).expect("made");
    let volume = cffs::open(device, Arc::new(SystemClock), OpenOptions::default());
    let volume = Arc::new(volume.expect("opened"));
    let observer = Arc::new(Slipping::default());
    let _ = observer.0.set(Arc::clone(&volume));
    let served = Served::with_observer(volume, &[ALL], Arc::clone(&observer) as _);
    let mut client = served.client(0, 0);
    let tree = Tree::new(&served, &mut client);
    for slips in [false, true] {
        observer.1.store(slips, Ordering::Release);
        let there = state(&attributes(&mut client, &tree.file));
        let said = written(&mut client, &tree.file, stable_how::UNSTABLE);
        assert_eq!(before(&said[0].1), (!slips).then_some(there));
        assert_eq!(after(&said[0].1), state(&attributes(&mut client, &tree.file)));
    }
}

/// Two callers continuously change one directory. The replies are parts of one history: the steps from pre-
/// to post-operation attributes do not overlap.
#[test]
fn two_callers_see_one_history() {
    const ROUNDS: usize = 400;
    let served = Served::new(&[ALL]);
    let tree = Tree::new(&served, &mut served.client(0, 0));
    let calls: Vec<_> = thread::scope(|scope| {
        let caller = |number: usize| {
            let (served, tree) = (&served, &tree);
            scope.spawn(move || {
                let mut client = served.client(0, 0);
                let (a, b) = (format!("a{number}"), format!("b{number}"));
                let mut all: Vec<wcc_data> = Vec::new();
                for round in 0..ROUNDS {
                    let unchecked = || createhow3::UNCHECKED(sattr3::default());
                    all.extend(
                        make(&mut client, &tree.d, &a, unchecked()).into_iter().map(|it| it.1),
                    );
                    if round % 2 == 0 {
                        // It exists already, so the directory does not change.
                        let again = make(&mut client, &tree.d, &a, unchecked());
                        all.extend(again.into_iter().map(|it| it.1));
                    }
                    let renamed = rename(&mut client, (&tree.d, &a), (&tree.d, &b));
                    all.extend(renamed.into_iter().map(|it| it.1).take(1));
                    all.extend(remove(&mut client, &tree.d, &b).into_iter().map(|it| it.1));
                }
                all
            })
        };
        let callers = [caller(0), caller(1)];
        callers.into_iter().flat_map(|caller| caller.join().expect("no panic")).collect()
    });
    let key = |state: &State| (state.2.seconds, state.2.nseconds);
    let mut steps: Vec<_> = calls
        .iter()
        .filter_map(|wcc| Some((key(&before(wcc)?), key(&after(wcc)))))
        .filter(|(before, after)| before != after)
        .collect();
    steps.sort_unstable();
    println!("of {} replies {} say what was before a change", calls.len(), steps.len());
    assert!(steps.len() > ROUNDS / 4 && steps.len() < calls.len());
    for pair in steps.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "{pair:?} are one history of no directory");
    }
}
