use std::io::{self, Read};

use super::*;

/// A header with its checksum.
fn block(name: &str, kind: u8, size: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK_BYTES];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..108].copy_from_slice(b"0000644\0");
    block[108..116].copy_from_slice(b"0000001\0");
    block[116..124].copy_from_slice(b"0000002\0");
    block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    block[136..148].copy_from_slice(b"00000000012\0");
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    sealed(block)
}

fn sealed(mut block: Vec<u8>) -> Vec<u8> {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// An entry with contents.
fn file(name: &str, kind: u8, contents: &[u8]) -> Vec<u8> {
    let mut bytes = block(name, kind, contents.len() as u64);
    bytes.extend_from_slice(contents);
    bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
    bytes
}

fn extended(kind: u8, records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    records.iter().for_each(|(key, value)| pax::encode(key.as_bytes(), value, &mut bytes));
    file("pax", kind, &bytes)
}

/// Each entry's name and contents, and the result at the end.
fn read(bytes: &[u8]) -> (Vec<(String, String)>, Result<(), Error>) {
    let mut archive = Archive::new(bytes);
    let mut found = Vec::new();
    loop {
        let entry = match archive.next_entry() {
            Ok(Some(entry)) => entry,
            Ok(None) => return (found, Ok(())),
            Err(error) => return (found, Err(error)),
        };
        let mut contents = Vec::new();
        if let Err(error) = archive.read_to_end(&mut contents) {
            return (found, Err(error.into()));
        }
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        found.push((text(entry.path), text(contents)));
    }
}

fn names_and_contents(bytes: &[u8]) -> Vec<(String, String)> {
    let (found, end) = read(bytes);
    end.expect("the archive is whole");
    found
}

fn first(bytes: &[u8]) -> Entry {
    Archive::new(bytes).next_entry().expect("it is whole").expect("an entry")
}

fn pair(name: &str, contents: &str) -> (String, String) {
    (name.to_owned(), contents.to_owned())
}

#[test]
fn records_apply_to_the_next_entry_and_global_ones_to_all() {
    let bytes = [
        extended(b'g', &[("comment", b"4711"), ("mtime", b"7"), ("uid", b"9")]),
        extended(b'x', &[("path", b"long"), ("uid", b"3000000")]),
        file("short", b'0', b"one"),
        file("next", b'0', b"two"),
    ];
    let bytes = bytes.concat();
    assert_eq!(names_and_contents(&bytes), [pair("long", "one"), pair("next", "two")]);
    let mut archive = Archive::new(&*bytes);
    let uid_and_time = |entry: Option<Entry>| entry.map(|entry| (entry.uid, entry.mtime.seconds));
    assert_eq!(uid_and_time(archive.next_entry().expect("whole")), Some((3_000_000, 7)));
    assert_eq!(uid_and_time(archive.next_entry().expect("whole")), Some((9, 7)));
    // The output of git archive for an empty tree.
    assert_eq!(names_and_contents(&extended(b'g', &[("comment", b"4711")])), []);
}

/// With a value that looks like a size record, one reader saw other entries than the others.
#[test]
fn only_a_records_own_key_sets_the_size() {
    let size = |text: &'static [u8]| {
        [extended(b'x', &[("comment", b"a\n11 size=1\n"), ("size", text)]), block("f", b'0', 0)]
            .concat()
    };
    let mut bytes = size(b"3");
    bytes.extend(b"abc");
    bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
    bytes.extend(file("g", b'0', b"d"));
    assert_eq!(names_and_contents(&bytes), [pair("f", "abc"), pair("g", "d")]);
    for wrong in [&b"x"[..], b"-1", b"18446744073709551615", b"99999999999999999999"] {
        let (found, end) = read(&[size(b"0"), size(wrong.to_vec().leak())].concat());
        assert_eq!(found, [pair("f", "")]);
        assert!(matches!(end, Err(Error::Size)), "{end:?}");
    }
}

#[test]
fn long_names_of_gnu_tar_have_separate_entries() {
    let long = "n".repeat(300);
    let target = "t".repeat(200);
    let bytes = [
        file("././@LongLink", b'K', format!("{target}\0").as_bytes()),
        file("././@LongLink", b'L', format!("{long}\0").as_bytes()),
        file("cut", b'2', b""),
    ];
    let entry = first(&bytes.concat());
    assert_eq!((entry.path, entry.link), (long.into_bytes(), target.into_bytes()));
    assert_eq!(entry.kind, Kind::Symlink);
}

#[test]
fn a_size_is_ignored_for_types_without_contents() {
    // Programs write the size of the file into its links, and the size to which a directory may
    // grow.
    let bytes = [
        block("link", b'1', 700),
        block("dir", b'5', 4096),
        block("fifo", b'6', 1),
        file("old-directory/", 0, b""),
        file("f", b'0', b"x"),
        extended(b'x', &[("mtime", b"1")]),
        file("pax-link", b'1', b"contents"),
        file("dump", b'D', b"Yf\0\0"),
        file("last", b'7', b"y"),
    ];
    let names = ["link", "dir", "fifo", "old-directory/", "f", "pax-link", "dump", "last"];
    let found = names_and_contents(&bytes.concat());
    assert_eq!(found.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), names);
    assert_eq!((&*found[4].1, &*found[5].1, &*found[7].1), ("x", "contents", "y"));
    assert_eq!(first(&file("old-directory/", 0, b"")).kind, Kind::Directory);
}

#[test]
fn sparse_files_of_gnu_tar_continue_in_further_blocks() {
    let mut header = block("holes", b'S', 1024);
    header[257..265].copy_from_slice(b"ustar  \0");
    header[386..410].copy_from_slice(b"00000000000 00000001000\0");
    header[482] = 1;
    header[483..495].copy_from_slice(b"00000010000\0");
    let mut more = vec![0; BLOCK_BYTES];
    more[..24].copy_from_slice(b"00000004000 00000001000\0");
    let bytes = [sealed(header), more, vec![b'd'; 1024], file("f", b'0', b"x")].concat();
    assert_eq!(first(&bytes).gnu_pieces, Some((0o10000, vec![0, 0o1000, 0o4000, 0o1000])));
    assert_eq!(names_and_contents(&bytes), [pair("holes", &"d".repeat(1024)), pair("f", "x")]);
}

#[test]
fn times_before_1970_are_binary_in_a_header() {
    let mut header = block("f", b'0', 0);
    header[136..148].copy_from_slice(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfc");
    let entry = first(&sealed(header));
    assert_eq!((entry.mtime.seconds, entry.damage), (-4, None));
}

#[test]
fn damage_affects_only_its_own_entry() {
    let bytes = [file("pax", b'x', b"no records"), file("f", b'0', b"x"), file("g", b'0', b"y")];
    let bytes = bytes.concat();
    let mut archive = Archive::new(&*bytes);
    let damage = |entry: Option<Entry>| entry.and_then(|entry| entry.damage);
    let found = damage(archive.next_entry().expect("it goes on"));
    assert_eq!(found, Some("its extended header is damaged"));
    assert_eq!(damage(archive.next_entry().expect("it goes on")), None);
    let mut header = block("f", b'0', 0);
    header[100..108].copy_from_slice(b"rw-r--r-");
    let found = first(&sealed(header)).damage;
    assert_eq!(found, Some("a number in its header makes no sense"));
}

#[test]
fn an_archive_ends_only_with_zeros_or_with_the_input() {
    let whole = [file("f", b'0', b"x"), vec![0; 1024], file("g", b'0', b"y")].concat();
    assert_eq!(names_and_contents(&whole), [pair("f", "x")]);
    assert_eq!(names_and_contents(&whole[..1024]), [pair("f", "x")]);
    assert_eq!(names_and_contents(b""), []);
    let only_records = extended(b'x', &[("path", b"f")]);
    for cut in [&whole[..100], &whole[..512], &whole[..1000], &only_records] {
        let (_, end) = read(cut);
        let is_cut_off = match &end {
            Err(Error::CutOff) => true,
            Err(Error::Io(error)) => error.kind() == io::ErrorKind::UnexpectedEof,
            _ => false,
        };
        assert!(is_cut_off, "{}: {end:?}", cut.len());
    }
    let mut wrong = whole;
    wrong[0] ^= 1;
    assert!(matches!(read(&wrong).1, Err(Error::Checksum)));
}

#[test]
fn an_extended_header_cannot_exhaust_memory() {
    let (_, end) = read(&block("pax", b'x', EXTENSION_BYTES_MAX + 1));
    assert!(matches!(end, Err(Error::Size)), "{end:?}");
}
