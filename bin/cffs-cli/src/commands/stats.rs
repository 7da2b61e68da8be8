//! `cffs stats`: the counters of a volume that is mounted or served.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use cffs_serve::served::control::{self, Question};
use clap::Args;
use serde_json::{Value, json};

use crate::names;
use crate::output::{self, say};

mod columns;
mod prices;
mod prometheus;

use prices::Prices;
pub use prometheus::render;

/// Show the counters of a mounted or served volume: requests, bytes, hit rates
#[derive(Debug, Args)]
#[command(after_help = "\
The memory of the server is shown by kind, with the limit that follows from the mount options:
  blocks                 cached data: cache=SIZE
  inodes, attributes, extents
                         metadata of files: together a quarter of cache=SIZE, and twice dirty=SIZE
                         for files that have changed or are being written
  pages, in flight       changed data, and data being written: dirty=SIZE, twice that
  names                  recently found names
  references             inodes that the kernel remembers: a few bytes each
  bitmaps                free space of the cylinder groups that were read
  intent log             the list of changes for a recovery
  journal                blocks in the journal that are not yet at their places, 32 MiB at most

For a volume with a journal (mkfs --journal):
  state                  on; off with -o journal=off, or if it could not be written and the volume
                         continues without it; failed if a flush failed: then nothing is written
  records, flushes       a record makes changes durable, with one write and one flush
  commit_us_p50, _p99    the time within which half of the records, and 99 in a hundred, were
                         durable, in microseconds; at most a quarter too high
  superseded_percent     the share of blocks that a newer record superseded, so that they were
                         written to their places once for several records
  drains                 how often its blocks were written to their places: because it was full,
                         because of a write that bypassed it (overlap), or at a checkpoint
  drain_us               the total time of these, in microseconds
  stalled_us             how long writers waited for the first two kinds, in microseconds

For a volume with compressed contents (mkfs --compress):
  clusters_written, compressed
                         clusters written since the mount, and the contents in them
  compressed_to, ratio   the space that these take, and the bytes of contents per byte of it
  clusters               clusters on the volume; unknown until the headers of all groups are
                         read, of which each call reads at most 128

Calls of NFS clients are counted under nfs, by procedure.

Requests to the object store of the volume are counted under store, since the mount, as a store
charges for them: each try, and each page of a listing. cache_hits and cache_misses count chunks, up
to 256 KiB each, that a cache on a local disk had or did not have (cffs mount --cache);
cache_read_bytes and cache_written_bytes count bytes read from it and added to it. usd is the price
of the requests. The file of prices has dollars per 1,000 requests of a kind, and per 10^9 bytes;
missing prices are those of Amazon S3 Standard in us-east-1, within the region, from public pages of
November 2026 (Amazon's price list is authoritative):
  {\"puts\": 0.005, \"gets\": 0.0004, \"heads\": 0.0004, \"lists\": 0.005, \"deletes\": 0,
   \"sent_gb\": 0, \"received_gb\": 0}

While a request that a sync needs is retried, outage_seconds is the time since the first failure,
and outage the last one.

Syncs that wait on a local disk until they are in the store (cffs mount --staging) are shown under
staging, with their present number (one record per sync) and bytes. If these do not fall to 0
although no sync is pending, the records cannot be sent, and the log gives the reason.

Examples:
  cffs stats mnt
  cffs stats tree.cffs            an image that is served without a mount
  cffs stats --watch mnt          a line per second
  cffs stats --json mnt | jq .
For Prometheus, from cron, where its node exporter collects text files:
  cd /var/lib/prometheus/node-exporter && cffs stats --prometheus /srv/tree > tree.new
  mv tree.new tree.prom")]
pub struct Stats {
    /// A mounted volume, by its image, its device, its URL, or any file on it; or one that cffs serve serves,
    /// by its image or its URL.
    #[arg(value_name = "IMAGE|DEVICE|URL|DIR")]
    path: PathBuf,
    /// Print JSON; with --watch, one object per line.
    #[arg(long)]
    json: bool,
    /// Print metrics in the text format of Prometheus.
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    prometheus: bool,
    /// A file of prices of requests to an object store, instead of those of Amazon S3.
    #[arg(long, value_name = "FILE", conflicts_with = "prometheus")]
    prices: Option<PathBuf>,
    /// Print a line at this interval (default 1): calls, requests and bytes per second, the share of cache
    /// hits, and the size of unwritten changes. With --json, print the increase of each counter.
    #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, require_equals = true,
          default_missing_value = "1", value_parser = clap::value_parser!(u64).range(1..))]
    watch: Option<u64>,
}

impl Stats {
    /// Prints the counters, once or repeatedly.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let prices = self.prices.as_deref().map_or_else(|| Ok(Prices::default()), Prices::read)?;
        if self.prometheus {
            let mut stats = self.ask(Question::Stats)?;
            // Only the server of a mount lists quotas.
            if let Ok(quotas) = control::quotas(&names::to_ask(&self.path)?) {
                stats["quotas"] = json!(quotas);
            }
            let metrics = render(&stats, &self.ask(Question::Info)?);
            let mut out = output::stdout();
            out.write_all(metrics.as_bytes())?;
            out.flush()?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut last = self.ask(Question::Stats)?;
        let Some(seconds) = self.watch else {
            prices.add_to(&mut last);
            match self.json {
                true => output::json(&last)?,
                false => output::key_values(&last)?,
            }
            return Ok(ExitCode::SUCCESS);
        };
        let mut taken = Instant::now();
        for row in 0_u64.. {
            std::thread::sleep(Duration::from_secs(seconds));
            let next = self.ask(Question::Stats)?;
            let now = Instant::now();
            let mut rise = rise(&last, &next);
            prices.add_to(&mut rise);
            if self.json {
                say!("{rise}")?;
            } else {
                if row % columns::HEADER_EVERY == 0 {
                    say!("{}", columns::header(&next))?;
                }
                say!("{}", columns::row(&rise, &next, now - taken))?;
            }
            (last, taken) = (next, now);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn ask(&self, question: Question) -> anyhow::Result<Value> {
        let asked = names::to_ask(&self.path)?;
        control::ask(&asked, question).with_context(|| self.path.display().to_string())
    }
}

/// Figures over the whole time since the mount, and current states: their rise is meaningless.
const LASTING: [&str; 4] = ["commit_us_p50", "commit_us_p99", "outage_seconds", "staging"];

/// The same structure with the rise of each number.
fn rise(from: &Value, to: &Value) -> Value {
    match (from, to) {
        (Value::Object(from), Value::Object(to)) => to
            .iter()
            .map(|(key, to)| {
                let from = from.get(key).filter(|_| !LASTING.contains(&&**key));
                (key.clone(), rise(from.unwrap_or(&Value::Null), to))
            })
            .collect(),
        (from, to) => match (from.as_u64(), to.as_u64()) {
            (Some(from), Some(to)) => Value::from(to.saturating_sub(from)),
            _ => to.clone(),
        },
    }
}

#[cfg(test)]
mod tests;
