//! Descriptions of a volume as JSON, shared by servers and commands.

use std::collections::BTreeMap;
use std::fs;

use cffs::device::JournalStats;
use cffs::format::Superblock;
use cffs::format::superblock::{Damage, Holder, Incompat, JournalArea, Reserve, RoCompat, State};
use cffs::fsck::{Code, FastReport, Phase, Report};
use cffs::journal;
use cffs::vfs::{ClusterPlace, MemoryUse, Placement, Stats, Volume};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[cfg(test)]
mod tests;

/// A superblock: sizes in bytes, times in seconds since 1970.
pub fn superblock(superblock: &Superblock) -> Value {
    let has_seed = superblock.checksum_seed != superblock.uuid;
    let mut features: Vec<&str> = Vec::new();
    for (is_on, name) in [
        (superblock.incompat.contains(Incompat::EMBED), "embed"),
        (superblock.incompat.contains(Incompat::INLINE), "inline"),
        (superblock.incompat.contains(Incompat::PROTECTION), "protection"),
        (superblock.incompat.contains(Incompat::JOURNAL), "journal"),
        (superblock.incompat.contains(Incompat::CLUSTERS), "clusters"),
        (superblock.ro_compat.contains(RoCompat::DIR_INDEX), "dir-index"),
        (superblock.ro_compat.contains(RoCompat::CONTENT_CHECKSUM), "content-checksum"),
        (superblock.ro_compat.contains(RoCompat::MARKS), "marks"),
        (superblock.ro_compat.contains(RoCompat::QUOTAS), "quotas"),
    ] {
        if is_on {
            features.push(name);
        }
    }
    json!({
        "label": String::from_utf8_lossy(&superblock.label),
        "uuid": dashed(&superblock.uuid),
        "checksum_seed": has_seed.then(|| dashed(&superblock.checksum_seed)),
        "state": match superblock.state {
            State::Clean => "clean",
            State::InUse => "in use",
            State::Damaged => "damaged",
        },
        "size_bytes": superblock.blocks * u64::from(superblock.block_bytes),
        "free_bytes": superblock.free_fragments * u64::from(superblock.fragment_bytes),
        "inodes": superblock.inodes,
        "block_bytes": superblock.block_bytes,
        "fragment_bytes": superblock.fragment_bytes,
        "segment_bytes": superblock.segment_bytes,
        "sector_bytes": superblock.sector_bytes,
        "inline_bytes_max": superblock.inline_bytes_max,
        "features": features,
        "policy": superblock.policy.name(),
        "compression": superblock.compression.to_string(),
        "blocks": superblock.blocks,
        "cg_blocks": superblock.cg_blocks,
        "cgs_made": superblock.cgs_made,
        "generation": superblock.generation,
        "epoch": superblock.epoch,
        "made_at": superblock.made_at,
        "mounted_at": superblock.mounted_at,
        "mounts": superblock.mounts,
        "holder": superblock.holder.as_ref().map(holder),
        "errors": superblock.errors_policy,
        "damage_seen": superblock.damage.as_ref().map(damage),
        "reserve": (superblock.reserve != Reserve::default()).then(|| json!({
            "bytes": superblock.reserve.fragments * u64::from(superblock.fragment_bytes),
            "uid": superblock.reserve.uid,
            "gid": superblock.reserve.gid,
        })),
        "journal": (superblock.journal != JournalArea::default()).then(|| json!({
            "start": superblock.journal.start,
            "blocks": superblock.journal.blocks,
            "flags": superblock.journal.flags.bits(),
            "uuid": journal::is_external(superblock).then(|| dashed(&superblock.journal.uuid)),
        })),
        "object_id": (superblock.object_id != [0; 16]).then(|| dashed(&superblock.object_id)),
    })
}

fn holder(holder: &Holder) -> Value {
    json!({
        "name": String::from_utf8_lossy(&holder.name),
        "pid": holder.pid,
        "started": holder.started,
        "host": dashed(&holder.host),
        "boot": dashed(&holder.boot),
        "process_started": holder.process_started,
    })
}

fn damage(damage: &Damage) -> Value {
    json!({
        "code": format!("CF{:04}", damage.code),
        "count": damage.count,
        "first_at": damage.first_at,
        "last_at": damage.last_at,
        "inode": (damage.ino.0 != 0).then_some(damage.ino.0),
    })
}

/// The text form of a UUID.
fn dashed(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// A mounted volume: its superblock, its current use of space, and its server.
pub fn mounted(volume: &Volume, server: &impl Serialize) -> Value {
    let mut shown = superblock(&volume.writer().superblock.get());
    let stat = volume.stat_fs();
    if let Value::Object(fields) = &mut shown {
        let free_bytes = stat.free_fragments * u64::from(stat.fragment_bytes);
        fields.insert(String::from("free_bytes"), free_bytes.into());
        fields.insert(String::from("inodes"), stat.inodes.into());
    }
    json!({
        "server": server,
        "idle_processors": idle_processors(),
        "read_only_because": volume.admin().refusal(),
        "superblock": shown,
    })
}

/// How idle processors of this machine wait, which each call to a mount depends on. `None` if they use
/// the idle states of the hardware, or the kernel does not say.
pub fn idle_processors() -> Option<String> {
    let read = |path| fs::read_to_string(path).ok();
    let driver = read("/sys/devices/system/cpu/cpuidle/current_driver")?;
    let governor = read("/sys/devices/system/cpu/cpuidle/current_governor_ro")?;
    let limit = read("/sys/module/haltpoll/parameters/guest_halt_poll_ns");
    let nanoseconds = limit.and_then(|limit| limit.trim().parse().ok()).unwrap_or(0);
    describe_idle(driver.trim(), governor.trim(), nanoseconds)
}

/// Only the governor `haltpoll` polls, and the kernel asks no governor without a driver.
fn describe_idle(driver: &str, governor: &str, nanoseconds: u64) -> Option<String> {
    match (driver, governor, nanoseconds) {
        ("none", ..) | (_, "haltpoll", 0) => Some(String::from("halt at once")),
        (_, "haltpoll", _) => Some(format!("poll for {} µs, then halt", nanoseconds / 1000)),
        _ => None,
    }
}

/// The memory of the server: of the volume by kind, with limits where they exist, and of the whole process
/// according to the kernel.
fn memory(stats: &Stats, uses: &[MemoryUse]) -> Value {
    let mut shown = serde_json::Map::new();
    let [resident, resident_max] = resident_bytes();
    shown.insert(String::from("resident_bytes"), json!(resident));
    shown.insert(String::from("resident_bytes_most"), json!(resident_max));
    shown.insert(String::from("vnodes"), stats.vnodes.into());
    shown.insert(String::from("dirty_bytes"), stats.dirty_bytes.into());
    for MemoryUse { kind, bytes, bytes_max } in uses {
        let fields = match bytes_max {
            Some(limit) => json!({ "bytes": bytes, "limit_bytes": limit }),
            None => json!({ "bytes": bytes }),
        };
        shown.insert(kind.name().to_owned(), fields);
    }
    if let Some(journal) = &stats.journal {
        let (bytes, most) = (journal.live_bytes, journal.live_bytes_max);
        shown.insert(String::from("journal"), json!({ "bytes": bytes, "bytes_most": most }));
    }
    Value::Object(shown)
}

/// The resident memory of the process, and its peak; none if the kernel does not report them.
fn resident_bytes() -> [Option<u64>; 2] {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ["VmRSS:", "VmHWM:"].map(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
    })
}

/// The counters of a volume since it was opened, derived values, and the kernel's requests.
pub fn stats(stats: &Stats, uses: &[MemoryUse], requests: Value) -> Value {
    let asked = stats.cache_hits + stats.cache_misses;
    let mut shown = json!({
        "requests": requests,
        "calls": {
            "lookups": stats.lookups,
            "creates": stats.creates,
            "removes": stats.removes,
            "renames": stats.renames,
            "reads": stats.reads,
            "writes": stats.writes,
            "dir_reads": stats.dir_reads,
            "syncs": stats.syncs,
        },
        "cache": {
            "hits": stats.cache_hits,
            "misses": stats.cache_misses,
            "hit_percent": percent(stats.cache_hits, asked),
        },
        "device": {
            "reads": stats.device_reads,
            "read_bytes": stats.device_read_bytes,
            "writes": stats.device_writes,
            "written_bytes": stats.device_written_bytes,
            "syncs": stats.device_syncs,
            "discards": stats.device_discards,
            "discarded_bytes": stats.device_discarded_bytes,
        },
        "epochs": {
            "written": stats.epochs,
            "forced": stats.epochs_forced,
            "early_writes": stats.early_writes,
            "checkpoints": stats.checkpoints,
        },
        "memory": memory(stats, uses),
    });
    if let Some(stats) = &stats.journal {
        shown["journal"] = journal(stats);
    }
    shown
}

/// A part as a percentage of the whole; `None` if the whole is zero.
fn percent(part: u64, whole: u64) -> Option<f64> {
    (part * 1000).checked_div(whole).map(|p| p as f64 / 10.0)
}

/// The compression since the volume was opened, and the number of its clusters, if they are counted.
pub fn compression(stats: &Stats, clusters: Option<u64>) -> Value {
    json!({
        "clusters_written": stats.clusters_written,
        "compressed_bytes": stats.compressed_bytes,
        "compressed_to_bytes": stats.compressed_to_bytes,
        "ratio": ratio(stats.compressed_bytes, stats.compressed_to_bytes),
        "clusters": clusters,
    })
}

/// Bytes of contents for each stored byte, with two decimals; `None` without stored bytes.
pub fn ratio(bytes: u64, stored_bytes: u64) -> Option<f64> {
    (stored_bytes > 0).then(|| (bytes as f64 / stored_bytes as f64 * 100.0).round() / 100.0)
}

/// The cost and the savings of the journal. Its memory is listed with the memory.
fn journal(stats: &JournalStats) -> Value {
    let micros = |percent| {
        let duration = stats.commits.percentile(percent);
        duration.map(|duration| duration.as_micros() as u64)
    };
    json!({
        "state": stats.state.name(),
        "records": stats.records,
        "commit_us_p50": micros(50),
        "commit_us_p99": micros(99),
        "written_bytes": stats.written_bytes,
        "flushes": stats.flushes,
        "blocks": stats.images,
        "superseded_blocks": stats.superseded_images,
        "superseded_percent": percent(stats.superseded_images, stats.images),
        "drains": stats.drains,
        "drains_full": stats.drains_full,
        "drains_overlap": stats.drains_overlap,
        "drained_bytes": stats.drained_bytes,
        "drain_us": stats.drain_time.as_micros() as u64,
        "stalled_us": stats.stalled.as_micros() as u64,
        "failures": stats.failures,
    })
}

/// The limit of neighbours listed; more are only counted, so that the answer stays short.
const NEIGHBOURS_SHOWN_MAX: usize = 100;
/// The limit of pieces listed, and of segments; more are only counted.
const PIECES_SHOWN_MAX: usize = 400;

/// The placement of a file; blocks, fragments and segments are counted from the start of the volume.
pub fn placement(placement: &Placement) -> Value {
    let pieces: Vec<Value> = placement
        .pieces
        .iter()
        .take(PIECES_SHOWN_MAX)
        .map(|piece| {
            json!({
                "offset_bytes": piece.offset,
                "fragment": piece.run.start.0,
                "fragments": piece.run.len,
                "unwritten": piece.unwritten,
                "in_cluster": piece.in_cluster,
            })
        })
        .collect();
    let segments = &placement.segments[..placement.segments.len().min(PIECES_SHOWN_MAX)];
    let neighbours: Vec<u64> =
        placement.shares_with.iter().take(NEIGHBOURS_SHOWN_MAX).map(|ino| ino.0).collect();
    let mut shown = json!({
        "inode": placement.ino.0,
        "inode_in": placement.container.map(|c| format!("{}:{}", c.file, c.sector)),
        "inode_block": placement.container_block.map(|block| block.0),
        "contents_in_inode": placement.inline,
        "pieces": placement.pieces.len(),
        "bytes_in_memory_only": placement.unplaced_bytes,
        "segment_count": placement.segments.len(),
        "segments": segments,
        "files_in_the_same_segments": placement.shares_with.len(),
        "cold_requests": placement.cold_requests,
        "neighbours": neighbours,
        "contents": pieces,
    });
    if !placement.clusters.is_empty() {
        shown["clusters"] = clusters(&placement.clusters);
    }
    shown
}

/// The clusters with contents of a file.
fn clusters(clusters: &[ClusterPlace]) -> Value {
    let written = || clusters.iter().filter(|cluster| cluster.expanded_bytes.is_some());
    let expanded_bytes = written().filter_map(|cluster| cluster.expanded_bytes).sum();
    let stored_bytes = written().map(|cluster| cluster.stored_bytes).sum();
    json!({
        "count": clusters.len(),
        "parts_of_other_files": clusters.iter().map(|one| one.other_parts).sum::<u64>(),
        "expanded_bytes": expanded_bytes,
        "stored_bytes": stored_bytes,
        "ratio": ratio(expanded_bytes, stored_bytes),
    })
}

/// The task of a check's pass, and the unit of its progress.
pub fn phase(phase: Phase) -> (&'static str, &'static str) {
    match phase {
        Phase::Walk => ("pass 1: names and inodes", "inodes"),
        Phase::Contents => ("contents of small files", "files"),
        Phase::Search => ("search for lost directories", "cylinder groups"),
        Phase::Links => ("pass 2: link counts", "inodes"),
        Phase::Locator => ("pass 3: locator table", "blocks"),
        Phase::Bitmaps => ("pass 4: free space", "cylinder groups"),
    }
}

/// The report of a check, in the form that commands print.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckReport {
    pub problem_count: u64,
    pub problems: Vec<CheckProblem>,
    /// Differences that a crash explains, which were or would be corrected: their number by code.
    pub recovered: BTreeMap<String, u64>,
    /// The volume was clean and not checked.
    pub skipped: bool,
    /// The volume was not left clean.
    pub recovery: bool,
    /// Whether a crash explains the recovery; otherwise damage does.
    #[serde(default)]
    pub crashed: bool,
    /// Losses caused by the damage or by its repair.
    #[serde(default)]
    pub losses: Vec<CheckLoss>,
    /// The number of losses of each kind.
    #[serde(default)]
    pub loss_counts: BTreeMap<String, u64>,
    /// Damage found while the volume was in use, in words.
    #[serde(default)]
    pub damage_seen: Option<String>,
    /// The extent of a check that only had to examine the entries of the intent log.
    #[serde(default)]
    pub fast: Option<FastReport>,
    /// Why the intent log was not enough, so that everything was examined.
    #[serde(default)]
    pub full_because: Option<String>,
    /// Whether anything was written.
    pub changed: bool,
    /// Whether the volume is consistent now, or would be after a repair.
    pub consistent: bool,
    /// Inodes in use.
    pub inodes: u64,
    pub directories: u64,
    /// Names in all directories.
    pub names: u64,
    pub used_fragments: u64,
    pub free_fragments: u64,
    pub fragment_bytes: u32,
    /// The number of passes over the volume.
    pub rounds: u32,
    pub read_requests: u64,
    pub read_bytes: u64,
    /// Sectors that could not be read.
    pub unreadable_sectors: u64,
    pub write_requests: u64,
    pub write_bytes: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckProblem {
    /// Its stable code.
    pub code: String,
    /// Its kind, in a few words.
    #[serde(default)]
    pub title: String,
    pub place: String,
    pub message: String,
    pub fixed: bool,
    /// Whether a repair can help.
    #[serde(default)]
    pub repairable: bool,
}

impl CheckProblem {
    /// Whether the problem is of this kind.
    pub fn is(&self, code: Code) -> bool {
        self.code == code.id()
    }
}

/// A loss of a file, caused by damage.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckLoss {
    /// The loss, in words.
    pub what: String,
    /// Its path, with U+FFFD for bytes that are not UTF-8. For a file whose name is lost, its directory's
    /// path with a final slash; empty if that is unknown too.
    pub path: String,
    pub inode: u64,
}

impl CheckReport {
    /// Converts the report to this form.
    pub fn new(report: &Report) -> CheckReport {
        let problem = |problem: &cffs::fsck::Problem| CheckProblem {
            code: problem.code.id().to_owned(),
            title: problem.code.describe().title.to_owned(),
            place: problem.place.to_string(),
            message: problem.message.clone(),
            fixed: problem.fixed,
            repairable: !problem.code.is_final(),
        };
        let loss = |loss: &cffs::fsck::Loss| CheckLoss {
            what: loss.kind.to_string(),
            path: String::from_utf8_lossy(&loss.path).into_owned(),
            inode: loss.ino.0,
        };
        CheckReport {
            problem_count: report.problems.len() as u64,
            problems: report.problems.iter().map(problem).collect(),
            recovered: (report.recovered.iter())
                .map(|(code, count)| (code.id().to_owned(), *count))
                .collect(),
            skipped: report.skipped,
            recovery: report.recovery,
            crashed: report.crashed,
            losses: report.losses.iter().map(loss).collect(),
            loss_counts: report.losses.iter().fold(BTreeMap::new(), |mut counts, loss| {
                *counts.entry(loss.kind.to_string()).or_default() += 1;
                counts
            }),
            damage_seen: report.damage_seen.map(|damage| damage.to_string()),
            fast: report.fast,
            full_because: report.full_because.clone(),
            changed: report.changed,
            consistent: report.consistent,
            inodes: report.inodes,
            directories: report.directories,
            names: report.names,
            used_fragments: report.used_fragments,
            free_fragments: report.free_fragments,
            fragment_bytes: report.fragment_bytes,
            rounds: report.rounds,
            read_requests: report.read_requests,
            read_bytes: report.read_bytes,
            unreadable_sectors: report.unreadable_sectors,
            write_requests: report.write_requests,
            write_bytes: report.write_bytes,
        }
    }
}
