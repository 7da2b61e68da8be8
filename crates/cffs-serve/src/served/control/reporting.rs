//! Reports that are longer than the value of an attribute, read piece by piece.
//!
//! Reading `system.cffs.layout.TOKEN.0`, with a token that the reader chooses, makes the report and returns
//! its first piece. The next pieces have the numbers from 1 on; an empty piece ends the report.

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
/// Reports that are kept: a reader that is interrupted leaves one behind.
const REPORTS_MAX: usize = 4;

/// A piece of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The report, by a number that the reader chose.
    pub token: u64,
    /// The piece, from 0 on.
    pub number: usize,
}

impl Piece {
    /// The piece of the attribute with this name.
    pub fn asked_by(name: &[u8]) -> Option<Piece> {
        let name = std::str::from_utf8(name.strip_prefix(ATTRIBUTE.as_bytes())?).ok()?;
        let (token, number) = name.split_once('.')?;
        Some(Piece { token: token.parse().ok()?, number: number.parse().ok()? })
    }

    /// The name of the attribute.
    pub fn name(self) -> String {
        format!("{ATTRIBUTE}{}.{}", self.token, self.number)
    }
}

/// The reports that clients read at present.
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
