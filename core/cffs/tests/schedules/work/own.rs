//! Work of a thread in a directory that only this thread changes, so that it knows the complete state.

use std::ops::ControlFlow;

use cffs::error::{Error, Result};
use cffs::lock::schedule::random;
use cffs::units::InodeNo;
use cffs::vfs::{
    AllocateMode, Amount, Caller, Marks, NewKind, Quotas, RenameMode, SetAttr, Volume, XattrMode,
};

use super::{ATTRIBUTE_BYTES, Work, name, new, pick, shared};
use crate::files::{File, Files, allow_races};
use crate::volumes::Start;

const CHANGES: u64 = 14;
/// Contents that fit into the inode, into a part of a block, or into several blocks.
const CONTENT_BYTES: [usize; 5] = [0, 30, 700, 5000, 13_000];
/// The bytes that a quota permits in addition to those in use.
const LIMIT_BYTES: u64 = 12_000;
const PUNCHED_BYTES: usize = 4096;

/// A thread that changes files.
pub struct Changer<'a> {
    work: Work,
    volume: &'a Volume,
    start: &'a Start,
    /// Its number among the threads.
    number: usize,
    /// Its directory as it must be.
    pub files: Files,
    /// The directory has a quota that may be exceeded.
    is_limited: bool,
    /// Files without a name, each with a reference.
    open: Vec<(InodeNo, File)>,
}

impl<'a> Changer<'a> {
    pub fn new(work: Work, volume: &'a Volume, start: &'a Start, number: usize) -> Changer<'a> {
        let (files, open) = (Files::default(), Vec::new());
        Changer { work, volume, start, number, files, is_limited: false, open }
    }

    fn dir(&self) -> InodeNo {
        self.start.own[self.number]
    }

    fn may_lack_space(&self) -> bool {
        self.start.is_full || self.is_limited
    }

    /// Changes the own directory and shared ones, and looks at all.
    pub fn run(&mut self) {
        for step in 0..CHANGES {
            if random(3) == 0 {
                shared::change(self.work, self.volume, self.start);
            } else {
                self.change(step as u8);
            }
            match random(6) {
                0..=2 => self.look(),
                3 => shared::look_at_foreign(self.volume, pick(&self.start.own)),
                _ => {}
            }
        }
        for (ino, known) in std::mem::take(&mut self.open) {
            assert!(
                File::of(self.volume, ino) == known,
                "an open file is not as its thread left it"
            );
            self.volume.release(ino, 1);
        }
    }

    /// The outcome of a change; `None` if there was no space for it, which is no error where space may run
    /// out.
    fn fits<T>(&self, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(Error::NoSpace) if self.start.is_full => None,
            Err(Error::QuotaExceeded(_)) if self.is_limited => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// A new file without contents.
    fn make(&mut self, name: Vec<u8>) -> Option<InodeNo> {
        let made = self.volume.make(&Caller::ROOT, self.dir(), &name, &new(NewKind::Regular));
        let made = self.fits(made)?.ino;
        self.volume.release(made, 1);
        self.files.names.insert(name, made);
        self.files.files.insert(made, File::default());
        Some(made)
    }

    fn change(&mut self, fill: u8) {
        let name = name();
        let Some(ino) = self.files.names.get(&name).copied() else {
            if let Some(made) = self.make(name) {
                self.change_file(made, fill);
            }
            return;
        };
        match self.work.random(14, 3) {
            0 => self.unlink(&name),
            1 => self.rename(&name, ino),
            2 => {
                let other = super::name();
                if !self.files.names.contains_key(&other) {
                    let linked = self.volume.link(ino, self.dir(), &other);
                    if self.fits(linked).is_some() {
                        self.volume.release(ino, 1);
                        self.files.names.insert(other, ino);
                    }
                }
            }
            3 => self.volume.sync_file(ino, random(2) == 0).expect("synced"),
            4 if !self.start.is_full => self.unlink_open(&name),
            5 if !self.open.is_empty() => {
                let at = random(self.open.len() as u64) as usize;
                let (ino, mut known) = self.open.swap_remove(at);
                self.write_to(ino, &mut known, fill);
                assert!(File::of(self.volume, ino) == known, "an open file is not as it was left");
                self.volume.release(ino, 1);
            }
            6 => self.limit(),
            7 if random(2) == 0 => self.mark(&name, ino, fill),
            8 | 14.. => self.copy(ino),
            _ => self.change_file(ino, fill),
        }
    }

    fn unlink(&mut self, name: &[u8]) {
        self.volume.unlink(&Caller::ROOT, self.dir(), name).expect("unlinked");
        self.files.unlink(name);
    }

    /// Removes a name of a file that is in use.
    fn unlink_open(&mut self, name: &[u8]) {
        let ino = self.volume.lookup(self.dir(), name).expect("found").ino;
        let known = self.files.files[&ino].clone();
        self.unlink(name);
        match self.files.files.contains_key(&ino) {
            true => self.volume.release(ino, 1),
            false => self.open.push((ino, known)),
        }
    }

    fn rename(&mut self, name: &[u8], ino: InodeNo) {
        let other = super::name();
        let (volume, dir) = (self.volume, self.dir());
        let renamed = volume.rename(&Caller::ROOT, dir, name, dir, &other, RenameMode::Replace);
        if self.fits(renamed).is_some() && self.files.names.get(&other) != Some(&ino) {
            self.files.unlink(&other);
            self.files.names.remove(name);
            self.files.names.insert(other, ino);
        }
    }

    /// Gives the directory a quota, or removes it.
    fn limit(&mut self) {
        let quotas = Quotas::of(self.volume);
        if self.is_limited {
            let removed = quotas.remove(self.dir());
            self.is_limited = self.fits(removed).is_none();
            return;
        }
        let set = quotas.set(self.dir(), Amount::UNLIMITED);
        let Some(quota) = self.fits(set) else { return };
        self.is_limited = true;
        let limits = Amount { bytes: quota.used.bytes + LIMIT_BYTES, files: quota.used.files + 1 };
        self.fits(quotas.set(self.dir(), limits));
    }

    /// A change after a mark is in the list of changes since that mark.
    fn mark(&mut self, name: &[u8], ino: InodeNo, fill: u8) {
        let (marks, mark) = (Marks::of(self.volume), format!("of-{}", self.number));
        let set = marks.set(&mark);
        if self.fits(set).is_none() {
            return;
        }
        let before = self.files.files[&ino].clone();
        self.change_file(ino, fill);
        let mut is_listed = false;
        let listed = marks.changes(self.dir(), &mark, &mut |change| {
            is_listed |= change.path == name;
            ControlFlow::Continue(())
        });
        listed.expect("listed");
        assert!(
            is_listed || self.files.files[&ino] == before,
            "a change since a mark is not listed"
        );
        marks.remove(&mark).expect("removed");
    }

    /// Copies a file to the beginning of another, or of a new one.
    fn copy(&mut self, source: InodeNo) {
        let other = super::name();
        let target = match self.files.names.get(&other) {
            Some(target) => Some(*target),
            None => self.make(other),
        };
        let Some(target) = target.filter(|target| *target != source) else { return };
        let bytes = self.files.files[&source].bytes.clone();
        let (from, to) = ((source, 0), (target, 0));
        let copied = self.volume.copy(&Caller::ROOT, from, to, u64::MAX);
        let Some(copied) = self.fits(copied) else { return };
        let copied = copied as usize;
        assert!(copied == bytes.len() || self.may_lack_space(), "a copy of a part");
        self.files.of_mut(target).put(0, &bytes[..copied]);
    }

    fn change_file(&mut self, ino: InodeNo, fill: u8) {
        let mut file = self.files.files[&ino].clone();
        self.change_known(ino, &mut file, fill);
        *self.files.of_mut(ino) = file;
    }

    fn change_known(&self, ino: InodeNo, file: &mut File, fill: u8) {
        let volume = self.volume;
        let attribute = format!("user.{}", random(2)).into_bytes();
        match random(6) {
            0 | 1 => {
                let value = vec![fill; pick(&ATTRIBUTE_BYTES)];
                let set = volume.set_xattr(&Caller::ROOT, ino, &attribute, &value, XattrMode::Any);
                if self.fits(set).is_some() {
                    file.attributes.insert(attribute, value);
                }
            }
            2 => match volume.remove_xattr(ino, &attribute) {
                Err(Error::NoAttribute) => assert!(!file.attributes.contains_key(&attribute)),
                removed => {
                    if self.fits(removed).is_some() {
                        assert!(file.attributes.remove(&attribute).is_some());
                    }
                }
            },
            3 => {
                let size = pick(&CONTENT_BYTES);
                let changes = SetAttr { size: Some(size as u64), ..SetAttr::default() };
                if self.fits(volume.set_attr(&Caller::ROOT, ino, &changes)).is_some() {
                    file.bytes.resize(size, 0);
                }
            }
            4 if file.bytes.len() > PUNCHED_BYTES => {
                let (len, mode) = (PUNCHED_BYTES as u64, AllocateMode::PunchHole);
                if self.fits(volume.allocate(&Caller::ROOT, ino, 0, len, mode)).is_some() {
                    file.bytes[..PUNCHED_BYTES].fill(0);
                }
            }
            _ => self.write_to(ino, file, fill),
        }
    }

    /// Writes within a file, or appends.
    fn write_to(&self, ino: InodeNo, file: &mut File, fill: u8) {
        let piece = vec![fill + 1; pick(&CONTENT_BYTES)];
        let len = file.bytes.len();
        let (at, written) = if random(3) == 0 {
            let Some((written, end)) = self.fits(self.volume.append(&Caller::ROOT, ino, &piece))
            else {
                return;
            };
            assert_eq!(end, (len + written) as u64, "an append elsewhere");
            (len, written)
        } else {
            let at = random(len as u64 + 1) as usize;
            let written = self.volume.write(&Caller::ROOT, ino, at as u64, &piece);
            let Some(written) = self.fits(written) else { return };
            (at, written)
        };
        let is_whole = written == piece.len();
        assert!(is_whole || self.may_lack_space(), "a write of a part");
        file.put(at, &piece[..written]);
    }

    fn look(&self) {
        if random(4) == 0 {
            let found = Files::of(self.volume, self.dir());
            assert!(found == self.files, "a directory is not as its thread left it");
            return;
        }
        let name = name();
        let found = self.volume.lookup(self.dir(), &name);
        let Some(ino) = self.files.names.get(&name) else {
            return assert!(allow_races(found).is_none(), "a name that is gone is found");
        };
        assert_eq!(found.expect("found").ino, *ino);
        self.volume.release(*ino, 1);
        let found = File::of(self.volume, *ino);
        assert!(found == self.files.files[ino], "a file is not as its thread left it");
    }
}
