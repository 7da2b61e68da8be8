//! Reports that are longer than an attribute's value, read in pieces.
//!
//! Reading `system.cffs.layout.TOKEN.0`, with a token chosen by the reader, generates the report and returns
//! its first piece. The further pieces are numbered from 1; an empty piece ends the report. The list of
//! changes since a mark is `system.cffs.changes.TOKEN.0.MARK`: for each change the number of the file's type
//! (1 byte), how many bytes the path has in common with the path before it (2 bytes, little-endian), the rest
//! of the path, and a zero byte. So the list is about as long as the names in it.

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};

use cffs::error::{Error, Result};
use cffs::files::layout;
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::{Change, Marks, Volume};

use super::{AskError, quotas_of};
use crate::layout::LayoutReport;

const LAYOUT: &str = "system.cffs.layout.";
const CHANGES: &str = "system.cffs.changes.";
const QUOTAS: &str = "system.cffs.quotas.";
/// The longest piece: the kernel's limit of an attribute's value.
const PIECE_BYTES: usize = 64 << 10;
/// The most reports kept: an interrupted reader leaves its report behind.
const REPORTS_MAX: usize = 4;
/// The longest list of changes, several million names: the server keeps it until it is read.
const CHANGES_BYTES_MAX: usize = 256 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    pub what: Report<'a>,
    /// The report's token, chosen by the reader.
    pub token: u64,
    /// The piece, from 0 on.
    pub number: usize,
}

/// A report about a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report<'a> {
    /// Where the tree is.
    Layout,
    /// The changes in the tree since the mark of this name.
    Changes(&'a str),
    /// The quotas of the volume.
    Quotas,
}

impl<'a> Piece<'a> {
    /// The piece that an attribute name refers to.
    pub fn asked_by(name: &'a [u8]) -> Option<Piece<'a>> {
        let name = std::str::from_utf8(name).ok()?;
        if let Some(name) = name.strip_prefix(CHANGES) {
            let (token, rest) = name.split_once('.')?;
            let (number, mark) = rest.split_once('.')?;
            let (token, number) = (token.parse().ok()?, number.parse().ok()?);
            return Some(Piece { what: Report::Changes(mark), token, number });
        }
        let (what, rest) = match name.strip_prefix(QUOTAS) {
            Some(rest) => (Report::Quotas, rest),
            None => (Report::Layout, name.strip_prefix(LAYOUT)?),
        };
        let (token, number) = rest.split_once('.')?;
        let (token, number) = (token.parse().ok()?, number.parse().ok()?);
        Some(Piece { what, token, number })
    }

    pub fn name(self) -> String {
        let Piece { what, token, number } = self;
        match what {
            Report::Layout => format!("{LAYOUT}{token}.{number}"),
            Report::Quotas => format!("{QUOTAS}{token}.{number}"),
            Report::Changes(mark) => format!("{CHANGES}{token}.{number}.{mark}"),
        }
    }
}

impl Report<'_> {
    fn make(self, volume: &Volume, dir: InodeNo) -> Result<Vec<u8>> {
        let mark = match self {
            Report::Layout => {
                let layout = layout::survey_in_use(volume, dir)?;
                return Ok(serde_json::json!(LayoutReport::from(&layout)).to_string().into_bytes());
            }
            Report::Quotas => {
                let quotas = quotas_of(volume)?;
                return Ok(serde_json::json!(quotas).to_string().into_bytes());
            }
            Report::Changes(mark) => mark,
        };
        let mut list = ChangeList::default();
        Marks::of(volume).changes(dir, mark, &mut |change| list.push(change))?;
        if list.bytes.len() > CHANGES_BYTES_MAX { Err(Error::TooLarge) } else { Ok(list.bytes) }
    }
}

/// A list of changes, encoded.
#[derive(Default)]
struct ChangeList {
    bytes: Vec<u8>,
    /// The last path.
    path: Vec<u8>,
}

impl ChangeList {
    /// Adds a change, unless the list is too long.
    fn push(&mut self, change: &Change<'_>) -> ControlFlow<()> {
        let (last, path) = (&mut self.path, change.path);
        let shared = last.iter().zip(path).take_while(|(a, b)| a == b).count();
        let shared = shared.min(usize::from(u16::MAX));
        self.bytes.push(change.file_type as u8);
        self.bytes.extend_from_slice(&(shared as u16).to_le_bytes());
        self.bytes.extend_from_slice(&path[shared..]);
        self.bytes.push(0);
        last.truncate(shared);
        last.extend_from_slice(&path[shared..]);
        if self.bytes.len() > CHANGES_BYTES_MAX {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

/// Passes each change of an encoded list to `visit`: the file's type and the path.
///
/// # Errors
///
/// [`AskError::Failed`] if the encoding is wrong; those of `visit`.
pub(super) fn decode<E: From<AskError>>(
    mut list: &[u8],
    mut visit: impl FnMut(FileType, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let wrong = || AskError::Failed(io::Error::other("the server's list of changes is damaged"));
    let mut path = Vec::new();
    while !list.is_empty() {
        let (&[file_type, low, high], rest) = list.split_first_chunk().ok_or_else(wrong)?;
        let end = rest.iter().position(|byte| *byte == 0).ok_or_else(wrong)?;
        let shared = usize::from(u16::from_le_bytes([low, high]));
        if shared > path.len() {
            return Err(wrong().into());
        }
        path.truncate(shared);
        path.extend_from_slice(&rest[..end]);
        visit(FileType::from_byte(file_type).ok_or_else(wrong)?, &path)?;
        list = &rest[end + 1..];
    }
    Ok(())
}

/// The reports that clients are reading.
#[derive(Default)]
pub(super) struct Reports(Mutex<VecDeque<(u64, Vec<u8>)>>);

impl Reports {
    /// A piece of the report about a directory.
    pub fn piece(&self, volume: &Volume, dir: InodeNo, piece: Piece<'_>) -> Result<Vec<u8>> {
        let made = match piece.number {
            0 => Some(piece.what.make(volume, dir)?),
            _ => None,
        };
        let mut reports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(report) = made {
            reports.truncate(REPORTS_MAX - 1);
            reports.push_front((piece.token, report));
        }
        let Some(at) = reports.iter().position(|(token, _)| *token == piece.token) else {
            return Err(Error::Invalid("the report was not asked for, or others since"));
        };
        let report = &reports[at].1;
        let from = piece.number.saturating_mul(PIECE_BYTES).min(report.len());
        let bytes = report[from..report.len().min(from.saturating_add(PIECE_BYTES))].to_vec();
        if bytes.is_empty() {
            reports.remove(at);
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests;
