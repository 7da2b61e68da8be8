//! The hash index of a directory, compared with the directory's names (in pass 1, which has the names).

use super::disk::Place as DiskPlace;
use super::findings::Findings;
use super::fix::Fix;
use super::inventory::{ContainerFile, pieces};
use super::metadata::Metadata;
use super::{Code, Place};
use crate::format::index;
use crate::units::{InodeNo, SectorIndex};

/// Buckets that are read at once.
const BATCH_BLOCKS: usize = 256;

/// Compares the index of a directory with its names.
pub(super) struct Index<'a, 'c> {
    pub meta: &'a mut Metadata<'c>,
    pub findings: &'a mut Findings,
    pub fixes: &'a mut Vec<Fix>,
}

impl Index<'_, '_> {
    /// Checks the index against the names, in the order of their hashes.
    pub(super) fn check_index(&mut self, dir: InodeNo, mut names: Vec<(u32, u32, u16)>) {
        let Some(file) = self.meta.inventory.containers.get(&dir) else { return };
        let base = index::INDEX_OFFSET_BYTES / u64::from(self.meta.layout.fragment_bytes);
        let has_blocks = file.map.last().is_some_and(|extent| extent.logical_end() > base);
        if !file.indexed && file.buckets == 0 && !has_blocks {
            return;
        }
        if file.names_changed {
            // Pass 2 removes the index in any case.
            return;
        }
        let file = file.clone();
        names.sort_unstable_by_key(|(hash, sector, _)| {
            (index::bucket_of(*hash, file.buckets.max(1)), *hash, *sector)
        });
        let wrong = match file.indexed && file.buckets > 0 {
            true => self.compare_index(dir, &file, &names).err(),
            false => Some("buckets without an index".to_string()),
        };
        if let Some(message) = wrong {
            self.findings.derived(Code::Index, Place::Inode(dir), message);
            self.fixes.push(Fix::DropIndex(dir));
        }
    }

    fn compare_index(
        &mut self,
        dir: InodeNo,
        file: &ContainerFile,
        names: &[(u32, u32, u16)],
    ) -> Result<(), String> {
        let layout = self.meta.layout;
        let block = u64::from(layout.block_bytes);
        let len = u64::from(file.buckets) * block;
        let places = pieces(&file.map, index::INDEX_OFFSET_BYTES, len, &layout);
        if places.iter().map(|place| place.len as u64).sum::<u64>() != len {
            return Err("buckets are missing".into());
        }
        let mut rest = names;
        for first in (0..file.buckets).step_by(BATCH_BLOCKS) {
            let count = (BATCH_BLOCKS as u32).min(file.buckets - first);
            let start = index::INDEX_OFFSET_BYTES + u64::from(first) * block;
            let places: Vec<DiskPlace> =
                pieces(&file.map, start, u64::from(count) * block, &layout);
            let bytes = self.meta.disk.read_many(&places).concat();
            for (bucket, bytes) in (first..first + count).zip(bytes.chunks_exact(block as usize)) {
                let verified =
                    index::verify(bytes, dir, file.generation, bucket, self.meta.checksum);
                if let Err(error) = verified {
                    // After a crash it may not have been written yet.
                    if self.findings.was_clean() {
                        let start = index::INDEX_OFFSET_BYTES + u64::from(bucket) * block;
                        let places = pieces(&file.map, start, block, &layout);
                        self.meta.disk.contradict(&places, &error);
                    }
                    return Err(error.to_string());
                }
                let in_bucket = rest
                    .partition_point(|(hash, ..)| index::bucket_of(*hash, file.buckets) <= bucket);
                let (own, others) = rest.split_at(in_bucket);
                rest = others;
                compare_bucket(bytes, own).map_err(|what| format!("bucket {bucket}: {what}"))?;
            }
        }
        Ok(())
    }
}

fn compare_bucket(bytes: &[u8], names: &[(u32, u32, u16)]) -> Result<(), &'static str> {
    let mut listed: Vec<(u32, SectorIndex)> = index::entries(bytes).collect();
    listed.sort_unstable();
    let mut names = names.iter().map(|(hash, sector, _)| (*hash, SectorIndex(*sector)));
    if index::overflowed(bytes) {
        // A full bucket lists only some of its names, but no others.
        return match listed.into_iter().all(|entry| names.any(|name| name == entry)) {
            true => Ok(()),
            false => Err("a name is listed that is not there"),
        };
    }
    match names.eq(listed) {
        true => Ok(()),
        false => Err("the names are not those of the directory"),
    }
}
