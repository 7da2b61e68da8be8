//! Adds entries to an archive.
//!
//! Names and link targets are stored byte for byte. `tar::Builder` stores paths by their components: it
//! changes link targets such as `a//b`, and refuses a long name of which the first byte is not UTF-8.

use std::io::{self, Read, Write};

use tar::{Builder, EntryType, Header};

/// The space in a header for the name, and for the target of a link. A name of this length has no NUL.
const FIELD_BYTES: usize = 100;

/// Adds an entry of this name and this link target, which is empty for an entry that is not a link. Those
/// that do not fit into the header are in entries of GNU tar's kinds `L` and `K` before it.
pub fn append(
    builder: &mut Builder<impl Write>,
    mut header: Header,
    name: &[u8],
    link: &[u8],
    contents: impl Read,
) -> io::Result<()> {
    let kinds = [EntryType::GNULongName, EntryType::GNULongLink];
    for (kind, text) in kinds.into_iter().zip([name, link]) {
        if text.len() > FIELD_BYTES {
            let ended = [text, b"\0"].concat();
            let mut long = Header::new_gnu();
            fill(&mut long.as_old_mut().name, b"././@LongLink");
            long.set_mode(0o644);
            long.set_uid(0);
            long.set_gid(0);
            long.set_mtime(0);
            long.set_entry_type(kind);
            long.set_size(ended.len() as u64);
            long.set_cksum();
            builder.append(&long, &*ended)?;
        }
    }
    fill(&mut header.as_old_mut().name, name);
    fill(&mut header.as_old_mut().linkname, link);
    header.set_cksum();
    builder.append(&header, contents)
}

/// Sets a field to the beginning of a text.
fn fill(field: &mut [u8; FIELD_BYTES], text: &[u8]) {
    let len = text.len().min(FIELD_BYTES);
    field[..len].copy_from_slice(&text[..len]);
}
