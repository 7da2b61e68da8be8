//! Sectors of containers: directories and the external inode table (FORMAT: sectors).
//!
//! A container is a file of sectors. Each sector can be read by itself: a header names its owner; then come
//! entries without gaps, and free space at the end. An entry is a name with the inode embedded, or with a
//! reference to the external inode table; in that table, and in the system area, entries have no name. An
//! entry has a slot, a number that is unique in its sector, stays with it, and rises with its position:
//! sector and slot are the cookie of `readdir`.
//!
//! An image in memory may differ from the one on the device by changes that wait ([`defer_removal`]).

mod deferred;
mod inodes;

pub use deferred::{
    before_appearing, before_deferred, defer_appearance, defer_reference, defer_removal, settle,
};
pub use inodes::edit_inodes;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Checksum;
use super::inode::{FileType, LINK_TAG_BYTES, LinkTag, LinkTagKind, Record};
use crate::error::Corruption;
use crate::units::{Container, EpochNo, InodeNo, SectorIndex};

/// The bytes of a sector's header.
pub const SECTOR_HEADER_BYTES: usize = 40;
/// The bytes of an entry before its name.
pub const ENTRY_HEADER_BYTES: usize = 12;
/// The bytes of a reference.
pub const REFERENCE_BYTES: usize = 12;

const MAGIC: u32 = u32::from_le_bytes(*b"CFse");
const CHECKSUM_AT: usize = 4;

const EMBEDDED: u8 = 1;
const REFERENCE: u8 = 2;

/// Flags of entries, in memory only; zero on the device.
const LEAVING: u8 = 1;
const BECOMING_REFERENCE: u8 = 2;
/// The entry is not on the device before the last phase of the epoch.
const APPEARING: u8 = 4;
/// Where the sector of the external table is kept while an entry becomes a reference: in the
/// reserved bytes of its inode.
const BECOMING_SECTOR_AT: usize = super::inode::DISK_INODE_BYTES - 4;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskHeader {
    magic: U32,
    checksum: U32,
    owner: U64,
    generation: U32,
    index: U32,
    epoch: U64,
    used: U16,
    count: U16,
    /// Counts deferred changes in memory; zero on the device.
    deferred: U16,
    reserved: U16,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskEntry {
    len: U16,
    slot: U16,
    hash: U32,
    name_len: u8,
    kind: u8,
    file_type: u8,
    flags: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskReference {
    ino: U64,
    sector: U32,
}

const _: () = assert!(size_of::<DiskHeader>() == SECTOR_HEADER_BYTES);
const _: () = assert!(size_of::<DiskEntry>() == ENTRY_HEADER_BYTES);
const _: () = assert!(size_of::<DiskReference>() == REFERENCE_BYTES);

/// The contents of an entry other than its name.
#[derive(Clone, Copy)]
pub enum Body<'a> {
    /// The inode itself.
    Embedded(Record<'a>),
    /// The number of an inode in the external inode table, and its sector there.
    Reference {
        /// The inode.
        ino: InodeNo,
        /// The sector of the external inode table that contains it.
        sector: SectorIndex,
    },
}

/// An entry of a sector.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    /// The entry's number within the sector.
    pub slot: u16,
    /// The hash of the name.
    pub hash: u32,
    /// The name: 1 to 255 bytes without `/` and NUL; empty in the external table.
    pub name: &'a [u8],
    /// The type of the file, also of one that is elsewhere.
    pub file_type: FileType,
    /// The inode or the reference to it.
    pub body: Body<'a>,
}

impl Entry<'_> {
    /// The inode that the entry names.
    pub fn ino(&self) -> InodeNo {
        match &self.body {
            Body::Embedded(record) => record.inode.number(),
            Body::Reference { ino, .. } => *ino,
        }
    }
}

/// The bytes that stay free for an inode of the external table that has these linktags.
pub fn promised_bytes(mut tags: impl Iterator<Item = LinkTag>) -> usize {
    if tags.any(|tag| tag.kind != LinkTagKind::MovedFrom) { 0 } else { LINK_TAG_BYTES }
}

/// The bytes that an entry takes in a sector.
pub fn entry_bytes(name_len: usize, body_len: usize) -> usize {
    ENTRY_HEADER_BYTES + name_len + body_len
}

/// A sector's image, verified or made here, to read.
#[derive(Clone, Copy)]
pub struct Sector<'a>(&'a [u8]);

impl<'a> Sector<'a> {
    /// Takes an image that [`verify`] accepted or [`init`] made.
    pub fn new(image: &'a [u8]) -> Sector<'a> {
        Sector(image)
    }

    fn header(&self) -> &'a DiskHeader {
        // The image is at least as long as a header, whatever its bytes.
        DiskHeader::ref_from_prefix(self.0).expect("a sector is longer than its header").0
    }

    /// Bytes that are free for new entries.
    pub fn free_bytes(&self) -> usize {
        self.0.len() - usize::from(self.header().used.get())
    }

    /// The free bytes that are not promised. In the external inode table each inode has room for
    /// one linktag about its names, so that none of their changes goes untagged.
    pub fn room(&self) -> usize {
        self.free_bytes().saturating_sub(self.promised_bytes(0))
    }

    /// The bytes that the entry with this slot may take, including promised ones.
    pub fn entry_room(&self, slot: u16) -> usize {
        self.entry_len(slot) + self.free_bytes().saturating_sub(self.promised_bytes(slot))
    }

    /// Bytes promised to the inodes in this sector, except for that of the entry with this slot.
    fn promised_bytes(&self, but_slot: u16) -> usize {
        if self.header().owner.get() != InodeNo::EXTERNAL.0 {
            return 0;
        }
        let others = self.entries().filter(|entry| entry.slot != but_slot);
        others
            .map(|entry| match entry.body {
                Body::Embedded(record) => promised_bytes(record.link_tags()),
                Body::Reference { .. } => 0,
            })
            .sum()
    }

    /// The number of entries, including leaving ones.
    pub fn count(&self) -> usize {
        self.header().count.get().into()
    }

    /// Whether changes wait for a later phase of the epoch.
    pub fn has_deferred(&self) -> bool {
        self.header().deferred.get() != 0
    }

    /// Whether deferred changes remove something: an entry, or an inode that becomes a reference.
    pub fn has_leaving(&self) -> bool {
        self.has_deferred() && self.raw().any(|raw| raw.header.flags & !APPEARING != 0)
    }

    /// Whether an entry waits that appears.
    pub fn has_appearing(&self) -> bool {
        self.has_deferred() && self.raw().any(|raw| raw.header.flags & APPEARING != 0)
    }

    /// The epoch in which the image was last written.
    pub fn epoch(&self) -> EpochNo {
        EpochNo(self.header().epoch.get())
    }

    fn raw(&self) -> RawEntries<'a> {
        RawEntries {
            image: self.0,
            at: SECTOR_HEADER_BYTES,
            end: usize::from(self.header().used.get()).min(self.0.len()),
        }
    }

    /// The visible entries, in the order of their slots.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        let image = self.0;
        self.raw()
            .filter(|raw| raw.header.flags & LEAVING == 0)
            .filter_map(move |raw| raw.decode(image).ok())
    }

    /// The entry with this name, whose hash is `hash`.
    pub fn find_name(&self, hash: u32, name: &[u8]) -> Option<Entry<'a>> {
        let image = self.0;
        self.raw()
            .filter(|raw| raw.header.hash.get() == hash && raw.header.flags & LEAVING == 0)
            .find(|raw| raw.name(image) == name)
            .and_then(|raw| raw.decode(image).ok())
    }

    /// The bytes of the entry with this slot; 0 if there is none.
    pub fn entry_len(&self, slot: u16) -> usize {
        locate(self.0, slot).map_or(0, |(_, len)| len)
    }

    /// The entry that contains this inode.
    pub fn find_inode(&self, ino: InodeNo) -> Option<Entry<'a>> {
        // An inode begins with its number; only the entry that has it is decoded.
        let (image, number) = (self.0, ino.0.to_le_bytes());
        self.raw()
            .filter(|raw| raw.header.kind == EMBEDDED && raw.header.flags & !APPEARING == 0)
            .find(|raw| raw.body(image).starts_with(&number))
            .and_then(|raw| raw.decode(image).ok())
    }
}

#[derive(Clone, Copy)]
struct RawEntry<'a> {
    header: &'a DiskEntry,
    at: usize,
}

impl<'a> RawEntry<'a> {
    fn len(&self) -> usize {
        self.header.len.get().into()
    }

    fn name(&self, image: &'a [u8]) -> &'a [u8] {
        let from = self.at + ENTRY_HEADER_BYTES;
        image.get(from..from + usize::from(self.header.name_len)).unwrap_or_default()
    }

    fn body(&self, image: &'a [u8]) -> &'a [u8] {
        let from = self.at + ENTRY_HEADER_BYTES + usize::from(self.header.name_len);
        image.get(from..self.at + self.len()).unwrap_or_default()
    }

    fn decode(&self, image: &'a [u8]) -> Result<Entry<'a>, &'static str> {
        let bytes = self.body(image);
        let body = match self.header.kind {
            EMBEDDED if self.header.flags & BECOMING_REFERENCE != 0 => {
                let record = Record::decode(bytes)?;
                let sector = U32::ref_from_prefix(&bytes[BECOMING_SECTOR_AT..])
                    .map_err(|_| "shorter than an inode")?;
                Body::Reference { ino: record.inode.number(), sector: SectorIndex(sector.0.get()) }
            }
            EMBEDDED => Body::Embedded(Record::decode(bytes)?),
            REFERENCE => {
                let reference = DiskReference::ref_from_bytes(bytes)
                    .map_err(|_| "not the length of a reference")?;
                Body::Reference {
                    ino: InodeNo(reference.ino.get()),
                    sector: SectorIndex(reference.sector.get()),
                }
            }
            _ => return Err("neither an inode nor a reference"),
        };
        Ok(Entry {
            slot: self.header.slot.get(),
            hash: self.header.hash.get(),
            name: self.name(image),
            file_type: FileType::from_byte(self.header.file_type).ok_or("no file type")?,
            body,
        })
    }
}

struct RawEntries<'a> {
    image: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Iterator for RawEntries<'a> {
    type Item = RawEntry<'a>;

    fn next(&mut self) -> Option<RawEntry<'a>> {
        let (header, _) = DiskEntry::ref_from_prefix(self.image.get(self.at..self.end)?).ok()?;
        let at = self.at;
        let len = usize::from(header.len.get());
        if len < ENTRY_HEADER_BYTES || at + len > self.end {
            return None;
        }
        self.at += len;
        Some(RawEntry { header, at })
    }
}

/// Checks the bytes of a sector that was read from the device: identity, checksum, and each entry.
///
/// `generation` is that of the container file. After this, [`Sector`] may be used on the image.
pub fn verify(
    image: &[u8],
    container: Container,
    generation: u32,
    checksum: Checksum,
) -> Result<(), Corruption> {
    let identity =
        |what, expected, found| Corruption::SectorIdentity { container, what, expected, found };
    let (header, _) = DiskHeader::ref_from_prefix(image)
        .map_err(|_| identity("length", SECTOR_HEADER_BYTES as u64, image.len() as u64))?;
    if header.magic.get() != MAGIC {
        return Err(identity("magic", MAGIC.into(), header.magic.get().into()));
    }
    if !checksum.verify(image, CHECKSUM_AT) {
        return Err(Corruption::SectorChecksum { container });
    }
    for (what, expected, found) in [
        ("owner", container.file.0, header.owner.get()),
        ("generation", generation.into(), header.generation.get().into()),
        ("index", container.sector.0.into(), header.index.get().into()),
        ("count of deferred changes", 0, header.deferred.get().into()),
    ] {
        if expected != found {
            return Err(identity(what, expected, found));
        }
    }
    verify_entries(image, container)
}

/// The owner of the sector by its image, and the generation, if its magic and checksum are right.
pub fn identify(image: &[u8], checksum: Checksum) -> Option<(Container, u32)> {
    let (header, _) = DiskHeader::ref_from_prefix(image).ok()?;
    if header.magic.get() != MAGIC || !checksum.verify(image, CHECKSUM_AT) {
        return None;
    }
    let file = InodeNo(header.owner.get());
    let container = Container { file, sector: SectorIndex(header.index.get()) };
    Some((container, header.generation.get()))
}

fn verify_entries(image: &[u8], container: Container) -> Result<(), Corruption> {
    let sector = Sector::new(image);
    let mut end = SECTOR_HEADER_BYTES;
    let mut count = 0;
    let mut last_slot = 0;
    for raw in sector.raw() {
        let bad = |what| Corruption::Entry { container, offset: raw.at as u32, what };
        let entry = raw.decode(image).map_err(bad)?;
        if raw.header.flags != 0 {
            return Err(bad("deferred on the device"));
        }
        if entry.slot <= last_slot {
            return Err(bad("slots out of order"));
        }
        let nameless = matches!(container.file, InodeNo::EXTERNAL | InodeNo::SYSTEM);
        if nameless != entry.name.is_empty() {
            return Err(bad("a name where there is none, or none where there is one"));
        }
        if entry.name.iter().any(|b| matches!(b, 0 | b'/')) || matches!(entry.name, b"." | b"..") {
            return Err(bad("not a name"));
        }
        match &entry.body {
            Body::Embedded(record) => {
                record.check()?;
                if record.inode.file_type() != Some(entry.file_type) {
                    return Err(bad("the type is not that of the inode"));
                }
            }
            Body::Reference { .. } if nameless => return Err(bad("a reference from the table")),
            Body::Reference { ino, .. } if ino.is_system() => {
                return Err(bad("a reference to a system inode"));
            }
            Body::Reference { ino, .. } if *ino > super::INODE_NO_MAX => {
                return Err(bad("a reference to a number that no inode has"));
            }
            Body::Reference { .. } => {}
        }
        last_slot = entry.slot;
        end = raw.at + raw.len();
        count += 1;
    }
    let header = sector.header();
    if end != usize::from(header.used.get()) || count != usize::from(header.count.get()) {
        let what = "the entries do not fill the used part";
        return Err(Corruption::Entry { container, offset: end as u32, what });
    }
    Ok(())
}

/// Makes `image` an empty sector of the container.
pub fn init(image: &mut [u8], container: Container, generation: u32) {
    image.fill(0);
    let header = DiskHeader {
        magic: MAGIC.into(),
        checksum: U32::ZERO,
        owner: container.file.0.into(),
        generation: generation.into(),
        index: container.sector.0.into(),
        epoch: U64::ZERO,
        used: (SECTOR_HEADER_BYTES as u16).into(),
        count: U16::ZERO,
        deferred: U16::ZERO,
        reserved: U16::ZERO,
    };
    image[..SECTOR_HEADER_BYTES].copy_from_slice(header.as_bytes());
}

/// Stamps the image with the epoch in which it is written, and with its checksum.
pub fn seal(image: &mut [u8], epoch: EpochNo, checksum: Checksum) {
    header_mut(image).epoch = epoch.0.into();
    checksum.seal(image, CHECKSUM_AT);
}

/// Adds an entry and returns its slot; `None` if it does not fit.
pub fn insert(
    image: &mut [u8],
    hash: u32,
    name: &[u8],
    file_type: FileType,
    body: &Body<'_>,
) -> Option<u16> {
    insert_at(image, 1, hash, name, file_type, body)
}

/// Adds an entry in the first free slot from `slot` on, and returns that; `None` if it does not fit.
pub fn insert_at(
    image: &mut [u8],
    slot: u16,
    hash: u32,
    name: &[u8],
    file_type: FileType,
    body: &Body<'_>,
) -> Option<u16> {
    let body_len = match body {
        Body::Embedded(record) => record.len(),
        Body::Reference { .. } => REFERENCE_BYTES,
    };
    let len = entry_bytes(name.len(), body_len);
    if len > Sector::new(image).free_bytes() {
        return None;
    }
    let (slot, at) = free_slot(image, slot)?;
    let used = usize::from(header_mut(image).used.get());
    image.copy_within(at..used, at + len);
    let header = DiskEntry {
        len: (len as u16).into(),
        slot: slot.into(),
        hash: hash.into(),
        name_len: name.len() as u8,
        kind: match body {
            Body::Embedded(_) => EMBEDDED,
            Body::Reference { .. } => REFERENCE,
        },
        file_type: file_type as u8,
        flags: 0,
    };
    let (entry_header, rest) = image[at..at + len].split_at_mut(ENTRY_HEADER_BYTES);
    entry_header.copy_from_slice(header.as_bytes());
    let (name_bytes, body_bytes) = rest.split_at_mut(name.len());
    name_bytes.copy_from_slice(name);
    encode_body(body, body_bytes);
    let header = header_mut(image);
    header.used = ((used + len) as u16).into();
    header.count += 1;
    Some(slot)
}

fn encode_body(body: &Body<'_>, out: &mut [u8]) {
    match body {
        Body::Embedded(record) => record.encode_into(out),
        Body::Reference { ino, sector } => {
            let disk = DiskReference { ino: ino.0.into(), sector: sector.0.into() };
            out.copy_from_slice(disk.as_bytes());
        }
    }
}

/// The first free slot from `from` on, and the byte at which its entry belongs. The slots of removed entries
/// come first: a reader that has passed them does not see the new entries, so a listing ends even if entries
/// of the sector are removed and added meanwhile.
fn free_slot(image: &[u8], from: u16) -> Option<(u16, usize)> {
    let sector = Sector::new(image);
    let mut next = from;
    for raw in sector.raw() {
        let slot = raw.header.slot.get();
        if slot > next {
            return Some((next, raw.at));
        }
        if slot == next {
            next = next.checked_add(1)?;
        }
    }
    Some((next, usize::from(sector.header().used.get())))
}

/// Removes an entry at once.
pub fn remove(image: &mut [u8], slot: u16) {
    if let Some((at, len)) = locate(image, slot) {
        let was_deferred = entry_mut(image, at).flags != 0;
        resize(image, at + len, len, 0);
        let header = header_mut(image);
        header.count -= 1;
        if was_deferred {
            header.deferred -= 1;
        }
    }
}

/// Replaces the body of an entry at once, even one that is to become a reference; returns false, and changes
/// nothing, if the new one does not fit.
pub fn replace(image: &mut [u8], slot: u16, body: &Body<'_>) -> bool {
    let Some((at, len)) = locate(image, slot) else {
        return false;
    };
    let body_at = body_start(image, at);
    let (kind, new_len) = match body {
        Body::Embedded(record) => (EMBEDDED, record.len()),
        Body::Reference { .. } => (REFERENCE, REFERENCE_BYTES),
    };
    let old_len = at + len - body_at;
    if new_len > old_len + Sector::new(image).free_bytes() {
        return false;
    }
    resize(image, at + len, old_len, new_len);
    let entry_len = (body_at - at + new_len) as u16;
    encode_body(body, &mut image[body_at..body_at + new_len]);
    let entry = entry_mut(image, at);
    entry.len = entry_len.into();
    entry.kind = kind;
    let was_deferred = entry.flags == BECOMING_REFERENCE;
    entry.flags &= !BECOMING_REFERENCE;
    if was_deferred {
        header_mut(image).deferred -= 1;
    }
    true
}

/// Changes the type in an entry that gets another file.
pub fn set_file_type(image: &mut [u8], slot: u16, file_type: FileType) {
    if let Some((at, _)) = locate(image, slot) {
        entry_mut(image, at).file_type = file_type as u8;
    }
}

fn header_mut(image: &mut [u8]) -> &mut DiskHeader {
    DiskHeader::mut_from_prefix(image).expect("a sector is longer than its header").0
}

/// The header of the entry at a byte where [`Sector::raw`] found one.
fn entry_mut(image: &mut [u8], at: usize) -> &mut DiskEntry {
    DiskEntry::mut_from_prefix(&mut image[at..]).expect("an entry is longer than its header").0
}

/// The first byte of the body of the entry at a byte.
fn body_start(image: &mut [u8], at: usize) -> usize {
    at + ENTRY_HEADER_BYTES + usize::from(entry_mut(image, at).name_len)
}

fn locate(image: &[u8], slot: u16) -> Option<(usize, usize)> {
    let raw = Sector::new(image).raw().find(|raw| raw.header.slot.get() == slot)?;
    Some((raw.at, raw.len()))
}

/// Makes the `old_len` bytes before `end` `new_len` bytes long, and moves what follows.
fn resize(image: &mut [u8], end: usize, old_len: usize, new_len: usize) {
    let used = usize::from(header_mut(image).used.get());
    let new_end = end - old_len + new_len;
    image.copy_within(end..used, new_end);
    let new_used = used - old_len + new_len;
    if new_used < used {
        image[new_used..used].fill(0);
    }
    header_mut(image).used = (new_used as u16).into();
}
