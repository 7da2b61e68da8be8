//! Reports that are longer than an attribute's value, read in pieces.
//!
//! Reading `system.cffs.layout.TOKEN.0`, with a token chosen by the reader, generates the report and returns
//! its first piece. The further pieces are numbered from 1; an empty piece ends the report.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use cffs::error::{Error, Result};
use cffs::files::layout;
use cffs::units::InodeNo;
use cffs::vfs::Volume;

use crate::layout::LayoutReport;

const ATTRIBUTE: &str = "system.cffs.layout.";
/// The longest piece: the kernel's limit of an attribute's value.
const PIECE_BYTES: usize = 64 << 10;
/// The most reports kept: an interrupted reader leaves its report behind.
const REPORTS_MAX: usize = 4;

/// A piece of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The report's token, chosen by the reader.
    pub token: u64,
    /// The piece, from 0 on.
    pub number: usize,
}

impl Piece {
    /// The piece that an attribute name refers to.
    pub fn asked_by(name: &[u8]) -> Option<Piece> {
        let name = std::str::from_utf8(name.strip_prefix(ATTRIBUTE.as_bytes())?).ok()?;
        let (token, number) = name.split_once('.')?;
        Some(Piece { token: token.parse().ok()?, number: number.parse().ok()? })
    }

    pub fn name(self) -> String {
        format!("{ATTRIBUTE}{}.{}", self.token, self.number)
    }
}

/// The reports that clients are reading.
#[derive(Default)]
pub(super) struct Reports(Mutex<VecDeque<(u64, Vec<u8>)>>);

impl Reports {
    /// A piece of the report about a directory.
    pub fn piece(&self, volume: &Volume, dir: InodeNo, piece: Piece) -> Result<Vec<u8>> {
        let made = match piece.number {
            0 => {
                let layout = layout::survey_in_use(volume, dir)?;
                let report = serde_json::json!(LayoutReport::from(&layout));
                Some(report.to_string().into_bytes())
            }
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
