//! Names and counts in messages.

/// A name, path or label for a message. Control characters, which could move the cursor of a terminal or
/// forge lines of a log, bytes that are not UTF-8, and backslashes are escaped, so different names look
/// different; other text is unchanged.
///
/// ```
/// assert_eq!(cffs::printable(b"na\xc3\xafve\n\x1b[2J\xff"), r"naïve\n\u{1b}[2J\xff");
/// assert_eq!(cffs::printable(br"a\n"), r"a\\n");
/// ```
pub fn printable(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || c == '\\' { text.extend(c.escape_default()) } else { text.push(c) }
        }
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

/// A count with its noun, given in the singular.
///
/// ```
/// assert_eq!(cffs::counted(1, "directory"), "1 directory");
/// assert_eq!(cffs::counted(3, "directory"), "3 directories");
/// ```
pub fn counted(count: u64, one: &str) -> String {
    match one.strip_suffix('y') {
        _ if count == 1 => format!("1 {one}"),
        Some(stem) => format!("{count} {stem}ies"),
        None => format!("{count} {one}s"),
    }
}
