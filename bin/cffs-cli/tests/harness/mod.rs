//! Shared by the tests of the program: a scratch directory, the program, and mounts that are removed.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod failing;
pub mod nfs;
pub mod page;
pub mod store_server;

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The program under test.
pub const CFFS: &str = env!("CARGO_BIN_EXE_cffs");

/// A directory with an image and a mount point; everything is removed at the end.
pub struct Scratch {
    dir: tempfile::TempDir,
}

impl Scratch {
    /// A directory without an image.
    pub fn new() -> Scratch {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("mnt")).expect("made");
        Scratch { dir }
    }

    /// A directory with a volume of 256 MiB.
    pub fn with_image() -> Scratch {
        let scratch = Scratch::new();
        succeed(scratch.cffs(["mkfs", "-q", "--size", "256M"]).arg(scratch.image()));
        scratch
    }

    /// A directory with a volume of 64 MiB, whose journal of 4 MiB is in the returned file.
    pub fn with_journal_in_a_file() -> (Scratch, PathBuf) {
        let scratch = Scratch::new();
        let journal = scratch.path().join("elsewhere");
        let mut mkfs =
            scratch.cffs(["mkfs", "-q", "--size", "64M", "--journal", "4M", "--journal-device"]);
        succeed(mkfs.arg(&journal).arg(scratch.image()));
        (scratch, journal)
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn image(&self) -> PathBuf {
        self.dir.path().join("image.cffs")
    }

    pub fn mountpoint(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    /// The program with these arguments, and a separate log for servers.
    pub fn cffs<const N: usize>(&self, arguments: [&str; N]) -> Command {
        self.named(OsStr::new(CFFS), arguments)
    }

    /// The same under another name.
    pub fn named<const N: usize>(&self, program: &OsStr, arguments: [&str; N]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).env_remove("CFFS_LOG");
        command
    }

    /// The program as run by an unprivileged user; only for root. It is a copy in this directory, which then
    /// becomes accessible to others: the repository may be in a directory that they cannot access, such as
    /// `/root`.
    pub fn cffs_by_nobody<const N: usize>(&self, arguments: [&str; N]) -> Command {
        let program = self.path().join("cffs");
        if !program.exists() {
            install(CFFS, &program);
        }
        std::fs::set_permissions(self.path(), PermissionsExt::from_mode(0o755)).expect("set");
        let mut command = self.named(program.as_os_str(), arguments);
        command.uid(65534).gid(65534);
        command
    }

    /// The option that logs a server's messages to this directory.
    pub fn log_option(&self) -> String {
        format!("logfile={}", self.dir.path().join("log").display())
    }

    /// Mounts the image with additional options.
    pub fn mount(&self, options: &str) {
        succeed(&mut self.mount_command(options));
    }

    pub fn mount_command(&self, options: &str) -> Command {
        let mut command = self.cffs(["mount", "-o", options, "-o", &self.log_option()]);
        command.arg(self.image()).arg(self.mountpoint());
        command
    }

    /// Unmounts with `cffs umount`, which returns when the image is complete.
    pub fn umount(&self) {
        until_not_busy(|| {
            let mut umount = self.cffs(["umount"]);
            umount.arg(self.mountpoint());
            umount
        });
    }

    pub fn is_mounted(&self) -> bool {
        let table = std::fs::read_to_string("/proc/self/mountinfo").expect("readable");
        table.contains(&*self.mountpoint().to_string_lossy())
    }

    /// Checks the image; fails unless it is clean.
    pub fn assert_clean(&self) {
        succeed(self.cffs(["fsck", "-n", "-f", "--contents"]).arg(self.image()));
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = self.cffs(["umount", "-l"]).arg(self.mountpoint()).status();
        }
    }
}

/// Makes the tests of a program run one at a time, as needed if their mount namespaces would keep each
/// other's mounts.
pub fn take_turns() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Whether this machine allows mounting; prints a line if not.
pub fn can_mount() -> bool {
    let works = Path::new("/dev/fuse").exists()
        && (rustix::process::geteuid().is_root()
            || Command::new("fusermount3").arg("-V").output().is_ok());
    if !works {
        eprintln!("not run: /dev/fuse or fusermount3 is missing");
    }
    works
}

/// How long a test waits for a condition.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until a condition holds.
pub fn wait_for(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "it takes too long");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Copies a program that will be executed. Another process copies it: a child that another test starts
/// meanwhile could inherit a descriptor that is open for writing, and the copy could not be executed.
pub fn install(from: impl AsRef<Path>, to: &Path) {
    let mut copy = Command::new("cp");
    succeed(copy.args(["-p", "--remove-destination"]).arg(from.as_ref()).arg(to));
}

/// The same of a script.
pub fn install_script(text: &str, to: &Path) {
    let source = to.with_extension("source");
    std::fs::write(&source, text).expect("written");
    std::fs::set_permissions(&source, PermissionsExt::from_mode(0o755)).expect("set");
    install(&source, to);
}

/// Installs a program that prints the right version of the handover state, and removes itself.
pub fn install_vanishing(scratch: &Scratch, program: &Path) {
    let version = succeed(&mut scratch.cffs(["resume-version"]));
    install_script(&format!("#!/bin/sh\nrm -- \"$0\"\necho {version}\n"), program);
}

/// Unmounts a directory with umount(8), which does not wait for the server of a volume.
pub fn umount_8(directory: &Path) {
    until_not_busy(|| {
        let mut umount = Command::new("umount");
        umount.arg(directory);
        umount
    });
}

/// Repeats an unmount while the mount is busy: a process that another test starts has this process's files
/// open between its fork and its exec.
fn until_not_busy(unmount: impl Fn() -> Command) {
    let began = Instant::now();
    loop {
        let output = unmount().output().expect("it starts");
        if output.status.success() {
            return;
        }
        let said = printed(&output);
        assert!(said.contains("is busy") && began.elapsed() < PATIENCE, "umount: {said}");
    }
}

/// Runs a command that must succeed, and returns what it printed.
pub fn succeed(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {}", printed(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs several of a command at the same time.
pub fn at_once(command: impl Fn() -> Command) -> Vec<Output> {
    let spawn = |mut command: Command| {
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let processes: Vec<_> = (0..6).map(|_| spawn(command())).collect();
    processes.into_iter().map(|process| process.wait_with_output().expect("it ends")).collect()
}

/// Checks that one of several commands has succeeded, and that the others say why they have not.
pub fn assert_one_succeeded(outputs: &[Output], why: &str) {
    let failed = outputs.iter().filter(|output| !output.status.success());
    let said: Vec<_> =
        failed.map(|output| String::from_utf8_lossy(&output.stderr).into_owned()).collect();
    assert_eq!(said.len(), outputs.len() - 1, "{said:?}");
    assert!(said.iter().all(|said| said.contains(why)), "{said:?} without {why}");
}

/// Runs a command that must fail with this exit code, and returns its output.
pub fn fail(code: i32, command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    assert_eq!(output.status.code(), Some(code), "{command:?}: {}", printed(&output));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn printed(output: &Output) -> String {
    format!(
        "{}; {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
