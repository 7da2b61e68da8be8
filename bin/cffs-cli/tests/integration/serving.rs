//! `cffs serve` and `cffs mount --nfs` with independent clients: those of libnfs. Without them (package
//! libnfs-utils) these tests print that and pass.

use std::fs;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::nfs::{ANY_PORT, Client, started};
use crate::harness::page::Page;
use crate::harness::{CFFS, Scratch, can_mount, fail, succeed};

fn has_clients() -> bool {
    let found = Command::new("nfs-ls").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        eprintln!("not run: there is no nfs-ls (package libnfs-utils)");
    }
    found.is_ok()
}

/// A server of the scratch image, stopped at the end.
struct Server<'a> {
    scratch: &'a Scratch,
    port: u16,
}

impl<'a> Server<'a> {
    fn start(scratch: &'a Scratch, export: &str) -> Server<'a> {
        let port = started(&mut Server::command(scratch, export, ANY_PORT));
        Server { scratch, port }
    }

    fn start_at(scratch: &'a Scratch, export: &str, port: u16) -> Server<'a> {
        succeed(&mut Server::command(scratch, export, &format!("127.0.0.1:{port}")));
        Server { scratch, port }
    }

    fn command(scratch: &Scratch, export: &str, address: &str) -> Command {
        let mut command = scratch.cffs(["serve", "--nfs", address, "--export", export]);
        command.arg("-o").arg(scratch.log_option()).arg(scratch.image());
        command
    }

    fn url(&self, path: &str) -> String {
        url(self.port, path)
    }

    fn stop(&self) {
        succeed(self.scratch.cffs(["serve", "--stop"]).arg(self.scratch.image()));
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let mut stop = self.scratch.cffs(["serve", "--stop"]);
        let _ = stop.arg(self.scratch.image()).stderr(Stdio::null()).status();
    }
}

fn url(port: u16, path: &str) -> String {
    // Two slashes: the text before the last one is mounted.
    format!("nfs://127.0.0.1/{path}?version=3&nfsport={port}&mountport={port}&uid=0&gid=0")
}

fn copy(from: &str, to: &str) {
    succeed(Command::new("nfs-cp").args([from, to]));
}

#[test]
fn files_copied_by_libnfs_are_read_back_and_are_in_the_image() {
    if !has_clients() {
        return;
    }
    let scratch = Scratch::with_image();
    let original = scratch.path().join("original");
    let contents: Vec<u8> = (0..3_000_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
    fs::write(&original, &contents).expect("written");
    let original = original.display().to_string();
    let server = Server::start(&scratch, "/:no_root_squash,insecure");
    copy(&original, &server.url("/copy"));
    let listed = succeed(Command::new("nfs-ls").arg(server.url("/")));
    assert!(listed.contains("copy") && listed.contains("3000000"), "{listed}");
    let back = scratch.path().join("back");
    copy(&server.url("/copy"), &back.display().to_string());
    assert!(fs::read(&back).expect("read") == contents, "other bytes came back");

    server.stop();
    let read = Command::new(CFFS).arg("cat").arg(scratch.image()).arg("/copy").output();
    assert!(read.expect("run").stdout == contents, "other bytes are in the image");
    succeed(scratch.cffs(["fsck", "-n"]).arg(scratch.image()));
}

#[test]
fn answered_calls_survive_a_kill() {
    if !has_clients() {
        return;
    }
    let scratch = Scratch::with_image();
    let server = Server::start(&scratch, "/:no_root_squash,insecure");
    let small = scratch.path().join("small");
    for number in 0..20 {
        fs::write(&small, format!("number {number}")).expect("written");
        copy(&small.display().to_string(), &server.url(&format!("/file {number}")));
    }
    kill_server(&scratch);
    let again = Server::start_at(&scratch, "/:no_root_squash,insecure", server.port);
    for number in 0..20 {
        // It does not accept an existing file.
        let back = scratch.path().join(format!("back {number}"));
        copy(&again.url(&format!("/file {number}")), &back.display().to_string());
        let contents = fs::read_to_string(&back).expect("read");
        assert_eq!(contents, format!("number {number}"));
    }
}

#[test]
fn a_mounted_volume_is_served_until_it_is_unmounted() {
    if !can_mount() || !has_clients() {
        return;
    }
    let scratch = Scratch::with_image();
    let page = Page::of(&scratch);
    let mut mount = scratch.mount_command("rw");
    mount.args(["--nfs", ANY_PORT, "--export", "/:no_root_squash,insecure"]);
    let port = started(mount.args(page.options()));
    let path = scratch.mountpoint().join("by the client");
    assert!(!path.exists());
    let original = scratch.path().join("original");
    fs::write(&original, "from the client").expect("written");
    copy(&original.display().to_string(), &url(port, "/by the client"));
    assert_eq!(fs::read_to_string(&path).expect("read"), "from the client");
    fs::write(scratch.mountpoint().join("by the mount"), "from the mount").expect("written");
    let listed = succeed(Command::new("nfs-ls").arg(url(port, "/")));
    assert!(listed.contains("by the mount"), "{listed}");
    let back = scratch.path().join("back");
    copy(&url(port, "/by the mount"), &back.display().to_string());
    assert_eq!(fs::read_to_string(&back).expect("read"), "from the mount");

    // The kernel would refuse changes of the mount, but not those of clients.
    if rustix::process::geteuid().is_root() {
        let said = fail(32, &mut scratch.mount_command("remount,ro"));
        assert!(said.contains("NFS clients could still change the volume"), "{said}");
        fs::write(scratch.mountpoint().join("writable"), "still").expect("written");
    }

    // An impossible export is reported to the command and on the page.
    let add =
        scratch.cffs(["serve", "--export-add", "/nothing:ro"]).arg(scratch.mountpoint()).output();
    let add = add.expect("it starts");
    let said = String::from_utf8_lossy(&add.stderr);
    assert!(!add.status.success() && said.contains("/nothing:ro: no such file"), "{said}");
    let (status, said) =
        page.ask("POST /api/v1/actions/export-add", "{\"export\":\"/nowhere:ro\"}");
    assert_eq!(status, 422, "{said}");
    assert!(said.contains("/nowhere:ro: no such file"), "{said}");

    // A connected client does not prevent the volume from being closed.
    let stays = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    scratch.umount();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "the port is closed");
    drop(stays);
    let read = succeed(scratch.cffs(["cat"]).arg(scratch.image()).arg("/by the client"));
    assert_eq!(read, "from the client");
    scratch.assert_clean();
}

#[test]
fn an_export_that_cannot_be_served_is_named_and_nothing_is_mounted() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let in_use = fail(32, scratch.mount_command("rw").args(["--nfs", &address]));
    assert!(in_use.contains(&address), "{in_use}");
    let any = ["--nfs", "127.0.0.1:0"];
    let no_dir = scratch.mount_command("rw").args(any).args(["--export", "/nowhere"]).output();
    let no_dir = no_dir.expect("it starts");
    assert!(!no_dir.status.success() && !scratch.is_mounted(), "{no_dir:?}");
    assert!(String::from_utf8_lossy(&no_dir.stderr).contains("--export"), "{no_dir:?}");
    let alone = scratch.mount_command("rw").args(["--export", "/"]).output().expect("it starts");
    assert!(!alone.status.success(), "an export needs an address");
    scratch.assert_clean();
}

#[test]
fn a_server_without_a_mount_keeps_no_capability() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    let _server = Server::start(&scratch, "/");
    // Its workers may start after it can be reached.
    let started = (0..600).any(|_| {
        thread::sleep(Duration::from_millis(50));
        statuses_of_server(&scratch).iter().filter(|status| status.contains("\tnfs ")).count() >= 32
    });
    assert!(started);
    let monitor_too = || of_all_processes(&scratch).into_iter().flatten().collect::<Vec<_>>();
    // The monitor may drop its capabilities after the caller has continued.
    let is_bare = |status: &String| status.contains("CapPrm:\t0000000000000000");
    let given_up = (0..600).any(|_| {
        thread::sleep(Duration::from_millis(50));
        monitor_too().iter().all(is_bare)
    });
    assert!(given_up && of_all_processes(&scratch).len() == 2, "a server and its monitor");
    for status in monitor_too() {
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
        for name in ["CapEff:", "CapPrm:", "CapBnd:", "CapInh:"] {
            let set = u64::from_str_radix(field(name).expect("there").trim(), 16);
            assert_eq!(set, Ok(0), "{name} {status}");
        }
    }
}

/// The status in /proc of each thread of the server; the other process with the image is its monitor.
fn statuses_of_server(scratch: &Scratch) -> Vec<String> {
    of_all_processes(scratch).into_iter().max_by_key(Vec::len).unwrap_or_default()
}

/// The same for both processes.
fn of_all_processes(scratch: &Scratch) -> Vec<Vec<String>> {
    let of_process = |process: &PathBuf| -> Vec<String> {
        let threads = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
        threads.filter_map(|task| fs::read_to_string(task.path().join("status")).ok()).collect()
    };
    processes_of(scratch).iter().map(of_process).collect()
}

/// Kills the process that serves the image.
fn kill_server(scratch: &Scratch) {
    for process in processes_of(scratch) {
        let pid = process.file_name().expect("a number");
        succeed(Command::new("kill").arg("-KILL").arg(pid));
    }
}

/// The directories in /proc of the processes that serve the image.
fn processes_of(scratch: &Scratch) -> Vec<PathBuf> {
    let image = scratch.image();
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").expect("readable").flatten() {
        let arguments = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let names_it = arguments
            .split(|byte| *byte == 0)
            .any(|argument| Path::new(std::str::from_utf8(argument).unwrap_or("")) == image);
        if names_it {
            found.push(process.path());
        }
    }
    assert!(!found.is_empty(), "no server was there");
    found
}

#[test]
fn a_served_image_answers_commands() {
    let scratch = Scratch::with_image();
    let server = Server::start(&scratch, "/:no_root_squash,insecure");
    let stats = succeed(scratch.cffs(["stats", "--json"]).arg(scratch.image()));
    let stats: serde_json::Value = serde_json::from_str(&stats).expect("it is JSON");
    assert!(stats["nfs"].is_object() && stats["device"]["writes"].is_u64(), "{stats}");
    let listens = format!("NFS at 127.0.0.1:{}", server.port);
    assert_eq!(stats["transport"], listens);
    let metrics = succeed(scratch.cffs(["stats", "--prometheus"]).arg(scratch.image()));
    assert!(metrics.contains("cffs_device_writes_total"), "{metrics}");
    succeed(scratch.cffs(["sync"]).arg(scratch.image()));
    let scrubbed = succeed(scratch.cffs(["scrub", "--json", "--rate", "0"]).arg(scratch.image()));
    let scrubbed: serde_json::Value = serde_json::from_str(&scrubbed).expect("it is JSON");
    assert_eq!((&scrubbed["stage"], &scrubbed["problem_count"]), (&"done".into(), &0.into()));
    for options in [["--online", "--json"], ["-n", "--json"]] {
        let checked = succeed(scratch.cffs(["fsck"]).args(options).arg(scratch.image()));
        let checked: serde_json::Value = serde_json::from_str(&checked).expect("it is JSON");
        assert_eq!(checked["problem_count"], 0, "{checked}");
    }
    let refused = fail(8, scratch.cffs(["fsck", "-y"]).arg(scratch.image()));
    assert!(refused.contains("cffs serve --stop"), "{refused}");
    let info = succeed(scratch.cffs(["info", "--json"]).arg(scratch.image()));
    assert!(info.contains(&listens), "{info}");
    let settings = succeed(scratch.cffs(["tune"]).arg(scratch.image()));
    assert!(settings.contains("uuid") && settings.contains("policy"), "{settings}");

    let exports = |options: &[&str]| {
        let mut command = scratch.cffs(["serve"]);
        command.args(options).arg(scratch.image());
        command
    };
    let before = succeed(&mut exports(&["--exports"]));
    assert!(before.contains("/:no_root_squash,insecure"), "{before}");
    succeed(&mut exports(&["--export-add", "/:ro"]));
    let after = succeed(&mut exports(&["--exports"]));
    assert!(after.contains("/:ro") && !after.contains("insecure"), "{after}");
    succeed(&mut exports(&["--export-remove", "/"]));
    let refused = fail(1, &mut exports(&["--export-remove", "/"]));
    assert!(refused.contains("/ is not exported"), "{refused}");
    let refused = fail(1, &mut exports(&["--export-add", "/nothing"]));
    assert!(refused.contains("/nothing: no such file"), "{refused}");

    let refused = fail(1, scratch.cffs(["grow"]).arg(scratch.image()).arg("512M"));
    assert!(refused.contains("cffs serve --stop"), "{refused}");
    let refused = fail(1, scratch.cffs(["umount"]).arg(scratch.image()));
    assert!(refused.contains("cffs serve --stop"), "{refused}");
    let restart = fail(1, scratch.cffs(["restart"]).arg(scratch.image()));
    assert!(restart.contains("without a mount") && restart.contains("serve --stop"), "{restart}");
    let explain = fail(1, scratch.cffs(["explain"]).arg(scratch.image()));
    assert!(explain.contains("mount the volume"), "{explain}");
    let twice = fail(1, scratch.cffs(["serve", "--nfs", "127.0.0.1:0"]).arg(scratch.image()));
    assert!(twice.contains("is served by process"), "{twice}");
    server.stop();
    for (code, command) in [(1, &["stats"][..]), (8, &["fsck", "--online"])] {
        let stopped = fail(code, scratch.cffs([]).args(command).arg(scratch.image()));
        assert!(stopped.contains("not a C-FFS volume that is mounted or served"), "{stopped}");
    }
}

/// Regression: the server of another volume's mount was asked, and did not answer.
#[test]
fn a_served_image_answers_while_the_server_of_an_unrelated_mount_does_not() {
    if !can_mount() {
        return;
    }
    let (scratch, other) = (Scratch::with_image(), Scratch::with_image());
    let server = Server::start(&scratch, "/:no_root_squash,insecure");
    other.mount("fuseblk=no");
    let info = succeed(other.cffs(["info", "--json"]).arg(other.mountpoint()));
    let info: serde_json::Value = serde_json::from_str(&info).expect("it is JSON");
    let stopped = info["server"]["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32));
    let stopped = stopped.expect("a process");
    kill_process(stopped, Signal::STOP).expect("stopped");
    let outputs = [&["stats"][..], &["serve", "--exports"], &["sync"], &["info"]].map(|command| {
        let mut timeout = Command::new("timeout");
        timeout.args(["-s", "KILL", "20", CFFS]).args(command).arg(scratch.image()).output()
    });
    kill_process(stopped, Signal::CONT).expect("continued");
    for output in outputs {
        let output = output.expect("it starts");
        assert!(output.status.success(), "{output:?}");
    }
    other.umount();
    server.stop();
}

/// Without a mount, the trace is read from the server's socket.
#[test]
fn requests_of_clients_are_recorded_without_a_mount() {
    if !has_clients() {
        return;
    }
    let scratch = Scratch::with_image();
    let server = Server::start(&scratch, "/:no_root_squash,insecure");
    let (original, trace) = (scratch.path().join("original"), scratch.path().join("trace"));
    fs::write(&original, vec![7; 300_000]).expect("written");
    let json = |command: &mut Command| -> serde_json::Value {
        serde_json::from_str(&succeed(command)).expect("it is JSON")
    };
    let writes = || {
        let stats = json(scratch.cffs(["stats", "--json"]).arg(scratch.image()));
        stats["device"]["writes"].as_u64().expect("a count")
    };
    let record = |name: &str| {
        let mut record = scratch.cffs(["trace", "record", "-o"]);
        record.arg(&trace).arg(scratch.image()).args(["--", "nfs-cp"]);
        record.arg(&original).arg(server.url(name));
        record
    };
    succeed(scratch.cffs(["sync"]).arg(scratch.image()));
    let before = writes();
    succeed(&mut record("/copy"));
    let written = writes() - before;
    let events: Vec<serde_json::Value> =
        serde_json::from_slice(&fs::read(&trace).expect("a trace")).expect("a JSON array");
    let count = |cat: &str, name: &str| {
        events.iter().filter(|event| event["cat"] == cat && event["name"] == name).count()
    };
    assert_eq!(count("recording", "lost"), 0);
    assert_eq!(count("request", "write") as u64, written);
    assert_eq!(count("operation", "create"), 1);
    let is_write = |key: &String| key.starts_with("write ");
    let shares = events.iter().filter_map(|event| event["args"]["shares"].as_object());
    assert!(shares.flat_map(|shares| shares.keys()).any(is_write));
    // The recording has ended: another one may begin, and ends with its server.
    let mut other = scratch.cffs(["trace", "record", "-o", "-"]);
    other.arg(scratch.image()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut other = other.spawn().expect("it starts");
    let head = other.stdout.as_mut().expect("piped").read_exact(&mut [0; 24]);
    head.expect("it has begun");
    let refused = fail(1, &mut record("/another"));
    assert!(refused.contains("a recording is under way"), "{refused}");
    server.stop();
    let ended = other.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("the volume is no longer served"), "{said}");
}

/// Prints the server's reply to a query, if there is one.
const ASK: &str = r#"
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect("\0cffs-server-" + sys.argv[1])
try:
    s.sendall(b'{"name": "system.cffs.stats"}\n')
    print(s.recv(100))
except OSError:
    print("closed")
"#;

/// The socket has no directory whose permissions would exclude other users.
#[test]
fn a_server_answers_only_commands_of_its_user() {
    let has_python = Command::new("python3").arg("-V").output().is_ok();
    if !rustix::process::geteuid().is_root() || !has_python {
        eprintln!("not run: this takes root and python3");
        return;
    }
    let scratch = Scratch::with_image();
    let _server = Server::start(&scratch, "/");
    let info = succeed(scratch.cffs(["info", "--json"]).arg(scratch.image()));
    let info: serde_json::Value = serde_json::from_str(&info).expect("it is JSON");
    let mut ask = Command::new("python3");
    ask.args(["-c", ASK, &info["server"]["pid"].to_string()]).current_dir("/");
    assert!(succeed(&mut ask).contains("answer"));
    let other = succeed(ask.uid(65534).gid(65534));
    assert!(!other.contains("answer"), "{other}");
}

/// A client that may not mount gets only an error number. The reason is in the log.
#[test]
fn a_refused_client_is_logged_with_the_reason() {
    const NO_ACCESS: u32 = 13;
    for (export, why) in [
        ("/:192.0.2.0/24,insecure", "the options of this --export do not name its address"),
        ("/", "it calls from a port above 1023"),
    ] {
        let scratch = Scratch::with_image();
        let server = Server::start(&scratch, export);
        assert_eq!(Client::new(server.port, 0).mount("/"), Err(NO_ACCESS));
        let log = fs::read_to_string(scratch.path().join("log")).expect("read");
        let line = log.lines().find(|line| line.contains("a client may not mount"));
        let line = line.unwrap_or_else(|| panic!("{log}"));
        assert!(line.contains(why) && line.contains("address=127.0.0.1"), "{line}");
    }
}

#[test]
fn the_reason_is_given_if_a_volume_cannot_be_served() {
    let scratch = Scratch::with_image();
    let tokens = scratch.path().join("tokens");
    fs::write(&tokens, "").expect("written");
    fs::set_permissions(&tokens, fs::Permissions::from_mode(0o644)).expect("set");
    let mut page = scratch.cffs(["serve", "--web", "127.0.0.1:0", "--web-token"]);
    let said = fail(1, page.arg(&tokens).arg(scratch.image()));
    assert!(said.contains(&format!("chmod 600 {}", tokens.display())), "{said}");
    let any = ["serve", "--nfs", "127.0.0.1:0"];
    let no_dir = fail(1, scratch.cffs(any).args(["--export", "/nowhere"]).arg(scratch.image()));
    assert!(no_dir.contains("--export"), "{no_dir}");
    for option in ["--nfs", "--web"] {
        let no_port = fail(2, scratch.cffs(["serve", option, "127.0.0.1"]).arg(scratch.image()));
        assert!(no_port.contains("write ADDRESS:PORT"), "{no_port}");
    }
    let nothing = fail(2, scratch.cffs(["serve"]).arg(scratch.image()));
    assert!(nothing.contains("--nfs <ADDRESS:PORT>|--web <ADDRESS:PORT>"), "{nothing}");
    let no_option = fail(2, scratch.cffs(any).args(["--export", "/:wr"]).arg(scratch.image()));
    assert!(no_option.contains("'wr'"), "{no_option}");
    let without = ["serve", "--web", "127.0.0.1:0", "--export", "/"];
    let without = fail(2, scratch.cffs(without).arg(scratch.image()));
    assert!(without.contains("--nfs"), "{without}");
    let mut mount = scratch.mount_command("rw");
    let without = fail(1, mount.args(["--export", "/"]));
    assert!(without.contains("--nfs") && !scratch.is_mounted(), "{without}");
    let said = fail(1, scratch.cffs(["serve", "--stop"]).arg(scratch.image()));
    assert!(said.contains("not being served"), "{said}");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let in_use = fail(1, scratch.cffs(["serve", "--nfs", &address]).arg(scratch.image()));
    assert!(in_use.contains(&address), "{in_use}");
}
