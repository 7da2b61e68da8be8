//! Reports that are longer than the value of an attribute: they are read piece by piece.
//!
//! `system.cffs.layout.TOKEN.0` has the report made, with a token that the asker chose, and is its first
//! piece; the next ones have the numbers from 1 on, and an empty piece is the end.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use cffs::error::{Error, Result};
use cffs::files::layout;
use cffs::units::InodeNo;
use cffs::vfs::Volume;

use crate::layout::LayoutReport;

const ATTRIBUTE: &str = "system.cffs.layout.";
/// The longest piece, which is what the kernel takes.
const PIECE_BYTES: usize = 64 << 10;
/// Reports that are kept at once: an asker that was interrupted leaves one behind.
const REPORTS_MAX: usize = 4;

/// A piece of a report that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Which report, by a number that the asker chose.
    pub token: u64,
    /// Which piece of it, from 0 on.
    pub number: usize,
}

impl Piece {
    /// The piece that the attribute with this name is.
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

/// The reports that are being read.
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
