//! What a volume is, in the properties that udev's rules go by: those that libblkid gives to the types
//! that it knows.

use cffs::format::Superblock;
use cffs::format::superblock::VERSION;

#[cfg(test)]
mod tests;

/// Characters that properties and the names of links in /dev keep, beside letters and digits.
const PLAIN: &str = "#+-.:=@_";

/// `NAME=VALUE` lines. Those that end in `_ENC` are fit for names of links; the others for people.
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

/// With an underscore for everything that is neither plain nor a letter of another script.
fn safe(label: &[u8]) -> String {
    let label = String::from_utf8_lossy(label);
    label
        .chars()
        .map(|c| if is_plain(c) && c != char::REPLACEMENT_CHARACTER { c } else { '_' })
        .collect()
}

/// With `\x` and two digits for each byte of that.
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
