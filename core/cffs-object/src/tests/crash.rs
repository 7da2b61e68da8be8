//! The machine stops at each change of the store, during file operations, syncs, versions, clones and
//! collection.
//!
//! The oracle: each resulting store opens as a volume without problems, with the files of one moment since
//! the last sync that returned, and with all acknowledged versions and clones. With a staging directory, this
//! holds for both together, and the store alone has the files of a moment since everything was last sent.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::thread;

use object_store::memory::InMemory;

use super::staging::{copied, staged};
use super::store::Image;
use super::*;
use crate::{Staging, versions};

/// Files by their paths.
type Tree = BTreeMap<String, Vec<u8>>;

const STEPS: usize = 70;
const PATHS: u64 = 12;

/// The possible states of another volume in the store.
#[derive(Clone)]
enum Neighbour {
    /// It exists, with these files.
    Acknowledged(Rc<Tree>),
    /// It exists with these files, or does not exist.
    UnderWay(Rc<Tree>),
}

/// The states that may be found after a crash.
#[derive(Clone)]
struct Expected {
    trees: Vec<Rc<Tree>>,
    /// The same without the staged records.
    sent: Vec<Rc<Tree>>,
    neighbours: BTreeMap<String, Neighbour>,
}

struct Workload {
    numbers: Numbers,
    store: Arc<FaultStore>,
    device: Arc<LogDevice>,
    files: Files,
    /// The staging directory, if there is one.
    staging: Option<Arc<Staging>>,
    tree: Tree,
    expected: Expected,
    /// Kept versions, by number.
    kept: Vec<(u64, Rc<Tree>)>,
    names: u64,
}

fn location(store: Arc<dyn ObjectStore>, name: &str) -> Location {
    located(store, &format!("bucket/{name}"))
}

/// The files of a volume in an image, after checking that it has no problems.
fn tree_of(image: &InMemory, name: &str) -> Result<Tree, Error> {
    let options = if name.contains('@') { READ_ONLY } else { TAKE_OVER };
    tree_at(&location(Arc::new(image.fork()), name), options)
}

fn tree_at(location: &Location, options: OpenOptions) -> Result<Tree, Error> {
    let is_version = options.read_only;
    let device = LogDevice::open(location, options)?;
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let options = cffs::vfs::types::OpenOptions {
        read_only: is_version,
        ..cffs::vfs::types::OpenOptions::default()
    };
    let volume = cffs::open(device.clone(), Arc::new(SystemClock), options).expect("opened");
    let files = Files::new(Arc::new(volume));
    let mut tree = Tree::new();
    for item in files.read_dir("/").expect("read") {
        let name = String::from_utf8(item.name.to_vec()).expect("one of ours");
        if name != "lost+found" {
            let contents = files.read(format!("/{name}")).expect("read");
            tree.insert(name, contents);
        }
    }
    files.close().expect("closed");
    if !is_version {
        let options = CheckOptions { force: true, contents: true, ..CheckOptions::default() };
        let report = fsck::check(&*device, &options, &()).expect("checked");
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
    Ok(tree)
}

impl Workload {
    /// A new volume, with a staging directory if one is given.
    fn new(seed: u64, directory: Option<&Path>) -> Workload {
        let store = Arc::new(FaultStore::new());
        let mut device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
        mkfs::make(&device, &MkfsOptions::default()).expect("made");
        let staging = directory.map(|path| Arc::new(Staging::open(path).expect("made")));
        if let Some(staging) = &staging {
            drop(device);
            let location = at(store.clone()).with_staging(Arc::clone(staging));
            device = LogDevice::open(&location, OpenOptions::default()).expect("opened");
        }
        let device = Arc::new(device);
        // Nothing happens apart from the steps.
        let never = Duration::from_secs(1 << 20);
        let options = cffs::vfs::types::OpenOptions {
            epoch_interval: never,
            clean_after: never,
            clean_every: never,
            ..Default::default()
        };
        let volume = cffs::open(device.clone(), Arc::new(SystemClock), options).expect("opened");
        let files = Files::new(Arc::new(volume));
        files.volume().sync().expect("synced");
        let empty = vec![Rc::default()];
        let expected = Expected { trees: empty.clone(), sent: empty, neighbours: BTreeMap::new() };
        let (numbers, tree, kept) = (Numbers(seed), Tree::new(), Vec::new());
        let mut work =
            Workload { numbers, store, device, files, staging, tree, expected, kept, names: 0 };
        work.send();
        match directory {
            Some(path) => work.store.keep_images_with(path.into(), path.with_extension("copies")),
            None => work.store.keep_images(),
        }
        work
    }

    /// Sends all staged records; before and after, the store accepts no record if there is a staging
    /// directory.
    fn send(&mut self) -> Expected {
        self.while_it_is_sent(|_| {});
        let sent = self.expected.trees.clone();
        Expected { sent, ..self.expected.clone() }
    }

    fn while_it_is_sent(&self, act: impl FnOnce(&Workload)) {
        let Some(staging) = &self.staging else { return act(self) };
        self.store.let_pass(None);
        while staging.backlog().records > 0 {
            thread::sleep(Duration::from_millis(1));
        }
        act(self);
        self.store.let_pass(Some(0));
    }

    /// Sends some of the staged records.
    fn send_some(&mut self) -> Expected {
        let Some(staging) = &self.staging else { return self.expected.clone() };
        let waiting = staging.backlog().records;
        let left = self.numbers.below(waiting + 1);
        self.store.let_pass(Some(waiting - left));
        while staging.backlog().records > left {
            thread::sleep(Duration::from_millis(1));
        }
        self.expected.clone()
    }

    /// Does a step. `expected` is then what a crash during the step may leave; the result is what a crash
    /// after it may leave.
    fn step(&mut self) -> Expected {
        match self.numbers.below(100) {
            0..45 => self.write(),
            45..52 => self.rename(),
            52..60 => self.remove(),
            60..80 => self.sync(),
            80..85 => self.collect(),
            85..90 => self.keep(),
            90..93 => self.clone_version(),
            93..95 => self.remove_version(),
            95..97 => self.send(),
            _ => self.send_some(),
        }
    }

    fn path(&mut self) -> String {
        format!("f{}", self.numbers.below(PATHS))
    }

    fn changed(&mut self) -> Expected {
        let tree = Rc::new(self.tree.clone());
        self.expected.trees.push(tree.clone());
        self.expected.sent.push(tree);
        self.expected.clone()
    }

    fn write(&mut self) -> Expected {
        let (path, value) = (self.path(), self.numbers.below(256) as u8);
        // Sometimes more than memory keeps until a sync.
        let len = match self.numbers.below(12) {
            0 => 9 << 20,
            _ => 1 + self.numbers.below(40_000) as usize,
        };
        // As a new file, so that it is one change.
        if self.tree.remove(&path).is_some() {
            self.files.remove_file(format!("/{path}")).expect("removed");
            self.changed();
        }
        let file = self.files.create(format!("/{path}")).expect("created");
        self.tree.insert(path.clone(), Vec::new());
        self.changed();
        file.write_all_at(0, &vec![value; len]).expect("written");
        self.tree.insert(path, vec![value; len]);
        self.changed()
    }

    fn rename(&mut self) -> Expected {
        let (from, to) = (self.path(), self.path());
        if let Some(contents) = self.tree.remove(&from) {
            self.files.rename(format!("/{from}"), format!("/{to}")).expect("renamed");
            self.tree.insert(to, contents);
        }
        self.changed()
    }

    fn remove(&mut self) -> Expected {
        let path = self.path();
        if self.tree.remove(&path).is_some() {
            self.files.remove_file(format!("/{path}")).expect("removed");
        }
        self.changed()
    }

    fn sync(&mut self) -> Expected {
        self.files.volume().sync().expect("synced");
        let trees = vec![Rc::new(self.tree.clone())];
        Expected { trees, ..self.expected.clone() }
    }

    fn collect(&mut self) -> Expected {
        self.while_it_is_sent(|work| drop(work.device.collect().expect("collected")));
        let sent = self.expected.trees.clone();
        Expected { sent, ..self.expected.clone() }
    }

    fn keep(&mut self) -> Expected {
        self.files.volume().sync().expect("synced");
        let tree = Rc::new(self.tree.clone());
        self.names += 1;
        let name = format!("volume@v{}", self.names);
        // A version contains the store's state.
        self.while_it_is_sent(|work| {
            versions::create(&location(work.store.clone(), &name)).expect("kept");
        });
        self.kept.push((self.names, Rc::clone(&tree)));
        let trees = vec![tree.clone()];
        let mut after = Expected {
            trees: trees.clone(),
            sent: trees,
            neighbours: self.expected.neighbours.clone(),
        };
        after.neighbours.insert(name.clone(), Neighbour::Acknowledged(tree.clone()));
        self.expected.neighbours.insert(name, Neighbour::UnderWay(tree));
        after
    }

    fn clone_version(&mut self) -> Expected {
        let Some((number, tree)) = self.kept.last().cloned() else { return self.expected.clone() };
        self.names += 1;
        let name = format!("clone{}", self.names);
        let version = location(self.store.clone(), &format!("volume@v{number}"));
        // A clone is made in the directory of its origin.
        versions::clone(&version, &version.sibling(&format!("bucket/{name}"))).expect("cloned");
        let mut after = self.expected.clone();
        after.neighbours.insert(name.clone(), Neighbour::Acknowledged(tree.clone()));
        self.expected.neighbours.insert(name, Neighbour::UnderWay(tree));
        after
    }

    fn remove_version(&mut self) -> Expected {
        let Some((number, tree)) = self.kept.pop() else { return self.expected.clone() };
        let name = format!("volume@v{number}");
        versions::remove(&location(self.store.clone(), &name)).expect("removed");
        let mut after = self.expected.clone();
        after.neighbours.remove(&name);
        self.expected.neighbours.insert(name, Neighbour::UnderWay(tree));
        after
    }
}

impl Drop for Workload {
    /// Also after a failing test: a release waits until everything is sent.
    fn drop(&mut self) {
        self.store.let_pass(None);
    }
}

/// Checks the state that the crash left.
fn check(image: &Image, expected: &Expected) {
    let Image { store: image, local } = image;
    let alone = tree_of(image, "volume").expect("claimed");
    let Some(local) = local else { return check_trees(image, &alone, expected) };
    is_one_of(&alone, &expected.sent, "without the directory");
    let (store, scratch) = (Arc::new(image.fork()), tempfile::tempdir().expect("made"));
    let left = copied(local, scratch.path().join("left"));
    let here = staged(store.clone(), &left).expect("opened");
    let found = tree_at(&here, OpenOptions::default()).expect("it was not taken over");
    let sent = tree_at(&at(store.clone()), OpenOptions::default()).expect("released");
    assert!(sent == found, "{:?} was sent of {:?}", names(&sent), names(&found));
    check_trees(&store.fork(), &found, expected);
}

fn names(tree: &Tree) -> Vec<String> {
    tree.iter().map(|(path, contents)| format!("{path}:{}", contents.len())).collect()
}

fn is_one_of(found: &Tree, trees: &[Rc<Tree>], when: &str) {
    let is_one = trees.iter().any(|tree| **tree == *found);
    let possible: Vec<_> = trees.iter().map(|tree| names(tree)).collect();
    assert!(is_one, "{when}: {:?}, not one of {possible:?}", names(found));
}

fn check_trees(image: &InMemory, found: &Tree, expected: &Expected) {
    is_one_of(found, &expected.trees, "after all");
    for (name, neighbour) in &expected.neighbours {
        match (tree_of(image, name), neighbour) {
            (Ok(found), Neighbour::Acknowledged(tree) | Neighbour::UnderWay(tree)) => {
                assert!(found == **tree, "{name}: {:?}, not {:?}", names(&found), names(tree));
            }
            (Err(error), Neighbour::Acknowledged(_)) => panic!("{name} is lost: {error}"),
            (Err(error), Neighbour::UnderWay(_)) => {
                let text = error.to_string();
                let parts = ["has no version", "no volume at", "was not completed"];
                assert!(parts.iter().any(|part| text.contains(part)), "{name}: {text}");
            }
        }
    }
}

/// Runs a workload, and checks the remains of each crash; returns the number of crashes.
pub fn crash(seed: u64, directory: Option<&Path>) -> usize {
    let mut work = Workload::new(seed, directory);
    let mut checked = 0;
    for step in 0..STEPS {
        let after = work.step();
        let images = work.store.images_from(checked);
        let end = checked + images.len();
        if work.staging.is_some() {
            work.store.keep_image();
        }
        for (number, image) in work.store.images_from(checked).iter().enumerate() {
            // The last effect of a step is a change of the store, or of the directory.
            let last = images.len().saturating_sub(usize::from(work.staging.is_none()));
            let is_over = number >= last;
            println!("seed {seed}, step {step}, change {number} of the store");
            check(image, if is_over { &after } else { &work.expected });
        }
        checked = work.store.images_from(0).len().max(end);
        work.expected = after;
    }
    checked
}

#[test]
fn a_crash_at_any_request_leaves_a_moment_since_the_last_sync() {
    let states: usize = (0..3).map(|seed| crash(seed, None)).sum();
    println!("{states} states of the store");
    assert!(states > 100, "{states} states");
}

/// The same with a staging directory: at each change of the store, with any subset of the requests in flight,
/// and after each step.
#[test]
fn a_crash_with_staged_syncs_leaves_a_moment_since_the_last_sync() {
    let scratch = tempfile::tempdir().expect("made");
    let states = crash(5, Some(&scratch.path().join("staging")));
    println!("{states} states of store and directory");
    assert!(states > 100, "{states} states");
}
