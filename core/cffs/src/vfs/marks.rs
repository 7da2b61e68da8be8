//! Marks: names for moments, and the list of changes since a mark.
//!
//! A mark is an attribute of the file system at the root directory. Its value is the count of marks that the
//! volume had been given with it, and the time. The superblock has the count of the last mark, with which
//! changes are stamped; it is on the device before any inode has the stamp.

use std::ops::ControlFlow;

use super::xattr;
use super::{Change, Volume, XattrMode};
use crate::admin::Changes;
use crate::alloc::Spender;
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::format::Superblock;
use crate::format::inode::MARKS_MAX;
use crate::format::superblock::RoCompat;
use crate::inode::Attributes;
use crate::trace::OpKind;
use crate::units::InodeNo;

/// The beginning of the names of attributes that are marks.
const PREFIX: &[u8] = b"trusted.cffs.mark.";
/// The longest name of a mark.
const NAME_BYTES_MAX: usize = 64;

/// A mark on a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Its name.
    pub name: String,
    /// The number of marks that the volume had been given, including this one; `None` if it is damaged.
    pub count: Option<u32>,
    /// When it was set.
    pub set_at: Timestamp,
}

impl Mark {
    fn attribute(name: &str) -> Result<Vec<u8>> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+:@".contains(&byte);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_allowed) {
            let why = "the name of a mark has 1 to 64 letters, digits and characters of ._-+:@";
            return Err(Error::Invalid(why));
        }
        Ok([PREFIX, name.as_bytes()].concat())
    }

    fn encode(count: u32, set_at: Timestamp) -> Vec<u8> {
        [&count.to_le_bytes()[..], &set_at.seconds.to_le_bytes()].concat()
    }

    /// The mark in an attribute, on a volume with this count of marks.
    fn decode(name: &[u8], value: &[u8], marks: u32) -> Mark {
        let name = String::from_utf8_lossy(name).into_owned();
        let fields = value.split_first_chunk::<4>();
        let fields =
            fields.and_then(|(count, time)| Some((count, <[u8; 8]>::try_from(time).ok()?)));
        let (count, seconds) = match fields {
            Some((count, seconds)) => (u32::from_le_bytes(*count), i64::from_le_bytes(seconds)),
            None => (0, 0),
        };
        let count = Some(count).filter(|count| (1..=marks).contains(count));
        Mark { name, count, set_at: Timestamp { seconds, nanoseconds: 0 } }
    }
}

/// The marks of a volume.
#[derive(Clone, Copy)]
pub struct Marks<'a> {
    volume: &'a Volume,
}

impl<'a> Marks<'a> {
    /// The marks of an open volume.
    pub fn of(volume: &'a Volume) -> Marks<'a> {
        Marks { volume }
    }

    /// The marks of the volume, in the order of their names.
    ///
    /// # Errors
    ///
    /// Those of [reading](super#errors).
    pub fn list(&self) -> Result<Vec<Mark>> {
        let _op = self.volume.writer.enter(OpKind::Xattr, InodeNo::ROOT);
        let marks = self.volume.writer.superblock.get().stamp();
        let root = self.volume.writer.vnode(InodeNo::ROOT)?;
        let known = xattr::look_at(self.volume.inodes(), &root, |known| {
            let named = |name: &Vec<u8>| {
                let mark = name.strip_prefix(PREFIX)?;
                Some(Mark::decode(mark, known.get(name)?, marks))
            };
            known.names().filter_map(named).collect()
        });
        self.volume.writer.health.noted(known)
    }

    /// Sets a mark. The list of [`changes`](Marks::changes) since the mark has all changes after the call,
    /// and perhaps changes during the call. The mark and all earlier changes are durable.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a name that a mark cannot have; `EEXIST` if a mark has this name; those of [setting an
    /// attribute](Volume::set_xattr) of the root directory, and of [changes](super#errors).
    pub fn set(&self, name: &str) -> Result<Mark> {
        let _op = self.volume.writer.enter(OpKind::Maintenance, InodeNo::ROOT);
        let attribute = Mark::attribute(name)?;
        let _turn = super::marking_turn(self.volume);
        if self.list()?.iter().any(|mark| mark.name == name) {
            return Err(Error::Exists);
        }
        // Otherwise changes from before the mark would be stamped as later ones.
        self.volume.writer.commit()?;
        let before = self.volume.writer.superblock.get();
        let count = before.marks.min(MARKS_MAX) + 1;
        if count > MARKS_MAX {
            let what = format!("a volume can be given {MARKS_MAX} marks, and this one has been");
            return Err(Error::Unsupported(what));
        }
        let stamp = |superblock: &Superblock| self.volume.inodes().set_stamp(superblock.stamp());
        let counted = |superblock: &mut Superblock| {
            superblock.marks = count;
            superblock.ro_compat.insert(RoCompat::MARKS);
            Ok(())
        };
        self.volume.writer.rewrite_superblock(counted, stamp)?;
        let set_at = Timestamp { nanoseconds: 0, ..self.volume.inodes().clock.now() };
        let value = Mark::encode(count, set_at);
        if let Err(error) = self.set_attribute(&attribute, &value) {
            let uncounted = |superblock: &mut Superblock| {
                (superblock.marks, superblock.ro_compat) = (before.marks, before.ro_compat);
                Ok(())
            };
            self.volume.writer.rewrite_superblock(uncounted, stamp)?;
            return Err(error);
        }
        self.volume.writer.commit()?;
        Ok(Mark { name: name.to_owned(), count: Some(count), set_at })
    }

    fn set_attribute(&self, attribute: &[u8], value: &[u8]) -> Result<()> {
        let root = self.volume.writer.vnode(InodeNo::ROOT)?;
        self.volume.protections.check_unprotected(&root)?;
        let known =
            |known: &Attributes| xattr::check_new(known, attribute, value, XattrMode::Create);
        xattr::look_at(self.volume.inodes(), &root, known)??;
        self.volume.change_vnode(Spender::Privileged, &root, |inodes, file| {
            xattr::unstamped(file, |file| {
                xattr::set(inodes, file, attribute, value, XattrMode::Create)
            })
        })
    }

    /// Removes a mark. The volume keeps its feature MARKS: a program that does not know marks would drop
    /// stamps and the count of marks, and older stamps would count for a mark that gets the same count again.
    ///
    /// # Errors
    ///
    /// `ENODATA` if there is no mark of this name; those of [`set`](Marks::set).
    pub fn remove(&self, name: &str) -> Result<()> {
        let _op = self.volume.writer.enter(OpKind::Maintenance, InodeNo::ROOT);
        let attribute = [PREFIX, name.as_bytes()].concat();
        let _turn = super::marking_turn(self.volume);
        let root = self.volume.writer.vnode(InodeNo::ROOT)?;
        self.volume.protections.check_unprotected(&root)?;
        let removed = self.volume.change_vnode(Spender::Privileged, &root, |inodes, file| {
            xattr::unstamped(file, |file| xattr::remove(inodes, file, &attribute))
        })?;
        if !removed {
            return Err(Error::NoAttribute);
        }
        self.volume.writer.commit()
    }

    /// Passes files created, changed or renamed since a mark, in and below a directory, to `visit`, until
    /// that ends the list. Each file is passed with all of its names, and each directory in which names were
    /// added or removed; of a directory that was renamed, everything below it. Unchanged files may be passed
    /// as well. A path of more than [`CHANGED_PATH_BYTES_MAX`](super::CHANGED_PATH_BYTES_MAX) bytes is passed
    /// for everything below it. Everything that was changed before the call is in the list, and made durable
    /// by it. The order is that of the directories' sectors.
    ///
    /// # Errors
    ///
    /// `ENODATA` if there is no mark of this name; `EINVAL` if the mark is damaged; `ENOTDIR` if the file is
    /// not a directory; those of [reading](super#errors), and on a volume that is open for writing, of
    /// [`sync`](Volume::sync).
    pub fn changes(
        &self,
        dir: InodeNo,
        since: &str,
        visit: &mut dyn FnMut(&Change<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let _op = self.volume.writer.enter(OpKind::Maintenance, dir);
        let mark = self.list()?.into_iter().find(|mark| mark.name == since);
        let count = mark.ok_or(Error::NoAttribute)?.count;
        let count = count.ok_or(Error::Invalid("the mark is damaged; remove it"))?;
        Changes::new(&self.volume.writer, count).run(dir, visit)
    }
}
