//! Arbitrary bytes as a tar archive: headers with valid checksums, extended headers with damaged records, and
//! ACLs.

use std::io::{self, Read};

use tar_wire::acl::{self, Acl};
use tar_wire::{Archive, pax};

use crate::input::Input;

const BLOCK_BYTES: usize = 512;
const ENTRIES_MAX: usize = 24;
/// The keywords by which an archive describes an entry.
const KEYS: [&[u8]; 10] = [
    b"path",
    b"linkpath",
    b"size",
    b"mtime",
    b"uid",
    acl::ACCESS,
    b"SCHILY.xattr.user.a%3D",
    b"LIBARCHIVE.xattr.user.%61",
    b"GNU.sparse.map",
    b"comment",
];

/// Reads an archive, including the contents of each entry.
pub fn tar(data: &[u8]) {
    let mut input = Input::new(data);
    let mut bytes = Vec::new();
    for _ in 0..ENTRIES_MAX {
        if input.is_empty() {
            break;
        }
        entry(&mut input, &mut bytes);
    }
    let mut archive = Archive::new(&*bytes);
    let mut entries = 0;
    while let Ok(Some(entry)) = archive.next_entry() {
        entries += 1;
        assert!(entries <= bytes.len() / BLOCK_BYTES, "each entry has a header");
        let _ = pax::xattrs(&entry.records);
        if let Some(text) = entry.record(acl::ACCESS) {
            round_trip(text);
        }
        let read = io::copy(&mut archive.by_ref(), &mut io::sink());
        assert!(read.is_err() || read.is_ok_and(|read| read <= bytes.len() as u64));
    }
}

/// A decoded ACL stays equal if it is encoded as bytes and as text, and decoded again.
fn round_trip(text: &[u8]) {
    let Ok(acl) = Acl::from_text(text, |_| None) else { return };
    let again = Acl::from_bytes(&acl.to_bytes()).expect("bytes of an ACL");
    let text = again.to_text().expect("an ACL has known entries alone");
    let again = Acl::from_text(text.as_bytes(), |_| None).expect("text of an ACL");
    assert_eq!(again.to_bytes(), acl.to_bytes());
}

/// Adds an entry, or arbitrary bytes.
fn entry(input: &mut Input<'_>, bytes: &mut Vec<u8>) {
    let mut contents = Vec::new();
    let kind = match input.below(8) {
        0 => {
            bytes.extend_from_slice(input.bytes(BLOCK_BYTES));
            return;
        }
        1..=4 => {
            for _ in 0..input.below(4) {
                let len = input.below(40);
                pax::encode(KEYS[input.below(KEYS.len())], input.bytes(len), &mut contents);
            }
            [b'x', b'g'][input.below(2)]
        }
        _ => input.byte(),
    };
    if input.below(4) == 0 {
        damage(input, &mut contents);
    }
    let mut header = vec![0; BLOCK_BYTES];
    header[124..136].copy_from_slice(format!("{:011o}\0", contents.len()).as_bytes());
    header[156] = kind;
    header[257..265].copy_from_slice(if input.below(2) == 0 {
        b"ustar\x0000"
    } else {
        b"ustar  \0"
    });
    damage(input, &mut header);
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    bytes.extend_from_slice(&header);
    bytes.extend_from_slice(&contents);
    bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
}

fn damage(input: &mut Input<'_>, bytes: &mut [u8]) {
    for _ in 0..input.below(3) {
        let patch = input.patch();
        let at = input.below(bytes.len().max(1));
        bytes.iter_mut().skip(at).zip(patch).for_each(|(byte, patch)| *byte = patch);
    }
}
