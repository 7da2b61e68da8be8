//! Data outside of sectors: attribute blocks, and the contents of small files (pass 1).

use std::ops::Range;

use super::claims::{Claims, PendingContents};
use super::clusters::{Fault, KnownClusters};
use super::disk::{BATCH_BYTES, Place as DiskPlace};
use super::fix::{Fix, Patch};
use super::inventory::pieces;
use super::records::MapCheck;
use super::{Code, Phase, Place};
use crate::error::Corruption;
use crate::format::checksum::contents;
use crate::format::extent::Extent;
use crate::format::inode::{FileType, InodeFlags, Record};
use crate::format::{SYMLINK_BYTES_MAX, xattr};
use crate::units::InodeNo;

impl Claims<'_, '_> {
    pub(super) fn remember_contents(&mut self, record: &Record<'_>, check: MapCheck) {
        let inode = record.inode;
        if inode.file_type() == Some(FileType::Symlink) {
            let (ino, size) = (inode.number(), inode.size.get());
            if inode.inode_flags().contains(InodeFlags::INLINE) {
                self.check_target(ino, record.data);
            } else if !check.damaged && size > 0 && size <= SYMLINK_BYTES_MAX as u64 {
                let link = PendingContents { ino, size, checksum: 0, extents: check.extents };
                self.space.pending_targets.push(link);
            }
            return;
        }
        if self.options.contents
            && !check.damaged
            && self.lost_parts(&check.extents).is_empty()
            && inode.inode_flags().contains(InodeFlags::CONTENT_CHECKSUM)
            && inode.size.get() <= self.meta.layout.segment_bytes.into()
        {
            self.space.pending_contents.push(PendingContents {
                ino: inode.number(),
                size: inode.size.get(),
                checksum: inode.content_checksum.get(),
                extents: check.extents,
            });
        }
    }

    /// Notes a file that has contents in lost ranges.
    pub(super) fn note_lost_contents(&mut self, ino: InodeNo, extents: &[Extent]) {
        let lost = self.lost_parts(extents);
        if lost.is_empty() {
            return;
        }
        let bytes: u64 = lost.iter().map(|part| part.end - part.start).sum();
        let message = format!("{bytes} bytes of its contents, as they are stored, are lost");
        self.findings.problem(Code::ContentsLost, Place::Inode(ino), message);
        self.space.lost_contents.extend(lost);
    }

    /// The parts of lost ranges that written extents have.
    pub(super) fn lost_parts(&self, extents: &[Extent]) -> Vec<Range<u64>> {
        let lost = &self.options.lost;
        let mut parts = Vec::new();
        if lost.is_empty() {
            return parts;
        }
        for extent in extents.iter().filter(|extent| !extent.unwritten) {
            let DiskPlace { offset, len } = self.meta.run_place(extent.run());
            let end = offset + len as u64;
            let first = lost.partition_point(|range| range.end <= offset);
            let met = lost[first..].iter().take_while(|range| range.start < end);
            parts.extend(met.map(|range| range.start.max(offset)..range.end.min(end)));
        }
        parts
    }

    pub(super) fn check_attribute_blocks(&mut self) {
        let mut pending = std::mem::take(&mut self.space.pending_attributes);
        pending.sort_unstable_by_key(|attributes| attributes.run.start);
        for batch in pending.chunks(256) {
            let places: Vec<DiskPlace> =
                batch.iter().map(|attributes| self.meta.run_place(attributes.run)).collect();
            let blobs = self.meta.disk.read_many(&places);
            for (attributes, bytes) in batch.iter().zip(blobs) {
                let (ino, start) = (attributes.ino, attributes.run.start);
                let generation = attributes.generation;
                let list = xattr::decode_block(&bytes, ino, generation, start, self.meta.checksum);
                let error = match list {
                    Err(error) => {
                        self.meta.disk.contradict(&[self.meta.run_place(attributes.run)], &error);
                        error.to_string()
                    }
                    Ok(list) => match xattr::iter(list).find_map(Result::err) {
                        Some(what) => what.to_string(),
                        None if has_bad_name(list) => {
                            let message = "an attribute's name has a zero byte";
                            self.findings.problem(Code::AttributeList, Place::Inode(ino), message);
                            let good = good_attributes(list);
                            self.fixes.push(Fix::SetAttributes(ino, good));
                            continue;
                        }
                        None => continue,
                    },
                };
                self.lose_attributes(ino, &error);
            }
        }
    }

    /// Checks the contents of small files that have a checksum, and all clusters.
    pub(super) fn check_contents(&mut self) {
        let mut pending = std::mem::take(&mut self.space.pending_contents);
        pending.sort_unstable_by_key(|file| file.extents.first().map(|extent| extent.start));
        let total = pending.len() as u64;
        let mut done = 0;
        let mut rest = &pending[..];
        let mut clusters = KnownClusters::default();
        while !rest.is_empty() {
            let mut bytes = 0;
            let count = rest
                .iter()
                .take_while(|file| {
                    bytes += file.size as usize;
                    bytes <= BATCH_BYTES
                })
                .count()
                .max(1);
            let (batch, tail) = rest.split_at(count);
            let (clustered, plain): (Vec<_>, Vec<_>) = batch
                .iter()
                .partition(|file| file.extents.iter().any(|extent| extent.cluster.is_some()));
            let places: Vec<Vec<DiskPlace>> =
                plain.iter().map(|file| self.data_places(file)).collect();
            let mut blobs = self.meta.disk.read_many(&places.concat()).into_iter();
            for (file, places) in plain.iter().zip(&places) {
                let blobs: Vec<Vec<u8>> = blobs.by_ref().take(places.len()).collect();
                if self.contents_sum(file, &blobs) != file.checksum {
                    self.lose_contents(file, "the contents do not match their checksum".into());
                }
            }
            for file in clustered {
                match self.clustered_sum(file, &mut clusters) {
                    Ok(sum) if sum == file.checksum => {}
                    Ok(_) => {
                        let message = "the contents do not match their checksum".into();
                        self.lose_contents(file, message);
                    }
                    Err(Fault::Unreadable) => {
                        let message = "a cluster with its contents cannot be read".into();
                        self.lose_contents(file, message);
                    }
                    // All files in the cluster are listed below.
                    Err(Fault::Damaged(_)) => {}
                }
            }
            done += count as u64;
            self.progress.report(Phase::Contents, done, total);
            rest = tail;
        }
        self.check_clusters(clusters, total);
    }

    fn lose_contents(&mut self, file: &PendingContents, message: String) {
        let ino = file.ino;
        let written = file.extents.iter().filter(|extent| !extent.unwritten);
        let places: Vec<_> = written.map(|extent| self.meta.run_place(extent.run())).collect();
        self.meta.disk.contradict(&places, &Corruption::Contents { ino });
        self.findings.problem(Code::Contents, Place::Inode(ino), message);
        let patch = Patch { clear_flags: InodeFlags::CONTENT_CHECKSUM, ..Patch::default() };
        self.fixes.push(Fix::Patch(ino, patch));
    }

    /// Whether the contents of a file match its checksum.
    pub(super) fn has_contents(&mut self, file: &PendingContents) -> bool {
        if file.extents.iter().any(|extent| extent.cluster.is_some()) {
            let sum = self.clustered_sum(file, &mut KnownClusters::default());
            return sum.is_ok_and(|sum| sum == file.checksum);
        }
        let places = self.data_places(file);
        let blobs = self.meta.disk.read_many(&places);
        self.contents_sum(file, &blobs) == file.checksum
    }

    /// The checksum of contents of which some are in clusters, or the fault of one of these.
    fn clustered_sum(
        &mut self,
        file: &PendingContents,
        clusters: &mut KnownClusters,
    ) -> Result<u32, Fault> {
        let fragment = self.meta.layout.fragment_bytes as usize;
        let mut bytes = vec![0; file.size as usize];
        for extent in file.extents.iter().filter(|extent| !extent.unwritten) {
            let at = (extent.logical as usize * fragment).min(bytes.len());
            let len = (extent.len as usize * fragment).min(bytes.len() - at);
            if len == 0 {
                // The file ends before.
                continue;
            }
            let to = &mut bytes[at..at + len];
            match extent.cluster {
                None => {
                    let place = self.meta.run_place(extent.run());
                    to.copy_from_slice(&self.meta.disk.read(place.offset, len));
                }
                Some(part) => {
                    let raw = clusters.expand(self.meta, extent.run())?;
                    let from = usize::from(part.offset) * fragment;
                    to.copy_from_slice(raw.get(from..from + len).ok_or(Fault::TOO_SHORT)?);
                }
            }
        }
        Ok(contents(0, &bytes))
    }

    /// Checks the targets of symbolic links that are not in their inodes.
    pub(super) fn check_targets(&mut self) {
        for link in std::mem::take(&mut self.space.pending_targets) {
            let places = self.data_places(&link);
            let target = self.meta.disk.read_many(&places).concat();
            self.check_target(link.ino, &target);
        }
    }

    /// Checks the target of a symbolic link: a path is not empty and has no zero byte.
    fn check_target(&mut self, ino: InodeNo, target: &[u8]) {
        let len = target.iter().position(|byte| *byte == 0).unwrap_or(target.len());
        if len == target.len() && len > 0 {
            return;
        }
        let what = if target.is_empty() { "is empty" } else { "has a zero byte" };
        let message = format!("the target of the symbolic link {what}");
        self.findings.problem(Code::SymlinkTarget, Place::Inode(ino), message);
        self.fixes.push(match len {
            0 => Fix::Forget(ino),
            len => Fix::CutTarget(ino, len),
        });
    }

    fn data_places(&self, file: &PendingContents) -> Vec<DiskPlace> {
        let written: Vec<_> = file.extents.iter().filter(|e| !e.unwritten).copied().collect();
        pieces(&written, 0, file.size, &self.meta.layout)
    }

    fn contents_sum(&self, file: &PendingContents, blobs: &[Vec<u8>]) -> u32 {
        let fragment = u64::from(self.meta.layout.fragment_bytes);
        let written = file.extents.iter().filter(|extent| !extent.unwritten);
        let (mut sum, mut at) = (0, 0);
        for (extent, blob) in written.zip(blobs) {
            let start = extent.logical * fragment;
            sum = zeros_sum(sum, start.saturating_sub(at));
            sum = contents(sum, blob);
            at = start + blob.len() as u64;
        }
        zeros_sum(sum, file.size.saturating_sub(at))
    }
}

/// Whether an attribute has an invalid name, which no program can request.
pub(super) fn has_bad_name(list: &[u8]) -> bool {
    xattr::iter(list).filter_map(Result::ok).any(|(name, _)| !xattr::is_name(name))
}

/// The attributes before the first invalid entry of the list, except those with invalid names.
pub(super) fn good_attributes(list: &[u8]) -> Vec<u8> {
    let mut good = Vec::new();
    let listed = xattr::iter(list).map_while(Result::ok);
    for (name, value) in listed.filter(|(name, _)| xattr::is_name(name)) {
        xattr::push(&mut good, name, value);
    }
    good
}

fn zeros_sum(mut sum: u32, mut count: u64) -> u32 {
    const ZEROS: [u8; 4096] = [0; 4096];
    while count > 0 {
        let piece = count.min(ZEROS.len() as u64);
        sum = contents(sum, &ZEROS[..piece as usize]);
        count -= piece;
    }
    sum
}
