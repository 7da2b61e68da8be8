//! POSIX ACLs: the text of `SCHILY.acl.access` and `SCHILY.acl.default`, and the bytes of
//! `system.posix_acl_access` and `system.posix_acl_default`.
//!
//! An entry of the text is `user:NAME:rwx`, or with bsdtar and star `user:NAME:rwx:NUMBER`. GNU tar ends
//! entries with a line end, the others with a comma (POSIX.1e draft 17, 23.3).

#[cfg(test)]
mod tests;

/// The key of the record with the access ACL.
pub const ACCESS: &[u8] = b"SCHILY.acl.access";
/// The key of the record with the default ACL of a directory.
pub const DEFAULT: &[u8] = b"SCHILY.acl.default";

const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;
/// The ID in an entry that names no user or group.
const NO_ID: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// A name to look up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named<'a> {
    /// A user.
    User(&'a str),
    /// A group.
    Group(&'a str),
}

/// A text that is not an ACL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an entry of an ACL")]
pub struct Malformed(String);

/// A decoded ACL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acl {
    /// The entries: tag, ID, permissions; in the order that the kernel requires.
    entries: Vec<(u16, u32, u16)>,
    /// Users and groups unknown on this machine. Their entries are left out.
    pub unknown: Vec<String>,
}

impl Acl {
    /// Decodes the text. `number_of` finds the ID for a name that the text gives without one.
    pub fn from_text(
        text: &[u8],
        number_of: impl Fn(Named<'_>) -> Option<u32>,
    ) -> Result<Acl, Malformed> {
        let mut acl = Acl::default();
        for entry in text.split(|byte| matches!(byte, b',' | b'\n' | 0)) {
            let entry = String::from_utf8_lossy(entry);
            let entry = entry.split('#').next().unwrap_or_default().trim();
            if !entry.is_empty() {
                acl.add(entry, &number_of).ok_or_else(|| Malformed(entry.to_owned()))?;
            }
        }
        acl.entries.sort_unstable();
        acl.entries.dedup_by_key(|(tag, id, _)| (*tag, *id));
        acl.add_mask();
        Ok(acl)
    }

    fn add(&mut self, entry: &str, number_of: &impl Fn(Named<'_>) -> Option<u32>) -> Option<()> {
        // bsdtar marks the entries of a default ACL if it writes both ACLs into one text.
        let entry = entry.strip_prefix("default:").unwrap_or(entry);
        let parts: Vec<&str> = entry.split(':').collect();
        let (tag, name, permissions, number) = match *parts {
            // The short form of an entry that names no user or group.
            [tag @ ("mask" | "m" | "other" | "o"), permissions] => (tag, "", permissions, None),
            [tag, name, permissions] => (tag, name, permissions, None),
            [tag, name, permissions, number] => (tag, name, permissions, Some(number)),
            _ => return None,
        };
        let permissions = permissions_of(permissions)?;
        let (tag, named) = match tag {
            "user" | "u" if name.is_empty() => (USER_OBJ, None),
            "group" | "g" if name.is_empty() => (GROUP_OBJ, None),
            "user" | "u" => (USER, Some(Named::User(name))),
            "group" | "g" => (GROUP, Some(Named::Group(name))),
            "mask" | "m" if name.is_empty() => (MASK, None),
            "other" | "o" if name.is_empty() => (OTHER, None),
            _ => return None,
        };
        let id = match (named, number) {
            (None, _) => NO_ID,
            (Some(_), Some(number)) => number.parse().ok()?,
            (Some(named), None) => match name.parse().ok().or_else(|| number_of(named)) {
                Some(id) => id,
                None => {
                    self.unknown.push(entry.to_owned());
                    return Some(());
                }
            },
        };
        self.entries.push((tag, id, permissions));
        Some(())
    }

    /// An ACL with named entries needs a mask: the default is the union of the group class.
    fn add_mask(&mut self) {
        let has = |wanted: u16| self.entries.iter().any(|(tag, ..)| *tag & wanted != 0);
        if has(USER | GROUP) && !has(MASK) {
            let of_class =
                self.entries.iter().filter(|(tag, ..)| tag & (USER | GROUP_OBJ | GROUP) != 0);
            let mask = of_class.fold(0, |mask, (.., permissions)| mask | permissions);
            self.entries.push((MASK, NO_ID, mask));
            self.entries.sort_unstable();
        }
    }

    /// Decodes the value of the extended attribute.
    pub fn from_bytes(bytes: &[u8]) -> Option<Acl> {
        let (version, rest) = bytes.split_at_checked(4)?;
        let (entries, left) = rest.as_chunks::<ENTRY_BYTES>();
        if version != VERSION.to_le_bytes() || !left.is_empty() {
            return None;
        }
        let entries = entries.iter().map(|entry| {
            let half = |at| u16::from_le_bytes([entry[at], entry[at + 1]]);
            (half(0), u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]), half(2))
        });
        Some(Acl { entries: entries.collect(), unknown: Vec::new() })
    }

    /// Encodes the value of the extended attribute.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for (tag, id, permissions) in &self.entries {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&permissions.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    /// Encodes the text, with IDs in place of names, which every reader accepts. It has no line end, which
    /// some readers take for the end of the record.
    pub fn to_text(&self) -> Option<String> {
        let entry = |(tag, id, permissions): &(u16, u32, u16)| {
            let (tag, name) = match *tag {
                USER_OBJ => ("user", String::new()),
                USER => ("user", id.to_string()),
                GROUP_OBJ => ("group", String::new()),
                GROUP => ("group", id.to_string()),
                MASK => ("mask", String::new()),
                OTHER => ("other", String::new()),
                _ => return None,
            };
            let letters = [(4, 'r'), (2, 'w'), (1, 'x')];
            let letters =
                letters.map(|(bit, letter)| if permissions & bit == 0 { '-' } else { letter });
            Some(format!("{tag}:{name}:{}", String::from_iter(letters)))
        };
        Some(self.entries.iter().map(entry).collect::<Option<Vec<_>>>()?.join(","))
    }

    /// The mode of a file with this ACL, of which `mode` has the other bits. The mask, if there is one, is in
    /// place of the owning group.
    pub fn mode_with(&self, mode: u32) -> u32 {
        self.classes().into_iter().fold(mode, |mode, (tag, shift)| {
            let entry = self.entries.iter().find(|(other, ..)| *other == tag);
            entry.map_or(mode, |(.., permissions)| {
                mode & !(7 << shift) | u32::from(permissions & 7) << shift
            })
        })
    }

    /// Gives the file this mode, as chmod(2) does: with a mask, the owning group keeps its own permissions.
    pub fn set_mode(&mut self, mode: u32) {
        for (class, shift) in self.classes() {
            for (.., permissions) in self.entries.iter_mut().filter(|(tag, ..)| *tag == class) {
                *permissions = (mode >> shift & 7) as u16;
            }
        }
    }

    /// The entries that are in the mode, with the place of their permissions there.
    fn classes(&self) -> [(u16, u32); 3] {
        let has_mask = self.entries.iter().any(|(tag, ..)| *tag == MASK);
        [(USER_OBJ, 6), (if has_mask { MASK } else { GROUP_OBJ }, 3), (OTHER, 0)]
    }

    /// The mode for a copy without this ACL. The group bits of `mode` are the mask, and the owning group must
    /// not get more than its own entry grants.
    pub fn mode_without(&self, mode: u32) -> u32 {
        match self.entries.iter().find(|(tag, ..)| *tag == GROUP_OBJ) {
            Some((.., group)) => mode & !0o070 | mode & u32::from(group & 7) << 3,
            None => mode,
        }
    }
}

fn permissions_of(text: &str) -> Option<u16> {
    text.bytes().try_fold(0, |permissions, letter| match letter {
        b'r' => Some(permissions | 4),
        b'w' => Some(permissions | 2),
        b'x' => Some(permissions | 1),
        b'-' => Some(permissions),
        _ => None,
    })
}
