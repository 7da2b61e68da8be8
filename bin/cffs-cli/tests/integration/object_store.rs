//! The program with volumes in object stores: a directory, and S3 as provided by a server on loopback.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::harness::page::Page;
use crate::harness::store_server::{Line, SECRET, StoreServer};
use crate::harness::{Scratch, can_mount, fail, succeed, umount_8, wait_for};

/// A server in the foreground. Dropping it kills the server, so that a failed test leaves no process that
/// holds the output of the test run open.
struct Foreground(Child);

impl Foreground {
    fn start(command: &mut Command) -> Foreground {
        Foreground(command.spawn().expect("it starts"))
    }

    fn kill(mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("it ends");
    }

    /// Waits until the server exits.
    fn ends_well(mut self) {
        assert!(self.0.wait().expect("it ends").success());
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A tree to copy.
fn source(scratch: &Scratch) -> PathBuf {
    let source = scratch.path().join("source");
    fs::create_dir_all(source.join("d")).expect("made");
    fs::write(source.join("d/small"), b"contents").expect("written");
    fs::write(source.join("large"), vec![3; 20 << 20]).expect("written");
    source
}

/// Creates and uses a volume.
fn use_a_volume(scratch: &Scratch, url: &str, run: impl Fn(&[&str]) -> Command) {
    let source = source(scratch);
    let source = source.to_str().expect("UTF-8");
    let made = succeed(&mut run(&["mkfs", "--size", "1T", "-L", "remote", url]));
    assert!(made.contains("1 TiB"), "{made}");
    let again = fail(1, &mut run(&["mkfs", "--force", "--size", "1T", url]));
    assert!(again.contains("already has a volume"), "{again}");
    succeed(&mut run(&["import", "-q", url, source, "/in"]));
    assert!(succeed(&mut run(&["ls", "-R", url])).contains("/in/d/small"));
    assert_eq!(succeed(&mut run(&["cat", url, "/in/d/small"])), "contents");
    assert!(succeed(&mut run(&["info", url])).contains("remote"));
    succeed(&mut run(&["inspect", url, "superblock"]));
    succeed(&mut run(&["fsck", "-n", "-f", "--contents", url]));
    succeed(&mut run(&["fsck", "-y", "-f", url]));
    let out = scratch.path().join("out");
    succeed(&mut run(&["export", "-q", url, "/in", out.to_str().expect("UTF-8")]));
    assert_eq!(fs::read(out.join("large")).expect("there"), vec![3; 20 << 20]);
}

/// A version that is kept while everything changes, mounted, and cloned.
fn keep_a_version(scratch: &Scratch, url: &str, run: impl Fn(&[&str]) -> Command) {
    let kept = format!("{url}@v1");
    succeed(&mut run(&["snapshot", "create", &kept]));
    let again = fail(1, &mut run(&["snapshot", "create", &kept]));
    assert!(again.contains("version v1 already exists"), "{again}");
    let unnamed = fail(1, &mut run(&["snapshot", "create", url]));
    assert!(unnamed.contains("names no version"), "{unnamed}");
    let other = scratch.path().join("other");
    fs::create_dir_all(other.join("d")).expect("made");
    fs::write(other.join("d/small"), b"later").expect("written");
    fs::write(other.join("large"), b"short").expect("written");
    succeed(&mut run(&["import", "-q", url, other.to_str().expect("UTF-8"), "/in"]));
    let trimmed = succeed(&mut run(&["trim", url]));
    assert!(trimmed.contains("trimmed"), "{trimmed}");
    assert_eq!(succeed(&mut run(&["cat", url, "/in/d/small"])), "later");
    assert_eq!(succeed(&mut run(&["cat", &kept, "/in/d/small"])), "contents");
    let listed = succeed(&mut run(&["snapshot", "ls", url]));
    assert!(
        listed.ends_with("  v1\n") && listed.len() == "2026-11-29 13:09  v1\n".len(),
        "{listed}"
    );
    let fixed = fail(1, &mut run(&["import", "-q", &kept, other.to_str().expect("UTF-8")]));
    assert!(fixed.contains("cffs clone makes a writable volume from it"), "{fixed}");

    let clone = format!("{url}-clone");
    succeed(&mut run(&["clone", &kept, &clone]));
    succeed(&mut run(&["import", "-q", &clone, other.to_str().expect("UTF-8"), "/more"]));
    succeed(&mut run(&["snapshot", "rm", &kept]));
    let gone = fail(1, &mut run(&["ls", &kept]));
    assert!(gone.contains("has no version v1"), "{gone}");
    succeed(&mut run(&["trim", "-q", url]));
    assert!(succeed(&mut run(&["snapshot", "ls", "--json", url])).contains("tree-clone"));
    assert_eq!(succeed(&mut run(&["cat", &clone, "/in/d/small"])), "contents");
    assert_eq!(succeed(&mut run(&["cat", &clone, "/more/large"])), "short");
    succeed(&mut run(&["fsck", "-n", "-f", "--contents", &clone]));
    succeed(&mut run(&["fsck", "-n", "-f", "--contents", url]));
    if can_mount() {
        succeed(&mut run(&["snapshot", "create", &format!("{clone}@v2")]));
        let (at, log) = (scratch.mountpoint(), scratch.log_option());
        let options = ["mount", "-o", &log, &format!("{clone}@v2"), at.to_str().expect("UTF-8")];
        succeed(&mut run(&options));
        assert_eq!(fs::read(at.join("more/large")).expect("there"), b"short");
        let info = succeed(&mut run(&["info", at.to_str().expect("UTF-8")]));
        assert!(info.contains("not fuseblk: a volume in an object store has no"), "{info}");
        let refused = fs::write(at.join("x"), b"x").expect_err("read-only");
        assert_eq!(refused.raw_os_error(), Some(30), "{refused}");
        scratch.umount();
    }
}

/// A mount that writes, one that reads concurrently, and one that takes over from a killed server.
fn mount_a_volume(scratch: &Scratch, url: &str, run: impl Fn(&[&str]) -> Command) {
    let directory = scratch.mountpoint();
    let at = directory.to_str().expect("UTF-8");
    let log = scratch.log_option();
    let server = Foreground::start(&mut run(&["mount", "-f", "-o", &log, url, at]));
    wait_for(|| scratch.is_mounted());
    fs::write(directory.join("synced"), b"kept").expect("written");
    fs::File::open(directory.join("synced")).expect("there").sync_all().expect("synced");
    assert_eq!(succeed(&mut run(&["cat", url, "/synced"])), "kept");
    count_requests(scratch, &run);
    let source = scratch.path().join("source");
    let refused = fail(1, &mut run(&["serve", "--nfs", "127.0.0.1:0", url]));
    let opened = format!("open for writing on this host (process {}, since ", server.0.id());
    assert!(refused.contains(&opened), "{refused}");
    assert!(refused.contains("cffs fsck -p --take-over"), "{refused}");

    server.kill();
    succeed(scratch.cffs(["umount", "-l"]).arg(&directory).env("LC_ALL", "C"));
    let repaired = run(&["fsck", "-p", "--take-over", url]).output().expect("it starts");
    assert!(matches!(repaired.status.code(), Some(0 | 1)), "{repaired:?}");
    succeed(&mut run(&["import", "-q", url, source.to_str().expect("UTF-8"), "/more"]));

    succeed(&mut run(&["mount", "-o", &log, url, at]));
    assert_eq!(fs::read(directory.join("synced")).expect("there"), b"kept");
    fs::write(directory.join("more/d/small"), b"changed").expect("written");
    succeed(&mut run(&["restart", at]));
    assert_eq!(fs::read(directory.join("more/d/small")).expect("there"), b"changed");
    scratch.umount();
    // The unmount released the volume.
    succeed(&mut run(&["fsck", "-p", url]));
    assert_eq!(succeed(&mut run(&["cat", url, "/more/d/small"])), "changed");
    succeed(&mut run(&["fsck", "-n", "-f", "--contents", url]));
}

/// The requests of a change agree with the store's counts, and their costs with the given prices.
fn count_requests(scratch: &Scratch, run: impl Fn(&[&str]) -> Command) {
    let directory = scratch.mountpoint();
    let at = directory.to_str().expect("UTF-8");
    let prices = scratch.path().join("prices");
    fs::write(&prices, r#"{"puts": 1000, "gets": 0, "heads": 0, "lists": 0}"#).expect("written");
    let prices = prices.to_str().expect("UTF-8");
    let store = || -> serde_json::Value {
        let stats = succeed(&mut run(&["stats", "--json", "--prices", prices, at]));
        let stats: serde_json::Value = serde_json::from_str(&stats).expect("it is JSON");
        stats["store"].clone()
    };
    let before = store();
    fs::write(directory.join("counted"), [1; 4096]).expect("written");
    fs::File::open(directory.join("counted")).expect("there").sync_all().expect("synced");
    let after = store();
    let rise = |name: &str| after[name].as_u64().expect(name) - before[name].as_u64().expect(name);
    assert_eq!(rise("puts"), 1, "{before} {after}");
    assert!(rise("sent_bytes") >= 4096, "{before} {after}");
    assert_eq!(after["usd"].as_f64(), after["puts"].as_f64(), "{after}");
    let metrics = succeed(&mut run(&["stats", "--prometheus", at]));
    assert!(metrics.contains("# TYPE cffs_store_puts_total counter"), "{metrics}");
    let wrong = fail(1, &mut run(&["stats", "--prices", at, at]));
    assert!(wrong.contains("the prices in"), "{wrong}");
}

/// A server that was stopped while another program took the volume over and wrote: after it continues, it
/// acknowledges nothing.
fn wake_a_stopped_server(scratch: &Scratch, url: &str, run: impl Fn(&[&str]) -> Command) {
    let directory = scratch.mountpoint();
    let at = directory.to_str().expect("UTF-8");
    let log = scratch.log_option();
    let server = Foreground::start(&mut run(&["mount", "-f", "-o", &log, url, at]));
    wait_for(|| scratch.is_mounted());
    fs::write(directory.join("first"), b"first").expect("written");
    let file = fs::File::options().write(true).open(directory.join("first")).expect("there");
    file.sync_all().expect("synced");
    signal(&server.0, "-STOP");
    let repaired = run(&["fsck", "-p", "--take-over", url]).output().expect("it starts");
    assert!(matches!(repaired.status.code(), Some(0 | 1)), "{repaired:?}");
    let other = scratch.path().join("other");
    // `cffs trim` would query the mount, whose server is stopped.
    succeed(&mut run(&["import", "-q", url, other.to_str().expect("UTF-8"), "/taken"]));
    signal(&server.0, "-CONT");
    std::os::unix::fs::FileExt::write_at(&file, b"never", 0).expect("in memory");
    let error = file.sync_all().expect_err("nothing is acknowledged");
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    drop(file);
    let said = fail(1, &mut run(&["sync", at]));
    assert!(said.trim_end().ends_with(&format!("cffs mount {url}")), "{said}");
    // Regression: it said that the device had failed, and to run fsck, which would have claimed the volume.
    let said = fail(1, scratch.cffs(["umount"]).arg(&directory).env("LC_ALL", "C"));
    assert!(said.contains("another program took the volume over"), "{said}");
    assert!(
        said.contains("are lost; when that program has closed the volume: cffs mount"),
        "{said}"
    );
    assert!(!said.contains("device") && !said.contains("fsck"), "{said}");
    drop(server);
    assert_eq!(succeed(&mut run(&["cat", url, "/first"])), "first");
    assert_eq!(succeed(&mut run(&["cat", url, "/taken/d/small"])), "later");
    succeed(&mut run(&["fsck", "-n", "-f", "--contents", url]));
}

/// A takeover succeeds although the writer syncs without pause, and nothing that was acknowledged is lost.
fn take_over_a_busy_writer(scratch: &Scratch, url: &str, run: impl Fn(&[&str]) -> Command) {
    let directory = scratch.mountpoint();
    let at = directory.to_str().expect("UTF-8");
    let server =
        Foreground::start(&mut run(&["mount", "-f", "-o", &scratch.log_option(), url, at]));
    wait_for(|| scratch.is_mounted());
    let file = fs::File::create(directory.join("busy")).expect("made");
    let (acknowledged, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let taken = std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1.. {
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
                let text = format!("{number:020}");
                let written = std::os::unix::fs::FileExt::write_all_at(&file, text.as_bytes(), 0);
                if written.and_then(|()| file.sync_all()).is_err() {
                    break;
                }
                acknowledged.store(number, Ordering::SeqCst);
            }
        });
        let begun = Instant::now();
        while acknowledged.load(Ordering::SeqCst) < 3 && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let taken = run(&["fsck", "-p", "--take-over", url]).output();
        is_over.store(true, Ordering::SeqCst);
        taken.expect("it starts")
    });
    assert!(matches!(taken.status.code(), Some(0 | 1)), "{taken:?}");
    drop(file);
    let said = fail(1, scratch.cffs(["umount"]).arg(&directory).env("LC_ALL", "C"));
    assert!(said.contains("another program took the volume over"), "{said}");
    drop(server);
    let seen: u64 = succeed(&mut run(&["cat", url, "/busy"])).parse().expect("a number");
    // The last sync may have failed after its change had reached the store.
    let acknowledged = acknowledged.into_inner();
    assert!(acknowledged > 2, "the writer did not write");
    assert!((acknowledged..=acknowledged + 1).contains(&seen), "{acknowledged} {seen}");
    succeed(&mut run(&["fsck", "-n", "-f", "--contents", url]));
}

/// A cache on a local disk serves the second mount, and is ignored when its disk is full.
fn keep_a_cache(scratch: &Scratch, url: &str, run: impl Fn(&[&str]) -> Command) {
    let directory = scratch.mountpoint();
    let at = directory.to_str().expect("UTF-8");
    let log = scratch.log_option();
    let local = scratch.path().join("local");
    let option = format!("{}=64M", local.to_str().expect("UTF-8"));
    let read = |arguments: &[&str]| {
        let all = [&["mount", "-o", &log], arguments, &[url, at]].concat();
        succeed(&mut run(&all));
        assert_eq!(fs::read(directory.join("more/large")).expect("there"), vec![3; 20 << 20]);
        let stats = succeed(&mut run(&["stats", "--json", at]));
        scratch.umount();
        let stats: serde_json::Value = serde_json::from_str(&stats).expect("it is JSON");
        move |name: &str| stats["store"][name].as_u64().expect("counted")
    };
    let first = read(&["--cache", &option, "-o", "ro"]);
    assert!(first("received_bytes") > 20 << 20 && first("cache_written_bytes") > 20 << 20);
    let second = read(&["-o", &format!("ro,cache-dir={option}")]);
    assert!(second("cache_read_bytes") > 20 << 20 && second("cache_misses") == 0);
    assert!(second("received_bytes") < 1 << 20, "{}", second("received_bytes"));
    // A request fetches at most 7 MiB of these 20.
    assert!(second("gets") + 3 <= first("gets"), "{} {}", second("gets"), first("gets"));

    fs::set_permissions(&local, fs::Permissions::from_mode(0o755)).expect("set");
    let refused = fail(32, &mut run(&["mount", "--cache", &option, url, at]));
    assert!(refused.contains("chmod 700"), "{refused}");
    let image = scratch.path().join("image");
    let refused =
        fail(32, &mut run(&["mount", "--cache", &option, image.to_str().expect("UTF-8"), at]));
    assert!(refused.contains("'cache-dir' is for a volume in an object store"), "{refused}");

    let full = scratch.path().join("full");
    fs::create_dir(&full).expect("made");
    let tmpfs = ["-t", "tmpfs", "-o", "size=4m", "tmpfs"];
    if Command::new("mount").args(tmpfs).arg(&full).status().is_ok_and(|status| status.success()) {
        let option = format!("{}=64M", full.join("cache").to_str().expect("UTF-8"));
        let third = read(&["--cache", &option, "-o", "ro"]);
        umount_8(&full);
        assert!(third("received_bytes") > 20 << 20 && third("cache_written_bytes") <= 4 << 20);
        let logged = fs::read_to_string(scratch.path().join("log")).expect("logged");
        assert!(logged.contains("nothing is added to the cache"), "{logged}");
    }
}

/// If the bucket of a mounted volume is removed, the next fsync fails without waiting.
fn lose_the_bucket(scratch: &Scratch, url: &str, run: impl Fn(&[&str]) -> Command) {
    let directory = scratch.mountpoint();
    let at = directory.to_str().expect("UTF-8");
    succeed(&mut run(&["mount", "-o", &scratch.log_option(), url, at]));
    fs::write(directory.join("lost"), b"lost").expect("written");
    fs::rename(scratch.path().join("store/bucket"), scratch.path().join("bucket")).expect("moved");
    let file = fs::File::open(directory.join("lost")).expect("there");
    let error = file.sync_all().expect_err("nowhere to write");
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    drop(file);
    let logged = fs::read_to_string(scratch.path().join("log")).expect("logged");
    assert!(logged.contains("bucket bucket does not exist"), "{logged}");
    succeed(scratch.cffs(["umount", "-l"]).arg(&directory).env("LC_ALL", "C"));
}

/// Versions kept on the page of a mount equal those of the command, and contain the earlier changes.
fn keep_versions_by_the_page(scratch: &Scratch, url: &str, run: impl Fn(&[&str]) -> Command) {
    let (directory, page) = (scratch.mountpoint(), Page::of(scratch));
    let mut mount = run(&["mount", "-o", &scratch.log_option()]);
    succeed(mount.args(page.options()).arg(url).arg(&directory));
    fs::write(directory.join("before"), b"before").expect("written");
    let named = "{\"name\":\"by-page\"}";
    let kept = page.ask("POST /api/v1/actions/snapshot-create", named);
    assert_eq!(kept.0, 202, "{kept:?}");
    fs::write(directory.join("before"), b"after").expect("written");
    assert!(
        succeed(&mut run(&["snapshot", "ls", url])).lines().any(|line| line.ends_with("  by-page"))
    );
    assert!(page.ask("GET /api/v1/snapshots", "").1.contains("by-page"));
    assert_eq!(succeed(&mut run(&["cat", &format!("{url}@by-page"), "/before"])), "before");
    let taken = page.ask("POST /api/v1/actions/snapshot-create", named);
    assert_eq!(taken.0, 409, "{taken:?}");
    let place = scratch.path().to_str().expect("UTF-8");
    assert!(!taken.1.contains(place), "a path of the host is shown: {taken:?}");
    assert_eq!(page.ask("POST /api/v1/actions/snapshot-remove", named).0, 202);
    assert!(!succeed(&mut run(&["snapshot", "ls", url])).contains("by-page"));
    let gone = page.ask("POST /api/v1/actions/snapshot-remove", named);
    assert!(gone.0 == 409 && !gone.1.contains(place), "{gone:?}");

    // Error messages of the host name its files.
    let kept = scratch.path().join("tree/snapshots");
    let aside = scratch.path().join("aside");
    fs::rename(&kept, &aside).expect("moved");
    std::os::unix::fs::symlink(&kept, &kept).expect("made");
    let broken = page.ask("GET /api/v1/snapshots", "");
    assert!(broken.0 == 500 && broken.1.contains("IMAGE"), "{broken:?}");
    assert!(!broken.1.contains(place), "a path of the host is shown: {broken:?}");
    fs::remove_file(&kept).expect("removed");
    fs::rename(&aside, &kept).expect("moved");
    scratch.umount();
}

fn signal(server: &Child, signal: &str) {
    succeed(Command::new("kill").args([signal, &server.id().to_string()]));
}

#[test]
fn a_directory_is_a_store() {
    let scratch = Scratch::new();
    let url = format!("file://{}", scratch.path().join("tree").display());
    let run = |arguments: &[&str]| {
        let mut command = scratch.cffs([]);
        command.args(arguments);
        command
    };
    let missing = fail(1, &mut run(&["ls", &url]));
    assert!(missing.contains("no volume at file:"), "{missing}");
    // Regression: the advice was mkfs, which is wrong if the directory was moved away.
    assert!(missing.contains("its directory was moved") && !missing.contains("mkfs"), "{missing}");
    let unsized_one = fail(1, &mut run(&["mkfs", &url]));
    assert!(unsized_one.contains("--size"), "{unsized_one}");
    use_a_volume(&scratch, &url, run);
    keep_a_version(&scratch, &url, run);
    if can_mount() {
        mount_a_volume(&scratch, &url, run);
        keep_a_cache(&scratch, &url, run);
        wake_a_stopped_server(&scratch, &url, run);
        take_over_a_busy_writer(&scratch, &url, run);
        keep_versions_by_the_page(&scratch, &url, run);
    }
}

#[test]
fn a_volume_in_s3() {
    let scratch = Scratch::new();
    let Some(gateway) = StoreServer::start(&scratch) else { return };
    let run = |arguments: &[&str]| gateway.cffs(&scratch, SECRET, arguments);
    use_a_volume(&scratch, "s3://bucket/tree", run);
    keep_a_version(&scratch, "s3://bucket/tree", run);

    let none = fail(1, &mut run(&["mkfs", "--size", "1G", "s3://nothing/tree"]));
    is_clear(&none, &["bucket nothing does not exist; create it first"]);
    let none = fail(1, &mut run(&["ls", "s3://nothing/tree"]));
    is_clear(&none, &["bucket nothing does not exist"]);
    let none = fail(1, &mut run(&["ls", "s3://bucket/nothing"]));
    is_clear(
        &none,
        &[
            "no volume at s3://bucket/nothing; if there should be one, check the URL; cffs mkfs makes",
        ],
    );
    let mut unknown = run(&["ls", "s3://bucket/tree"]);
    let unknown = fail(1, unknown.env("AWS_ACCESS_KEY_ID", "nobody"));
    is_clear(&unknown, &["the store does not know these credentials: check AWS_ACCESS_KEY_ID"]);
    let mut away = run(&["ls", "s3://bucket/tree"]);
    let away = fail(1, away.env("AWS_ENDPOINT_URL", "http://127.0.0.1:1"));
    is_clear(
        &away,
        &["the store at http://127.0.0.1:1 cannot be reached", "check AWS_ENDPOINT_URL"],
    );
    let wrong =
        |arguments: &[&str]| fail(1, &mut gateway.cffs(&scratch, "another secret", arguments));
    for said in
        [wrong(&["ls", "s3://bucket/tree"]), wrong(&["mkfs", "--size", "1G", "s3://bucket/x"])]
    {
        assert!(said.contains("these credentials"), "{said}");
        assert!(!said.contains("another secret") && !said.contains(SECRET), "{said}");
    }
    if can_mount() {
        mount_a_volume(&scratch, "s3://bucket/tree", run);
        wake_a_stopped_server(&scratch, "s3://bucket/tree", run);
        lose_the_bucket(&scratch, "s3://bucket/tree", run);
    }
}

/// The server executes all requests, but every fifth answer is lost: each request is repeated until its
/// outcome is known, and none takes effect twice.
#[test]
fn answers_that_are_lost_change_nothing() {
    let scratch = Scratch::new();
    let Some(mut gateway) = StoreServer::start(&scratch) else { return };
    let options = ["--delay-ms", "0", "--lose-one-in", "5"];
    let Some(line) = gateway.put_behind_line(&options) else { return };
    let run = |arguments: &[&str]| gateway.cffs(&scratch, SECRET, arguments);
    use_a_volume(&scratch, "s3://bucket/tree", run);
    keep_a_version(&scratch, "s3://bucket/tree", run);
    if can_mount() {
        let (directory, log) = (scratch.mountpoint(), scratch.log_option());
        let at = directory.to_str().expect("UTF-8");
        succeed(&mut run(&["mount", "-o", &log, "s3://bucket/tree", at]));
        for number in 0..25 {
            let path = directory.join(format!("synced-{number}"));
            fs::write(&path, [number; 5000]).expect("written");
            fs::File::open(&path).expect("there").sync_all().expect("synced");
        }
        scratch.umount();
        for number in 0..25 {
            let name = format!("/synced-{number}");
            let output = run(&["cat", "s3://bucket/tree", &name]).output().expect("it starts");
            assert_eq!(output.stdout, [number; 5000], "{name}");
        }
        succeed(&mut run(&["fsck", "-n", "-f", "--contents", "s3://bucket/tree"]));
    }
    let lost = lost_on(&line);
    assert!(lost > 30, "{lost} answers were lost");
}

/// The number of answers lost on a line up to now.
fn lost_on(line: &Line) -> u64 {
    let mut connection = TcpStream::connect(&line.address).expect("it listens");
    let request = "GET /.counts HTTP/1.1\r\nHost: proxy\r\nConnection: close\r\n\r\n";
    connection.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("answered");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    let counts: serde_json::Value = serde_json::from_str(body).expect("JSON");
    counts["lost"].as_u64().expect("a number")
}

/// An error of a store is one line with advice, and contains no credentials.
fn is_clear(said: &str, parts: &[&str]) {
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    assert!(!said.contains('<') && said.trim_end().lines().count() == 1, "{said}");
    assert!(!said.contains(SECRET), "{said}");
}

/// Reads work with a read-only key, and other operations fail with the reason.
#[test]
fn a_read_only_key_allows_reads_and_explains_refusals() {
    let scratch = Scratch::new();
    let Some(gateway) = StoreServer::start(&scratch) else { return };
    let url = "s3://bucket/tree";
    let run = |arguments: &[&str]| gateway.cffs(&scratch, SECRET, arguments);
    let source = source(&scratch);
    let source = source.to_str().expect("UTF-8");
    succeed(&mut run(&["mkfs", "-q", "--size", "1G", url]));
    succeed(&mut run(&["import", "-q", url, source, "/in"]));
    drop(gateway);
    let reading = StoreServer::start_to_read(&scratch.path().join("store"));
    let reading = reading.expect("it starts again");
    let run = |arguments: &[&str]| reading.cffs(&scratch, SECRET, arguments);
    assert_eq!(succeed(&mut run(&["cat", url, "/in/d/small"])), "contents");
    succeed(&mut run(&["fsck", "-n", "-f", url]));
    let version = format!("{url}@v1");
    for arguments in [
        &["import", "-q", url, source][..],
        &["mkfs", "-q", "--size", "1G", "s3://bucket/other"],
        &["snapshot", "create", &version],
    ] {
        let said = fail(1, &mut run(arguments));
        is_clear(&said, &["AccessDenied", "these credentials lack a permission", "bucket/"]);
    }
    if can_mount() {
        let (at, log) = (scratch.mountpoint(), scratch.log_option());
        let at = at.to_str().expect("UTF-8");
        is_clear(&fail(32, &mut run(&["mount", "-o", &log, url, at])), &["AccessDenied"]);
        succeed(&mut run(&["mount", "-o", "ro", "-o", &log, url, at]));
        assert_eq!(fs::read(scratch.mountpoint().join("in/d/small")).expect("there"), b"contents");
        scratch.umount();
    }
}

/// A server is killed after an fsync that has not reached the store; the next server sends its changes. If
/// another program has taken the volume over meanwhile, they are rejected, and the mount says where they are.
#[test]
fn staging_survives_a_kill() {
    let scratch = Scratch::new();
    let Some(gateway) = StoreServer::start(&scratch) else { return };
    if !can_mount() {
        return;
    }
    let url = "s3://bucket/tree";
    let run = |arguments: &[&str]| gateway.cffs(&scratch, SECRET, arguments);
    succeed(&mut run(&["mkfs", "-q", "--size", "1G", url]));
    let (directory, staging) = (scratch.mountpoint(), scratch.path().join("staging"));
    let (at, waits) = (directory.to_str().expect("UTF-8"), staging.to_str().expect("UTF-8"));
    let log = scratch.log_option();
    let mount = ["mount", "-f", "-o", &log, "--staging", waits, url, at];
    // The store is unavailable when the fsync returns, and the server is killed.
    let waiting = || -> [u64; 2] {
        let stats = succeed(&mut run(&["stats", "--json", at]));
        let stats: serde_json::Value = serde_json::from_str(&stats).expect("it is JSON");
        ["records", "bytes"].map(|name| stats["staging"][name].as_u64().expect(name))
    };
    let sync_and_die = |name: &str| {
        let server = Foreground::start(&mut run(&mount));
        wait_for(|| scratch.is_mounted());
        wait_for(|| waiting() == [0, 0]);
        // Metadata that a change reads must be cached.
        assert!(!directory.join(name).exists(), "{name} is there already");
        gateway.stop();
        fs::write(directory.join(name), name).expect("written");
        fs::File::open(directory.join(name)).expect("there").sync_all().expect("synced");
        let [records, bytes] = waiting();
        assert!(records >= 1 && bytes > 4096, "{records} {bytes}");
        let metrics = succeed(&mut run(&["stats", "--prometheus", at]));
        assert!(metrics.contains("# TYPE cffs_staging_records gauge"), "{metrics}");
        server.kill();
        gateway.start_again();
        succeed(scratch.cffs(["umount", "-l"]).arg(&directory).env("LC_ALL", "C"));
        let seen = run(&["cat", url, &format!("/{name}")]).output().expect("it starts");
        assert!(!seen.status.success(), "the store has it already");
    };
    sync_and_die("sent later");
    // No takeover is needed.
    let server = Foreground::start(&mut run(&mount));
    wait_for(|| scratch.is_mounted());
    assert_eq!(fs::read_to_string(directory.join("sent later")).expect("there"), "sent later");
    wait_for(|| waiting() == [0, 0]);
    scratch.umount();
    server.ends_well();
    assert_eq!(succeed(&mut run(&["cat", url, "/sent later"])), "sent later");

    sync_and_die("rejected");
    let refused = fail(32, &mut run(&["mount", "-f", "-o", &log, url, at]));
    assert!(refused.contains("it has a staging directory"), "{refused}");
    let repaired = run(&["fsck", "-p", "--take-over", url]).output().expect("it starts");
    assert!(matches!(repaired.status.code(), Some(0 | 1)), "{repaired:?}");
    let refused = fail(32, &mut run(&mount));
    let aside = staging.join("rejected");
    for part in ["took the volume over", "acknowledged", &aside.display().to_string()] {
        assert!(refused.contains(part), "{refused}");
    }
    assert!(fs::read_dir(&aside).expect("there").count() > 0);
    let server = Foreground::start(&mut run(&mount));
    wait_for(|| scratch.is_mounted());
    assert!(!directory.join("rejected").exists() && directory.join("sent later").exists());
    scratch.umount();
    server.ends_well();
    succeed(&mut run(&["fsck", "-n", "-f", "--contents", url]));
    let read_only = fail(32, &mut run(&["mount", "-o", "ro", "--staging", waits, url, at]));
    assert!(read_only.contains("'staging' is for a volume in an object store"), "{read_only}");
}

/// Keys, region and endpoint from files in the format of Amazon's tools; and no log message or output, even
/// at the most verbose level, contains a key's secret or token.
#[test]
fn profiles_work_and_their_secrets_are_not_logged() {
    let scratch = Scratch::new();
    let Some(gateway) = StoreServer::start(&scratch) else { return };
    let [credentials, config] = ["credentials", "config"].map(|name| scratch.path().join(name));
    let keys = |secret: &str| {
        let file = format!("[tests]\naws_access_key_id=tests\naws_secret_access_key={secret}\n");
        fs::write(&credentials, file).expect("written");
    };
    let endpoint = &gateway.endpoint;
    let file = format!("[profile tests]\nregion = us-east-1\nendpoint_url = {endpoint}\n");
    fs::write(&config, file).expect("written");
    let cffs = |profile: &str, arguments: &[&str]| {
        let mut command = scratch.cffs([]);
        command.args(arguments).env("AWS_PROFILE", profile).env("AWS_ALLOW_HTTP", "true");
        command.env("AWS_SHARED_CREDENTIALS_FILE", &credentials).env("AWS_CONFIG_FILE", &config);
        command.env("CFFS_LOG", "trace");
        command
    };
    let secrets = [SECRET, "another secret", "a token"];
    let is_silent = |said: &str| {
        for secret in secrets {
            assert!(!said.contains(secret), "{secret} is shown: {said}");
        }
    };
    keys(SECRET);
    let url = "s3://bucket/tree";
    let made = cffs("tests", &["mkfs", "--size", "1G", url]).output().expect("it starts");
    assert!(made.status.success(), "{made:?}");
    is_silent(&String::from_utf8_lossy(&[made.stdout, made.stderr].concat()));
    if can_mount() {
        let directory = scratch.mountpoint();
        let at = directory.to_str().expect("UTF-8");
        succeed(&mut cffs("tests", &["mount", "-o", &scratch.log_option(), url, at]));
        fs::write(directory.join("file"), b"contents").expect("written");
        // Keys that the store rejects are read again. Regression: they were read only at the mount, and a
        // commit was repeated forever.
        let logged = || fs::read_to_string(scratch.path().join("log")).expect("logged");
        keys("another secret");
        std::thread::scope(|scope| {
            let file = fs::File::open(directory.join("file")).expect("there");
            let syncing = scope.spawn(move || file.sync_all());
            wait_for(|| logged().contains("asking the store again") || syncing.is_finished());
            keys(SECRET);
            syncing.join().expect("no panic").expect("it waits for keys that are known");
        });
        scratch.umount();
        let logged = logged();
        assert!(logged.contains("TRACE"), "the level that logs most: {logged}");
        is_silent(&logged);
    }
    keys("another secret\naws_session_token=a token");
    let refused = cffs("tests", &["ls", url]).output().expect("it starts");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("these credentials"), "{said}");
    is_silent(&said);
    let none = fail(1, &mut cffs("none", &["ls", url]));
    assert!(none.contains("~/.aws has no profile none"), "{none}");
}

/// The signature of a request contains its time, so requests with a wrong clock are refused, and the message
/// says so.
#[test]
fn a_wrong_clock_is_reported() {
    let scratch = Scratch::new();
    let Some(gateway) = StoreServer::start(&scratch) else { return };
    let (code, shim) = (scratch.path().join("skew.c"), scratch.path().join("skew.so"));
    fs::write(
        &code,
        "#define _GNU_SOURCE\n#include <time.h>\n#include <sys/syscall.h>\n#include <unistd.h>\n\
         int clock_gettime(clockid_t clock, struct timespec *now) {\n\
             int failed = syscall(SYS_clock_gettime, clock, now);\n\
             if (!failed && clock == CLOCK_REALTIME) now->tv_sec += 7200;\n\
             return failed;\n\
         }\n",
    )
    .expect("written");
    succeed(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&shim).arg(&code));
    let mut skewed = gateway.cffs(&scratch, SECRET, &["ls", "s3://bucket/tree"]);
    let said = fail(1, skewed.env("LD_PRELOAD", &shim));
    is_clear(&said, &["RequestTimeTooSkewed", "set the clock of this machine"]);
    let mut wrong = gateway.cffs(&scratch, "another secret", &["ls", "s3://bucket/tree"]);
    is_clear(&fail(1, &mut wrong), &["SignatureDoesNotMatch", "check AWS_ACCESS_KEY_ID"]);
}

/// A volume on a network block device: nbdkit serves the device, and nbdfuse shows it as a file, like the
/// kernel's NBD shows it as `/dev/nbd0`.
#[test]
fn a_volume_on_a_network_block_device() {
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !has("nbdkit") || !has("nbdfuse") || !can_mount() {
        return eprintln!(
            "not run: there is no nbdkit or no nbdfuse; Debian has them, and libnbd-bin"
        );
    }
    let scratch = Scratch::new();
    let (socket, disk) = (scratch.path().join("socket"), scratch.path().join("disk"));
    let backing = scratch.path().join("backing");
    fs::File::create(&backing).and_then(|file| file.set_len(64 << 20)).expect("made");
    fs::write(&disk, b"").expect("made");
    let mut server = Command::new("nbdkit")
        .args(["-f", "-U", socket.to_str().expect("UTF-8"), "file"])
        .arg(&backing)
        .spawn()
        .expect("it starts");
    wait_for(|| socket.exists());
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let mut client = Command::new("nbdfuse").arg(&disk).arg(uri).spawn().expect("it starts");
    wait_for(|| fs::metadata(&disk).is_ok_and(|file| file.len() == 64 << 20));
    let device = disk.to_str().expect("UTF-8");
    let run = |arguments: &[&str]| {
        let mut command = scratch.cffs([]);
        command.args(arguments);
        command
    };
    succeed(&mut run(&["mkfs", "-q", device]));
    let (at, log) = (scratch.mountpoint(), scratch.log_option());
    succeed(&mut run(&["mount", "-o", &log, device, at.to_str().expect("UTF-8")]));
    fs::write(at.join("synced"), vec![5; 100_000]).expect("written");
    fs::File::open(at.join("synced")).expect("there").sync_all().expect("synced");
    // Data acknowledged by an fsync is on the server, and not only in its client.
    let copy = scratch.path().join("copy");
    fs::copy(&backing, &copy).expect("copied");
    let copy = copy.to_str().expect("UTF-8");
    let repaired = run(&["fsck", "-p", "--take-over", copy]).output().expect("it starts");
    assert!(matches!(repaired.status.code(), Some(0 | 1)), "{repaired:?}");
    let read = run(&["cat", copy, "/synced"]).output();
    assert_eq!(read.expect("it starts").stdout, vec![5; 100_000]);
    scratch.umount();
    succeed(&mut run(&["fsck", "-n", "-f", "--contents", device]));
    umount_8(&disk);
    client.wait().expect("it ends");
    server.kill().expect("killed");
    server.wait().expect("it ends");
}

/// A full store is no outage: operations that need space fail with the reason, and keep synced data.
#[test]
fn a_full_store_fails_syncs_and_keeps_synced_data() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not run: mounting a small tmpfs needs root");
    }
    let scratch = Scratch::new();
    let store = scratch.path().join("small");
    fs::create_dir(&store).expect("made");
    succeed(Command::new("mount").args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"]).arg(&store));
    if let Some(gateway) = StoreServer::start_at(&store) {
        let url = "s3://bucket/tree";
        let run = |arguments: &[&str]| gateway.cffs(&scratch, SECRET, arguments);
        succeed(&mut run(&["mkfs", "-q", "--size", "1G", url]));
        let source = source(&scratch);
        let small = source.join("d");
        succeed(&mut run(&["import", "-q", url, small.to_str().expect("UTF-8"), "/kept"]));
        let large = ["import", "-q", url, source.to_str().expect("UTF-8"), "/lost"];
        let said = fail(1, &mut run(&large));
        assert!(said.contains("free space in the store"), "{said}");
        succeed(&mut run(&["fsck", "-p", "--take-over", url]));
        assert_eq!(succeed(&mut run(&["cat", url, "/kept/small"])), "contents");
    }
    succeed(Command::new("umount").arg("-l").arg(&store));
}
