//! The cost of recovery by the load before the crash and by the time between checkpoints.

use anyhow::Result;

use super::{Plan, Table};
use crate::disk::{Nanos, Profile};
use crate::library::load::{Load, Served};
use crate::report::table::figure;

/// Seconds between checkpoints, and the largest share of the time that they take in percent. The first is
/// the default of a mount, and of the paper.
const CHECKPOINTS: [(u64, u64); 4] = [(30, 10), (5, 10), (1, 10), (1, 40)];

/// Bytes of a journal, as `mkfs` makes it for a disk of this size.
const JOURNAL_BYTES: u64 = 16 << 20;

/// Calls per second that the clients ask for.
const LOADS: [u64; 5] = [25, 100, 400, 1600, 6400];
/// The loads for which the time between checkpoints is varied.
const VARIED: [u64; 3] = [100, 400, 1600];

/// Recovery and response by load, up to saturation and beyond; and by the time between checkpoints: figures
/// 7, 8 and 9.
pub fn under_load(plan: &Plan) -> Result<Vec<Table>> {
    let [journal, asked, answered, median, most] =
        ["journal", "calls/s asked", "answered", "median ms", "99% ms"];
    let [requests, read, seconds] = ["recovery: requests", "MB read", "s"];
    let full = "full check: s";
    let header = [journal, asked, answered, median, most, requests, read, seconds, full];
    let mut by_load = Table::new(header, 1);
    let [every, points] = ["checkpoints", "made"];
    let header = [journal, asked, every, points, answered, median, most, requests, seconds];
    let mut by_interval = Table::new(header, 3);
    let loads = if plan.quick { &VARIED[1..2] } else { &LOADS[..] };
    for (journal, journal_bytes) in [("no", 0), ("yes", JOURNAL_BYTES)] {
        for load in loads {
            let is_varied = VARIED.contains(load);
            for (every, share) in &CHECKPOINTS[..if is_varied { CHECKPOINTS.len() } else { 1 }] {
                let served = crashed(plan, journal_bytes, *load, (*every, *share))?;
                let [answered, median, most] = responses(&served);
                let requests = served.recovery.requests.requests().to_string();
                let seconds = figure(served.recovery.time.as_secs());
                let [journal, asked] = [journal.to_owned(), load.to_string()];
                if (*every, *share) == CHECKPOINTS[0] {
                    let read = figure(served.recovery.requests.read_bytes as f64 / 1e6);
                    let full = figure(served.full_check.time.as_secs());
                    let row = [&journal, &asked, &answered, &median, &most, &requests, &read];
                    by_load.rows.push(row.into_iter().chain([&seconds, &full]).cloned().collect());
                }
                if is_varied {
                    let every = format!("every {every} s, {share}%");
                    let made = served.checkpoints.to_string();
                    let row = [journal, asked, every, made, answered, median, most, requests];
                    by_interval.rows.push(row.into_iter().chain([seconds]).collect());
                }
            }
        }
    }
    Ok(vec![by_load.grouped(), by_interval.grouped()])
}

/// A server of 16 clients that crashes in the middle between two checkpoints 30 s apart.
fn crashed(
    plan: &Plan,
    journal_bytes: u64,
    calls_per_sec: u64,
    (every, share): (u64, u64),
) -> Result<Served> {
    let seconds = |seconds: u64| Nanos::from_ms(seconds as f64 * 1e3);
    let mut library = plan.library(Profile::Hdd7200, plan.pick(1 << 30, 256 << 20));
    library.journal_bytes = journal_bytes;
    let load = Load {
        files: plan.pick(5_000, 400),
        clients: 16,
        calls_per_sec,
        time: seconds(plan.pick(45, 3)),
        clean_every: seconds(every),
        clean_share_percent: share,
    };
    load.crash(&library)
}

/// The rate of answers, and the times of half and of 99% of them.
fn responses(served: &Served) -> [String; 3] {
    let ms = |share| figure(served.response(share).as_ms());
    [figure(served.calls_per_sec), ms(0.5), ms(0.99)]
}
