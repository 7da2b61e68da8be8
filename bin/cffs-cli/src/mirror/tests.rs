use std::sync::Arc;

use cffs::clock::SystemClock;
use cffs::device::MemoryDevice;
use cffs::files::File;
use cffs::mkfs::{self, MkfsOptions};

use super::*;

/// The most lookups per directory and its file, in either volume.
const LOOKUPS_MAX: u64 = 6;

/// An empty volume in memory.
pub(crate) fn volume() -> Files {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    mkfs::make(&device, &MkfsOptions::default()).expect("made");
    let volume = cffs::open(device, Arc::new(SystemClock), Default::default()).expect("opened");
    Files::new(Arc::new(volume))
}

/// A chain of directories, each with a file.
pub(crate) fn deep(depth: usize) -> Files {
    let files = volume();
    let new = |kind| NewFile { kind, permissions: 0o755, uid: 0, gid: 0, times: None };
    let mut dir = Node::root(files.volume());
    for _ in 0..depth {
        let file = dir.make(b"file", &new(NewKind::Regular)).and_then(File::of).expect("made");
        file.write_all_at(0, b"contents").expect("written");
        dir = dir.make(b"directory", &new(NewKind::Directory)).expect("made");
    }
    files
}

fn mirror(files: &Files, source: &mut dyn Source) -> Done {
    let watch = |path: &[u8], failed: Option<&CopyCause>| {
        assert!(failed.is_none(), "{}: {failed:?}", path.escape_ascii());
    };
    Mirror::new(files, source, &watch).run().expect("done")
}

/// Regression: the size was set after the attributes, which removes capabilities.
#[test]
fn a_mirrored_program_keeps_its_capabilities() {
    const CAPABILITY: &[u8] = b"security.capability";
    let (source, target) = (volume(), volume());
    source.write("/program", b"contents").expect("written");
    let ino = source.stat("/program").expect("found").ino;
    let set = source.volume().set_xattr(
        &Caller::ROOT,
        ino,
        CAPABILITY,
        b"all",
        cffs::vfs::XattrMode::Any,
    );
    set.expect("set");
    mirror(&target, &mut Image::new(source));
    let ino = target.stat("/program").expect("found").ino;
    assert_eq!(target.volume().xattr(ino, CAPABILITY).expect("kept"), b"all");
}

/// A tree with an access ACL of each file, which no volume accepts.
struct Refused(Image);

impl Refused {
    const ACL: &[u8] = b"system.posix_acl_access";

    fn refused() -> CopyCause {
        CopyCause::of_attribute(Refused::ACL, Error::NoSpace)
    }
}

impl Source for Refused {
    fn root(&mut self) -> Result<Item, CopyCause> {
        self.0.root()
    }

    fn list(&self) -> Result<Vec<Item>, CopyCause> {
        self.0.list()
    }

    fn enter(&mut self, name: &[u8]) -> Result<(), CopyCause> {
        self.0.enter(name)
    }

    fn leave(&mut self) -> Result<(), CopyCause> {
        self.0.leave()
    }

    fn link_target(&self, name: &[u8]) -> Result<Vec<u8>, CopyCause> {
        self.0.link_target(name)
    }

    fn xattrs(&self) -> Result<Xattrs, CopyCause> {
        Ok(vec![(Refused::ACL.to_vec(), b"no ACL".to_vec())])
    }

    fn has_acl(&self, _: &[u8]) -> Result<bool, CopyCause> {
        Ok(true)
    }

    fn copy(&self, item: &Item, files: &Files, to: &Node) -> Result<u64, CopyCause> {
        self.0.copy(
            &Item { permissions: without_acl(item.permissions), ..item.clone() },
            files,
            to,
        )?;
        Err(Refused::refused())
    }
}

/// Regression: the first refused attribute ended a publish, and the times and the mode were not set. A later
/// publish would have given the mode that is the mask of the refused ACL.
#[test]
fn a_refused_attribute_is_named_and_all_else_is_published() {
    let (source, target) = (volume(), volume());
    let owner = SetAttr { permissions: Some(0o2750), uid: Some(7), ..SetAttr::default() };
    source.make_dir("/directory").expect("made");
    source.write("/directory/file", b"contents").expect("written");
    source.write("/last", b"last").expect("written");
    source.hard_link("/last", "/later").expect("linked");
    for path in ["/directory", "/directory/file", "/last"] {
        source.set_attr(path, &owner).expect("set");
    }
    let mut source = Refused(Image::new(source));
    for pass in 0..2 {
        let said = std::cell::RefCell::new(Vec::new());
        let watch = |path: &[u8], failed: Option<&CopyCause>| {
            said.borrow_mut()
                .extend(failed.map(|cause| format!("{}: {cause}", path.escape_ascii())));
        };
        let done = Mirror::new(&target, &mut source, &watch).run().expect("it goes on");
        let said = said.into_inner();
        let named = ["/directory/file", "/directory", "/last", "/"];
        assert_eq!((said.len(), done.failures), (4, 4), "{said:?}");
        for path in named {
            let begin = format!("{path}: extended attribute system.posix_acl_access: ");
            assert!(said.iter().any(|said| said.starts_with(&begin)), "{path} of {said:?}");
        }
        for path in ["/directory", "/directory/file", "/last"] {
            let attr = target.stat(path).expect("published");
            assert_eq!((attr.permissions, attr.uid), (0o2700, 7), "{path} in pass {pass}");
        }
        let [last, later] = ["/last", "/later"].map(|path| target.stat(path).expect("there"));
        assert_eq!((last.ino, last.nlink), (later.ino, 2), "in pass {pass}");
        assert_eq!(target.read("/directory/file").expect("read"), b"contents");
    }
}

/// Regression: files of a volume were published with the group of their set-group-ID directory, programs as
/// well.
#[test]
fn files_in_set_group_id_directories_keep_their_groups() {
    let (source, target) = (volume(), volume());
    source.make_dir("/shared").expect("made");
    source.make_dir("/shared/below").expect("made");
    source.make_dir("/shared/inherited").expect("made");
    source.write("/shared/file", b"contents").expect("written");
    source.write("/shared/program", b"contents").expect("written");
    source.symlink(b"file", "/shared/link").expect("made");
    let fifo = NewFile { kind: NewKind::Fifo, permissions: 0, uid: 0, gid: 0, times: None };
    source.node("/shared").and_then(|dir| dir.make(b"fifo", &fifo)).expect("made");
    let files = [
        ("/shared", 0o2775, 7, 100),
        ("/shared/below", 0o755, 7, 200),
        ("/shared/inherited", 0o2770, 8, 300),
        ("/shared/file", 0o640, 8, 400),
        ("/shared/program", 0o6711, 8, 500),
        ("/shared/link", 0o777, 9, 600),
        ("/shared/fifo", 0o620, 9, 700),
    ];
    for (path, permissions, uid, gid) in files {
        let (permissions, uid, gid) = (Some(permissions), Some(uid), Some(gid));
        let changes = SetAttr { permissions, uid, gid, ..SetAttr::default() };
        source.node_itself(path).and_then(|node| node.set_attr(&changes)).expect("set");
    }
    mirror(&target, &mut Image::new(source));
    for (path, permissions, uid, gid) in files {
        let attr = target.stat_itself(path).expect("published");
        assert_eq!((attr.permissions, attr.uid, attr.gid), (permissions, uid, gid), "{path}");
    }
}

/// Regression: a publish looked each file up by its whole path: at a depth of 3,000 it took half a
/// minute.
#[test]
fn the_work_for_a_file_does_not_depend_on_its_depth() {
    for depth in [100, 400] {
        let (source, target) = (deep(depth), volume());
        let count = depth as u64;
        let lookups = |files: &Files| files.volume().stats().lookups;
        let volumes = [Arc::clone(source.volume()), Arc::clone(target.volume())];
        let looked_up = || volumes.iter().map(|volume| volume.stats().lookups).sum::<u64>();
        let mut source = Image::new(source);
        let passes = [(2 * count, 0, 0), (0, 2 * count, 0)];
        for (copied, same, removed) in passes {
            let before = looked_up();
            let done = mirror(&target, &mut source);
            assert_eq!((done.copied, done.same, done.removed), (copied, same, removed));
            let lookups = looked_up() - before;
            assert!(lookups <= LOOKUPS_MAX * count, "{lookups} lookups at a depth of {depth}");
        }
        let before = lookups(&target);
        let done = mirror(&target, &mut Image::new(volume()));
        assert_eq!((done.copied, done.same, done.removed), (0, 0, 2 * count));
        let lookups = lookups(&target) - before;
        assert!(lookups <= LOOKUPS_MAX * count, "{lookups} lookups to remove {depth} directories");
    }
}

/// A path longer than the host's limit: the tree is walked from directory to directory.
#[test]
fn a_host_tree_with_long_paths_is_walked() {
    use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, unlinkat};

    const DEPTH: usize = 60;
    let scratch = tempfile::tempdir().expect("made");
    let name = "n".repeat(200);
    let mut dirs =
        vec![openat(CWD, scratch.path(), OFlags::DIRECTORY, Mode::empty()).expect("there")];
    for depth in 0..DEPTH {
        mkdirat(&dirs[depth], &name, Mode::from_raw_mode(0o755)).expect("made");
        dirs.push(openat(&dirs[depth], &name, OFlags::DIRECTORY, Mode::empty()).expect("there"));
    }
    let flags = OFlags::CREATE | OFlags::WRONLY;
    let file = openat(&dirs[DEPTH], "file", flags, Mode::from_raw_mode(0o644)).expect("made");
    rustix::io::write(&file, b"contents").expect("written");
    let mut source = Directory::open(scratch.path().to_owned()).expect("there");
    let files = volume();
    let done = mirror(&files, &mut source);
    assert_eq!((done.copied, done.bytes), (DEPTH as u64 + 1, 8));
    let again = mirror(&files, &mut source);
    assert_eq!((again.copied, again.same), (0, DEPTH as u64 + 1));
    let path = format!("/{name}").repeat(DEPTH) + "/file";
    assert_eq!(files.read(&path).expect("there"), b"contents");
    unlinkat(&dirs[DEPTH], "file", AtFlags::empty()).expect("removed");
    for depth in (0..DEPTH).rev() {
        unlinkat(&dirs[depth], &name, AtFlags::REMOVEDIR).expect("removed");
    }
}
