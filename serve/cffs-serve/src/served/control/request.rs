//! The requests of the control interface, encoded as attributes and values.

use cffs::error::{Error, Result};
use cffs::vfs::SetVolume;

use super::RegroupRequest;

#[cfg(test)]
mod tests;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Verify all checksums, at no more than this many bytes per second; 0 for no limit. Does nothing during
    /// a scrub.
    StartScrub(u64),
    /// End the current scrub.
    StopScrub,
    /// Check the volume. Does nothing during a check.
    StartCheck {
        /// Whether the contents of small files are checked as well.
        contents: bool,
    },
    /// Move scattered files together. An error during a regrouping.
    Regroup(RegroupRequest),
    /// End the current regrouping.
    StopRegroup,
    /// Set the volume's size in bytes, or to the size of its device.
    Grow(Option<u64>),
    /// Increase the volume's size by this number of bytes.
    GrowBy(u64),
    /// Change properties of the volume.
    Tune(SetVolume),
    /// Export a directory to NFS clients: `PATH[:OPTIONS]`.
    AddExport(String),
    /// End the export of this path.
    RemoveExport(String),
    /// Set a mark of this name.
    SetMark(String),
    /// Remove the mark of this name.
    RemoveMark(String),
    /// Set or change the quota of the directory; `u64::MAX` for no limit.
    SetQuota {
        /// The most bytes; `None` keeps the limit.
        bytes: Option<u64>,
        /// The most files; `None` keeps the limit.
        files: Option<u64>,
    },
    /// Remove the quota of the directory.
    RemoveQuota,
}

pub(super) const SCRUB_NAME: &str = "system.cffs.scrub";
pub(super) const FSCK_NAME: &str = "system.cffs.fsck";
pub(super) const REGROUP_NAME: &str = "system.cffs.regroup";
pub(super) const EXPORT_NAME: &str = "system.cffs.export";
pub(super) const GROW_NAME: &str = "system.cffs.grow";
pub(super) const TUNE_NAME: &str = "system.cffs.tune";
pub(super) const MARK_NAME: &str = "system.cffs.mark";
pub(super) const QUOTA_NAME: &str = "system.cffs.quota";

impl Request {
    pub(super) fn to_attribute(&self) -> (&'static str, String) {
        match self {
            Request::StartScrub(bytes_per_sec) => (SCRUB_NAME, format!("start {bytes_per_sec}")),
            Request::StopScrub => (SCRUB_NAME, String::from("stop")),
            Request::StartCheck { contents: false } => (FSCK_NAME, String::from("start")),
            Request::StartCheck { contents: true } => (FSCK_NAME, String::from("start contents")),
            Request::Regroup(request) => (REGROUP_NAME, request.to_text()),
            Request::StopRegroup => (REGROUP_NAME, String::from("stop")),
            Request::Grow(None) => (GROW_NAME, String::from("device")),
            Request::Grow(Some(bytes)) => (GROW_NAME, bytes.to_string()),
            Request::GrowBy(bytes) => (GROW_NAME, format!("+{bytes}")),
            Request::Tune(changes) => (TUNE_NAME, serde_json::json!(changes).to_string()),
            Request::AddExport(export) => (EXPORT_NAME, format!("add {export}")),
            Request::RemoveExport(path) => (EXPORT_NAME, format!("remove {path}")),
            Request::SetMark(name) => (MARK_NAME, format!("set {name}")),
            Request::RemoveMark(name) => (MARK_NAME, format!("remove {name}")),
            Request::SetQuota { bytes, files } => {
                let text =
                    |limit: &Option<u64>| limit.map_or("-".into(), |limit| limit.to_string());
                (QUOTA_NAME, format!("set {} {}", text(bytes), text(files)))
            }
            Request::RemoveQuota => (QUOTA_NAME, String::from("remove")),
        }
    }

    /// The request that is made by setting this attribute to this value; `None` for other attributes, and an
    /// error for an invalid value.
    pub(crate) fn from_attribute(name: &[u8], value: &[u8]) -> Option<Result<Request>> {
        let value = std::str::from_utf8(value).unwrap_or_default();
        let (request, wrong) = match std::str::from_utf8(name).ok()? {
            SCRUB_NAME => {
                let request = match value {
                    "stop" => Some(Request::StopScrub),
                    _ => number_after("start ", value).map(Request::StartScrub),
                };
                (request, "neither 'start RATE' nor 'stop'")
            }
            FSCK_NAME => {
                let contents = [("start", false), ("start contents", true)];
                let given = contents.into_iter().find(|(word, _)| *word == value);
                let request = given.map(|(_, contents)| Request::StartCheck { contents });
                (request, "neither 'start' nor 'start contents'")
            }
            REGROUP_NAME => {
                let request = match value {
                    "stop" => Some(Request::StopRegroup),
                    text => RegroupRequest::from_text(text).map(Request::Regroup),
                };
                (request, "neither 'move', 'count' nor 'stop'")
            }
            GROW_NAME => {
                let request = match value {
                    "device" => Some(Request::Grow(None)),
                    more if more.starts_with('+') => number_after("+", more).map(Request::GrowBy),
                    bytes => number_after("", bytes).map(|bytes| Request::Grow(Some(bytes))),
                };
                (request, "neither 'device' nor a number of bytes")
            }
            EXPORT_NAME => {
                let request = match value.split_once(' ') {
                    Some(("add", export)) => Some(Request::AddExport(export.to_owned())),
                    Some(("remove", path)) => Some(Request::RemoveExport(path.to_owned())),
                    _ => None,
                };
                (request, "neither 'add EXPORT' nor 'remove PATH'")
            }
            MARK_NAME => {
                let request = match value.split_once(' ') {
                    Some(("set", name)) => Some(Request::SetMark(name.to_owned())),
                    Some(("remove", name)) => Some(Request::RemoveMark(name.to_owned())),
                    _ => None,
                };
                (request, "neither 'set NAME' nor 'remove NAME'")
            }
            QUOTA_NAME => (quota_request(value), "neither 'set BYTES FILES' nor 'remove'"),
            TUNE_NAME => {
                (serde_json::from_str(value).map(Request::Tune).ok(), "no changes of a volume")
            }
            _ => return None,
        };
        Some(request.ok_or(Error::Invalid(wrong)))
    }
}

fn number_after(prefix: &str, text: &str) -> Option<u64> {
    text.strip_prefix(prefix)?.parse().ok()
}

fn quota_request(value: &str) -> Option<Request> {
    if value == "remove" {
        return Some(Request::RemoveQuota);
    }
    let (bytes, files) = value.strip_prefix("set ")?.split_once(' ')?;
    let limit = |text: &str| match text {
        "-" => Some(None),
        number => number.parse().ok().map(Some),
    };
    Some(Request::SetQuota { bytes: limit(bytes)?, files: limit(files)? })
}
