//! The extended attributes of an inode: in memory, or on the device in a block of their own until they are
//! needed.
//!
//! ```text
//!    with the inode ───decode──▶ known ◀──load── on the device
//!                                   └────forget──────▲   (if the device has them as they are)
//! ```
//!
//! Invariant: attributes that an epoch writes to a block of their own stay known until the epoch is on the
//! device. Until then the block on the device has its old contents.

use std::collections::BTreeMap;

use super::{Inode, VnodeState};
use crate::format::xattr;
use crate::units::EpochNo;

/// Approximate memory of an attribute in addition to its name and value.
const HEAD_BYTES: u64 = 96;

/// Attributes by name.
#[derive(Debug, Default)]
pub struct Attributes {
    list: BTreeMap<Vec<u8>, Vec<u8>>,
    bytes: u64,
}

impl Attributes {
    /// Decodes a list of attributes; an error names its fault.
    pub(super) fn decode(list: &[u8]) -> std::result::Result<Attributes, &'static str> {
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

    /// Whether an attribute has this name.
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

    /// Removes an attribute.
    pub fn remove(&mut self, name: &[u8]) {
        if let Some(value) = self.list.remove(name) {
            self.bytes -= HEAD_BYTES + (name.len() + value.len()) as u64;
        }
    }

    /// Their memory, in bytes.
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

    /// The attributes; [`load_attributes`](super::InodeCache::load_attributes) has brought them into memory
    /// since the inode was locked.
    ///
    /// # Panics
    ///
    /// If they are not in memory: to treat them as absent would drop access control lists.
    pub fn attributes(&self) -> &Attributes {
        self.attributes.as_ref().expect("attributes are loaded before they are looked at")
    }

    /// The same, to change them.
    pub fn attributes_mut(&mut self) -> &mut Attributes {
        self.attributes.as_mut().expect("attributes are loaded before they are changed")
    }
}

impl VnodeState {
    /// Drops the attributes from memory if a device that has all epochs up to `done` has this version of
    /// them.
    pub(super) fn forget_attributes(&mut self, done: EpochNo) {
        if !self.changes.xattrs && self.inode.xattr_block.len > 0 && self.is_on_device(done) {
            self.inode.attributes = None;
        }
    }
}
