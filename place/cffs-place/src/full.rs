//! The error after which callers may try another group.

/// A group lacks the space for a file or a directory.
#[derive(Debug)]
pub struct Full {
    pub group: u64,
    pub why: String,
}

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "group {} {}", self.group, self.why)
    }
}

impl std::error::Error for Full {}

/// The error for a group that cannot take another directory or file.
pub fn no_inodes(group: u64, what: &str) -> Full {
    let why = format!("cannot take another {what}: it has no free inodes, or the kernel avoids it");
    Full { group, why }
}
