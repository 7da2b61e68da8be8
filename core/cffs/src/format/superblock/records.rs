//! Records of a superblock in addition to the volume's geometry and state: the program that has it open,
//! damage that was seen, the reserve and its users, and areas for later features.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{RoCompat, Superblock};
use crate::error::{Error, Result};
use crate::format::inode::{InodeFlags, MARKS_MAX};
use crate::units::InodeNo;

/// Bytes of the name of a host in [`Holder`].
pub const HOLDER_NAME_BYTES: usize = 32;

/// The process that has the volume open for writing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// Distinguishes the host from every other.
    pub host: [u8; 16],
    /// Distinguishes this run of the host from every other.
    pub boot: [u8; 16],
    /// The host's name, for people, without the padding; what exceeds
    /// [`HOLDER_NAME_BYTES`] is not stored.
    pub name: Vec<u8>,
    /// The process on that host, by the number in its own namespace.
    pub pid: u32,
    /// When the process started, in clock ticks since the host was booted: the lower 32 bits. A later process
    /// with the same number has another time.
    pub process_started: u32,
    /// When it opened the volume, in seconds since 1970.
    pub started: u64,
}

/// How a mounted volume reacts to damage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum ErrorsPolicy {
    /// The program's default: it continues.
    #[default]
    Default = 0,
    /// The call that found the damage fails; everything else continues.
    Continue = 1,
    /// The volume refuses changes from then on.
    #[serde(rename = "remount-ro")]
    RemountReadOnly = 2,
}

impl ErrorsPolicy {
    pub(super) fn from_byte(byte: u8) -> Option<ErrorsPolicy> {
        let all = [ErrorsPolicy::Default, ErrorsPolicy::Continue, ErrorsPolicy::RemountReadOnly];
        all.into_iter().find(|policy| *policy as u8 == byte)
    }
}

/// How new contents are compressed. Written contents stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Compression {
    /// Not at all.
    #[default]
    Off,
    /// By Zstandard, with a level from 1 to [`Compression::LEVEL_MAX`].
    Zstd(u8),
}

impl Compression {
    /// The highest level: higher ones take much memory for little gain.
    pub const LEVEL_MAX: u8 = 19;
    /// The level for contents that are compressed although the setting is off.
    const LEVEL_IF_OFF: u8 = 1;

    pub(super) fn from_bytes(codec: u8, level: u8) -> Option<Compression> {
        match (codec, level) {
            (0, 0) => Some(Compression::Off),
            (1, 1..=Compression::LEVEL_MAX) => Some(Compression::Zstd(level)),
            _ => None,
        }
    }

    /// Whether new contents of a file with these flags are compressed.
    pub fn applies_to(self, flags: InodeFlags) -> bool {
        match self {
            Compression::Off => flags.contains(InodeFlags::COMPRESS),
            Compression::Zstd(_) => !flags.contains(InodeFlags::NO_COMPRESS),
        }
    }

    /// The level for contents that are compressed, whether or not the setting is off.
    pub fn level(self) -> i32 {
        match self {
            Compression::Off => Compression::LEVEL_IF_OFF.into(),
            Compression::Zstd(level) => level.into(),
        }
    }

    pub(super) fn to_bytes(self) -> (u8, u8) {
        match self {
            Compression::Off => (0, 0),
            Compression::Zstd(level) => (1, level),
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compression::Off => f.write_str("off"),
            Compression::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

impl From<Compression> for String {
    fn from(compression: Compression) -> String {
        compression.to_string()
    }
}

impl TryFrom<String> for Compression {
    type Error = <Compression as FromStr>::Err;
    fn try_from(text: String) -> Result<Compression, Self::Error> {
        text.parse()
    }
}

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Compression, String> {
        let level = match text.split_once(':') {
            None if text == "off" => return Ok(Compression::Off),
            None if text == "zstd" => Some(1),
            Some(("zstd", level)) => level.parse().ok(),
            _ => None,
        };
        let compression = level.and_then(|level| Compression::from_bytes(1, level));
        let max = Compression::LEVEL_MAX;
        compression
            .ok_or(format!("{text:?} is not off, zstd, or zstd:LEVEL with a level from 1 to {max}"))
    }
}

bitflags::bitflags! {
    /// Flags of the record of damage.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct ErrorFlags: u8 {
        /// Damage was seen since the last full check, and the other fields of the record hold.
        const SEEN = 1 << 0;
    }
}

/// Damage that was seen since the last full check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// The kind of the first damage, by its code in `docs/FSCK.md`: 201 for CF0201.
    pub code: u16,
    /// How often damage was found.
    pub count: u32,
    /// When it was first found, in seconds since 1970.
    pub first_at: u64,
    /// When it was last found, in seconds since 1970.
    pub last_at: u64,
    /// The inode of the first damage; 0 if it has none.
    pub ino: InodeNo,
}

impl Damage {
    /// The code where the device failed to read metadata, which is no kind of damage that a check knows.
    pub const UNREADABLE: u16 = 0;

    /// The record with one more case of damage, found at `now` in seconds since 1970; the kind and the inode
    /// are those of the first.
    pub fn met_again(record: Option<Damage>, code: u16, ino: InodeNo, now: u64) -> Damage {
        let first = Damage { code, count: 0, first_at: now, last_at: now, ino };
        let before = record.unwrap_or(first);
        Damage { count: before.count.saturating_add(1), last_at: before.last_at.max(now), ..before }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = match self.count {
            1 => String::from("once"),
            count => format!("{count} times"),
        };
        write!(f, "damage was found {times} since the last full check, first ")?;
        match self.code {
            Damage::UNREADABLE => write!(f, "a read that the device failed")?,
            code => write!(f, "CF{code:04}")?,
        }
        match self.ino.0 {
            0 => Ok(()),
            ino => write!(f, " at inode {ino}"),
        }
    }
}

/// Space that only some may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserve {
    /// Fragments that stay free for root, and for the user and the group below.
    pub fragments: u64,
    /// The user who may use them in addition to root; 0 for none.
    pub uid: u32,
    /// The group that may use them; 0 for none.
    pub gid: u32,
}

bitflags::bitflags! {
    /// Features of the journal.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct JournalFlags: u32 {
        /// It is on another device, which has the journal's UUID.
        const EXTERNAL = 1 << 0;
        /// Its contents do not count: the volume is used without it.
        const UNUSED = 1 << 1;
    }
}

/// Where the journal is. Without the feature it has no meaning, and is kept as it was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalArea {
    /// The first block of the journal; 0 on another device.
    pub start: u64,
    /// Its blocks.
    pub blocks: u32,
    /// Its features.
    pub flags: JournalFlags,
    /// The UUID of a journal on another device; else zeros.
    pub uuid: [u8; 16],
    /// The number of the header that the journal had when the superblock was written; 0 if it is not known.
    pub sequence: u64,
    /// The era of that header.
    pub era: u64,
}

impl Superblock {
    /// The count with which changes are stamped; 0 if the volume has no marks.
    pub fn stamp(&self) -> u32 {
        if self.ro_compat.contains(RoCompat::MARKS) { self.marks.min(MARKS_MAX) } else { 0 }
    }

    /// Whether this program may write to the volume: it knows all its ro-compat features.
    pub fn writable(&self) -> bool {
        RoCompat::from_bits(self.ro_compat.bits()).is_some()
    }

    /// Fails if this program may not write to the volume.
    pub fn check_writable(&self) -> Result<()> {
        if self.writable() {
            return Ok(());
        }
        let what = "the volume has features that this program cannot write; mount it read-only";
        Err(Error::Unsupported(what.into()))
    }
}
