//! Describes a volume by the properties that udev's rules use: those that libblkid reports for known types.
//! Also finds the device with a label or a UUID.

use std::path::{Path, PathBuf};

use anyhow::bail;
use cffs::format::Superblock;
use cffs::format::superblock::VERSION;

#[cfg(test)]
mod tests;

/// Characters that properties and links in /dev may contain in addition to letters and digits.
const PLAIN: &str = "#+-.:=@_";

/// `NAME=VALUE` lines. Values of names that end in `_ENC` are suitable for links; the others are for display.
pub fn properties(superblock: &Superblock) -> String {
    let uuid = uuid::Uuid::from_bytes(superblock.uuid);
    let mut lines = format!(
        "ID_FS_TYPE=cffs\nID_FS_USAGE=filesystem\nID_FS_VERSION={VERSION}\n\
         ID_FS_UUID={uuid}\nID_FS_UUID_ENC={uuid}\n"
    );
    if !superblock.label.is_empty() {
        let (safe, encoded) = (safe(&superblock.label), encoded(&superblock.label));
        lines.push_str(&format!("ID_FS_LABEL={safe}\nID_FS_LABEL_ENC={encoded}\n"));
    }
    lines
}

/// The directories of links that udev creates, by their tags in fstab(5).
const TAGS: [(&str, &str); 5] = [
    ("LABEL", "by-label"),
    ("UUID", "by-uuid"),
    ("PARTLABEL", "by-partlabel"),
    ("PARTUUID", "by-partuuid"),
    ("ID", "by-id"),
];

/// The device that `LABEL=`, `UUID=` or the like refers to; any other text is a path, and returned unchanged.
pub fn device_of_tag(source: &Path) -> anyhow::Result<PathBuf> {
    device_below(Path::new("/dev/disk"), source)
}

fn device_below(links: &Path, source: &Path) -> anyhow::Result<PathBuf> {
    let text = source.to_string_lossy();
    let tag = text.split_once('=').and_then(|(tag, value)| {
        let (tag, directory) = TAGS.iter().find(|(name, _)| *name == tag)?;
        Some((*tag, *directory, value.trim_matches('"')))
    });
    let Some((tag, directory, value)) = tag.filter(|_| !source.exists()) else {
        return Ok(source.to_owned());
    };
    let name = if tag.ends_with("UUID") { value.to_lowercase() } else { encoded(value.as_bytes()) };
    let link = links.join(directory).join(name);
    if link.exists() {
        return Ok(link);
    }
    bail!(
        "{text}: {} does not exist. udev makes such links for block devices (by 61-cffs.rules, which make \
         install adds); an image is named by its path",
        link.display()
    )
}

/// Replaces all characters by underscores except those in [`PLAIN`] and letters of any script.
fn safe(label: &[u8]) -> String {
    let label = String::from_utf8_lossy(label);
    label
        .chars()
        .map(|c| if is_plain(c) && c != char::REPLACEMENT_CHARACTER { c } else { '_' })
        .collect()
}

/// Replaces each byte of those characters by `\x` and two digits.
fn encoded(label: &[u8]) -> String {
    let escape = |bytes: &[u8]| bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    let mut text = String::new();
    for chunk in label.utf8_chunks() {
        for c in chunk.valid().chars() {
            let escaped: String =
                if is_plain(c) { c.into() } else { escape(c.encode_utf8(&mut [0; 4]).as_bytes()) };
            text.push_str(&escaped);
        }
        let invalid: String = escape(chunk.invalid());
        text.push_str(&invalid);
    }
    text
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric()
        || PLAIN.contains(c)
        || (!c.is_ascii() && !c.is_control() && !c.is_whitespace())
}
