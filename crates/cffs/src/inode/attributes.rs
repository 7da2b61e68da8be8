//! The extended attributes of an inode: in memory, or on the device in a block of their own until a
//! caller asks for them.
//!
//! ```text
//!    beside the inode ──decode──▶ known ◀──load── on the device
//!                                   └────forget──────▲   (if the device has them as they are)
//! ```
//!
//! Invariant: attributes that an epoch writes to a block of their own stay known until the epoch is on the
//! device. Until then the block on the device has whatever was there before.

use std::collections::BTreeMap;

use super::{Inode, Locked, Store, VnodeState};
use crate::error::{Corruption, Result};
use crate::format::xattr;
use crate::units::{BlockNo, EpochNo, FragRun};

/// What an attribute takes in memory besides name and value, about.
const HEAD_BYTES: u64 = 96;

/// Attributes by name.
#[derive(Debug, Default)]
pub struct Attributes {
    list: BTreeMap<Vec<u8>, Vec<u8>>,
    bytes: u64,
}

impl Attributes {
    /// The attributes of an encoded list; an error says what is wrong with it.
    fn decode(list: &[u8]) -> std::result::Result<Attributes, &'static str> {
        let mut attributes = Attributes::default();
        for attribute in xattr::iter(list) {
            let (name, value) = attribute?;
            attributes.insert(name.to_vec(), value.to_vec());
        }
        Ok(attributes)
    }

    /// The attributes as an encoded list.
    pub fn encode(&self) -> Vec<u8> {
        let mut list = Vec::with_capacity(self.encoded_len());
        for (name, value) in &self.list {
            xattr::push(&mut list, name, value);
        }
        list
    }

    /// The length of the encoded list in bytes.
    pub fn encoded_len(&self) -> usize {
        self.list.iter().map(|(name, value)| xattr::encoded_len(name, value)).sum()
    }

    /// The value of an attribute.
    pub fn get(&self, name: &[u8]) -> Option<&Vec<u8>> {
        self.list.get(name)
    }

    /// Whether there is an attribute of this name.
    pub fn has(&self, name: &[u8]) -> bool {
        self.list.contains_key(name)
    }

    /// The names, in their order.
    pub fn names(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.list.keys()
    }

    /// Sets an attribute.
    pub fn insert(&mut self, name: Vec<u8>, value: Vec<u8>) {
        self.remove(&name);
        self.bytes += HEAD_BYTES + (name.len() + value.len()) as u64;
        self.list.insert(name, value);
    }

    /// Takes an attribute away.
    pub fn remove(&mut self, name: &[u8]) {
        if let Some(value) = self.list.remove(name) {
            self.bytes -= HEAD_BYTES + (name.len() + value.len()) as u64;
        }
    }

    /// What they take in memory, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.bytes
    }
}

impl Inode {
    /// The attributes, if they are in memory.
    pub fn known_attributes(&self) -> Option<&Attributes> {
        self.attributes.as_ref()
    }

    /// Whether there are any.
    pub fn has_attributes(&self) -> bool {
        self.attributes.as_ref().is_none_or(|known| !known.list.is_empty())
    }

    /// The attributes, to look at or change; [`Store::load_attributes`] has brought them into memory
    /// since the inode was locked.
    ///
    /// # Panics
    ///
    /// If they are not in memory: taking them for none would drop access control lists.
    pub fn attributes(&self) -> &Attributes {
        self.attributes.as_ref().expect("attributes are loaded before they are looked at")
    }

    /// The same, to change them.
    pub fn attributes_mut(&mut self) -> &mut Attributes {
        self.attributes.as_mut().expect("attributes are loaded before they are changed")
    }
}

impl Store {
    /// Takes the attributes that lie beside an inode, when it is read, or notes where they are.
    pub(super) fn decode_attributes(
        &self,
        inode: &mut Inode,
        beside: &[u8],
        apart: Option<FragRun>,
    ) -> Result<()> {
        let ino = inode.ino;
        match apart {
            None => {
                let known = Attributes::decode(beside);
                inode.attributes = Some(known.map_err(|what| Corruption::Inode { ino, what })?);
            }
            Some(run) => {
                let bad = |what| Corruption::XattrBlock { ino, start: run.start, what };
                if !self.layout.is_allocatable(run.start, run.len) {
                    return Err(bad("outside of the volume's space for files").into());
                }
                let bytes_max = xattr::HEADER_BYTES + xattr::XATTR_LIST_BYTES_MAX;
                if u64::from(run.len) > self.layout.fragments_for(bytes_max as u64) {
                    return Err(bad("larger than attributes can be").into());
                }
                (inode.attributes, inode.xattr_block) = (None, run);
            }
        }
        Ok(())
    }

    /// Brings the attributes of a file into memory, where they stay while it is locked.
    pub fn load_attributes(&self, file: &mut Locked<'_>) -> Result<()> {
        if file.inode.attributes.is_none() {
            let known = self.read_attributes(&file.inode)?;
            file.inode.attributes = Some(known);
            self.weigh(file);
        }
        Ok(())
    }

    /// Nothing of an inode that is destroyed is written or kept.
    pub(super) fn drop_inode(&self, file: &mut VnodeState) {
        file.inode.attributes = Some(Attributes::default());
        (file.changes.dirty, file.changes.xattrs) = (false, false);
        self.weigh(file);
    }

    fn read_attributes(&self, inode: &Inode) -> Result<Attributes> {
        let run = inode.xattr_block;
        let len = u64::from(run.len) * u64::from(self.layout.fragment_bytes);
        let mut bytes = Vec::with_capacity(len as usize);
        let until = BlockNo(self.layout.blocks);
        self.read_fragments(run.start, 0, len, until, &mut |piece| bytes.extend(piece))?;
        let list =
            xattr::decode_block(&bytes, inode.ino, inode.generation, run.start, self.checksum)?;
        let bad = |what| Corruption::XattrBlock { ino: inode.ino, start: run.start, what };
        Ok(Attributes::decode(list).map_err(bad)?)
    }
}

impl VnodeState {
    /// Drops the attributes from memory if a device that has all epochs up to `done` has them as they are.
    pub(super) fn forget_attributes(&mut self, done: EpochNo) {
        if !self.changes.xattrs && self.inode.xattr_block.len > 0 && self.is_on_device(done) {
            self.inode.attributes = None;
        }
    }
}
