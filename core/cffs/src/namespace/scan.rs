//! Scans of a directory's entries by their contents, not by name: for placement, read-ahead, and explaining
//! the place of a file.

use std::ops::{ControlFlow, Range};

use crate::error::Result;
use crate::format::sector::Entry;
use crate::inode::{InodeCache, VnodeState};
use crate::units::SectorIndex;

/// Visits the entries of some sectors of a directory in order, as far as these sectors exist, until `visit`
/// ends the scan with a value, which is returned. Fails at the first unreadable sector.
///
/// The caller holds the directory's lock; `visit` may take those of files in it.
pub fn scan<B>(
    inodes: &InodeCache,
    dir: &VnodeState,
    sectors: Range<u32>,
    mut visit: impl FnMut(SectorIndex, &Entry<'_>) -> ControlFlow<B>,
) -> Result<Option<B>> {
    for sector in
        (sectors.start..sectors.end.min(inodes.containers().sector_count(dir))).map(SectorIndex)
    {
        let image = inodes.containers().sector(dir, sector)?;
        for entry in image.get().entries() {
            if let ControlFlow::Break(value) = visit(sector, &entry) {
                return Ok(Some(value));
            }
        }
    }
    Ok(None)
}
