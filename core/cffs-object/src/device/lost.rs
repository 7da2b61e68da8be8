//! The ranges of a volume that are lost with missing and damaged objects, and giving these objects up.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::ops::Range;

use cffs::device::{BlockDevice, Failure};

use super::LogDevice;
use crate::error::Error;
use crate::extents::Extents;
use crate::format::{CHUNK_BYTES, Place};
use crate::verify::{self, Unusable};

/// A committed range of the device in an object that cannot be used.
struct Part<'u> {
    range: Range<u64>,
    /// Its first byte in the object.
    at: u64,
    unusable: &'u Unusable,
}

impl LogDevice {
    /// The ranges of the device whose bytes are lost with these objects, in order.
    ///
    /// # Errors
    ///
    /// Errors of the store. Missing and damaged objects are no error.
    pub fn lost_with(&self, unusable: &[Unusable]) -> io::Result<Vec<Range<u64>>> {
        self.lost_in(&self.parts_in(unusable)?)
    }

    fn lost_in(&self, parts: &[Part<'_>]) -> io::Result<Vec<Range<u64>>> {
        let mut lost: Vec<Range<u64>> = Vec::new();
        for Part { range: Range { start, end }, at, unusable } in parts {
            let (mut from, end) = (*start, *end);
            while from < end {
                let within = at + (from - start);
                let until = end.min(from + (CHUNK_BYTES - within % CHUNK_BYTES));
                let readable = match unusable.why.as_str() {
                    verify::EXCHANGED => from,
                    verify::MISSING if self.is_readable(from..until)? => until,
                    verify::MISSING => from,
                    _ => self.readable_end(from..until)?,
                };
                if readable < until {
                    lost.push(readable..until);
                }
                from = until;
            }
        }
        Ok(lost)
    }

    /// The committed ranges of the device in these objects, in order.
    fn parts_in<'u>(&self, unusable: &'u [Unusable]) -> io::Result<Vec<Part<'u>>> {
        let by_path: BTreeMap<_, _> =
            unusable.iter().map(|unusable| (unusable.object.as_str(), unusable)).collect();
        let extents = self.state.read().committed.clone();
        let mut parts = Vec::new();
        for (start, len, place) in extents.iter() {
            let Place::Stored(object, at) = *place else { continue };
            let path = self.chunks.address(object).map_err(Error::of_device)?.path.to_string();
            if let Some(unusable) = by_path.get(path.as_str()) {
                parts.push(Part { range: start..start + len, at, unusable });
            }
        }
        Ok(parts)
    }

    /// The end of the readable part of a chunk. A truncated object can end within a chunk; other damage
    /// affects a chunk as a whole.
    fn readable_end(&self, chunk: Range<u64>) -> io::Result<u64> {
        if self.is_readable(chunk.clone())? {
            return Ok(chunk.end);
        }
        let sector = u64::from(self.geometry().sector_bytes);
        let (mut readable, mut lost) = (0, (chunk.end - chunk.start).div_ceil(sector));
        while lost - readable > 1 {
            let middle = readable.midpoint(lost);
            match self.is_readable(chunk.start..chunk.start + middle * sector)? {
                true => readable = middle,
                false => lost = middle,
            }
        }
        Ok(chunk.start + readable * sector)
    }

    /// Whether no missing or damaged object has a part of a range.
    fn is_readable(&self, range: Range<u64>) -> io::Result<bool> {
        match self.read_at(range.start, &mut vec![0; (range.end - range.start) as usize]) {
            Ok(()) => Ok(true),
            Err(error) if Failure::of(&error).is_of_data() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Discards the ranges that are lost with these objects, except the parts in `kept`, and writes the
    /// readable ranges to new objects. Returns the objects that the volume still needs, because parts of them
    /// are kept. To be called when nothing else uses the lost ranges.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub fn give_up<'u>(
        &self,
        unusable: &'u [Unusable],
        kept: &[Range<u64>],
    ) -> io::Result<BTreeSet<&'u str>> {
        self.sync()?;
        let parts = self.parts_in(unusable)?;
        let (mut unused, mut readable) = (Extents::default(), Extents::default());
        for Part { range, .. } in &parts {
            readable.insert(range.start, range.end - range.start, Place::Zeros);
        }
        for range in self.lost_in(&parts)? {
            unused.insert(range.start, range.end - range.start, Place::Zeros);
            readable.remove(range.start, range.end - range.start);
        }
        for range in kept {
            unused.remove(range.start, range.end - range.start);
        }
        for (start, len, _) in unused.iter() {
            self.discard(start, len)?;
        }
        for (start, len, _) in readable.iter() {
            for from in (start..start + len).step_by(CHUNK_BYTES as usize) {
                let mut bytes = vec![0; CHUNK_BYTES.min(start + len - from) as usize];
                self.read_at(from, &mut bytes)?;
                self.write_at(from, &[IoSlice::new(&bytes)])?;
            }
        }
        self.sync()?;
        let is_kept = |Part { range, .. }: &&Part<'_>| {
            kept.iter().any(|kept| kept.start < range.end && range.start < kept.end)
        };
        Ok(parts.iter().filter(is_kept).map(|part| part.unusable.object.as_str()).collect())
    }
}
