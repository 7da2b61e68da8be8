//! Names with control characters: no message and no listing on a terminal contains them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::process::{Command, Output, Stdio};

use crate::harness::{Scratch, succeed};

/// A name that clears a terminal and forges a line.
const HOSTILE: &[u8] = b"a\x1b[2J\ncffs: all is well\xff";
/// The same in a message.
const SHOWN: &str = r"a\u{1b}[2J\ncffs: all is well\xff";

/// Asserts that the messages of a command that fails contain the name, escaped.
fn assert_escaped(command: &mut Command) {
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() || said.contains("left out"), "{command:?}: {said}");
    assert!(said.contains(SHOWN), "{command:?}: {said:?}");
    let is_forged = said.lines().any(|line| line == "cffs: all is well\u{fffd}");
    assert!(!said.contains('\x1b') && !is_forged, "{command:?}: {said:?}");
}

#[test]
fn messages_escape_names() {
    let scratch = Scratch::with_image();
    let (image, hostile) = (scratch.image(), OsStr::from_bytes(HOSTILE));
    let [source, socket, target] =
        ["source", "socket", "target"].map(|name| scratch.path().join(name));
    for dir in [&source, &socket] {
        fs::create_dir(dir).expect("made");
    }
    fs::write(source.join(hostile), b"contents").expect("written");
    let _listener = UnixListener::bind(socket.join(hostile)).expect("bound");
    fs::create_dir_all(target.join(hostile)).expect("made");
    for (from, to) in [(&source, "/files"), (&socket, "/sockets"), (&target, "/conflict")] {
        succeed(scratch.cffs(["import", "-q"]).arg(&image).arg(from).arg(to));
    }
    let path = |dir: &str| OsStr::from_bytes(&[dir.as_bytes(), HOSTILE].concat()).to_owned();

    for command in ["ls", "cat"] {
        assert_escaped(scratch.cffs([command]).arg(&image).arg(path("/missing/")));
    }
    assert_escaped(scratch.cffs(["cat"]).arg(&image).arg(path("/conflict/")));
    assert_escaped(scratch.cffs(["import"]).arg(&image).arg(&source).arg("/conflict"));
    assert_escaped(scratch.cffs(["import", "-n"]).arg(&image).arg(&source).arg("/conflict"));
    assert_escaped(scratch.cffs(["import"]).arg(&image).arg(scratch.path().join(hostile)));
    assert_escaped(scratch.cffs(["export"]).arg(&image).arg("/files").arg(&target));
    assert_escaped(scratch.cffs(["export"]).arg(&image).arg(path("/missing/")).arg(&target));
    assert_escaped(scratch.cffs(["tar"]).arg(&image).arg(path("/missing/")));
    assert_escaped(scratch.cffs(["tar"]).arg(&image).arg("/sockets"));
    assert_escaped(scratch.cffs(["rm"]).arg(scratch.path().join(hostile)));
    let archive = scratch.cffs(["tar"]).arg(&image).arg("/files").output().expect("it starts");
    let archive_file = scratch.path().join("archive");
    fs::write(&archive_file, archive.stdout).expect("written");
    let input = fs::File::open(&archive_file).expect("opened");
    assert_escaped(scratch.cffs(["tar", "-x"]).arg(&image).arg("/conflict").stdin(input));
}

/// Regression: errors of usage contained the arguments as they are.
#[test]
fn errors_of_usage_escape_arguments() {
    let scratch = Scratch::new();
    for arguments in [&["ls"][..], &["trace"], &["mkfs", "--size"], &[]] {
        let mut command = scratch.cffs([]);
        let output = command.args(arguments).arg("a\x1b[2J\x07b").output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && !said.is_empty(), "{arguments:?}: {said}");
        assert!(!said.contains(['\x1b', '\x07']), "{arguments:?}: {said:?}");
        assert!(said.contains(r"a\u{1b}[2J\u{7}b"), "{arguments:?}: {said:?}");
    }
}

/// Regression: a listing on a terminal contained the names as they are.
#[test]
fn a_listing_escapes_names_on_a_terminal_only() {
    let scratch = Scratch::with_image();
    let (image, source) = (scratch.image(), scratch.path().join("source"));
    fs::create_dir(&source).expect("made");
    fs::write(source.join(OsStr::from_bytes(HOSTILE)), b"contents").expect("written");
    succeed(scratch.cffs(["import", "-q"]).arg(&image).arg(&source));

    let piped = scratch.cffs(["ls"]).arg(&image).output().expect("it starts");
    assert_eq!(piped.stdout, [HOSTILE, b"\n"].concat());
    let mut listing = scratch.cffs(["ls"]);
    listing.arg(&image);
    let Some(Output { stdout, .. }) = on_a_terminal(&listing) else { return };
    assert_eq!(String::from_utf8_lossy(&stdout).trim_end(), SHOWN);
}

/// Regression: a backslash and an n were shown as a newline is.
#[test]
fn different_names_look_different_on_a_terminal() {
    let scratch = Scratch::with_image();
    let (image, source) = (scratch.image(), scratch.path().join("source"));
    fs::create_dir(&source).expect("made");
    for name in ["a\n", r"a\n", r"a\\n"] {
        fs::write(source.join(name), b"contents").expect("written");
    }
    succeed(scratch.cffs(["import", "-q"]).arg(&image).arg(&source));
    let mut listing = scratch.cffs(["ls"]);
    listing.arg(&image);
    let Some(Output { stdout, .. }) = on_a_terminal(&listing) else { return };
    let mut shown: Vec<&str> = str::from_utf8(&stdout).expect("text").split_whitespace().collect();
    shown.sort_unstable();
    assert_eq!(shown, [r"a\\\\n", r"a\\n", r"a\n"]);
}

/// Runs a command on a terminal of its own, by script(1).
fn on_a_terminal(command: &Command) -> Option<Output> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> =
        words.map(|word| format!("'{}'", word.to_str().expect("text"))).collect();
    let mut script = Command::new("script");
    script.args(["-q", "-e", "-c", &words.join(" "), "/dev/null"]).stdin(Stdio::null());
    match script.output() {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("not run: script(1): {error}");
            None
        }
    }
}
