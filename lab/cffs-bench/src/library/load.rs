//! A server under load in virtual time: clients whose changes are durable when they are answered, then a
//! crash and its recovery.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use cffs::clock::TestClock;
use cffs::fsck::{self, CheckOptions, Repair};
use cffs::units::InodeNo;
use cffs::vfs::{AtimeMode, Caller, NewKind, OpenOptions, Volume};

use super::trees::{self, Tree};
use super::{Disk, LibraryPlan, make};
use crate::disk::{Counters, Nanos};
use crate::peer::Peer;
use crate::workload::contents::Contents;
use crate::workload::random::Random;

/// Bytes of a file that a client makes, or writes.
const FILE: usize = 4096;
/// Directories of the tree, in which clients make their files.
const DIRECTORIES: u64 = 100;

/// The load of a server, and its checkpoints.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Files that exist before.
    pub files: u64,
    /// Clients, each of which waits for the answer to its last call.
    pub clients: u64,
    /// Calls per second that all clients ask for together.
    pub calls_per_sec: u64,
    /// The time until the crash.
    pub time: Nanos,
    /// The longest time between two checkpoints.
    pub clean_every: Nanos,
    /// The largest share of the time that checkpoints take, in percent.
    pub clean_share_percent: u64,
}

/// The answers to a load, and the cost of the recovery after it.
#[derive(Clone, Debug)]
pub struct Served {
    pub calls_per_sec: f64,
    /// Times from a call to its answer, in order.
    pub responses: Vec<Nanos>,
    pub checkpoints: u64,
    pub recovery: Cost,
    /// A full check of the recovered volume.
    pub full_check: Cost,
}

/// The time and the requests of a check.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    pub time: Nanos,
    pub requests: Counters,
}

impl Served {
    /// The time within which this share of the calls was answered.
    pub fn response(&self, share: f64) -> Nanos {
        let last = self.responses.len().saturating_sub(1);
        self.responses.get((last as f64 * share) as usize).copied().unwrap_or_default()
    }
}

/// A client, with the files that it made.
struct Client {
    /// When its next call is made.
    next: Nanos,
    calls: u64,
    made: Vec<(InodeNo, String)>,
    random: Random,
}

impl Load {
    /// Serves the load on a volume with a tree, stops without closing the volume, and recovers it.
    pub fn crash(&self, plan: &LibraryPlan) -> Result<Served> {
        let (disk, _) =
            trees::grown(plan, Peer::Cffs, Tree::Fresh { files: self.files }, DIRECTORIES)?;
        let mut served = self.serve(&disk, plan.seed)?;
        served.recovery = checked(&disk, Repair::Preen, false)?;
        served.full_check = checked(&disk, Repair::No, true)?;
        Ok(served)
    }

    /// Answers calls until the crash. Calls that arrive during an epoch share the next one.
    fn serve(&self, disk: &Disk, seed: u64) -> Result<Served> {
        let options = OpenOptions {
            atime: AtimeMode::Never,
            // Checkpoints are made below, in virtual time. One that is made because the intent log is nearly
            // full is not delayed by the processor's time.
            clean_every: Duration::MAX,
            clean_share_percent: 100,
            ..OpenOptions::default()
        };
        let volume = Volume::open(disk.clone(), Arc::new(TestClock::default()), options)?;
        let contents = Contents::new(seed, FILE);
        let dirs: Vec<InodeNo> = (0..DIRECTORIES)
            .map(|i| Ok(volume.lookup(InodeNo::ROOT, format!("a{i:03}").as_bytes())?.ino))
            .collect::<Result<_>>()?;
        disk.power_cycle();
        let (began, points) = (disk.now(), volume.stats().checkpoints);
        let end = began + self.time;
        // Between two calls of a client.
        let pause = Nanos(1_000_000_000 * self.clients / self.calls_per_sec);
        let mut clients: Vec<Client> = (0..self.clients)
            .map(|i| Client {
                next: began + Nanos(pause.0 * i / self.clients),
                calls: 0,
                made: Vec::new(),
                random: Random::new(seed + i),
            })
            .collect();
        let mut starts: Vec<Nanos> = clients.iter().map(|client| client.next).collect();
        let mut responses = Vec::new();
        let mut point_due = began + self.clean_every;
        while disk.now() < end {
            if disk.now() >= point_due {
                let started = disk.now();
                volume.writer().checkpoints().run()?;
                let cost = disk.now().since(started);
                let rest = Nanos(cost.0 * 100 / self.clean_share_percent);
                point_due = disk.now() + self.clean_every.max(rest);
                continue;
            }
            let now = disk.now();
            let mut waiting = Vec::new();
            for (i, client) in clients.iter_mut().enumerate().filter(|(_, it)| it.next <= now) {
                client.call(&volume, &dirs, &contents)?;
                waiting.push(i);
            }
            if waiting.is_empty() {
                let arrival = clients.iter().map(|client| client.next).min().unwrap_or(end);
                disk.idle(arrival.min(point_due).min(end).since(now));
                continue;
            }
            volume.sync()?;
            let answered = disk.now();
            for i in waiting {
                responses.push(answered.since(clients[i].next));
                starts[i] += pause;
                clients[i].next = starts[i].max(answered);
            }
        }
        responses.sort_unstable();
        Ok(Served {
            calls_per_sec: responses.len() as f64 / disk.now().since(began).as_secs(),
            responses,
            checkpoints: volume.stats().checkpoints - points,
            recovery: Cost::default(),
            full_check: Cost::default(),
        })
    }
}

impl Client {
    /// Of four calls two make files, one writes, and one removes.
    fn call(&mut self, volume: &Volume, dirs: &[InodeNo], contents: &Contents) -> Result<()> {
        let (kind, number) = (self.calls % 4, self.random.number());
        self.calls += 1;
        if kind < 2 || self.made.len() < 2 {
            let (dir, name) = (dirs[self.random.index(dirs.len())], format!("load-{number:016x}"));
            let file = make(volume, dir, &name, NewKind::Regular)?;
            volume.write(&Caller::ROOT, file, 0, contents.of(number, FILE))?;
            volume.release(file, 1);
            self.made.push((dir, name));
            return Ok(());
        }
        let chosen = self.random.index(self.made.len());
        if kind == 2 {
            let (dir, name) = &self.made[chosen];
            let file = volume.lookup(*dir, name.as_bytes())?.ino;
            volume.write(&Caller::ROOT, file, 0, contents.of(number, FILE))?;
            volume.release(file, 1);
        } else {
            let (dir, name) = self.made.swap_remove(chosen);
            volume.unlink(&Caller::ROOT, dir, name.as_bytes())?;
        }
        Ok(())
    }
}

/// Checks the volume with cold caches, by one thread, so that the order of requests repeats.
fn checked(disk: &Disk, repair: Repair, force: bool) -> Result<Cost> {
    disk.power_cycle();
    let (before, started) = (disk.counters(), disk.now());
    let options = CheckOptions { repair, force, threads: 1, ..CheckOptions::default() };
    let report = fsck::check(disk, &options, &())?;
    ensure!(report.problems.is_empty(), "a crash leaves no damage: {:?}", report.problems);
    Ok(Cost { time: disk.now().since(started), requests: disk.counters().since(&before) })
}
