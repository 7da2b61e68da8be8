//! Recovery of the index of a large directory, of which only parts changed: the listed buckets are corrected.
//!
//! Buckets are written for checkpoints only. Before that, each bucket on the device is that of the last
//! checkpoint, and its entries of blocks that did not change are right. While they are being written, each
//! is old or new, and the same holds if no bucket was split. An index in any other state is removed, and the
//! next insertion makes a new one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::Code;
use super::disk::Place as DiskPlace;
use super::editor::Editor;
use super::inventory::{ContainerFile, pieces};
use super::parts::Parts;
use super::pass3::Derived;
use super::walk::Walk;
use crate::format::index::{self, INDEX_OFFSET_BYTES};
use crate::format::sector::Sector;
use crate::units::{Container, InodeNo, SectorIndex};

/// A name in an index: its hash and its sector.
type IndexEntry = (u32, SectorIndex);

/// Corrects the indexes of directories that are listed in parts.
pub(super) struct IndexMending<'a, 'c> {
    pub walk: &'a mut Walk<'c>,
}

impl IndexMending<'_, '_> {
    /// Adds the corrected buckets to the derived state, and removes each index that cannot be corrected.
    pub fn run(&mut self, derived: &mut Derived) {
        let Some(scope) = &self.walk.scope else { return };
        let is_read = |(dir, _): &(InodeNo, &Parts)| scope.entered.contains(dir);
        let all = scope.directories.parts().filter(is_read);
        let all: Vec<(InodeNo, Parts)> = all.map(|(dir, parts)| (dir, parts.clone())).collect();
        for (dir, parts) in all {
            let Some(file) = self.walk.meta.inventory.containers.get(&dir).cloned() else {
                continue;
            };
            match self.mend(dir, &file, &parts) {
                Ok(buckets) if buckets.is_empty() => continue,
                Ok(mut buckets) => derived.append(&mut buckets),
                Err(_) => Editor { walk: self.walk }.drop_index(dir),
            }
            let recovered = &mut self.walk.findings.report.recovered;
            *recovered.entry(Code::Index).or_default() += 1;
        }
    }

    /// The corrected buckets, with their places. An error says why the index cannot be corrected.
    fn mend(
        &mut self,
        dir: InodeNo,
        file: &ContainerFile,
        parts: &Parts,
    ) -> Result<Derived, &'static str> {
        let layout = self.walk.meta.layout;
        let block = u64::from(layout.block_bytes);
        let base = INDEX_OFFSET_BYTES / u64::from(layout.fragment_bytes);
        let mapped = file.map.iter().filter(|extent| extent.logical >= base);
        let mapped: u64 = mapped.map(|extent| u64::from(extent.len)).sum();
        if !file.indexed && file.buckets == 0 && mapped == 0 {
            return Ok(Derived::new());
        }
        let len = u64::from(parts.buckets) * block;
        let there = pieces(&file.map, INDEX_OFFSET_BYTES, len, &layout);
        let there: u64 = there.iter().map(|place| place.len as u64).sum();
        let is_kept = file.indexed && there == len;
        let has_more = mapped * u64::from(layout.fragment_bytes) > len;
        if parts.buckets == 0 || file.buckets < parts.buckets || !is_kept || has_more {
            return Err("it is not the index of the checkpoint");
        }
        let is_split = parts.changed_buckets.last().is_some_and(|last| *last >= parts.buckets);
        let settling = self.walk.scope.as_ref().is_some_and(|scope| scope.settling);
        if settling && (is_split || file.buckets > parts.buckets) {
            return Err("a bucket was being split");
        }
        let mended = self.mended_buckets(dir, file, parts)?;
        if file.buckets > parts.buckets {
            // The inode was written ahead of the buckets.
            self.walk.meta.edit_record(dir, |record| {
                record.inode.set_entries(record.inode.entries(), parts.buckets);
            });
        }
        Ok(mended)
    }

    fn mended_buckets(
        &mut self,
        dir: InodeNo,
        file: &ContainerFile,
        parts: &Parts,
    ) -> Result<Derived, &'static str> {
        let layout = self.walk.meta.layout;
        let changed = parts.changed_buckets.iter().map(|bucket| kept(*bucket, parts.buckets));
        let changed: BTreeSet<u32> = changed.collect();
        let mut names: HashMap<u32, Vec<IndexEntry>> = HashMap::new();
        for name in self.listed_names(dir, file, parts)? {
            names.entry(index::bucket_of(name.0, parts.buckets)).or_default().push(name);
        }
        let read = self.read_blocks(file, INDEX_OFFSET_BYTES, changed.iter().copied());
        let mut mended = Derived::new();
        for (bucket, (places, mut bytes)) in changed.into_iter().zip(read) {
            let checksum = self.walk.meta.checksum;
            index::verify(&bytes, dir, file.generation, bucket, checksum)
                .map_err(|_| "a bucket is damaged")?;
            let is_listed = |sector: SectorIndex| {
                parts.blocks.contains_key(&(sector.0 / layout.block_sectors()))
            };
            if correct(&mut bytes, names.remove(&bucket).unwrap_or_default(), is_listed) {
                index::seal(&mut bytes, checksum);
                let mut rest = &bytes[..];
                for place in places {
                    let (piece, after) = rest.split_at(place.len);
                    mended.push((place.offset, piece.to_vec()));
                    rest = after;
                }
            }
        }
        Ok(mended)
    }

    /// The names in the changed blocks of a directory, as recovery leaves them.
    fn listed_names(
        &mut self,
        dir: InodeNo,
        file: &ContainerFile,
        parts: &Parts,
    ) -> Result<Vec<IndexEntry>, &'static str> {
        let layout = self.walk.meta.layout;
        let per_block = layout.block_sectors();
        let blocks = parts.blocks.keys().copied();
        let blocks: Vec<u32> = blocks.filter(|block| *block < file.sectors / per_block).collect();
        let read = self.read_blocks(file, 0, blocks.iter().copied());
        let mut names = Vec::new();
        for (block, (_, bytes)) in blocks.into_iter().zip(read) {
            let images = bytes.chunks_exact(layout.sector_bytes as usize);
            let sectors = (block * per_block..).map(SectorIndex).zip(images);
            let sectors: Vec<(SectorIndex, &[u8])> = sectors.collect();
            let is_good = |(sector, image): &(SectorIndex, &[u8])| {
                let container = Container { file: dir, sector: *sector };
                self.walk.meta.verify_sector(image, container).is_ok()
            };
            if sectors.len() < per_block as usize || !sectors.iter().all(is_good) {
                self.walk
                    .findings
                    .doubt(format!("block {block} of directory {dir} cannot be read"));
                return Err("a sector of the directory is damaged");
            }
            for (sector, image) in sectors {
                names.extend(Sector::new(image).entries().map(|entry| (entry.hash, sector)));
            }
        }
        Ok(names)
    }

    /// Reads blocks of a directory, counted from a byte of it on: the places of each, and the bytes there.
    fn read_blocks(
        &mut self,
        file: &ContainerFile,
        base: u64,
        blocks: impl Iterator<Item = u32>,
    ) -> Vec<(Vec<DiskPlace>, Vec<u8>)> {
        let layout = self.walk.meta.layout;
        let len = u64::from(layout.block_bytes);
        let places =
            blocks.map(|block| pieces(&file.map, base + u64::from(block) * len, len, &layout));
        let places: Vec<Vec<DiskPlace>> = places.collect();
        let mut blobs = self.walk.meta.disk.read_many(&places.concat()).into_iter();
        let bytes = |places: Vec<DiskPlace>| {
            let bytes = blobs.by_ref().take(places.len()).collect::<Vec<_>>().concat();
            (places, bytes)
        };
        places.into_iter().map(bytes).collect()
    }
}

/// The bucket that had the names of this one when there were `buckets`.
fn kept(mut bucket: u32, buckets: u32) -> u32 {
    while bucket >= buckets {
        bucket -= 1 << bucket.ilog2();
    }
    bucket
}

/// Replaces the entries of changed sectors by `names`; returns whether any was wrong.
fn correct(
    bytes: &mut [u8],
    names: Vec<IndexEntry>,
    is_changed: impl Fn(SectorIndex) -> bool,
) -> bool {
    // How often the bucket lacks each entry; below 0, how often it has too many.
    let mut lacking: BTreeMap<IndexEntry, i64> = BTreeMap::new();
    for name in names {
        *lacking.entry(name).or_default() += 1;
    }
    for entry in index::entries(bytes).filter(|(_, sector)| is_changed(*sector)) {
        *lacking.entry(entry).or_default() -= 1;
    }
    lacking.retain(|_, count| *count != 0);
    for ((hash, sector), count) in &lacking {
        for _ in *count..0 {
            index::remove(bytes, *hash, *sector);
        }
    }
    for ((hash, sector), count) in &lacking {
        for _ in 0..*count {
            index::insert(bytes, *hash, *sector);
        }
    }
    !lacking.is_empty()
}

#[cfg(test)]
mod tests;
