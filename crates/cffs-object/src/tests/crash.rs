//! The machine stops at each change of the store, amid files, syncs, versions, clones and collection.
//!
//! The oracle: each such store opens as a volume without a problem, with the files of one moment since the
//! last sync that returned; and with all versions and clones that were acknowledged.

use std::collections::BTreeMap;
use std::rc::Rc;

use object_store::memory::InMemory;

use super::*;
use crate::versions;

/// Files by their paths.
type Tree = BTreeMap<String, Vec<u8>>;

const STEPS: usize = 70;
const PATHS: u64 = 12;

/// What a volume beside the one that is written may be.
#[derive(Clone)]
enum Beside {
    /// There, with these files.
    Acknowledged(Rc<Tree>),
    /// There with these files, or not.
    UnderWay(Rc<Tree>),
}

/// What may be found after a crash.
#[derive(Clone)]
struct Expected {
    trees: Vec<Rc<Tree>>,
    beside: BTreeMap<String, Beside>,
}

struct Workload {
    numbers: Numbers,
    store: Arc<FaultStore>,
    device: Arc<LogDevice>,
    files: Files,
    tree: Tree,
    expected: Expected,
    /// Versions by their numbers.
    kept: Vec<(u64, Rc<Tree>)>,
    names: u64,
}

fn location(store: Arc<dyn ObjectStore>, name: &str) -> Location {
    Location::new("test", store, &format!("bucket/{name}"))
}

/// The files of a volume, which has no problem.
fn tree_of(image: &InMemory, name: &str) -> Result<Tree, Error> {
    let is_version = name.contains('@');
    let options = if is_version { READ_ONLY } else { TAKE_OVER };
    let device = LogDevice::open(&location(Arc::new(image.fork()), name), options)?;
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
        assert!(report.problems.is_empty(), "{name}: {:?}", report.problems);
    }
    Ok(tree)
}

impl Workload {
    fn new(seed: u64) -> Workload {
        let store = Arc::new(FaultStore::new());
        let device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
        let device = Arc::new(device);
        mkfs::make(&*device, &MkfsOptions::default()).expect("made");
        // Nothing happens but what the steps say.
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
        store.keep_images();
        let expected = Expected { trees: vec![Rc::default()], beside: BTreeMap::new() };
        let (numbers, tree, kept) = (Numbers(seed), Tree::new(), Vec::new());
        Workload { numbers, store, device, files, tree, expected, kept, names: 0 }
    }

    /// Does something; what may be found after a crash amid it is in `expected` then, and what after it, is
    /// the result.
    fn step(&mut self) -> Expected {
        match self.numbers.below(100) {
            0..45 => self.write(),
            45..52 => self.rename(),
            52..60 => self.remove(),
            60..80 => self.sync(),
            80..86 => self.collect(),
            86..93 => self.keep(),
            93..97 => self.clone_version(),
            _ => self.remove_version(),
        }
    }

    fn path(&mut self) -> String {
        format!("f{}", self.numbers.below(PATHS))
    }

    fn changed(&mut self) -> Expected {
        self.expected.trees.push(Rc::new(self.tree.clone()));
        self.expected.clone()
    }

    fn write(&mut self) -> Expected {
        let (path, value) = (self.path(), self.numbers.below(256) as u8);
        // Now and then more than is kept in memory until a sync.
        let len = match self.numbers.below(12) {
            0 => 9 << 20,
            _ => 1 + self.numbers.below(40_000) as usize,
        };
        // As a new file, since that is one change.
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
        self.device.collect().expect("collected");
        self.expected.clone()
    }

    fn keep(&mut self) -> Expected {
        self.files.volume().sync().expect("synced");
        let tree = Rc::new(self.tree.clone());
        self.names += 1;
        let name = format!("volume@v{}", self.names);
        versions::create(&location(self.store.clone(), &name)).expect("kept");
        self.kept.push((self.names, Rc::clone(&tree)));
        let mut after = Expected { trees: vec![tree.clone()], ..self.expected.clone() };
        after.beside.insert(name.clone(), Beside::Acknowledged(tree.clone()));
        self.expected.beside.insert(name, Beside::UnderWay(tree));
        after
    }

    fn clone_version(&mut self) -> Expected {
        let Some((number, tree)) = self.kept.last().cloned() else { return self.expected.clone() };
        self.names += 1;
        let name = format!("clone{}", self.names);
        let version = location(self.store.clone(), &format!("volume@v{number}"));
        // A clone lies beside its origin.
        versions::clone(&version, &version.beside(&format!("bucket/{name}"))).expect("cloned");
        let mut after = self.expected.clone();
        after.beside.insert(name.clone(), Beside::Acknowledged(tree.clone()));
        self.expected.beside.insert(name, Beside::UnderWay(tree));
        after
    }

    fn remove_version(&mut self) -> Expected {
        let Some((number, tree)) = self.kept.pop() else { return self.expected.clone() };
        let name = format!("volume@v{number}");
        versions::remove(&location(self.store.clone(), &name)).expect("removed");
        let mut after = self.expected.clone();
        after.beside.remove(&name);
        self.expected.beside.insert(name, Beside::UnderWay(tree));
        after
    }
}

/// What must hold of a store that the machine left so.
fn check(image: &InMemory, expected: &Expected) {
    let found = tree_of(image, "volume").expect("claimed");
    let is_one = expected.trees.iter().any(|tree| **tree == found);
    let names = |tree: &Tree| -> Vec<String> {
        tree.iter().map(|(path, contents)| format!("{path}:{}", contents.len())).collect()
    };
    let possible: Vec<_> = expected.trees.iter().map(|tree| names(tree)).collect();
    assert!(is_one, "{:?}, not one of {possible:?}", names(&found));
    for (name, beside) in &expected.beside {
        match (tree_of(image, name), beside) {
            (Ok(found), Beside::Acknowledged(tree) | Beside::UnderWay(tree)) => {
                assert!(found == **tree, "{name}: {:?}, not {:?}", names(&found), names(tree));
            }
            (Err(error), Beside::Acknowledged(_)) => panic!("{name} is lost: {error}"),
            (Err(error), Beside::UnderWay(_)) => {
                let text = error.to_string();
                let parts = ["has no version", "there is no volume", "was not completed"];
                assert!(parts.iter().any(|part| text.contains(part)), "{name}: {text}");
            }
        }
    }
}

#[test]
fn a_crash_at_any_request_leaves_a_moment_since_the_last_sync() {
    let mut states = 0;
    for seed in 0..2 {
        let mut work = Workload::new(seed);
        let mut checked = 1;
        for step in 0..STEPS {
            let after = work.step();
            let images = work.store.images_from(checked);
            for (number, image) in images.iter().enumerate() {
                let is_last = number + 1 == images.len();
                let expected = if is_last { &after } else { &work.expected };
                println!("seed {seed}, step {step}, change {number} of the store");
                check(image, expected);
            }
            checked += images.len();
            work.expected = after;
        }
        states += checked;
    }
    println!("{states} states of the store");
    assert!(states > 100, "{states} states");
}
