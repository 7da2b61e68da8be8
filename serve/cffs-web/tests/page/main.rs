//! The page with a real volume in memory: its answers, its access control, and its cost.

mod browser;
mod client;
mod driver;
mod figures;
mod hostile;
mod interface;
mod people;
mod states;
mod tls;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use cffs::clock::SystemClock;
use cffs::device::MemoryDevice;
use cffs::mkfs::MkfsOptions;
use cffs::units::InodeNo;
use cffs::vfs::{Caller, NewFile, NewKind, Volume};
use cffs_serve::nfs::{self, Running};
use cffs_serve::served::Identity;
use cffs_serve::served::Served;
use cffs_serve::shared::{Companion, NoObserver};
use cffs_web::{Forms, Options, Page, RecentLog, Server, Snapshot, Snapshots, Target, Tokens};

use client::Client;

const LOOK: &str = "a-token-that-lets-look";
const RUN: &str = "a-token-that-lets-run";

/// A page for a volume with some files, and a client of it.
struct Scene {
    page: Option<Page>,
    nfs: Running,
    nfs_address: SocketAddr,
    volume: Arc<Volume>,
    client: Client,
    log: RecentLog,
}

impl Scene {
    fn new() -> Scene {
        Scene::with_certificate(None)
    }

    fn with_certificate(certificate: Option<PathBuf>) -> Scene {
        Scene::of(MkfsOptions::default(), certificate)
    }

    fn of(options: MkfsOptions, certificate: Option<PathBuf>) -> Scene {
        let device = Arc::new(MemoryDevice::new(32 << 20));
        let options = MkfsOptions { label: b"photos".to_vec(), ..options };
        cffs::mkfs::make(&*device, &options).expect("made");
        let opened = cffs::open(device, Arc::new(SystemClock), Default::default());
        let volume = Arc::new(opened.expect("opened"));
        // Creating a key makes it durable, so do that before anything else has to be.
        let any = "127.0.0.1:0".parse().expect("an address");
        let exports = vec!["/:insecure".parse().expect("an export")];
        let nfs = nfs::Server::bind(Arc::clone(&volume), any, exports, Arc::new(NoObserver));
        let nfs = nfs.expect("listens");
        let dir = make(&volume, InodeNo::ROOT, b"<img src=x onerror=alert(1)>", NewKind::Directory);
        for number in 0..40 {
            let file = make(&volume, dir, format!("f{number}").as_bytes(), NewKind::Regular);
            volume.write(&Caller::ROOT, file, 0, &[number; 5000]).expect("written");
        }
        let log = RecentLog::default();
        let server = Server::bind(Options {
            address: "127.0.0.1:0".parse().expect("an address"),
            names: vec![String::from("volume.example")],
            certificate,
            tokens: Tokens { look: LOOK.to_owned(), run: RUN.to_owned() },
            log: log.clone(),
            target: Target { directory: None, image: "/srv/secret.cffs".into() },
            snapshots: Some(Arc::new(Kept::default())),
            forms: Forms {
                picture: |report, title| format!("<svg>{title} {}</svg>", report.requests),
                metrics: |stats, info| {
                    let server = &info["server"];
                    format!(
                        "# {} {}\n# {server}\n",
                        stats["calls"]["writes"], server["fixed_options"]["atime"]
                    )
                },
            },
        });
        let server = server.expect("listens");
        let client = Client(server.address().expect("bound"));
        let nfs_address = nfs.address().expect("bound");
        let exports = Some(nfs.exports());
        let served = Served::unmounted(Arc::clone(&volume), identity(), exports);
        let nfs = nfs.start().expect("started");
        let page = server.start(Arc::new(served)).expect("started");
        Scene { page: Some(page), nfs, nfs_address, volume, client, log }
    }
}

/// A device that only keeps the names of snapshots.
#[derive(Debug, Default)]
struct Kept(Mutex<Vec<Snapshot>>);

impl Snapshots for Kept {
    fn list(&self) -> Result<Vec<Snapshot>, String> {
        Ok(self.0.lock().expect("sound").clone())
    }

    fn create(&self, name: &str) -> Result<(), String> {
        let mut kept = self.0.lock().expect("sound");
        if kept.iter().any(|one| one.name == name) {
            return Err(format!("version {name} already exists"));
        }
        let made = SystemTime::now();
        kept.push(Snapshot { name: name.to_owned(), made, for_clone: false });
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), String> {
        self.0.lock().expect("sound").retain(|one| one.name != name);
        Ok(())
    }
}

fn identity() -> Identity {
    Identity {
        image: Some(String::from("/srv/secret.cffs")),
        directory: None,
        pid: std::process::id(),
        uid: 0,
        read_only: false,
        opened_read_only: false,
        fixed_options: [("atime", "relatime"), ("logfile", "/srv/secret.log")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        cache_bytes: 1 << 20,
        transport: String::from("NFS"),
        mount_type: String::from("not mounted"),
        started: Identity::now(),
        restart_failure: None,
        nfs_failure: None,
        page_failure: None,
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        drop(self.page.take());
        self.nfs.end().expect("ended");
        let closed = self.volume.close();
        assert!(closed.is_ok() || self.volume.writer().health.latched().is_some(), "{closed:?}");
    }
}

fn make(volume: &Volume, dir: InodeNo, name: &[u8], kind: NewKind) -> InodeNo {
    let new = NewFile { kind, permissions: 0o755, uid: 0, gid: 0, times: None };
    let ino = volume.make(&Caller::ROOT, dir, name, &new).expect("made").ino;
    volume.release(ino, 1);
    ino
}
