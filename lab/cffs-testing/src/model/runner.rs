//! Runs operations on a volume and on the reference, and compares the two.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use cffs::clock::{TestClock, Timestamp};
use cffs::device::BlockDevice;
use cffs::error::Error;
use cffs::format::inode::FileType;
use cffs::fsck::{self, CheckOptions};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{
    AllocateMode, Attr, Caller, NewFile, NewKind, OpenOptions, RenameMode, SeekFor, SetAttr,
    SetTime, Volume, XattrMode,
};

use super::operations::{MakeKind, Name, Op, Pick};
use super::reference::{Contents, Cursor, Kind, Node, Reference, kind};
use super::sparse::Sparse;

/// The volume of a run.
#[derive(Clone, Debug)]
pub struct Setup {
    pub mkfs: MkfsOptions,
    pub open: OpenOptions,
    pub device_bytes: u64,
}

/// The medium of the volume.
pub trait Medium {
    /// The device for the next opening.
    fn open(&self) -> Arc<dyn BlockDevice>;
}

pub struct Runner<M> {
    setup: Setup,
    medium: M,
    clock: Arc<TestClock>,
    volume: Volume,
    reference: Reference,
}

/// Bytes without equal aligned pieces or zeros.
pub fn pattern(seed: u8, offset: u64, len: usize) -> Vec<u8> {
    let mix = |at: u64| (at ^ (at >> 8) ^ (at >> 16)).wrapping_mul(31).wrapping_add(seed.into());
    (0..len as u64).map(|i| mix(offset + i) as u8 | 1).collect()
}

fn name_of(number: u8) -> Vec<u8> {
    match number {
        0..10 => format!("{number}").into_bytes(),
        10..16 => format!("a name of the usual kind {number}.txt").into_bytes(),
        16..19 => vec![b'a' + number; 120],
        19..21 => vec![b'a' + number; 255],
        21 => vec![b'x'; 256],
        22 => b"with/slash".to_vec(),
        _ => vec![0xff, 0xfe, number],
    }
}

fn xattr_name(number: u8) -> Vec<u8> {
    match number {
        0 => b"user.cffs.key".to_vec(),
        1..9 => format!("user.attribute{number}").into_bytes(),
        9 => [b"trusted.".to_vec(), vec![b'n'; 200]].concat(),
        10 => b"other.namespace".to_vec(),
        _ => [b"user.".to_vec(), vec![b'n'; 260]].concat(),
    }
}

fn new_file(kind: NewKind<'_>) -> NewFile<'_> {
    NewFile { kind, permissions: 0o644, uid: 7, gid: 8, times: None }
}

impl<M: Medium> Runner<M> {
    pub fn new(setup: &Setup, medium: M) -> Runner<M> {
        let device = medium.open();
        mkfs::make(&*device, &setup.mkfs).expect("mkfs");
        let clock = Arc::new(TestClock::default());
        let volume = Volume::open(device, clock.clone(), setup.open.clone());
        let volume = volume.expect("the volume opens");
        Runner { setup: setup.clone(), medium, clock, volume, reference: Reference::default() }
    }

    /// Runs all operations, then closes, reopens, compares and checks.
    pub fn run(mut self, ops: &[Op]) {
        for op in ops {
            self.apply(op);
        }
        self.reopen();
        self.compare();
        self.volume.close().expect("close");
        let options = CheckOptions { contents: true, force: true, ..CheckOptions::default() };
        let report = fsck::check(&*self.medium.open(), &options, &()).expect("the check runs");
        assert_eq!(report.problems, [], "fsck finds problems");
    }

    fn inode(&self, pick: Pick) -> InodeNo {
        let nth = usize::from(pick) % self.reference.inodes.len();
        *self.reference.inodes.keys().nth(nth).expect("the number was taken modulo the count")
    }

    fn chosen(&self, pick: Pick, wanted: impl Fn(&Node) -> bool) -> InodeNo {
        let fitting = self.reference.inodes.iter().filter(|(_, node)| wanted(node));
        let fitting: Vec<InodeNo> = fitting.map(|(ino, _)| *ino).collect();
        // One in eight is an arbitrary inode, to provoke errors.
        match fitting.len() {
            0 => self.inode(pick),
            _ if pick % 8 == 7 => self.inode(pick / 8),
            count => fitting[usize::from(pick / 8) % count],
        }
    }

    fn file(&self, pick: Pick) -> InodeNo {
        self.chosen(pick, |node| node.file_type == FileType::Regular)
    }

    fn dir(&self, pick: Pick) -> InodeNo {
        self.chosen(pick, Node::is_dir)
    }

    fn name(&self, name: &Name) -> (InodeNo, Vec<u8>) {
        let names = self.reference.all_names();
        match name {
            Name::Existing(pick) if !names.is_empty() => {
                let (dir, name) = names[usize::from(*pick) % names.len()];
                (dir, name.to_vec())
            }
            Name::Existing(pick) => (self.dir(*pick), name_of(0)),
            Name::Any(dir, number) => (self.dir(*dir), name_of(*number)),
        }
    }

    /// Compares the results of an operation. `None` if the volume ran out of space, which the
    /// reference does not model.
    fn same<T: Debug, U: Debug>(
        &self,
        what: &dyn Debug,
        got: Result<T, Error>,
        expected: Result<U, Kind>,
    ) -> Option<Result<(T, U), Kind>> {
        match (got, expected) {
            (Ok(got), Ok(expected)) => Some(Ok((got, expected))),
            (Err(Error::NoSpace), _) => None,
            (Err(error), Err(expected)) if kind(&error) == Some(expected) => Some(Err(expected)),
            (got, expected) => panic!("{what:?}: {got:?}, but the reference says {expected:?}"),
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Make(name, kind) => self.make(&self.name(name), *kind),
            Op::MakeMany(dir, count) => self.make_many(self.dir(*dir), *count),
            Op::RemoveMany(dir, count) => self.remove_many(self.dir(*dir), *count),
            Op::MakeUnnamed(dir) => self.make_unnamed(self.dir(*dir)),
            Op::Link(file, name) => self.link(self.file(*file), &self.name(name)),
            Op::Unlink(name) => {
                let (dir, name) = self.name(name);
                let got = self.volume.unlink(&Caller::ROOT, dir, &name);
                let mut next = self.reference.clone();
                let expected = next.unlink(dir, &name);
                if self.same(op, got, expected).is_some_and(|result| result.is_ok()) {
                    self.reference = next;
                }
            }
            Op::RemoveDir(name) => {
                let (dir, name) = self.name(name);
                let got = self.volume.remove_dir(&Caller::ROOT, dir, &name);
                let mut next = self.reference.clone();
                let expected = next.remove_dir(dir, &name);
                if self.same(op, got, expected).is_some_and(|result| result.is_ok()) {
                    self.reference = next;
                }
            }
            Op::Rename(from, to, mode) => self.rename(&self.name(from), &self.name(to), *mode),
            Op::Write(file, offset, len, seed) => {
                let data = pattern(*seed, *offset, *len as usize);
                self.write(self.file(*file), *offset, &data);
            }
            Op::Read(file, offset, len) => {
                let ino = self.file(*file);
                let mut out = vec![0xaa; *len as usize];
                let got = self.volume.read(ino, *offset, &mut out);
                let expected = self.reference.node(ino).and_then(Node::bytes);
                let expected = expected.map(|bytes| bytes.read(*offset, *len as usize));
                if let Some(Ok((got, expected))) = self.same(op, got, expected) {
                    assert!(out[..got] == expected[..], "{op:?} of {ino}: other bytes");
                }
            }
            Op::Copy(from, offset, to, at, len) => {
                self.copy((self.file(*from), *offset), (self.file(*to), *at), *len);
            }
            Op::Truncate(file, size) => self.truncate(self.file(*file), *size),
            Op::Chmod(file, mode) => {
                let ino = self.inode(*file);
                let mode = u32::from(*mode);
                let changes =
                    SetAttr { permissions: Some(mode), uid: Some(mode), ..SetAttr::default() };
                let got = self.volume.set_attr(&Caller::ROOT, ino, &changes);
                let expected = self.reference.node_mut(ino).map(|node| {
                    node.permissions = mode;
                    node.uid = mode;
                });
                self.same(op, got, expected);
            }
            Op::SetTimes(file, seconds) => {
                let ino = self.inode(*file);
                let time = Timestamp { seconds: i64::from(*seconds) - (1 << 31), nanoseconds: 9 };
                let changes = SetAttr {
                    atime: Some(SetTime::To(time)),
                    mtime: Some(SetTime::To(time)),
                    ..SetAttr::default()
                };
                let attr =
                    self.volume.set_attr(&Caller::ROOT, ino, &changes).expect("setting times");
                assert_eq!((attr.atime, attr.mtime), (time, time));
            }
            Op::Allocate(file, at, len, mode) => self.allocate(self.file(*file), *at, *len, *mode),
            Op::Seek(file, at, what) => self.seek(self.file(*file), *at, *what),
            Op::SetXattr(file, name, len, mode) => {
                self.set_xattr(self.inode(*file), &xattr_name(*name), *len as usize, *mode);
            }
            Op::RemoveXattr(file, name) => {
                let (ino, name) = (self.inode(*file), xattr_name(*name));
                let got = self.volume.remove_xattr(ino, &name);
                let mut next = self.reference.clone();
                let expected = check_xattr_name(&name).and_then(|()| {
                    let node = next.node_mut(ino)?;
                    node.xattrs.remove(&name).map(|_| ()).ok_or(Kind::NoAttribute)
                });
                if self.same(op, got, expected).is_some() {
                    self.reference = next;
                }
            }
            Op::Lookup(name) => {
                let (dir, name) = self.name(name);
                let got = self.volume.lookup(dir, &name);
                let expected = self.reference.lookup(dir, &name);
                if let Some(Ok((attr, ino))) = self.same(op, got, expected) {
                    assert_eq!(attr.ino, ino, "{op:?}");
                    self.reference.refer(ino);
                    self.compare_attr(&attr);
                }
            }
            Op::ReadDir(dir, plus) => {
                let dir = self.dir(*dir);
                if self.reference.node(dir).is_ok_and(Node::is_dir) {
                    self.compare_dir(dir, *plus);
                }
            }
            Op::ReadOn(dir, count) => self.read_on(self.dir(*dir), *count),
            Op::Release(file) => {
                let ino = self.inode(*file);
                let references = self.reference.release(ino);
                self.volume.release(ino, references);
                if !self.reference.inodes.contains_key(&ino) {
                    let got = self.volume.attr(ino);
                    assert!(matches!(got, Err(Error::Stale)), "{ino} is deleted: {got:?}");
                }
            }
            Op::Sync => self.volume.sync().expect("sync"),
            Op::SyncFile(file) => {
                self.volume.sync_file(self.inode(*file), false).expect("sync_file");
            }
            Op::WriteEarly => {
                self.volume.writer().background().write_early().expect("written early");
            }
            Op::Reopen => {
                self.reopen();
                self.compare();
            }
        }
    }

    fn make(&mut self, (dir, name): &(InodeNo, Vec<u8>), kind: MakeKind) {
        let target;
        let (new, file_type, device) = match kind {
            MakeKind::Regular => (NewKind::Regular, FileType::Regular, 0),
            MakeKind::Directory => (NewKind::Directory, FileType::Directory, 0),
            MakeKind::Symlink(len) => {
                target = pattern(3, 0, len.into());
                (NewKind::Symlink(&target), FileType::Symlink, 0)
            }
            MakeKind::Fifo => (NewKind::Fifo, FileType::Fifo, 0),
            MakeKind::Socket => (NewKind::Socket, FileType::Socket, 0),
            MakeKind::Char(n) => (NewKind::CharDevice(n.into()), FileType::CharDevice, n.into()),
            MakeKind::Block(n) => (NewKind::BlockDevice(n.into()), FileType::BlockDevice, n.into()),
        };
        let got = self.volume.make(&Caller::ROOT, *dir, name, &new_file(new));
        let expected = self.reference.may_make(*dir, name);
        let Some(Ok((attr, ()))) = self.same(&(dir, name, kind), got, expected) else { return };
        self.reference.make(*dir, name, attr.ino, self.new_node(*dir, file_type, device, new));
        self.reference.refer(attr.ino);
        self.compare_attr(&attr);
    }

    fn new_node(&self, dir: InodeNo, file_type: FileType, device: u64, new: NewKind<'_>) -> Node {
        const SET_GID: u32 = 0o2000;
        let mut node = Node::new(file_type, dir);
        let parent = self.reference.node(dir).expect("the directory exists");
        node.uid = 7;
        node.device = device;
        if node.is_dir() {
            node.permissions |= parent.permissions & SET_GID;
        }
        if let NewKind::Symlink(target) = new {
            node.permissions = 0o777;
            node.contents = Contents::Target(target.to_vec());
        }
        let hint = parent.xattrs.get(&xattr_name(0)).filter(|_| node.is_dir());
        if let Some(hint) = hint {
            node.xattrs.insert(xattr_name(0), hint.clone());
        }
        node
    }

    fn make_many(&mut self, dir: InodeNo, count: u16) {
        for number in 0..count {
            self.make(&(dir, format!("one of many {number}").into_bytes()), MakeKind::Regular);
        }
    }

    fn remove_many(&mut self, dir: InodeNo, count: u16) {
        let names = self.reference.node(dir).ok().and_then(Node::names);
        let names: Vec<Vec<u8>> = names.into_iter().flat_map(BTreeMap::keys).cloned().collect();
        for name in names.iter().take(count.into()) {
            let expected = self.reference.clone().unlink(dir, name);
            let got = self.volume.unlink(&Caller::ROOT, dir, name);
            if let Some(Ok(_)) = self.same(&("unlink", dir, name), got, expected) {
                self.reference.unlink(dir, name).expect("it was possible on the copy");
            }
        }
    }

    fn make_unnamed(&mut self, dir: InodeNo) {
        let got = self.volume.make_unnamed(&Caller::ROOT, dir, &new_file(NewKind::Regular));
        let expected = match self.reference.node(dir) {
            Ok(node) if !node.is_dir() => Err(Kind::NotDirectory),
            Ok(node) if node.nlink == 0 => Err(Kind::NotFound),
            Ok(_) => Ok(()),
            Err(kind) => Err(kind),
        };
        let Some(Ok((attr, ()))) = self.same(&("unnamed", dir), got, expected) else { return };
        let node = Node { nlink: 0, uid: 7, ..Node::new(FileType::Regular, dir) };
        let before = self.reference.inodes.insert(attr.ino, node);
        assert!(before.is_none(), "inode {} was given out again", attr.ino);
        self.reference.refer(attr.ino);
        self.compare_attr(&attr);
    }

    fn link(&mut self, ino: InodeNo, (dir, name): &(InodeNo, Vec<u8>)) {
        let got = self.volume.link(ino, *dir, name);
        let mut next = self.reference.clone();
        let expected = next.link(ino, *dir, name);
        if let Some(Ok((attr, ()))) = self.same(&("link", ino, dir, name), got, expected) {
            self.reference = next;
            self.reference.refer(ino);
            self.compare_attr(&attr);
        }
    }

    fn rename(&mut self, from: &(InodeNo, Vec<u8>), to: &(InodeNo, Vec<u8>), mode: RenameMode) {
        let got = self.volume.rename(&Caller::ROOT, from.0, &from.1, to.0, &to.1, mode);
        let mut next = self.reference.clone();
        let expected = next.rename((from.0, &from.1), (to.0, &to.1), mode);
        let Some(Ok((said, changed))) = self.same(&("rename", from, to, mode), got, expected)
        else {
            return;
        };
        assert_eq!(said, changed, "rename {from:?} to {to:?} says whether that changed anything");
        self.reference = next;
        if !changed || !matches!(mode, RenameMode::Whiteout { .. }) {
            return;
        }
        let left = self.volume.lookup(from.0, &from.1).expect("a whiteout has the old name");
        let node = Node { permissions: 0, ..Node::new(FileType::CharDevice, from.0) };
        self.reference.make(from.0, &from.1, left.ino, node);
        self.reference.refer(left.ino);
    }

    fn write(&mut self, ino: InodeNo, offset: u64, data: &[u8]) {
        let got = self.volume.write(&Caller::ROOT, ino, offset, data);
        if data.is_empty() {
            // Nothing is written, whatever the file.
            assert_eq!(got.ok(), Some(0));
            return;
        }
        let expected = self.reference.node_mut(ino).and_then(Node::bytes_mut).map(|_| data.len());
        if let Some(Ok((done, _))) = self.same(&("write", ino, offset), got, expected) {
            assert!(done > 0, "a write of nothing was acknowledged");
            let bytes = self.reference.node_mut(ino).and_then(Node::bytes_mut);
            bytes.expect("it is a file").write(offset, &data[..done]);
        }
        self.compare_contents(ino);
    }

    fn copy(&mut self, from: (InodeNo, u64), to: (InodeNo, u64), len: u64) {
        let got = self.volume.copy(&Caller::ROOT, from, to, len);
        let source = self.reference.node(from.0).and_then(Node::bytes).cloned();
        let expected = source.and_then(|source| {
            let len = len.min(source.size().saturating_sub(from.1));
            if len == 0 {
                return Ok((source, 0));
            }
            if from.0 == to.0 && from.1.abs_diff(to.1) < len {
                return Err(Kind::Invalid);
            }
            self.reference.node(to.0).and_then(Node::bytes).map(|_| (source, len))
        });
        if let Some(Ok((done, (source, len)))) = self.same(&("copy", from, to), got, expected) {
            assert!(done <= len && (done > 0) == (len > 0), "{done} of {len} bytes are copied");
            if done > 0 {
                let target = self.reference.node_mut(to.0).and_then(Node::bytes_mut);
                target.expect("it is a file").copy(&source, from.1, to.1, done);
            }
        }
        self.compare_contents(to.0);
    }

    fn truncate(&mut self, ino: InodeNo, size: u64) {
        let changes = SetAttr { size: Some(size), ..SetAttr::default() };
        let got = self.volume.set_attr(&Caller::ROOT, ino, &changes);
        let expected = self.reference.node_mut(ino).and_then(Node::bytes_mut);
        let expected = expected.map(|_| ());
        if let Some(Ok((attr, ()))) = self.same(&("truncate", ino, size), got, expected) {
            assert_eq!(attr.size, size);
            let bytes = self.reference.node_mut(ino).and_then(Node::bytes_mut);
            bytes.expect("it is a file").resize(size);
        }
        self.compare_contents(ino);
    }

    fn allocate(&mut self, ino: InodeNo, offset: u64, len: u64, mode: AllocateMode) {
        let got = self.volume.allocate(&Caller::ROOT, ino, offset, len, mode);
        let mut after = self.reference.node(ino).and_then(Node::bytes).cloned();
        if len == 0 {
            after = Err(Kind::Invalid);
        }
        let end = offset + len;
        if let Ok(bytes) = &mut after {
            let keeps = matches!(
                mode,
                AllocateMode::ReserveKeepSize
                    | AllocateMode::PunchHole
                    | AllocateMode::ZeroRange { keep_size: true }
            );
            if matches!(mode, AllocateMode::PunchHole | AllocateMode::ZeroRange { .. }) {
                bytes.zero(offset, end);
            }
            if !keeps && end > bytes.size() {
                bytes.resize(end);
            }
        }
        match self.same(&("allocate", ino, offset, len, mode), got, after.clone()) {
            Some(Ok((_, after))) => {
                let node = self.reference.node_mut(ino).expect("it is there");
                node.contents = Contents::Bytes(after);
            }
            Some(Err(_)) => {}
            // Without space, a range may be zeroed but not allocated.
            None => {
                let node = self.reference.node_mut(ino).expect("it is there");
                let zeroed = matches!(mode, AllocateMode::ZeroRange { .. })
                    && contents_differ(&self.volume, ino, node.bytes().expect("a file")).is_some();
                if let (true, Contents::Bytes(bytes)) = (zeroed, &mut node.contents) {
                    bytes.zero(offset, end);
                }
            }
        }
        self.compare_contents(ino);
    }

    fn seek(&mut self, ino: InodeNo, offset: u64, what: SeekFor) {
        let got = self.volume.seek(ino, offset, what);
        let bytes = match self.reference.node(ino).and_then(Node::bytes) {
            Ok(bytes) => bytes,
            Err(expected) => {
                assert_eq!(got.err().as_ref().and_then(kind), Some(expected), "seek in {ino}");
                return;
            }
        };
        let context = format!("seek for {what:?} in {ino} at {offset}, size {}", bytes.size());
        match (got, what) {
            (Ok(at), SeekFor::Data) => {
                assert!(at >= offset && at < bytes.size(), "{context}: {at}");
                assert!(bytes.is_zero(offset, at), "{context}: {at} passes over data");
            }
            (Ok(at), SeekFor::Hole) => {
                assert!(at >= offset && at <= bytes.size(), "{context}: {at}");
                assert!(bytes.is_zero(at, at + 1), "{context}: {at} is data");
            }
            (Err(Error::NoData), SeekFor::Data) => {
                assert!(bytes.is_zero(offset, u64::MAX), "{context}: unexpected data");
            }
            (Err(Error::NoData), SeekFor::Hole) => assert!(offset >= bytes.size(), "{context}"),
            (Err(error), _) => panic!("{context}: {error}"),
        }
    }

    fn set_xattr(&mut self, ino: InodeNo, name: &[u8], len: usize, mode: XattrMode) {
        let value = pattern(5, 0, len);
        let got = self.volume.set_xattr(&Caller::ROOT, ino, name, &value, mode);
        let mut next = self.reference.clone();
        let expected = check_xattr_name(name).and_then(|()| {
            if len > 65_536 {
                return Err(Kind::Range);
            }
            let node = next.node_mut(ino)?;
            match (mode, node.xattrs.contains_key(name)) {
                (XattrMode::Create, true) => return Err(Kind::Exists),
                (XattrMode::Replace, false) => return Err(Kind::NoAttribute),
                _ => {}
            }
            node.xattrs.insert(name.to_vec(), value);
            let total: usize = node.xattrs.iter().map(|(n, v)| 3 + n.len() + v.len()).sum();
            if total > 256 << 10 { Err(Kind::NoSpace) } else { Ok(()) }
        });
        if let Some(Ok(_)) = self.same(&("set_xattr", ino, name, len), got, expected) {
            self.reference = next;
        }
        self.compare_xattrs(ino);
    }

    fn read_on(&mut self, dir: InodeNo, count: u8) {
        if self.reference.cursor.is_none() {
            let Some(names) = self.reference.node(dir).ok().and_then(Node::names) else { return };
            let throughout = names.keys().cloned().collect();
            self.reference.cursor = Some(Cursor { dir, cookie: 0, throughout, seen: Vec::new() });
        }
        let Some(mut cursor) = self.reference.cursor.take() else { return };
        let mut left = count;
        let mut all = true;
        let result = self.volume.read_dir(cursor.dir, cursor.cookie, false, &mut |entry| {
            if left == 0 {
                all = false;
                return false;
            }
            left -= 1;
            cursor.cookie = entry.cookie;
            cursor.seen.push(entry.name.to_vec());
            true
        });
        result.expect("a directory is read on");
        if !all {
            self.reference.cursor = Some(cursor);
            return;
        }
        for name in &cursor.throughout {
            let count = cursor.seen.iter().filter(|seen| *seen == name).count();
            let name = String::from_utf8_lossy(name);
            assert_eq!(count, 1, "{name} was in directory {} all the time", cursor.dir);
        }
    }

    /// Closes the volume and reopens it; files must have their expected state afterwards.
    fn reopen(&mut self) {
        let named: Vec<InodeNo> =
            self.reference.inodes.iter().filter(|(_, n)| n.nlink > 0).map(|(i, _)| *i).collect();
        let attrs = |volume: &Volume| -> Vec<Attr> {
            let attr = |ino: &InodeNo| match volume.attr(*ino) {
                // Reservations may differ.
                Ok(attr) => Attr { allocated_bytes: 0, ..attr },
                Err(error) => panic!("attributes of {ino}: {error}"),
            };
            named.iter().map(attr).collect()
        };
        let before = attrs(&self.volume);
        self.volume.close().expect("close");
        self.reference.close();
        let open = self.setup.open.clone();
        self.volume =
            Volume::open(self.medium.open(), self.clock.clone(), open).expect("it opens again");
        for (before, after) in before.iter().zip(attrs(&self.volume)) {
            assert_eq!(*before, after, "attributes changed while the volume was closed");
        }
    }

    fn compare(&mut self) {
        let inodes: Vec<InodeNo> = self.reference.inodes.keys().copied().collect();
        for ino in inodes {
            let attr = self.volume.attr(ino);
            let attr = attr.unwrap_or_else(|error| panic!("attributes of {ino}: {error}"));
            self.compare_attr(&attr);
            self.compare_xattrs(ino);
            match &self.reference.inodes[&ino].contents {
                Contents::Bytes(_) => self.compare_contents(ino),
                Contents::Names(_) => self.compare_dir(ino, false),
                Contents::Target(target) => {
                    assert_eq!(self.volume.read_link(ino).expect("read_link"), *target);
                }
                Contents::Nothing => {}
            }
        }
        let counted = self.reference.inodes.len() as u64 - 1;
        assert_eq!(self.volume.stat_fs().inodes, counted, "the count of inodes");
    }

    fn compare_attr(&self, attr: &Attr) {
        let ino = attr.ino;
        let node = &self.reference.inodes[&ino];
        let got = (attr.file_type, attr.nlink, attr.permissions, attr.uid, attr.device);
        let expected = (node.file_type, node.nlink, node.permissions, node.uid, node.device);
        assert_eq!(got, expected, "attributes of inode {ino}");
        if let Contents::Bytes(bytes) = &node.contents {
            assert_eq!(attr.size, bytes.size(), "size of inode {ino}");
        }
    }

    fn compare_xattrs(&self, ino: InodeNo) {
        let node = &self.reference.inodes[&ino];
        let names = self.volume.xattr_names(ino).expect("names of attributes");
        let expected: Vec<Vec<u8>> = node.xattrs.keys().cloned().collect();
        assert_eq!(names, expected, "attributes of inode {ino}");
        for (name, value) in &node.xattrs {
            let got = self.volume.xattr(ino, name).expect("an attribute");
            assert!(got == *value, "inode {ino}: attribute {}", String::from_utf8_lossy(name));
        }
    }

    fn compare_contents(&self, ino: InodeNo) {
        let Ok(bytes) = self.reference.node(ino).and_then(Node::bytes) else { return };
        if let Some(what) = contents_differ(&self.volume, ino, bytes) {
            panic!("inode {ino} of {} bytes: {what}", bytes.size());
        }
    }

    fn compare_dir(&mut self, dir: InodeNo, plus: bool) {
        let mut seen = BTreeMap::new();
        let mut cookies = BTreeSet::new();
        let mut attrs = Vec::new();
        let result = self.volume.read_dir(dir, 0, plus, &mut |entry| {
            let twice = seen.insert(entry.name.to_vec(), (entry.ino, entry.file_type));
            assert!(twice.is_none(), "a name is twice in directory {dir}");
            assert!(cookies.insert(entry.cookie), "a cookie is twice in directory {dir}");
            attrs.extend(entry.attr);
            true
        });
        result.unwrap_or_else(|error| panic!("reading directory {dir}: {error}"));
        let names = self.reference.inodes[&dir].names().expect("it is a directory");
        let expected: BTreeMap<Vec<u8>, (InodeNo, FileType)> = names
            .iter()
            .map(|(name, ino)| (name.clone(), (*ino, self.reference.inodes[ino].file_type)))
            .collect();
        assert_eq!(seen, expected, "entries of directory {dir}");
        assert_eq!(attrs.len(), if plus { seen.len() } else { 0 });
        for attr in attrs {
            self.compare_attr(&attr);
            self.reference.refer(attr.ino);
        }
        if self.reference.inodes[&dir].nlink > 0 {
            let parent = self.volume.parent(dir).expect("parent");
            assert_eq!(parent, self.reference.inodes[&dir].parent, "parent of {dir}");
        }
    }
}

fn check_xattr_name(name: &[u8]) -> Result<(), Kind> {
    match name {
        name if name.len() > 255 => Err(Kind::Range),
        name if name.starts_with(b"user.") || name.starts_with(b"trusted.") => Ok(()),
        _ => Err(Kind::NotSupported),
    }
}

/// The first difference between the contents of a file and the expected ones.
fn contents_differ(volume: &Volume, ino: InodeNo, bytes: &Sparse) -> Option<String> {
    for (offset, len) in bytes.probes() {
        let mut out = vec![0x55; len];
        let got = match volume.read(ino, offset, &mut out) {
            Ok(got) => got,
            Err(error) => return Some(format!("reading at {offset}: {error}")),
        };
        let expected = bytes.read(offset, len);
        if got != expected.len() {
            return Some(format!("{got} bytes at {offset}, not {}", expected.len()));
        }
        if let Some(at) = (0..got).find(|at| out[*at] != expected[*at]) {
            let (out, expected) = (out[at], expected[at]);
            return Some(format!("byte {} is {out}, not {expected}", offset + at as u64));
        }
    }
    None
}
