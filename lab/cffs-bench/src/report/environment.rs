//! The circumstances of a comparison. Its figures are meaningless without them.

use std::time::Duration;
use std::{fmt, fs};

use cffs_serve::describe::idle_processors;
use serde::Serialize;

use crate::compare::Plan;
use crate::disk::{Profile, Stroke};
use crate::library::LibraryPlan;
use crate::peer::{Peer, Transport};
use crate::report::table::wrap;
use crate::workload::catalog::Scale;

/// The circumstances of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Environment {
    /// The common name of the report's files.
    pub name: String,
    /// The emulated device.
    pub profile: Profile,
    /// The placement of volumes on the device.
    pub stroke: Stroke,
    /// Full or quick.
    pub scale: Scale,
    #[serde(flatten)]
    pub machine: Machine,
    /// The longest request in KiB that reached the device.
    pub request_kib: Option<u64>,
    pub contents: String,
    /// The transport of FUSE requests, if there were any.
    pub transport: Option<Transport>,
    /// The placement of threads on cores.
    pub placement: String,
    /// The versions of the measured programs.
    pub versions: Vec<(String, String)>,
}

/// The default contents of files.
const NOISE: &str = "Files contain noise: parts of one buffer that overlap, so that only files that are \
                     compressed together shrink.";

impl Environment {
    pub fn here(plan: &Plan, request_kib: Option<u64>) -> Environment {
        let quick = if plan.scale == Scale::Quick { "-quick" } else { "" };
        let journal = if plan.has_journal() { "-journal" } else { "" };
        let real = if plan.contents.is_some() { "-real" } else { "" };
        let suffix = format!("{journal}{real}{}{quick}", plan.transport.suffix());
        let version = |peer: &Peer| (peer.to_string(), peer.version(&plan.cffs));
        Environment {
            request_kib,
            contents: String::from(match plan.contents {
                Some(_) => "Files contain pieces of real files.",
                None => NOISE,
            }),
            placement: format!("{}{}", plan.placement, idle()),
            versions: plan.peers.iter().map(version).collect(),
            transport: Some(plan.transport),
            ..Environment::new(plan.profile, plan.stroke, plan.scale, &suffix, Machine::here())
        }
    }

    /// The circumstances of C-FFS as a library on a disk in virtual time, which do not include a machine.
    pub fn virtual_disk(plan: &LibraryPlan) -> Environment {
        let version = String::from(concat!("the library, ", env!("CARGO_PKG_VERSION")));
        Environment {
            contents: String::from(NOISE),
            placement: String::from("In virtual time, the device alone: the processor is free."),
            versions: vec![(Peer::Cffs.to_string(), version)],
            ..Environment::new(
                plan.profile,
                plan.stroke,
                Scale::Full,
                "-library",
                Machine::with(0.0),
            )
        }
    }

    fn new(
        profile: Profile,
        stroke: Stroke,
        scale: Scale,
        suffix: &str,
        machine: Machine,
    ) -> Environment {
        Environment {
            name: format!("{}{suffix}", profile.name()),
            profile,
            stroke,
            scale,
            machine,
            request_kib: None,
            contents: String::new(),
            transport: None,
            placement: String::new(),
            versions: Vec::new(),
        }
    }
}

/// If other programs use more than this share of the processors' time, the report has a warning.
const TAKEN_MAX: f64 = 0.1;
/// How long this program sleeps to measure the load by other programs.
const REST: Duration = Duration::from_millis(500);

/// The machine on which something was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's model.
    pub cpu: String,
    pub cores: usize,
    pub memory_bytes: u64,
    pub kernel: String,
    /// The share of the processors' time that other programs took when the measurement had ended.
    pub taken: f64,
}

impl Machine {
    /// Describes this machine at this moment; takes half a second.
    pub fn here() -> Machine {
        Machine::with(taken())
    }

    /// Describes this machine, with this load by other programs.
    fn with(taken: f64) -> Machine {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let system = rustix::system::uname();
        Machine {
            cpu: cpu_model(),
            cores,
            memory_bytes: memory_bytes(),
            kernel: format!("Linux {}", system.release().to_string_lossy()),
            taken,
        }
    }

    /// The head of a report: a title, the machine and `details`, and a warning if the machine was busy.
    pub fn head(&self, title: &str, details: &str) -> String {
        let mut out = format!("# {title}\n\n{}\n", wrap(&format!("{self}. {details}")));
        if self.taken > TAKEN_MAX {
            out += &wrap(&format!(
                "The machine was busy with other work ({:.0}% of the processors' time): counts and the \
                 device's own time are right, other times are too long.",
                100.0 * self.taken
            ));
            out += "\n";
        }
        out
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gigabytes = self.memory_bytes.div_ceil(1_000_000_000);
        write!(f, "{} cores of {}, {gigabytes} GB, {}", self.cores, self.cpu, self.kernel)
    }
}

fn cpu_model() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find(|line| line.starts_with("model name"));
    line.and_then(|l| l.split_once(':')).map_or("unknown", |(_, v)| v.trim()).to_owned()
}

/// How idle processors wait, which affects every call to a FUSE server.
fn idle() -> String {
    idle_processors().map_or_else(String::new, |how| format!(" Idle processors {how}."))
}

fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit)
}

/// The share of the processors' time that is used while this program sleeps: from 0 to 1. The kernel's load
/// average is not suitable, since it includes this program's own threads of the last minute.
fn taken() -> f64 {
    let before = processor_time();
    std::thread::sleep(REST);
    let after = processor_time();
    let (all, idle) = (after.0 - before.0, after.1 - before.1);
    if all == 0 { 0.0 } else { 1.0 - idle as f64 / all as f64 }
}

/// The time that all processors have spent since they started, and the idle part of it, in ticks
/// (proc(5)).
fn processor_time() -> (u64, u64) {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().skip(1).map_while(|v| v.parse().ok()).collect();
    // The user time already includes the time of guests. The fourth and fifth value are idle time and I/O
    // wait.
    let ticks = &ticks[..ticks.len().min(8)];
    (ticks.iter().sum(), ticks.iter().skip(3).take(2).sum())
}
