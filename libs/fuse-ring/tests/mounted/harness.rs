//! Mounts for tests, with cleanup even after a failure.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fuse_ring::{
    Config, Handler, MountOptions, Notifier, Session, TransportChoice, Unmount, Unmounter,
};
use tempfile::TempDir;

/// The options with which a test mounts.
#[derive(Clone, Default)]
pub struct Setup {
    pub config: Config,
    pub options: MountOptions,
}

/// A mounted and served file system.
pub struct Mounted {
    pub path: PathBuf,
    pub notifier: Notifier,
    pub unmounter: Unmounter,
    serving: Option<JoinHandle<io::Result<()>>>,
    _directory: TempDir,
}

pub fn on_dev(test: impl FnOnce(Setup)) {
    if let Err(error) = std::fs::File::options().read(true).write(true).open("/dev/fuse") {
        println!("SKIPPED: cannot open /dev/fuse: {error}");
        return;
    }
    test(with(TransportChoice::Dev));
}

pub fn on_uring(test: impl FnOnce(Setup)) {
    on_dev(|_| match Switch::turn_on() {
        Ok(_switch) => test(with(TransportChoice::Uring)),
        Err(error) => println!("SKIPPED: {SWITCH}: {error}"),
    });
}

fn with(transport: TransportChoice) -> Setup {
    Setup { config: Config { transport, ..Config::default() }, ..Setup::default() }
}

impl Setup {
    /// Mounts without serving. The directory is made first, so that it is dropped last: removing it lists it.
    pub fn session<H: Handler>(&self, handler: H) -> (TempDir, Session<H>) {
        let directory = tempfile::tempdir().unwrap();
        let session =
            Session::mount(handler, directory.path(), &self.options, &self.config).unwrap();
        (directory, session)
    }

    /// Mounts and serves.
    pub fn mount<H: Handler + 'static>(&self, handler: H) -> Mounted {
        let (directory, session) = self.session(handler);
        Mounted {
            path: session.path().to_owned(),
            notifier: session.notifier(),
            unmounter: session.unmounter(),
            serving: Some(std::thread::spawn(move || session.serve().map(drop))),
            _directory: directory,
        }
    }
}

impl Mounted {
    /// Unmounts, and waits for the end of the session.
    pub fn end(mut self) -> io::Result<()> {
        // A program that examines all mounts may use it for a moment.
        eventually(|| self.unmounter.unmount(Unmount::Now).is_ok());
        self.join()
    }

    /// Waits for the end of a session that another thread or program ends.
    pub fn join(&mut self) -> io::Result<()> {
        let serving = self.serving.take().unwrap();
        eventually(|| serving.is_finished());
        serving.join().unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.serving.is_some() {
            let _ = self.unmounter.unmount(Unmount::Force);
        }
    }
}

/// Waits for a condition that takes a moment.
#[track_caller]
pub fn eventually(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "not in twenty seconds");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether the directory is a mount point.
pub fn is_mounted(path: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(1) == path.to_str())
}

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Keeps the kernel's switch on while any test needs it, and restores it afterwards.
struct Switch;

struct Users {
    count: usize,
    before: Option<String>,
}

static USERS: Mutex<Users> = Mutex::new(Users { count: 0, before: None });

impl Switch {
    fn turn_on() -> io::Result<Switch> {
        let mut users = USERS.lock().unwrap();
        if users.count == 0 {
            let before = std::fs::read_to_string(SWITCH)?;
            std::fs::write(SWITCH, "Y")?;
            users.before = Some(before);
        }
        users.count += 1;
        Ok(Switch)
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let mut users = USERS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        users.count -= 1;
        if users.count == 0
            && let Some(before) = users.before.take()
        {
            let _ = std::fs::write(SWITCH, before);
        }
    }
}
