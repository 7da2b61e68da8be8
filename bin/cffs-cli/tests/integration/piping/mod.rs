//! Trees and files through pipes: `cffs tar` with GNU tar, and `cffs cat` with a list.

mod archives;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::harness::{CFFS, Scratch, fail, succeed};

/// Runs a command with these bytes as standard input.
fn feed(command: &mut Command, input: &[u8]) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        // The command may end before it has read everything.
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("no panic");
    output
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A tree with every kind of entry that an ordinary user can create.
fn tree(scratch: &Scratch) -> PathBuf {
    let top = scratch.path().join("tree");
    fs::create_dir_all(top.join("deep").join("n".repeat(200))).expect("made");
    fs::write(top.join("deep").join("n".repeat(200)).join("m".repeat(150)), b"far").expect("made");
    fs::write(top.join("empty"), b"").expect("made");
    fs::write(top.join("small"), b"small").expect("made");
    fs::write(top.join("large"), vec![7; 3 << 20]).expect("made");
    fs::hard_link(top.join("small"), top.join("second")).expect("made");
    symlink("deep/nowhere", top.join("link")).expect("made");
    fs::set_permissions(top.join("small"), fs::Permissions::from_mode(0o640)).expect("set");
    let before = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    File::options()
        .write(true)
        .open(top.join("small"))
        .and_then(|f| f.set_modified(before))
        .expect("set");
    File::open(top.join("deep")).and_then(|dir| dir.set_modified(before)).expect("set");
    top
}

/// All properties of a tree that an archive keeps.
fn listed(top: &Path) -> Vec<String> {
    let find = ["-printf", "%P %y %m %n %s %T@ %l\n"];
    let list = succeed(Command::new("find").arg(top).args(find));
    let mut lines: Vec<String> = list.lines().map(normalized).collect();
    lines.sort();
    lines
}

/// Removes sizes and link counts of directories, which depend on the file system.
fn normalized(line: &str) -> String {
    let mut parts: Vec<&str> = line.split(' ').collect();
    if parts.get(1) == Some(&"d") {
        (parts[3], parts[4]) = ("", "");
    }
    parts.join(" ")
}

#[test]
fn an_archive_has_what_gnu_tar_expects_and_the_other_way_round() {
    let scratch = Scratch::with_image();
    let (top, image) = (tree(&scratch), scratch.image());
    succeed(scratch.cffs(["import", "-q"]).arg(&image).arg(&top).arg("/tree"));

    let archive = scratch.cffs(["tar"]).arg(&image).arg("/tree").output().expect("it starts");
    assert!(archive.status.success(), "{}", said(&archive));
    let out = scratch.path().join("out");
    fs::create_dir(&out).expect("made");
    let output = feed(Command::new("tar").args(["-x", "-C"]).arg(&out), &archive.stdout);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
    assert_eq!(listed(&out), listed(&top));
    assert_eq!(fs::read(out.join("large")).expect("read"), vec![7; 3 << 20]);
    let ino = |name: &str| fs::metadata(out.join(name)).expect("there").ino();
    assert_eq!(ino("small"), ino("second"));

    for format in ["pax", "gnu"] {
        let mut tar = Command::new("tar");
        tar.args(["-c", "--format", format, "-C"]).arg(&top).arg(".");
        let archive = tar.output().expect("it starts").stdout;
        let target = format!("/from/{format}");
        let output = feed(scratch.cffs(["tar", "-x"]).arg(&image).arg(&target), &archive);
        assert!(output.status.success(), "{}", said(&output));
        let back = scratch.path().join(format);
        succeed(scratch.cffs(["export", "-q"]).arg(&image).arg(&target).arg(&back));
        match format {
            "pax" => assert_eq!(listed(&back), listed(&top)),
            // That format has no fractions of seconds.
            _ => assert_eq!(cut(listed(&back)), cut(listed(&top))),
        }
        let ino = |name: &str| fs::metadata(back.join(name)).expect("there").ino();
        assert_eq!(ino("small"), ino("second"));
    }
    succeed(scratch.cffs(["fsck", "-f", "-n"]).arg(&image));
}

/// Removes fractions of seconds.
fn cut(lines: Vec<String>) -> Vec<String> {
    let cut_one = |line: &String| {
        let mut parts: Vec<&str> = line.split(' ').collect();
        parts[5] = parts[5].split('.').next().unwrap_or_default();
        parts.join(" ")
    };
    lines.iter().map(cut_one).collect()
}

const MIB: u64 = 1 << 20;

/// Sparse files: with holes at either end, in the middle, only holes, many holes, and with a name too long
/// for a header.
fn sparse_tree(scratch: &Scratch) -> PathBuf {
    let top = scratch.path().join("sparse");
    let long = top.join("n".repeat(200));
    fs::create_dir_all(&long).expect("made");
    let make = |path: PathBuf, size: u64, data: &[u64]| {
        let file = File::create(path).expect("made");
        file.set_len(size).expect("set");
        for at in data {
            let piece = vec![(at >> 16) as u8 | 1; 64 << 10];
            file.write_all_at(&piece, *at).expect("written");
        }
    };
    make(top.join("ends"), 20 * MIB, &[5 * MIB, 9 * MIB]);
    make(top.join("middle"), 20 * MIB + (64 << 10), &[0, 20 * MIB]);
    make(top.join("nothing"), 20 * MIB + 1, &[]);
    make(
        top.join("many"),
        20 * MIB,
        &(0..60).map(|number| number * (256 << 10)).collect::<Vec<_>>(),
    );
    make(long.join("m".repeat(200)), 20 * MIB + 7, &[MIB]);
    make(top.join("shorter"), 512 << 10, &[128 << 10]);
    // Written zeros are no hole.
    fs::write(top.join("zeros"), vec![0; 2 << 20]).expect("written");
    fs::write(top.join("last"), "after them").expect("written");
    top
}

/// The files of a tree: their contents and allocated space.
fn contents(top: &Path) -> Vec<(PathBuf, Vec<u8>, u64)> {
    let list = succeed(Command::new("find").arg(top).args(["-type", "f", "-printf", "%P\n"]));
    let one = |name: &str| {
        let path = top.join(name);
        let occupied = fs::metadata(&path).expect("there").blocks() * 512;
        (PathBuf::from(name), fs::read(&path).expect("read"), occupied)
    };
    let mut files: Vec<_> = list.lines().map(one).collect();
    files.sort();
    files
}

/// Fails unless both trees have the same contents, in about the same space.
fn assert_same_holes(found: &Path, expected: &Path) {
    let (found, expected) = (contents(found), contents(expected));
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found.0, expected.0);
        assert!(found.1 == expected.1, "{}: not the same contents", found.0.display());
        let difference = found.2.abs_diff(expected.2);
        assert!(difference <= 64 << 10, "{}: {} of {}", found.0.display(), found.2, expected.2);
    }
}

#[test]
fn holes_take_no_room_in_an_archive_and_come_out_as_holes() {
    let scratch = Scratch::with_image();
    let (top, image) = (sparse_tree(&scratch), scratch.image());
    succeed(scratch.cffs(["import", "-q"]).arg(&image).arg(&top).arg("/tree"));
    let archive = scratch.cffs(["tar"]).arg(&image).arg("/tree").output().expect("it starts");
    assert!(archive.status.success(), "{}", said(&archive));
    assert!(archive.stdout.len() < 8 << 20, "{} bytes", archive.stdout.len());
    let below = |name: &str| {
        let path = scratch.path().join(name);
        fs::create_dir(&path).expect("made");
        path
    };
    let gnu = below("gnu-tar");
    let output = feed(Command::new("tar").args(["-x", "-C"]).arg(&gnu), &archive.stdout);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
    assert_same_holes(&gnu, &top);
    let python = below("python");
    let program = "import sys, tarfile; tarfile.open(fileobj=sys.stdin.buffer, mode='r|').extractall(sys.argv[1])";
    let output = feed(Command::new("python3").args(["-c", program]).arg(&python), &archive.stdout);
    assert!(output.status.success(), "{}", said(&output));
    assert_same_holes(&python, &top);

    let options: [&[&str]; 4] = [
        &["--format=gnu"],
        &["--format=pax", "--sparse-version=0.0"],
        &["--format=pax", "--sparse-version=0.1"],
        &["--format=pax", "--sparse-version=1.0"],
    ];
    let from_gnu_tar = options.map(|options| {
        let mut tar = Command::new("tar");
        tar.args(["-c", "--sparse", "--hole-detection=seek"]).args(options).arg("-C");
        tar.arg(&top).arg(".").output().expect("it starts").stdout
    });
    for (number, archive) in from_gnu_tar.iter().chain([&archive.stdout]).enumerate() {
        let target = format!("/from/{number}");
        let output = feed(scratch.cffs(["tar", "-x"]).arg(&image).arg(&target), archive);
        assert!(output.status.success(), "{number}: {}", said(&output));
        let back = scratch.path().join(number.to_string());
        succeed(scratch.cffs(["export", "-q"]).arg(&image).arg(&target).arg(&back));
        assert_same_holes(&back, &top);
    }
    succeed(scratch.cffs(["fsck", "-f", "-n"]).arg(&image));

    let mut tar = scratch.cffs(["tar", "--no-sparse"]);
    let archive = tar.arg(&image).arg("/tree").output().expect("it starts").stdout;
    let all: usize = contents(&top).iter().map(|(_, bytes, _)| bytes.len()).sum();
    assert!(archive.len() > all, "{} bytes", archive.len());
    let plain = below("plain");
    let output = feed(Command::new("tar").args(["-x", "-C"]).arg(&plain), &archive);
    assert!(output.status.success(), "{}", said(&output));
    let names_and_bytes =
        |top| contents(top).into_iter().map(|file| (file.0, file.1)).collect::<Vec<_>>();
    assert!(names_and_bytes(&plain) == names_and_bytes(&top), "not the same files");
}

#[test]
fn an_invalid_map_of_holes_is_refused() {
    let scratch = Scratch::with_image();
    let image = scratch.image();
    let no_sense = "its map of holes is invalid";
    // It fills the whole entry, and continues.
    let endless = format!("400\n{}", "0\n".repeat(510));
    let cases: [(&str, &str, &str, &str); 10] = [
        ("1", "8", "2\n0\n1\n0\n1\n", no_sense),
        ("1", "8", "1\n8\n1\n", no_sense),
        ("1", "8", "1\n1\n18446744073709551615\n", no_sense),
        ("1", "8", "1\n0\n99999999999999999999999\n", no_sense),
        ("1", "8", "-1\n", no_sense),
        ("1", "8", "99999999\n", "more than 4194304 pieces between its holes"),
        ("1", "8", &endless, "its map of holes is cut off"),
        ("1", "2000", "1\n0\n2000\n", "its contents are shorter than its map of holes says"),
        ("1", "x", "0\n", no_sense),
        ("2", "8", "0\n", "unknown version 2 of files with holes"),
    ];
    let mut archive = tar::Builder::new(Vec::new());
    let mut add = |name: &str, major: &str, size: &str, map: &str| {
        let records = [("major", major), ("name", name), ("realsize", size)];
        let records = records.map(|(key, value)| (format!("GNU.sparse.{key}"), value));
        let records = records.iter().map(|(key, value)| (&**key, value.as_bytes()));
        archive.append_pax_extensions(records).expect("added");
        let mut contents = map.as_bytes().to_vec();
        contents.resize(contents.len().next_multiple_of(512), 0);
        contents.resize(1024, b'x');
        let mut header = tar::Header::new_ustar();
        header.set_size(1024);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_path("GNUSparseFile.0").expect("short");
        header.set_cksum();
        archive.append(&header, &*contents).expect("added");
    };
    for (number, (major, size, map, _)) in cases.iter().enumerate() {
        add(&format!("f{number}"), major, size, map);
    }
    add("../up", "1", "8", "0\n");
    add("good", "1", "8", "1\n4\n4\n");
    let archive = archive.into_inner().expect("ended");
    let output = feed(scratch.cffs(["tar", "-x"]).arg(&image), &archive);
    let words = said(&output);
    assert_eq!(output.status.code(), Some(1), "{words}");
    for (number, (.., expected)) in cases.iter().enumerate() {
        assert!(words.contains(&format!("cffs: f{number}: {expected}")), "{number}: {words}");
    }
    assert!(words.contains("cffs: ../up: the name is outside"), "{words}");
    assert_eq!(succeed(scratch.cffs(["cat"]).arg(&image).arg("/good")), "\0\0\0\0xxxx");
    // An entry shorter than its map is detected when its end is reached.
    assert_eq!(succeed(scratch.cffs(["ls"]).arg(&image)), "f7\ngood\n");
}

#[test]
fn extended_attributes_are_archived() {
    let scratch = Scratch::with_image();
    let (top, image) = (tree(&scratch), scratch.image());
    let mut setfattr = Command::new("setfattr");
    succeed(setfattr.args(["-n", "user.colour", "-v", "red"]).arg(top.join("small")));
    succeed(scratch.cffs(["import", "-q"]).arg(&image).arg(&top).arg("/a"));
    let archive = scratch.cffs(["tar"]).arg(&image).arg("/a").output().expect("it starts").stdout;
    for (target, flag) in [("/with", None), ("/without", Some("--no-xattrs"))] {
        let mut tar = scratch.cffs(["tar", "-x"]);
        let output = feed(tar.args(flag).arg(&image).arg(target), &archive);
        assert!(output.status.success(), "{}", said(&output));
        let back = scratch.path().join(target.trim_start_matches('/'));
        succeed(scratch.cffs(["export", "-q"]).arg(&image).arg(target).arg(&back));
        let mut getfattr = Command::new("getfattr");
        let found = succeed(getfattr.args(["--absolute-names", "-d"]).arg(back.join("small")));
        assert_eq!(found.contains("user.colour=\"red\""), flag.is_none(), "{found}");
    }
}

/// An archive built by hand, with entries that GNU tar would not write.
fn archive(entries: &[(&str, char, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, kind, link) in entries {
        let mut header = [0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..108].copy_from_slice(b"0000644\0");
        header[108..116].copy_from_slice(b"0000000\0");
        header[116..124].copy_from_slice(b"0000000\0");
        header[124..136].copy_from_slice(b"00000000000\0");
        header[136..148].copy_from_slice(b"00000000000\0");
        header[148..156].fill(b' ');
        header[156] = *kind as u8;
        header[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        bytes.extend(header);
    }
    bytes.extend([0; 1024]);
    bytes
}

#[test]
fn an_archive_stays_below_its_directory() {
    let scratch = Scratch::with_image();
    let image = scratch.image();
    let hostile = archive(&[
        ("../up", '0', ""),
        ("a/../../up", '0', ""),
        ("out", '2', "/"),
        ("out/up", '0', ""),
        ("hard", '1', "../secret"),
        ("hard", '1', "missing"),
        ("odd", 'Q', ""),
        ("/absolute", '0', ""),
    ]);
    let output = feed(scratch.cffs(["tar", "-x"]).arg(&image).arg("/below"), &hostile);
    let words = said(&output);
    assert_eq!(output.status.code(), Some(1), "{words}");
    for expected in [
        "cffs: ../up: the name is outside of the directory; nothing was created",
        "cffs: a/../../up: the name is outside of the directory; nothing was created",
        "cffs: out/up: out is not a directory; nothing was created",
        "cffs: hard: the name is outside of the directory; nothing was created",
        "cffs: hard: the link to missing: no such file or directory",
        "cffs: odd: entries of the kind 'Q' are unknown",
        "cffs: 6 files could not be extracted",
    ] {
        assert!(words.contains(expected), "{expected}: {words}");
    }
    let list = succeed(scratch.cffs(["ls", "-R"]).arg(&image));
    assert_eq!(list, "/\n/below\n/below/out\n/below/absolute\n");
}

#[test]
fn an_archive_that_ends_too_early_is_a_failure_and_what_came_stays() {
    let scratch = Scratch::with_image();
    let (top, image) = (tree(&scratch), scratch.image());
    let mut tar = Command::new("tar");
    tar.args(["-c", "-C"]).arg(&top).args(["small", "large"]);
    let archive = tar.output().expect("it starts").stdout;
    let output = feed(scratch.cffs(["tar", "-x"]).arg(&image).arg("/a"), &archive[..1 << 20]);
    let words = said(&output);
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("standard input"), "{words}");
    assert_eq!(succeed(scratch.cffs(["cat"]).arg(&image).arg("/a/small")), "small");
    let output = feed(scratch.cffs(["tar", "-x"]).arg(&image).arg("/b"), &[b'x'; 2048]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    succeed(scratch.cffs(["fsck", "-f", "-n"]).arg(&image));
}

#[test]
fn a_full_volume_and_a_full_pipe_are_failures() {
    let scratch = Scratch::with_image();
    let (top, image) = (tree(&scratch), scratch.image());
    succeed(scratch.cffs(["mark"]).arg(&image).arg("one"));
    succeed(scratch.cffs(["import", "-q"]).arg(&image).arg(&top).arg("/tree"));
    let full = File::options().write(true).open("/dev/full").expect("opened");
    let output =
        scratch.cffs(["tar"]).arg(&image).arg("/tree").stdout(full).output().expect("it starts");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("No space left on device"), "{}", said(&output));

    // Regression: Rust opens /dev/null in the place of a closed descriptor, and nothing failed.
    for arguments in
        [&["tar", "IMAGE", "/tree"][..], &["changes", "--since", "one", "IMAGE"], &["ls", "IMAGE"]]
    {
        let arguments = arguments.iter().map(|it| it.replace("IMAGE", image.to_str().unwrap()));
        let mut shell = Command::new("sh");
        shell.args(["-c", r#""$0" "$@" >&-"#, CFFS]).args(arguments);
        let said = fail(1, &mut shell);
        assert!(said.contains("standard output: Bad file descriptor"), "{said}");
    }

    // A reader that closes the pipe before the end.
    let mut tar = scratch.cffs(["tar"]);
    tar.arg(&image).arg("/tree").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tar = tar.spawn().expect("it starts");
    let mut first = [0; 512];
    tar.stdout.take().expect("a pipe").read_exact(&mut first).expect("read");
    assert_eq!(tar.wait().expect("it ends").code(), Some(1));

    let small = scratch.path().join("small.cffs");
    succeed(scratch.cffs(["mkfs", "-q", "-s", "8M"]).arg(&small));
    fs::write(top.join("huge"), vec![1; 16 << 20]).expect("made");
    let mut tar = Command::new("tar");
    let archive = tar.args(["-c", "-C"]).arg(&top).arg("huge").output().expect("it starts").stdout;
    let output = feed(scratch.cffs(["tar", "-x"]).arg(&small), &archive);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("huge: no space left on the volume"), "{}", said(&output));
    assert!(
        fail(1, scratch.cffs(["tar"]).arg(&image).arg("/nope")).contains("/nope: no such file")
    );
}

#[test]
fn cat_prints_a_list_in_its_order() {
    let scratch = Scratch::with_image();
    let image = scratch.image();
    let source = scratch.path().join("source");
    fs::create_dir(&source).expect("made");
    for number in 0..1500 {
        fs::write(source.join(format!("f{number}")), format!("{number}\n")).expect("written");
    }
    fs::write(source.join("long"), vec![b'x'; 1 << 20]).expect("written");
    succeed(scratch.cffs(["import", "-q"]).arg(&image).arg(&source));
    let numbers: Vec<usize> = (0..1500).map(|number| number * 701 % 1500).collect();
    let expected: String = numbers.iter().map(|number| format!("{number}\n")).collect();
    for (end, flag) in [("\n", None), ("\0", Some("--null"))] {
        let list: String = numbers.iter().map(|number| format!("/f{number}{end}")).collect();
        let mut cat = scratch.cffs(["cat", "--files-from", "-"]);
        let output = feed(cat.args(flag).arg(&image), list.as_bytes());
        assert!(output.status.success(), "{}", said(&output));
        assert!(output.stdout == expected.as_bytes(), "not the files in their order");
    }
    let list = scratch.path().join("list");
    fs::write(&list, "/f1\n/long\n\n/f2").expect("written");
    let printed = succeed(scratch.cffs(["cat", "--files-from"]).arg(&list).arg(&image).arg("/f0"));
    assert_eq!(printed, format!("0\n1\n{}2\n", "x".repeat(1 << 20)));
    fs::write(&list, "/f1\n/nope\n").expect("written");
    let words = fail(1, scratch.cffs(["cat", "--files-from"]).arg(&list).arg(&image));
    assert!(words.contains("/nope: no such file or directory"), "{words}");
    let words = fail(2, scratch.cffs(["cat"]).arg(&image));
    assert!(words.contains("PATH"), "{words}");
}
