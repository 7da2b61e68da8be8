//! Trees and files through pipes: `cffs tar` beside GNU tar, and `cffs cat` with a list.

mod harness;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use harness::{Scratch, fail, succeed};

/// Runs a command with these bytes on standard input.
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

/// A tree with every kind of entry that a user can make.
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

/// Everything of a tree that an archive keeps.
fn listed(top: &Path) -> Vec<String> {
    let find = ["-printf", "%P %y %m %n %s %T@ %l\n"];
    let list = succeed(Command::new("find").arg(top).args(find));
    let mut lines: Vec<String> = list.lines().map(normalized).collect();
    lines.sort();
    lines
}

/// Sizes and link counts of directories are their file system's.
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

/// Without fractions of seconds.
fn cut(lines: Vec<String>) -> Vec<String> {
    let cut_one = |line: &String| {
        let mut parts: Vec<&str> = line.split(' ').collect();
        parts[5] = parts[5].split('.').next().unwrap_or_default();
        parts.join(" ")
    };
    lines.iter().map(cut_one).collect()
}

#[test]
fn extended_attributes_go_along() {
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

/// An archive made by hand, of entries that GNU tar would not make.
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
        "cffs: ../up: the name leads out of the directory: nothing was made",
        "cffs: a/../../up: the name leads out of the directory: nothing was made",
        "cffs: out/up: out, above it, is no directory: nothing was made",
        "cffs: hard: the name leads out of the directory: nothing was made",
        "cffs: hard: the link to missing: no such file or directory",
        "cffs: odd: entries of the kind 'Q' are not known",
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
    succeed(scratch.cffs(["import", "-q"]).arg(&image).arg(&top).arg("/tree"));
    let full = File::options().write(true).open("/dev/full").expect("opened");
    let output =
        scratch.cffs(["tar"]).arg(&image).arg("/tree").stdout(full).output().expect("it starts");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("No space left on device"), "{}", said(&output));

    // A reader that goes away before the end.
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
