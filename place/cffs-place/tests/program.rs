//! Tests of the program's command line.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use cffs_place::volume::Volume;

fn place(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_place"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("place");
    child.stdin.take().expect("a pipe").write_all(input).expect("input");
    child.wait_with_output().expect("place")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A directory with two files, in the build directory; nothing if that is on an unsupported file
/// system.
fn tree() -> Option<(tempfile::TempDir, String)> {
    let at = Path::new(env!("CARGO_TARGET_TMPDIR"));
    if Volume::of(at).is_err() {
        eprintln!("not run: {} is not on ext4, XFS or btrfs", at.display());
        return None;
    }
    let directory = tempfile::tempdir_in(at).expect("a directory");
    fs::write(directory.path().join("a"), vec![b'a'; 10_000]).expect("write");
    fs::write(directory.path().join("b"), vec![b'b'; 5000]).expect("write");
    let path = directory.path().to_str().expect("UTF-8").to_owned();
    Some((directory, path))
}

#[test]
fn an_unsupported_file_system_is_refused_by_name() {
    let output = place(&["show", "/proc"], b"");
    assert_eq!(output.status.code(), Some(1));
    // Regression: the message contained a number, "a file system that place does not know (type
    // 0x9fa0)".
    let said = text(&output.stderr);
    assert!(said.starts_with("place: /proc: unsupported file system (proc)"), "{said}");
    assert!(said.contains("ext4, XFS and btrfs"), "{said}");
}

#[test]
fn json_has_the_sums_of_what_it_lists() {
    let Some((_directory, path)) = tree() else { return };
    let output = place(&["show", "--json", &path], b"");
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&shown["files"], &shown["requests"]["contents"]), (&2.into(), &2.into()));
    let requests = shown["requests"].as_object().expect("an object");
    let sum: u64 = requests.values().filter_map(serde_json::Value::as_u64).sum();
    assert_eq!(shown["total"], sum);
    assert!(text(&place(&["show", &path], b"").stdout).contains(" 2 files in 1 directory "));
}

#[test]
fn a_dry_run_moves_nothing() {
    let Some((_directory, path)) = tree() else { return };
    let before = place(&["show", "--json", &path], b"").stdout;
    for arguments in [&["pack", "-n", &path][..], &["pack", "-n", "--max-size", "6000", &path]] {
        let output = place(arguments, b"");
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    assert_eq!(place(&["show", "--json", &path], b"").stdout, before);
    let output = place(&["pack", "-nv", "--max-size", "6000", &path], b"");
    assert!(
        text(&output.stdout).contains("/a: larger than --max-size"),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn contents_are_printed_in_the_order_of_the_arguments() {
    let Some((_directory, path)) = tree() else { return };
    let list = format!("{path}/b\0{path}/a\0");
    let expected = [vec![b'b'; 5000], vec![b'a'; 10_000]].concat();
    assert!(place(&["cat", "-0", "-"], list.as_bytes()).stdout == expected);
    let warmed = place(&["warm", "-0", "-"], list.as_bytes());
    assert!(text(&warmed.stdout).starts_with("2 files (14 KiB)"), "{}", text(&warmed.stdout));
    let missing = place(&["cat", &format!("{path}/c"), &format!("{path}/b")], b"");
    assert_eq!((missing.status.code(), missing.stdout.len()), (Some(1), 5000));
    assert!(text(&missing.stderr).contains("/c: No such file"), "{}", text(&missing.stderr));
}

#[test]
fn trace_returns_the_exit_status_of_its_command() {
    let Some((directory, path)) = tree() else { return };
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: only root may watch opened files");
        return;
    }
    let list = directory.path().join("list");
    let script = format!("cat {path}/b {path}/a >/dev/null; exit 3");
    let list_path = list.to_str().expect("UTF-8");
    let output = place(&["trace", "-o", list_path, "--", "sh", "-c", &script], b"");
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let lines = fs::read_to_string(&list).expect("the list");
    let ours: Vec<PathBuf> =
        lines.lines().map(PathBuf::from).filter(|line| line.starts_with(&path)).collect();
    assert_eq!(ours, [directory.path().join("b"), directory.path().join("a")]);
    let nothing = place(&["trace", "-o", list_path, "--", "/no/such/program"], b"");
    assert_eq!(nothing.status.code(), Some(1));
    assert!(text(&nothing.stderr).contains("/no/such/program"), "{}", text(&nothing.stderr));
}

#[test]
fn a_file_that_is_no_disk_is_refused_with_the_reason() {
    let scratch = tempfile::tempdir().expect("a directory");
    let small = scratch.path().join("small");
    fs::write(&small, vec![0; 1 << 20]).expect("written");
    let small = small.to_str().expect("UTF-8");
    for (arguments, why) in [
        (
            &["disk", "/dev/null"][..],
            "place: /dev/null: it cannot be read past the system's caches",
        ),
        (&["disk", "/missing/disk"], "place: /missing/disk: No such file or directory"),
        (&["disk", small], "a disk of less than 164 MiB cannot be distinguished from its buffer"),
    ] {
        let output = place(arguments, b"");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
}

/// Regression: `place show | head` and others ended with a panic and a backtrace.
#[test]
fn a_closed_pipe_causes_no_panic() {
    let Some((directory, path)) = tree() else { return };
    let other = directory.path().join("other").display().to_string();
    let trace = directory.path().join("trace").display().to_string();
    let commands: [(&str, &[&str]); 13] = [
        ("show", &[&path]),
        ("pack", &["-nv", "--max-size", "6000", &path]),
        ("warm", &[&path]),
        ("cat", &[&path]),
        ("trace", &["-o", &trace, "--", "true"]),
        ("init", &[&path]),
        ("groups", &[&path]),
        ("disk", &["/dev/null"]),
        ("memory", &["--limit", "1M", &path]),
        ("mkdir", &["--group", "0", &other]),
        ("create", &["--group", "0", &other]),
        ("cp", &["--group", "0", &path, &other]),
        ("mv", &["--group", "0", &path, &other]),
    ];
    let help = text(&place(&["--help"], b"").stdout);
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed: Vec<&str> = listed
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|name| !name.is_empty() && *name != "help")
        .collect();
    assert_eq!(listed, commands.map(|(name, _)| name), "each command is called here");
    for (name, arguments) in commands {
        for json in [None, Some("--json")] {
            let (reader, writer) = std::io::pipe().expect("a pipe");
            drop(reader);
            let mut command = Command::new(env!("CARGO_BIN_EXE_place"));
            command.arg(name).args(json).args(arguments).stdin(Stdio::null()).stdout(writer);
            let output = command.output().expect("place");
            let said = text(&output.stderr);
            assert!(!said.contains("panicked"), "{name}: {said}");
            assert!(matches!(output.status.code(), Some(0..=2)), "{name}: {said}");
        }
    }
}
