//! Accounts of quotas: compared with a count of their trees, if the volume was closed with them.
//!
//! A wrong account is not rewritten: a repair counts as an opening of the volume, and the next opening counts
//! the trees of accounts that are older.

use std::collections::{BTreeSet, HashMap};

use super::walk::Walk;
use super::{Code, Place};
use crate::format::inode::{FileType, InodeFlags, Record};
use crate::format::quota::{self, QUOTAS_NAME, QuotaRecord, STAT_BLOCK_BYTES};
use crate::format::sector::{Body, Sector};
use crate::format::superblock::RoCompat;
use crate::format::xattr;
use crate::printable::counted;
use crate::units::{Container, InodeNo, SectorIndex};

/// Compares the accounts.
pub(super) struct Accounts<'a, 'c> {
    pub walk: &'a mut Walk<'c>,
}

/// The use of a tree.
#[derive(Default)]
struct Count {
    bytes: u64,
    files: u64,
    /// Files of the external table that have a name in the tree.
    externals: BTreeSet<InodeNo>,
}

impl Accounts<'_, '_> {
    /// Reports each account that is not the count of its tree. The walk has found everything.
    pub(super) fn check(&mut self) {
        let superblock = &self.walk.meta.superblock;
        if !superblock.ro_compat.contains(RoCompat::QUOTAS) || !self.walk.findings.was_clean() {
            return;
        }
        let mounts = superblock.mounts;
        let records = self.records();
        let is_present = |record: &QuotaRecord| {
            let found = self.walk.meta.inventory.get(record.dir);
            found.is_some_and(|found| {
                found.generation == record.generation && found.file_type == FileType::Directory
            })
        };
        let records: Vec<QuotaRecord> = records.into_iter().filter(is_present).collect();
        if records.iter().all(|record| record.mounts != mounts) {
            return;
        }
        let counts = self.count(&records);
        for (record, count) in records.iter().zip(counts) {
            let (bytes, files) = (count.bytes, count.files);
            if record.mounts == mounts && (bytes, files) != (record.used_bytes, record.used_files) {
                let message = format!(
                    "its quota counts {} and {}, its tree has {bytes} and {files}",
                    counted(record.used_bytes, "byte"),
                    counted(record.used_files, "file")
                );
                self.walk.findings.derived(Code::QuotaAccount, Place::Inode(record.dir), message);
            }
        }
    }

    /// The list in the root directory.
    fn records(&mut self) -> Vec<QuotaRecord> {
        let meta = &mut self.walk.meta;
        let Some(record) = meta.load_record(InodeNo::ROOT) else { return Vec::new() };
        let run = record.inode.attribute_run();
        let list = match run.filter(|run| run.len > 0) {
            None => record.xattrs,
            Some(run) => {
                let place = meta.run_place(run);
                let bytes = meta.disk.read(place.offset, place.len);
                let generation = record.inode.generation.get();
                let list = xattr::decode_block(
                    &bytes,
                    InodeNo::ROOT,
                    generation,
                    run.start,
                    meta.checksum,
                );
                list.map_or(Vec::new(), <[u8]>::to_vec)
            }
        };
        let mut attributes = xattr::iter(&list).map_while(Result::ok);
        let value = attributes.find(|(name, _)| *name == QUOTAS_NAME).map(|(_, value)| value);
        value.map_or(Vec::new(), quota::decode)
    }

    fn count(&mut self, records: &[QuotaRecord]) -> Vec<Count> {
        let mut counts: Vec<Count> = records.iter().map(|_| Count::default()).collect();
        for (dir, account) in self.members(records) {
            let count = &mut counts[account];
            let Some(file) = self.walk.meta.inventory.containers.get(&dir) else { continue };
            let fragments: u64 = file.map.iter().map(|e| e.logical_end() - e.logical).sum();
            count.files += 1;
            count.bytes += fragments * u64::from(self.walk.meta.layout.fragment_bytes);
            for sector in (0..file.sectors).map(SectorIndex) {
                let container = Container { file: dir, sector };
                let Some(image) = self.walk.meta.load_good_sector(container) else { continue };
                for entry in Sector::new(&image).entries() {
                    match &entry.body {
                        _ if entry.file_type == FileType::Directory => {}
                        Body::Embedded(record) => {
                            count.files += 1;
                            count.bytes += self.bytes_of(record);
                        }
                        Body::Reference { ino, .. } => drop(count.externals.insert(*ino)),
                    }
                }
            }
        }
        for count in &mut counts {
            for ino in std::mem::take(&mut count.externals) {
                let Some(record) = self.walk.meta.load_record(ino) else { continue };
                count.files += 1;
                count.bytes += self.bytes_of(&record.as_record());
            }
        }
        counts
    }

    /// The directories in the trees, with the index of the nearest quota above.
    fn members(&self, records: &[QuotaRecord]) -> Vec<(InodeNo, usize)> {
        let containers = &self.walk.meta.inventory.containers;
        let own = records.iter().enumerate().map(|(index, record)| (record.dir, Some(index)));
        let mut known: HashMap<InodeNo, Option<usize>> = own.collect();
        known.entry(InodeNo::ROOT).or_insert(None);
        for dir in containers.keys().filter(|dir| **dir != InodeNo::EXTERNAL) {
            let mut path = Vec::new();
            let mut at = *dir;
            let account = loop {
                if let Some(account) = known.get(&at) {
                    break *account;
                }
                path.push(at);
                match containers.get(&at) {
                    Some(file) if path.len() <= containers.len() => at = file.parent,
                    _ => break None,
                }
            };
            known.extend(path.into_iter().map(|dir| (dir, account)));
        }
        let is_dir = |dir: &InodeNo| containers.contains_key(dir);
        known
            .into_iter()
            .filter(|(dir, _)| is_dir(dir))
            .filter_map(|(d, a)| Some((d, a?)))
            .collect()
    }

    /// The bytes that a file takes, as stat(2) reports them.
    fn bytes_of(&mut self, record: &Record<'_>) -> u64 {
        if record.inode.inode_flags().contains(InodeFlags::INLINE) {
            let is_regular = record.inode.file_type() == Some(FileType::Regular);
            let bytes = if is_regular { record.data.len() as u64 } else { 0 };
            return bytes.next_multiple_of(STAT_BLOCK_BYTES);
        }
        let extents = self.walk.meta.collect_map(record).extents;
        let fragments: u64 = extents.iter().map(|e| e.logical_end() - e.logical).sum();
        fragments * u64::from(self.walk.meta.layout.fragment_bytes)
    }
}
