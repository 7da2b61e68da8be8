//! What operations cost, summed up while a trace is read: of each operation nothing is kept.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::time::Duration;

use cffs::device::RequestKind;
use cffs::trace::record::Record;
use cffs::trace::{OpKind, WHOLE, Way};
use comfy_table::Row;
use serde_json::{Value, json};

use super::{By, Source};
use crate::output::{self, note};
use crate::size;

/// More processes than this are one.
const PROCESSES_MAX: usize = 4096;
/// Of a longer name than any that a kernel has, no more is kept.
const NAME_BYTES_MAX: usize = 64;
/// The number of those that have no row of their own.
const OTHERS: u32 = u32::MAX;

/// What requests of a kind cost, in parts of [`WHOLE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    parts: u64,
    byte_parts: u128,
    nanosecond_parts: u128,
}

impl Cost {
    fn add(&mut self, other: Cost) {
        self.parts += other.parts;
        self.byte_parts += other.byte_parts;
        self.nanosecond_parts += other.nanosecond_parts;
    }

    pub(super) fn requests(&self) -> f64 {
        self.parts as f64 / f64::from(WHOLE)
    }

    fn bytes(&self) -> u64 {
        (self.byte_parts / u128::from(WHOLE)) as u64
    }

    fn time(&self) -> Duration {
        Duration::from_nanos((self.nanosecond_parts / u128::from(WHOLE)) as u64)
    }
}

/// The requests of an operation's kind and process, by way and kind.
type Costs = BTreeMap<(Way, Kind), Cost>;

/// A kind of request, in the order in which it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Read,
    Write,
    Flush,
    Discard,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Read, Kind::Write, Kind::Flush, Kind::Discard];

    fn of(kind: RequestKind) -> Kind {
        match kind {
            RequestKind::Read => Kind::Read,
            RequestKind::Write => Kind::Write,
            RequestKind::Barrier | RequestKind::Sync => Kind::Flush,
            RequestKind::Discard => Kind::Discard,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Read => "reads",
            Kind::Write => "writes",
            Kind::Flush => "flushes",
            Kind::Discard => "discards",
        }
    }
}

/// A trace, summed up.
#[derive(Debug, Default)]
pub(super) struct Summary {
    /// By process and kind of operation.
    costs: BTreeMap<(u32, OpKind), Costs>,
    /// Operations that were recorded one by one.
    recorded: BTreeMap<(u32, OpKind), u64>,
    /// All operations.
    counts: BTreeMap<OpKind, u64>,
    names: HashMap<u32, String>,
    /// The requests of the device that succeeded.
    pub(super) requests: BTreeMap<Kind, u64>,
    failed: u64,
    lost: u64,
}

impl Summary {
    /// Reads a trace to its end.
    pub(super) fn of<R: Read>(source: &mut Source<R>) -> anyhow::Result<Summary> {
        let mut summary = Summary::default();
        while let Some(record) = source.next()? {
            summary.add(record);
        }
        if summary.lost > 0 {
            note!(
                "cffs: {}: {} found no room when they were recorded: the sums are short of them",
                source.name,
                output::counted(summary.lost, "record")
            );
        }
        Ok(summary)
    }

    fn add(&mut self, record: Record) {
        match record {
            Record::Operation { id, .. } => {
                let process = self.process(id.process());
                *self.recorded.entry((process, id.kind())).or_default() += 1;
            }
            Record::Request { succeeded: false, .. } => self.failed += 1,
            Record::Request { kind, way, len_bytes, duration_ns, shares, .. } => {
                let kind = Kind::of(kind);
                *self.requests.entry(kind).or_default() += 1;
                for share in shares {
                    let process = self.process(share.op.process());
                    let part = u128::from(share.part);
                    let costs = self.costs.entry((process, share.op.kind())).or_default();
                    costs.entry((way, kind)).or_default().add(Cost {
                        parts: u64::from(share.part),
                        byte_parts: u128::from(len_bytes) * part,
                        nanosecond_parts: u128::from(duration_ns) * part,
                    });
                }
            }
            Record::Counts(counts) => {
                for (kind, count) in counts {
                    let sum = self.counts.entry(kind).or_default();
                    *sum = sum.saturating_add(count);
                }
            }
            Record::Lost(lost) => self.lost = self.lost.saturating_add(lost),
            Record::Process { process, mut name } => {
                if self.names.len() < PROCESSES_MAX {
                    name.truncate(NAME_BYTES_MAX);
                    self.names.insert(process, output::printable(&name));
                }
            }
        }
    }

    /// The process under which one is counted.
    fn process(&self, process: u32) -> u32 {
        let has = |process| {
            let range = (process, OpKind::Volume)..=(process, OpKind::Maintenance);
            self.costs.range(range.clone()).next().is_some()
                || self.recorded.range(range).next().is_some()
        };
        let rows = self.costs.len() + self.recorded.len();
        if rows < PROCESSES_MAX || has(process) { process } else { OTHERS }
    }

    /// How many rows are kept.
    #[cfg(test)]
    pub(super) fn rows(&self) -> usize {
        self.costs.len() + self.recorded.len() + self.names.len()
    }

    fn name_of(&self, process: u32) -> String {
        match (process, self.names.get(&process)) {
            (0, _) => String::from("(volume)"),
            (OTHERS, _) => String::from("(others)"),
            (_, Some(name)) => name.clone(),
            (number, None) => format!("process {number}"),
        }
    }

    /// Each row: its name, its operations, and what they cost.
    pub(super) fn rows_by(&self, by: By) -> BTreeMap<String, (u64, Costs)> {
        let mut rows: BTreeMap<String, (u64, Costs)> = BTreeMap::new();
        let name = |process, kind: OpKind| match by {
            By::Process => self.name_of(process),
            _ => kind.name().to_owned(),
        };
        if by == By::Operation && !self.counts.is_empty() {
            for (kind, count) in &self.counts {
                rows.entry(kind.name().to_owned()).or_default().0 += count;
            }
        } else if by != By::Way {
            for ((process, kind), count) in &self.recorded {
                rows.entry(name(*process, *kind)).or_default().0 += count;
            }
        }
        for ((process, op), costs) in &self.costs {
            for ((way, kind), cost) in costs {
                let name = if by == By::Way { way.name().to_owned() } else { name(*process, *op) };
                rows.entry(name).or_default().1.entry((*way, *kind)).or_default().add(*cost);
            }
        }
        rows
    }

    pub(super) fn print_table(&self, by: By) -> anyhow::Result<()> {
        let mut rows: Vec<_> = self.rows_by(by).into_iter().collect();
        rows.sort_by_key(|(_, (_, costs))| std::cmp::Reverse(total(costs).nanosecond_parts));
        let first = match by {
            By::Operation => "operation",
            By::Process => "process",
            By::Way => "way",
        };
        let mut table = output::table();
        let heads = ["count", "reads", "writes", "flushes", "discards", "read", "written", "time"];
        table.set_header(std::iter::once(first).chain(heads));
        let mut all: Costs = Costs::new();
        for (name, (count, costs)) in rows {
            table.add_row(row(name, (by != By::Way).then_some(count), &costs));
            costs.into_iter().for_each(|(at, cost)| all.entry(at).or_default().add(cost));
        }
        table.add_row(row(String::from("sum"), None, &all));
        output::print(&mut table, 1)?;
        if self.failed > 0 {
            note!(
                "cffs: {} failed, and counts for nothing",
                output::counted(self.failed, "request")
            );
        }
        Ok(())
    }

    pub(super) fn print_json(&self, by: By) -> anyhow::Result<()> {
        let rows: serde_json::Map<String, Value> = self
            .rows_by(by)
            .into_iter()
            .map(|(name, (count, costs))| {
                let mut value = json!({ "operations": count });
                for kind in Kind::ALL {
                    value[kind.name()] = json!(of_kind(&costs, kind).requests());
                }
                value["read_bytes"] = json!(of_kind(&costs, Kind::Read).bytes());
                value["written_bytes"] = json!(of_kind(&costs, Kind::Write).bytes());
                value["device_seconds"] = json!(total(&costs).time().as_secs_f64());
                (name, value)
            })
            .collect();
        let requests: serde_json::Map<String, Value> = Kind::ALL
            .into_iter()
            .map(|kind| {
                (kind.name().to_owned(), json!(self.requests.get(&kind).copied().unwrap_or(0)))
            })
            .collect();
        output::json(&json!({
            "rows": rows,
            "device": requests,
            "failed_requests": self.failed,
            "lost_records": self.lost,
        }))
    }

    /// By process name, then operation, then way and kind of request.
    fn tree(&self) -> BTreeMap<String, BTreeMap<OpKind, (u64, Costs)>> {
        let mut tree: BTreeMap<String, BTreeMap<OpKind, (u64, Costs)>> = BTreeMap::new();
        for ((process, kind), count) in &self.recorded {
            let of = tree.entry(self.name_of(*process)).or_default();
            of.entry(*kind).or_default().0 += count;
        }
        for ((process, kind), costs) in &self.costs {
            let of = tree.entry(self.name_of(*process)).or_default().entry(*kind).or_default();
            costs.iter().for_each(|(at, cost)| of.1.entry(*at).or_default().add(*cost));
        }
        tree
    }

    pub(super) fn print_tree(&self) -> anyhow::Result<()> {
        let mut out = output::stdout();
        for (process, operations) in self.tree() {
            writeln!(out, "{process}")?;
            for (kind, (count, costs)) in operations {
                let recorded =
                    if count > 0 { format!("  {count} recorded") } else { String::new() };
                writeln!(out, "  {}{recorded}", kind.name())?;
                for ((way, kind), cost) in costs {
                    writeln!(
                        out,
                        "    {:10}  {:>10.1} {:8}  {:>10}  {:>9.1} ms",
                        way.name(),
                        cost.requests(),
                        kind.name(),
                        size::show(cost.bytes()),
                        cost.time().as_secs_f64() * 1e3
                    )?;
                }
            }
        }
        Ok(out.flush()?)
    }

    pub(super) fn print_dot(&self) -> anyhow::Result<()> {
        let mut out = output::stdout();
        writeln!(out, "digraph trace {{\n  rankdir=LR;\n  node [shape=box];")?;
        for (process, operations) in self.tree() {
            for (kind, (count, costs)) in operations {
                let op = format!("{process}: {}", kind.name());
                writeln!(out, "  {process:?} -> {op:?} [label=\"{count}\"];")?;
                for ((way, kind), cost) in costs {
                    let request = format!("{} {}", way.name(), kind.name());
                    let requests = cost.requests();
                    writeln!(out, "  {op:?} -> {request:?} [label=\"{requests:.1}\"];")?;
                }
            }
        }
        writeln!(out, "}}")?;
        Ok(out.flush()?)
    }
}

fn row(name: String, count: Option<u64>, costs: &Costs) -> Row {
    let requests = Kind::ALL.map(|kind| match of_kind(costs, kind).requests() {
        0.0 => String::new(),
        requests => format!("{requests:.1}"),
    });
    let bytes = [Kind::Read, Kind::Write].map(|kind| match of_kind(costs, kind).bytes() {
        0 => String::new(),
        bytes => size::show(bytes),
    });
    let count = count.map(|count| count.to_string()).unwrap_or_default();
    let time = format!("{:.1} ms", total(costs).time().as_secs_f64() * 1e3);
    Row::from([name, count].into_iter().chain(requests).chain(bytes).chain([time]))
}

fn total(costs: &Costs) -> Cost {
    let mut sum = Cost::default();
    costs.values().for_each(|cost| sum.add(*cost));
    sum
}

pub(super) fn of_kind(costs: &Costs, of: Kind) -> Cost {
    let mut sum = Cost::default();
    costs.iter().filter(|((_, kind), _)| *kind == of).for_each(|(_, cost)| sum.add(*cost));
    sum
}
