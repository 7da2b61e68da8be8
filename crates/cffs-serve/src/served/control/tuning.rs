//! The JSON value of the control attribute that changes a volume's properties.

use cffs::format::superblock::{ErrorsPolicy, Reserve};
use cffs::vfs::SetVolume;
use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// [`SetVolume`] as JSON.
#[derive(Serialize, Deserialize)]
struct Changes {
    label: Option<Vec<u8>>,
    uuid: Option<[u8; 16]>,
    errors: Option<Errors>,
    reserve: Option<Set>,
    /// In the syntax of `--compress`.
    compression: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Errors {
    Default,
    Continue,
    RemountRo,
}

#[derive(Serialize, Deserialize)]
struct Set {
    fragments: u64,
    uid: u32,
    gid: u32,
}

/// Encodes the value of the attribute.
pub(super) fn to_text(changes: &SetVolume) -> String {
    let changes = Changes {
        label: changes.label.clone(),
        uuid: changes.uuid,
        errors: changes.errors.map(|errors| match errors {
            ErrorsPolicy::Default => Errors::Default,
            ErrorsPolicy::Continue => Errors::Continue,
            ErrorsPolicy::RemountReadOnly => Errors::RemountRo,
        }),
        reserve: changes.reserve.map(|Reserve { fragments, uid, gid }| Set { fragments, uid, gid }),
        compression: changes.compression.map(|compression| compression.to_string()),
    };
    serde_json::json!(changes).to_string()
}

/// Decodes a value.
pub(super) fn from_text(text: &str) -> Option<SetVolume> {
    let changes: Changes = serde_json::from_str(text).ok()?;
    let compression = changes.compression.map(|text| text.parse()).transpose().ok()?;
    Some(SetVolume {
        label: changes.label,
        uuid: changes.uuid,
        errors: changes.errors.map(|errors| match errors {
            Errors::Default => ErrorsPolicy::Default,
            Errors::Continue => ErrorsPolicy::Continue,
            Errors::RemountRo => ErrorsPolicy::RemountReadOnly,
        }),
        reserve: changes.reserve.map(|Set { fragments, uid, gid }| Reserve { fragments, uid, gid }),
        compression,
    })
}
