//! Replacing the program of a server whose mount NFS clients use as well.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::nfs::{
    ANY_PORT, Call, Client, NO_ENTRY, OK, entry, made, started, status, verifier,
};
use crate::harness::{
    CFFS, PATIENCE, Scratch, can_mount, fail, install, install_script, install_vanishing, succeed,
};
use cffs_serve::served::control::{self, Question};
use cffs_testing::random::Random;

const ALL: &str = "/:no_root_squash,insecure";

const WRITE: u32 = 7;
const CREATE: u32 = 8;
const MAKE_DIR: u32 = 9;
const REMOVE: u32 = 12;
const REMOVE_DIR: u32 = 13;
const RENAME: u32 = 14;
const LINK: u32 = 15;
const COMMIT: u32 = 21;

fn restart(scratch: &Scratch) {
    succeed(scratch.cffs(["restart"]).arg(scratch.mountpoint()));
}

/// Mounts with a program, serves NFS clients at a port that it chooses, and returns the port.
fn mount_with(scratch: &Scratch, program: &Path, more: &[&str]) -> u16 {
    let mut mount = scratch.named(program.as_os_str(), ["mount", "-o", "transport=dev"]);
    mount.args(["-o", &scratch.log_option(), "--nfs", ANY_PORT, "--export", ALL]).args(more);
    started(mount.arg(scratch.image()).arg(scratch.mountpoint()))
}

/// A client that loses one reply in four.
struct Forgetful {
    client: Client,
    random: Random,
    verifiers: BTreeSet<[u8; 8]>,
}

impl Forgetful {
    fn make(&mut self, call: &Call) -> Vec<u8> {
        if self.random.below(4) == 0 {
            self.client.make_and_lose(call);
        }
        self.client.make(call)
    }

    /// A change of names that fails if it is executed twice.
    #[track_caller]
    fn once(
        &mut self,
        procedure: u32,
        arguments: impl FnOnce(&mut nfs_wire::xdr::Writer),
    ) -> Vec<u8> {
        let call = self.client.prepare(procedure, arguments);
        let results = self.make(&call);
        assert_eq!(status(&results), OK, "procedure {procedure} was carried out twice, or lost");
        results
    }

    fn round(&mut self, root: &[u8], number: u64) {
        let (a, b, c) = (format!("a{number}"), format!("b{number}"), format!("c{number}"));
        let dir = made(&self.once(MAKE_DIR, |w| {
            entry(root, &format!("d{number}"))(w);
            (0..6).for_each(|_| w.u32(0));
        }));
        let file = made(&self.once(CREATE, |w| {
            entry(&dir, &a)(w);
            w.u32(2);
            w.u64(number);
        }));
        for page in 0..3 {
            let data = vec![number as u8; 4096];
            let results = self.once(WRITE, |w| {
                w.opaque(&file);
                w.u64(page * 4096);
                w.u32(4096);
                w.u32(0);
                w.opaque(&data);
            });
            self.verifiers.insert(verifier(&results));
        }
        self.once(RENAME, |w| {
            entry(&dir, &a)(w);
            entry(&dir, &b)(w);
        });
        self.once(LINK, |w| {
            w.opaque(&file);
            entry(&dir, &c)(w);
        });
        let results = self.once(COMMIT, |w| {
            w.opaque(&file);
            w.u64(0);
            w.u32(0);
        });
        self.verifiers.insert(verifier(&results));
        self.once(REMOVE, entry(&dir, &b));
        if !number.is_multiple_of(4) {
            self.once(REMOVE, entry(&dir, &c));
            self.once(REMOVE_DIR, entry(root, &format!("d{number}")));
        }
    }
}

/// Clients that change names and write continuously, lose replies, and are disconnected by restarts: each
/// change is made once, and data need not be rewritten.
#[test]
fn nothing_is_lost_and_nothing_is_done_twice() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let port = mount_with(&scratch, Path::new(CFFS), &[]);
    let done = &AtomicBool::new(false);
    let rounds = [const { AtomicU64::new(0) }; 4];
    let counts = || rounds.each_ref().map(|count| count.load(Ordering::Relaxed));
    let (repeated, verifiers) = thread::scope(|scope| {
        let clients: Vec<_> = (1..=4_u32)
            .zip(&rounds)
            .map(|(number, count)| {
                scope.spawn(move || {
                    let client = Client::new(port, number << 24);
                    let random = Random(number.into());
                    let mut it = Forgetful { client, random, verifiers: BTreeSet::new() };
                    let root = it.client.mount("/").expect("exported");
                    while !done.load(Ordering::Relaxed) {
                        it.round(&root, (u64::from(number) << 32) + count.load(Ordering::Relaxed));
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    (it.client.repeated, it.verifiers)
                })
            })
            .collect();
        for _ in 0..6 {
            // Each client makes calls between two restarts, however busy the machine.
            let (before, until) = (counts(), Instant::now() + PATIENCE);
            while before.iter().zip(counts()).any(|(old, new)| *old == new)
                && Instant::now() < until
            {
                thread::sleep(Duration::from_millis(20));
            }
            restart(&scratch);
        }
        done.store(true, Ordering::Relaxed);
        clients
            .into_iter()
            .map(|client| client.join().expect("no call failed"))
            .fold((0, BTreeSet::new()), |(repeated, verifiers), one| {
                (repeated + one.0, &verifiers | &one.1)
            })
    });
    let rounds = counts();
    println!("{rounds:?} rounds of four clients, {repeated} calls repeated, 6 restarts");
    assert!(rounds.iter().all(|rounds| *rounds > 2), "{rounds:?}");
    assert!(repeated > 0);
    assert_eq!(verifiers.len(), 1, "a volume that was closed whole has lost nothing");
    for number in 1..=4_u64 {
        for round in (0..rounds[number as usize - 1]).filter(|round| round.is_multiple_of(4)) {
            let id = number << 32 | round;
            let kept = fs::read(scratch.mountpoint().join(format!("d{id}/c{id}"))).expect("kept");
            assert!(kept == vec![id as u8; 3 * 4096], "{id}");
        }
    }
    scratch.umount();
    scratch.assert_clean();
}

/// A program may have to repeat replies to calls that its predecessor received.
#[test]
fn a_reply_that_was_lost_before_a_restart_comes_after_it() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let port = mount_with(&scratch, Path::new(CFFS), &[]);
    let mut client = Client::new(port, 0);
    let root = client.mount("/").expect("exported");
    for round in 0..3 {
        fs::write(scratch.mountpoint().join("f"), "x").expect("written");
        let remove = client.prepare(REMOVE, entry(&root, "f"));
        client.make_and_lose(&remove);
        assert!(!scratch.mountpoint().join("f").exists(), "it was carried out");
        restart(&scratch);
        assert_eq!(status(&client.make(&remove)), OK, "round {round}");
        let another = client.prepare(REMOVE, entry(&root, "f"));
        assert_eq!(status(&client.make(&another)), NO_ENTRY, "another call is another call");
    }
    scratch.umount();
    scratch.assert_clean();
}

/// The command may be killed after it has begun, with an idle mount.
#[test]
fn clients_are_served_after_the_restart_command_was_killed() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let port = mount_with(&scratch, Path::new(CFFS), &[]);
    let started = |dir: &Path| control::identity(dir).expect("mounted").started;
    let root = Client::new(port, 0).mount("/").expect("exported");
    let dir = scratch.mountpoint();
    for round in 0..3 {
        let before = started(&dir);
        let mut client = Client::new(port, (round + 1) << 8);
        let made = client.prepare(MAKE_DIR, |w| {
            entry(&root, &format!("d{round}"))(w);
            (0..6).for_each(|_| w.u32(0));
        });
        // Everything that the command does before it waits.
        let answer = control::ask(&dir, Question::Restart).expect("answered");
        assert_eq!(answer["refused"], serde_json::Value::Null, "{answer}");
        let results = client.make_once(&made).expect("the new program answers");
        assert_eq!(status(&results), OK, "round {round}");
        assert_ne!(started(&dir), before, "another program has answered");
    }
    scratch.umount();
    scratch.assert_clean();
}

#[test]
fn exports_are_as_they_were_changed_and_handles_stay_good() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let port = mount_with(&scratch, Path::new(CFFS), &[]);
    let dir = scratch.mountpoint();
    fs::create_dir(dir.join("d")).expect("made");
    let change = |option: &str, value: &str| {
        succeed(scratch.cffs(["serve", option, value]).arg(scratch.mountpoint()));
    };
    change("--export-add", "/d:no_root_squash,insecure");
    let mut client = Client::new(port, 0);
    let exported = client.mount("/d").expect("exported");
    change("--export-remove", "/");
    restart(&scratch);
    let create = client.prepare(MAKE_DIR, |w| {
        entry(&exported, "below")(w);
        (0..6).for_each(|_| w.u32(0));
    });
    assert_eq!(status(&client.make(&create)), OK);
    assert!(dir.join("d/below").is_dir(), "the mount sees it");
    assert_eq!(client.mount("/"), Err(NO_ENTRY), "it was removed, whatever the command line says");
    let shown = succeed(scratch.cffs(["serve", "--exports"]).arg(&dir));
    assert!(shown.contains("/d:no_root_squash,insecure"), "{shown}");
    scratch.umount();
    scratch.assert_clean();
}

/// The new program cannot be started, possibly for a reason that appears only after the old one has stopped.
#[test]
fn clients_stay_with_a_program_that_is_not_replaced() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let program: PathBuf = scratch.path().join("cffs");
    install(CFFS, &program);
    let port = mount_with(&scratch, &program, &[]);
    let mut client = Client::new(port, 0);
    let root = client.mount("/").expect("exported");
    fs::remove_file(&program).expect("removed");
    for is_there in [false, true] {
        if is_there {
            install_vanishing(&scratch, &program);
        }
        fs::write(scratch.mountpoint().join("f"), "x").expect("written");
        let remove = client.prepare(REMOVE, entry(&root, "f"));
        client.make_and_lose(&remove);
        let said = fail(1, scratch.cffs(["restart"]).arg(scratch.mountpoint()));
        assert!(said.contains("not restarted") && said.contains("No such file"), "{said}");
        assert!(!said.contains("NFS"), "{said}");
        assert_eq!(status(&client.make(&remove)), OK);
        assert!(!scratch.mountpoint().join("f").exists());
    }
    scratch.umount();
    scratch.assert_clean();
}

/// A program that receives the mount but not the listener serves the mount, and reports that NFS is not
/// served.
#[test]
fn a_mount_that_loses_its_listener_is_served_and_the_command_fails() {
    if !can_mount() || Command::new("bash").arg("--version").output().is_err() {
        return;
    }
    let scratch = Scratch::with_image();
    let program: PathBuf = scratch.path().join("cffs");
    install(CFFS, &program);
    let port = mount_with(&scratch, &program, &[]);
    let mut client = Client::new(port, 0);
    let root = client.mount("/").expect("exported");
    fs::remove_file(&program).expect("removed");
    let script = format!(
        "#!/bin/bash\n\
         if [ \"$1\" != resume-version ]; then\n\
           for fd in /proc/$$/fd/*; do\n\
             case $(readlink $fd) in socket:*) n=${{fd##*/}}; eval \"exec $n>&-\";; esac\n\
           done\n\
         fi\n\
         exec {CFFS} \"$@\"\n"
    );
    install_script(&script, &program);
    let said = fail(1, scratch.cffs(["restart"]).arg(scratch.mountpoint()));
    assert!(said.contains("restarted, but NFS clients are no longer served"), "{said}");
    fs::write(scratch.mountpoint().join("f"), "served").expect("written");
    let taken = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
    drop(taken);

    // The next restart requests a port again; a mount with a fixed port has its clients back.
    restart(&scratch);
    let log = fs::read_to_string(scratch.path().join("log")).expect("a log");
    let address =
        log.lines().rev().find_map(|line| line.split_once("address=")).expect("it listens");
    let port = address.1.trim_end().rsplit_once(':').expect("a port").1;
    let port: String = port.chars().take_while(char::is_ascii_digit).collect();
    let mut client = Client::new(port.parse().expect("a port"), 100);
    let remove = client.prepare(REMOVE, entry(&root, "f"));
    assert_eq!(status(&client.make(&remove)), OK);
    assert!(!scratch.mountpoint().join("f").exists());
    scratch.umount();
    scratch.assert_clean();
}

/// An open file without a name needs a name between two programs; if that is impossible, nothing is replaced.
#[test]
fn a_volume_that_cannot_be_handed_over_is_served_as_before() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let port = mount_with(&scratch, Path::new(CFFS), &[]);
    let mut client = Client::new(port, 0);
    let root = client.mount("/").expect("exported");
    let dir = scratch.mountpoint();
    fs::write(dir.join("nameless"), "kept").expect("written");
    let mut nameless = fs::File::open(dir.join("nameless")).expect("opened");
    fs::remove_file(dir.join("nameless")).expect("removed");
    fs::create_dir(dir.join(".cffs-handover")).expect("made");
    for _ in 0..2 {
        fs::write(dir.join("f"), "x").expect("written");
        let remove = client.prepare(REMOVE, entry(&root, "f"));
        client.make_and_lose(&remove);
        let said = fail(1, scratch.cffs(["restart"]).arg(&dir));
        assert!(said.contains("not restarted") && said.contains("/.cffs-handover"), "{said}");
        assert_eq!(status(&client.make(&remove)), OK);
        assert!(!dir.join("f").exists());
    }
    fs::remove_dir(dir.join(".cffs-handover")).expect("removed");
    restart(&scratch);
    let mut contents = String::new();
    nameless.read_to_string(&mut contents).expect("read");
    assert_eq!(contents, "kept");
    drop(nameless);
    scratch.umount();
    scratch.assert_clean();
}

/// The same for a volume without space for names. A restart uses up no space.
#[test]
fn a_full_volume_is_served_as_before() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    succeed(scratch.cffs(["mkfs", "-q", "--size", "16M"]).arg(scratch.image()));
    mount_with(&scratch, Path::new(CFFS), &[]);
    let dir = scratch.mountpoint();
    // More names than fit into one sector of a directory.
    let open: Vec<_> = (0..200)
        .map(|number| {
            let path = dir.join(format!("nameless{number}"));
            fs::write(&path, number.to_string()).expect("written");
            let file = fs::File::open(&path).expect("opened");
            fs::remove_file(&path).expect("removed");
            file
        })
        .collect();
    // Space for the names of some of them.
    fs::write(dir.join("spare"), [7; 16 << 10]).expect("written");
    let mut big = fs::File::create(dir.join("big")).expect("made");
    for bytes in [1 << 20, 4096, 1] {
        while big.write_all(&vec![7; bytes]).is_ok() {}
    }
    drop(big);
    fs::remove_file(dir.join("spare")).expect("removed");
    succeed(scratch.cffs(["sync"]).arg(&dir));
    let said = fail(1, scratch.cffs(["restart"]).arg(&dir));
    assert!(said.contains("not restarted") && said.contains("no space"), "{said}");
    assert!(!dir.join(".cffs-handover").exists(), "what it began is gone");
    fs::remove_file(dir.join("big")).expect("removed");
    // The kernel reports the end of its use later, and its space is free from then on.
    let free = || rustix::fs::statvfs(&dir).expect("statvfs");
    crate::harness::wait_for(|| free().f_bfree * free().f_frsize > 4 << 20);
    restart(&scratch);
    for (number, mut file) in open.into_iter().enumerate() {
        assert_eq!(file.metadata().expect("open").nlink(), 0);
        let mut contents = String::new();
        file.read_to_string(&mut contents).expect("read");
        assert_eq!(contents, number.to_string());
    }
    scratch.umount();
    scratch.assert_clean();
}
