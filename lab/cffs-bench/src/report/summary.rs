//! Medians and ratios.

use serde::Serialize;

use crate::peer::Peer;
use crate::results::{Cell, Results};
use crate::workload::Phase;
use crate::workload::catalog::Workload;

/// The medians of one cell.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub workload: Workload,
    pub phase: String,
    /// The file system.
    pub peer: Peer,
    /// The number of repetitions of which these are the medians.
    pub repetitions: usize,
    /// Files, or operations, per second.
    pub files_per_sec: f64,
    /// The slowest and the fastest repetition.
    pub files_per_sec_range: (f64, f64),
    /// Megabytes (10^6 bytes) of contents per second.
    pub megabytes_per_sec: f64,
    pub requests_per_file: Option<f64>,
    pub flushes_per_file: Option<f64>,
    /// Instructions of the program per file, if they were counted.
    pub instructions_per_file: Option<f64>,
    /// Seconds that the phase took.
    pub seconds: f64,
    /// Seconds for which the device was busy.
    pub busy_secs: Option<f64>,
    /// Seconds for which the device was busy, per file.
    pub busy_secs_per_file: Option<f64>,
    /// The share of the busy time for writing the journal to its places, if the volume has one.
    pub journal_home_share: Option<f64>,
    /// Seconds of processor time of the programs that ran.
    pub programs_secs: Option<f64>,
    /// The same of the file system's server, if it has one.
    pub server_secs: Option<f64>,
    /// Bytes that the device moved for each byte of contents.
    pub amplification: Option<f64>,
    /// Speed over that of the best of ext4, XFS and btrfs.
    pub ratio_to_best: Option<f64>,
    /// Device time per file of the best of ext4, XFS and btrfs, over that of this file system: the ratio if
    /// the processor took no time. It does not depend on other load of the machine.
    pub device_ratio_to_best: Option<f64>,
    /// Contents moved, over those that the device could have streamed in the time.
    pub ratio_to_limit: Option<f64>,
}

/// All rows, in the order of the report.
#[derive(Clone, Debug)]
pub struct Summary {
    pub rows: Vec<Row>,
}

impl Summary {
    /// Medians of everything; `limit` is the device's streaming rate in bytes per second.
    pub fn new(results: &Results, limit: Option<f64>) -> Summary {
        let mut rows: Vec<Row> = results.cells.iter().map(|(c, p)| row(c, p, limit)).collect();
        for i in 0..rows.len() {
            let best = best_of(&rows, rows[i].workload, &rows[i].phase);
            rows[i].ratio_to_best = best.map(|best| rows[i].files_per_sec / best);
            let least = least_device_time(&rows, rows[i].workload, &rows[i].phase);
            rows[i].device_ratio_to_best =
                least.zip(rows[i].busy_secs_per_file).map(|(least, ours)| least / ours);
        }
        Summary { rows }
    }

    pub fn find(&self, workload: Workload, phase: &str, peer: Peer) -> Option<&Row> {
        self.rows.iter().find(|r| r.workload == workload && r.phase == phase && r.peer == peer)
    }
}

/// Files per second of the best mainstream peer in a phase.
fn best_of(rows: &[Row], workload: Workload, phase: &str) -> Option<f64> {
    rows.iter()
        .filter(|r| r.workload == workload && r.phase == phase && r.peer.is_mainstream())
        .map(|r| r.files_per_sec)
        .max_by(f64::total_cmp)
}

/// The fewest device seconds per file that a mainstream peer takes in a phase.
fn least_device_time(rows: &[Row], workload: Workload, phase: &str) -> Option<f64> {
    rows.iter()
        .filter(|r| r.workload == workload && r.phase == phase && r.peer.is_mainstream())
        .filter_map(|r| r.busy_secs_per_file)
        .min_by(f64::total_cmp)
}

fn row(cell: &Cell, phases: &[Phase], limit: Option<f64>) -> Row {
    let over =
        |figure: &dyn Fn(&Phase) -> Option<f64>| median(phases.iter().filter_map(figure).collect());
    let always = |figure: &dyn Fn(&Phase) -> f64| {
        median(phases.iter().map(figure).collect()).unwrap_or_default()
    };
    let rates = || phases.iter().map(Phase::files_per_sec);
    let megabytes_per_sec = always(&Phase::megabytes_per_sec);
    Row {
        workload: cell.workload,
        phase: cell.phase.1.clone(),
        peer: cell.peer,
        repetitions: phases.len(),
        files_per_sec: always(&Phase::files_per_sec),
        files_per_sec_range: (
            rates().min_by(f64::total_cmp).unwrap_or_default(),
            rates().max_by(f64::total_cmp).unwrap_or_default(),
        ),
        megabytes_per_sec,
        requests_per_file: over(&Phase::requests_per_file),
        flushes_per_file: over(&Phase::flushes_per_file),
        instructions_per_file: over(&Phase::instructions_per_file),
        seconds: always(&|p| p.seconds),
        busy_secs: over(&|p| p.device.as_ref().map(|d| d.busy_secs())),
        busy_secs_per_file: over(&|p| {
            let busy = p.device.as_ref()?.busy_secs();
            (p.files > 0 && busy > 0.0).then(|| busy / p.files as f64)
        }),
        journal_home_share: over(&Phase::journal_home_share),
        programs_secs: over(&|p| p.programs_secs),
        server_secs: over(&|p| p.server_secs),
        amplification: over(&|p| {
            let device = p.device.as_ref()?;
            let moved = device.read_bytes + device.write_bytes;
            (p.bytes > 0).then(|| moved as f64 / p.bytes as f64)
        }),
        ratio_to_best: None,
        device_ratio_to_best: None,
        ratio_to_limit: limit
            .filter(|_| megabytes_per_sec > 0.0)
            .map(|limit| megabytes_per_sec * 1e6 / limit),
    }
}

/// The middle value, or the mean of the two middle ones.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => None,
        _ if n % 2 == 1 => Some(values[n / 2]),
        _ => Some((values[n / 2 - 1] + values[n / 2]) / 2.0),
    }
}
