//! Reading a directory, entry by entry, while others change it.
//!
//! A reader continues after a cookie, which holds the sector and the slot of the last entry, and the end of
//! the reading in sectors. The end is fixed when the reading begins. It travels in the cookies, since the
//! kernel does not open directories. So a reader ends before entries that are appended meanwhile, and an
//! entry that keeps its place is returned once.
//!
//! Programs of 32 bits accept only cookies below 2^31. So a cookie has the first of three forms with room for
//! its reading:
//!
//! ```text
//!            flag   sector   slot   end
//!   small    -      11       8      11     exact
//!   medium   2^30   16       8      6      in units of 1024 sectors, rounded up
//!   large    2^62   32       16     14     in units of 262,144 sectors, rounded up
//! ```
//!
//! The sector has the highest bits, so cookies rise during a reading. The cookie of the last entry of a
//! reading is [`LAST`], after which nothing follows. An invented position below it stands for the next entry.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::format::inode::FileType;
use crate::format::sector::{Body, Entry};
use crate::inode::{InodeCache, VnodeState};
use crate::units::{Container, InodeNo, SectorIndex};

#[cfg(test)]
mod tests;

/// The cookie of the last entry. A front end adds 2 for its own two entries, which makes it 2^31 - 1.
const LAST: u64 = i32::MAX as u64 - 2;

/// Where a cookie has its parts.
struct Form {
    flag: u64,
    sector_bits: u32,
    slot_bits: u32,
    end_bits: u32,
}

const SMALL: Form = Form { flag: 0, sector_bits: 11, slot_bits: 8, end_bits: 11 };
const MEDIUM: Form = Form { flag: 1 << 30, sector_bits: 16, slot_bits: 8, end_bits: 6 };
const LARGE: Form = Form { flag: 1 << 62, sector_bits: 32, slot_bits: 16, end_bits: 14 };

impl Form {
    /// The smallest form that has room. The largest slot of the smaller forms stays unused, so that no
    /// entry has the cookie [`LAST`].
    fn of(slot: u16, end: u32) -> &'static Form {
        let fits = |form: &&Form| slot < (1 << form.slot_bits) - 1 && end <= 1 << form.sector_bits;
        [&SMALL, &MEDIUM].into_iter().find(fits).unwrap_or(&LARGE)
    }

    fn of_cookie(cookie: u64) -> &'static Form {
        match cookie {
            _ if cookie & LARGE.flag != 0 => &LARGE,
            _ if cookie & MEDIUM.flag != 0 => &MEDIUM,
            _ => &SMALL,
        }
    }

    /// The end is kept in units of 2 to the power of this many sectors.
    fn end_shift(&self) -> u32 {
        self.sector_bits - self.end_bits
    }
}

/// An entry that a listing returns.
pub struct Visited<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The inode.
    pub ino: InodeNo,
    /// Its type.
    pub file_type: FileType,
    /// Where reading continues.
    pub cookie: u64,
    /// The place and the contents of the entry.
    pub body: Body<'a>,
    /// The sector of the entry.
    pub container: Container,
}

/// Where a reader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    sector: u32,
    /// The last slot that was seen of the sector.
    slot: u16,
    /// The end of the reading, in sectors; at least 1.
    end: u32,
}

impl Position {
    /// Decodes any number, since a caller may have invented it.
    fn from_cookie(cookie: u64) -> Position {
        let form = Form::of_cookie(cookie);
        let part = |low: u32, bits: u32| cookie >> low & ((1 << bits) - 1);
        let units = part(0, form.end_bits) + 1;
        Position {
            sector: part(form.end_bits + form.slot_bits, form.sector_bits) as u32,
            slot: part(form.end_bits, form.slot_bits) as u16,
            end: u32::try_from(units << form.end_shift()).unwrap_or(u32::MAX),
        }
    }

    fn cookie(self) -> u64 {
        let form = Form::of(self.slot, self.end);
        let units = u64::from(self.end - 1) >> form.end_shift();
        let place = u64::from(self.sector) << form.slot_bits | u64::from(self.slot);
        form.flag | place << form.end_bits | units
    }
}

/// Visits the entries of a directory after `cookie` (0 for all), until `visit` returns false.
pub fn read_dir(
    inodes: &InodeCache,
    dir: &VnodeState,
    cookie: u64,
    visit: &mut dyn FnMut(&Visited<'_>) -> Result<bool>,
) -> Result<()> {
    if !dir.inode.is_dir() {
        return Err(Error::NotDirectory);
    }
    let count = inodes.containers().sector_count(dir);
    if cookie == LAST || count == 0 {
        return Ok(());
    }
    let (mut end, Position { sector, slot: mut after, .. }) = match Position::from_cookie(cookie) {
        _ if cookie == 0 => (count, Position { sector: 0, slot: 0, end: count }),
        position => (position.end, position),
    };
    let mut next = next_sector(inodes, dir, sector..end.min(count), after);
    if next.is_none() && end < count {
        // The cookie was invented, or all later entries were removed.
        end = count;
        next = next_sector(inodes, dir, sector..end, after);
    }
    while let Some(index) = next {
        if index > sector {
            after = 0;
        }
        let image = inodes.containers().sector(dir, SectorIndex(index))?;
        let mut entries = image.get().entries().filter(|entry| entry.slot > after).peekable();
        next = None;
        while let Some(entry) = entries.next() {
            next = match entries.peek() {
                Some(_) => Some(index),
                None => next_sector(inodes, dir, index + 1..end.min(count), 0),
            };
            let cookie = match next {
                Some(_) => Position { sector: index, slot: entry.slot, end }.cookie(),
                None => LAST,
            };
            let container = Container { file: dir.inode.ino, sector: SectorIndex(index) };
            let Entry { name, file_type, body, .. } = entry;
            let visited = Visited { name, ino: entry.ino(), file_type, cookie, body, container };
            if !visit(&visited)? {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The first of these sectors that has an entry, with a slot above `after` in the first of them. An
/// unreadable one counts, so that the reader gets the error after the entries before it.
fn next_sector(
    inodes: &InodeCache,
    dir: &VnodeState,
    mut sectors: Range<u32>,
    after: u16,
) -> Option<u32> {
    let first = sectors.start;
    sectors.find(|index| {
        let after = if *index == first { after } else { 0 };
        let image = inodes.containers().sector(dir, SectorIndex(*index));
        image.map_or(true, |image| image.get().entries().any(|entry| entry.slot > after))
    })
}
