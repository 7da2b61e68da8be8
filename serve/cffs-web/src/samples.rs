//! Figures of the volume, once a second, in one text that all browsers share.
//!
//! One thread asks the volume and writes the text; each stream of events waits for the next text and sends
//! the same bytes. An additional browser therefore costs one write to its socket, and no call on the volume.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use cffs::counted;
use cffs_serve::served::Served;
use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::actions::Actions;
use crate::{Options, RecentLog, Target};

/// How often the volume is asked.
const INTERVAL: Duration = Duration::from_secs(1);
/// The seconds that the current figures cover.
const NOW_SECS: u64 = 10;
/// The interval of the samples kept for the last hour.
const KEPT_EVERY_SECS: u64 = 10;
const HOUR_SECS: u64 = 3600;
/// The number of problems of a check that the page shows.
const PROBLEMS_MAX: usize = 20;

/// With fewer operations than this, no requests per operation are shown.
const OPERATIONS_MIN: u64 = 10;

/// Monotonic counters at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    at: u64,
    operations: u64,
    requests: u64,
    /// The requests in seconds during which a job ran: jobs make many requests without operations.
    job_requests: u64,
    hits: u64,
    misses: u64,
    read_bytes: u64,
    written_bytes: u64,
}

impl Sample {
    fn new(at: u64, stats: &Value) -> Sample {
        let number = |section: &str, name: &str| stats[section][name].as_u64().unwrap_or(0);
        let calls = stats["calls"].as_object().into_iter().flatten();
        Sample {
            at,
            operations: calls.filter_map(|(_, count)| count.as_u64()).sum(),
            requests: number("device", "reads")
                + number("device", "writes")
                + number("device", "syncs"),
            hits: number("cache", "hits"),
            job_requests: 0,
            misses: number("cache", "misses"),
            read_bytes: number("device", "read_bytes"),
            written_bytes: number("device", "written_bytes"),
        }
    }

    /// The changes since an earlier sample.
    fn since(&self, earlier: &Sample) -> Value {
        let secs = self.at.saturating_sub(earlier.at);
        let rise = |of: fn(&Sample) -> u64| of(self).saturating_sub(of(earlier));
        let ratio = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
        let (operations, requests) = (rise(|s| s.operations), rise(|s| s.requests));
        let for_operations = requests.saturating_sub(rise(|s| s.job_requests));
        let is_measure = operations >= OPERATIONS_MIN;
        let (hits, misses) = (rise(|s| s.hits), rise(|s| s.misses));
        json!({
            "seconds": secs,
            "operations": operations,
            "device_requests": requests,
            "requests_per_operation": ratio(for_operations, operations).filter(|_| is_measure),
            "hit_percent": ratio(hits * 100, hits + misses),
            "read_bytes": rise(|s| s.read_bytes),
            "written_bytes": rise(|s| s.written_bytes),
        })
    }
}

/// The samples of the last hour: all of the last seconds, and fewer of the earlier ones.
#[derive(Debug, Default)]
pub(crate) struct History {
    recent: VecDeque<Sample>,
    hour: VecDeque<Sample>,
    jobs: Value,
}

impl History {
    /// Adds a sample, with the current jobs. If one is running or has changed, the requests since the last
    /// sample count as those of jobs.
    pub fn add(&mut self, mut sample: Sample, jobs: Value) {
        let last = self.recent.back().copied().unwrap_or(sample);
        let is_running = |job: &Value| job["stage"] == "running";
        let at_work = jobs.as_object().is_some_and(|jobs| jobs.values().any(is_running));
        let by_jobs = at_work || jobs != self.jobs;
        let requests = sample.requests.saturating_sub(last.requests);
        sample.job_requests = last.job_requests + if by_jobs { requests } else { 0 };
        self.jobs = jobs;
        let is_past = |kept: &VecDeque<Sample>, secs: u64| {
            kept.front().is_some_and(|first| first.at + secs < sample.at)
        };
        while is_past(&self.recent, NOW_SECS) {
            self.recent.pop_front();
        }
        while is_past(&self.hour, HOUR_SECS) {
            self.hour.pop_front();
        }
        if self.hour.back().is_none_or(|last| last.at + KEPT_EVERY_SECS <= sample.at) {
            self.hour.push_back(sample);
        }
        self.recent.push_back(sample);
    }

    /// The changes over the last seconds, and over the last hour or the time since the start.
    pub fn summary(&self) -> (Value, Value) {
        let last = self.recent.back().copied().unwrap_or_default();
        let since = |kept: &VecDeque<Sample>| last.since(kept.front().unwrap_or(&last));
        (since(&self.recent), since(&self.hour))
    }

    /// The changes between consecutive samples of the last hour.
    pub fn points(&self) -> Value {
        let pairs = self.hour.iter().zip(self.hour.iter().skip(1));
        let point = |(from, to): (&Sample, &Sample)| {
            let mut point = to.since(from);
            point["at"] = to.at.into();
            point
        };
        pairs.map(point).collect()
    }
}

/// The sampling thread and its results.
pub(crate) struct Samples {
    shared: Arc<Shared>,
    latest: watch::Receiver<Bytes>,
}

struct Shared {
    served: Mutex<Arc<Served>>,
    actions: Arc<Actions>,
    history: Mutex<History>,
    log: RecentLog,
    target: Target,
    has_snapshots: bool,
    count: AtomicU64,
    stopping: Mutex<bool>,
    stopped: Condvar,
}

impl Samples {
    /// Takes a first sample, and starts a thread for the others.
    pub fn start(served: Arc<Served>, options: &Options) -> io::Result<Samples> {
        let shared = Arc::new(Shared {
            actions: Arc::new(Actions::new(options)),
            has_snapshots: options.snapshots.is_some(),
            served: Mutex::new(served),
            history: Mutex::default(),
            log: options.log.clone(),
            target: options.target.clone(),
            count: AtomicU64::new(0),
            stopping: Mutex::new(false),
            stopped: Condvar::new(),
        });
        let (sender, latest) = watch::channel(shared.take());
        let asking = Arc::clone(&shared);
        let ask = move || {
            while asking.wait() {
                sender.send_replace(asking.take());
            }
        };
        std::thread::Builder::new().name(String::from("page samples")).spawn(ask)?;
        Ok(Samples { shared, latest })
    }

    pub fn actions(&self) -> &Arc<Actions> {
        &self.shared.actions
    }

    pub fn served(&self) -> Arc<Served> {
        Arc::clone(&self.shared.served.lock())
    }

    pub fn show(&self, served: Arc<Served>) {
        *self.shared.served.lock() = served;
    }

    /// The latest snapshot, and all later ones.
    pub fn watch(&self) -> watch::Receiver<Bytes> {
        self.latest.clone()
    }

    pub fn history(&self) -> Value {
        self.shared.history.lock().points()
    }

    pub fn count(&self) -> u64 {
        self.shared.count.load(Ordering::Relaxed)
    }

    /// Ends the thread, and with it every stream.
    pub fn stop(&self) {
        *self.shared.stopping.lock() = true;
        self.shared.stopped.notify_all();
    }
}

impl Shared {
    /// Waits for the next second; false at the end.
    fn wait(&self) -> bool {
        let mut stopping = self.stopping.lock();
        if !*stopping {
            self.stopped.wait_for(&mut stopping, INTERVAL);
        }
        !*stopping
    }

    fn take(&self) -> Bytes {
        self.count.fetch_add(1, Ordering::Relaxed);
        let served = Arc::clone(&self.served.lock());
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let stats = served.stats();
        let info = served.info();
        let mut check = served.check();
        if let Some(report) = &mut check.report {
            report.problems.truncate(PROBLEMS_MAX);
            report.losses.truncate(PROBLEMS_MAX);
        }
        let jobs = json!({
            "scrub": served.scrub(),
            "fsck": check,
            "regroup": served.regroup(),
            "sync": self.actions.sync.status(),
            "trim": self.actions.trim.status(),
        });
        let (now, hour) = {
            let mut history = self.history.lock();
            history.add(Sample::new(at, &stats), jobs.clone());
            history.summary()
        };
        let snapshot = json!({
            "at": at,
            "state": state(&info, &self.log),
            "volume": info["superblock"],
            "target": self.target.word(),
            "has_snapshots": self.has_snapshots,
            "server": info["server"],
            "stats": stats,
            "nfs": served.exports().map(|exports| exports.describe()),
            "now": now,
            "hour": hour,
            "jobs": jobs,
            "log_newest": self.log.newest(),
        });
        Bytes::from(snapshot.to_string())
    }
}

/// The state of the volume in one word, with an explanation.
fn state(info: &Value, log: &RecentLog) -> Value {
    let superblock = &info["superblock"];
    let is_read_only = info["server"]["read_only"] == true;
    let (word, why) = if let Some(why) = info["read_only_because"].as_str() {
        ("latched", Some(log.clear(why)))
    } else if !superblock["damage_seen"].is_null() {
        let seen = &superblock["damage_seen"];
        let times = counted(seen["count"].as_u64().unwrap_or(0), "time");
        ("error seen", Some(format!("{} was found {times}", seen["code"].as_str().unwrap_or(""))))
    } else if is_read_only {
        ("read-only", None)
    } else {
        (superblock["state"].as_str().unwrap_or("in use"), None)
    };
    json!({ "word": word, "why": why })
}

#[cfg(test)]
mod tests;
