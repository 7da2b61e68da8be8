//! The printed report of a check: each finding with its location, its consequences, and the remedy. Equal
//! findings share a line, and consecutive numbers a range.

use std::collections::BTreeMap;

use cffs::fsck::Code;
use cffs_serve::describe::{CheckLoss, CheckProblem, CheckReport};

use crate::output::{self, counted, say};
use crate::size;

#[cfg(test)]
mod tests;

/// The maximum number of lines printed about problems, and about losses; the others are only counted.
const LINES_MAX: usize = 1000;

pub(super) struct Printed<'a> {
    /// The name of the volume, as the caller gave it.
    pub name: &'a str,
    /// Whether the volume's server made the report.
    pub online: bool,
    /// Whether the volume is in an object store.
    pub in_store: bool,
    /// The options that a repair needs in addition to -y, each after a space.
    pub options: String,
    pub report: &'a CheckReport,
}

/// Whether a check found this problem and has not repaired it.
pub(super) fn is_left(report: &CheckReport, code: Code) -> bool {
    report.problems.iter().any(|problem| !problem.fixed && problem.is(code))
}

impl Printed<'_> {
    pub fn print(&self) -> anyhow::Result<()> {
        let (name, report) = (self.name, self.report);
        if let Some(damage) = &report.damage_seen {
            say!("{name}: {damage}: everything is checked")?;
        }
        if report.problem_count > 0 {
            say!("{name}: {}", summary(report))?;
        }
        self.print_lines(&problems(&report.problems))?;
        self.print_rest()?;
        if report.skipped {
            return say!("{name}: clean, not checked (-f checks it)");
        }
        if let Some(fast) = &report.fast {
            return say!(
                "{name}: recovered from the intent log: {}, {}; {}, {} read",
                counted(fast.directories, "directory"),
                counted(fast.groups, "cylinder group"),
                counted(report.read_requests, "request"),
                size::show(report.read_bytes)
            );
        }
        if let Some(why) = &report.full_because {
            say!("{name}: everything was checked: {why}")?;
        }
        self.print_counts()?;
        self.print_lines(&losses(&report.losses))?;
        let counts = loss_counts(report);
        if !counts.is_empty() {
            let when = if report.changed { "" } else { "with a repair: " };
            say!("{name}: {when}{}", counts.join(", "))?;
        }
        self.print_verdict()?;
        if self.may_salvage() {
            let name = self.name;
            say!(
                "{name}: directories may be missing that only a search of the whole device finds; to list \
                 them: cffs fsck --salvage -n {name}; with -y, it restores them"
            )?;
        }
        Ok(())
    }

    /// Whether a salvage may find directories that this check did not: their inodes are lost, and so are
    /// blocks of the locator table, which lists the lost inodes.
    fn may_salvage(&self) -> bool {
        let has = |code: Code| {
            self.report.recovered.contains_key(code.id())
                || self.report.problems.iter().any(|problem| problem.is(code))
        };
        let lost = [Code::SystemArea, Code::SystemInode, Code::SectorLost, Code::TableSectorLost];
        let has_lost = lost.into_iter().any(has) && has(Code::LocatorBlock);
        has_lost && !self.online && !self.options.contains("--salvage")
    }

    fn print_lines(&self, lines: &[String]) -> anyhow::Result<()> {
        for line in lines.iter().take(LINES_MAX) {
            say!("{}: {line}", self.name)?;
        }
        match lines.len().saturating_sub(LINES_MAX) {
            0 => Ok(()),
            more => say!("{}: and {more} more like these; --json lists all", self.name),
        }
    }

    /// Prints how many problems are not listed: those above the limit, and those that a crash explains.
    fn print_rest(&self) -> anyhow::Result<()> {
        let (name, report) = (self.name, self.report);
        let shown = report.problems.len() as u64;
        if report.problem_count > shown {
            say!("{name}: and {} more, in the log", report.problem_count - shown)?;
        }
        for (code, count) in &report.recovered {
            let why = match (self.online, report.crashed) {
                (true, _) => "explained by files in use",
                (false, true) => "recovered after a crash",
                (false, false) => "follows from the above",
            };
            say!("{name}: {why}: {code} ({count})")?;
        }
        Ok(())
    }

    /// Prints the volume's size and the amount read by the check.
    fn print_counts(&self) -> anyhow::Result<()> {
        let (name, report) = (self.name, self.report);
        let bytes = |fragments: u64| size::show(fragments * u64::from(report.fragment_bytes));
        say!(
            "{name}: {}, {}, {} of {} in use; {}, {} read",
            counted(report.inodes, "inode"),
            counted(report.directories, "directory"),
            bytes(report.used_fragments),
            bytes(report.used_fragments + report.free_fragments),
            counted(report.read_requests, "request"),
            size::show(report.read_bytes)
        )?;
        if report.unreadable_sectors > 0 {
            say!("{name}: {}", unreadable(self.in_store, report.unreadable_sectors))?;
        }
        Ok(())
    }

    /// Prints the volume's state and the next step.
    fn print_verdict(&self) -> anyhow::Result<()> {
        let (name, report) = (self.name, self.report);
        let left = report.problems.iter().filter(|problem| !problem.fixed).count();
        let is_hopeless = report.problems.iter().any(|p| !p.fixed && !p.repairable);
        let all = counted(report.problem_count, "problem");
        let them = if left == 1 { "it" } else { "them" };
        match (report.problem_count, left) {
            (0, _) if report.unreadable_sectors > 0 => {
                say!("{name}: no other problem was found")
            }
            (0, _) if report.consistent || self.online => say!("{name}: clean"),
            (0, _) => say!("{name}: was not left clean; cffs fsck -p {name} completes it"),
            (_, 0) => say!("{name}: {all}, repaired"),
            _ if self.online => {
                say!("{name}: {all}; unmount it, and cffs fsck -y repairs {them}")
            }
            _ if is_left(report, Code::ContentsLost) => say!(
                "{name}: {all}, {left} not repaired; cffs fsck -y --without-objects {name} repairs what it \
                 can; then remove the files that lost contents, or write these again"
            ),
            _ if is_hopeless => {
                say!("{name}: {all}, {left} not repaired, and no repair helps; {}", self.way_out())
            }
            _ => {
                let options = &self.options;
                say!(
                    "{name}: {all}, {left} not repaired; cffs fsck -y{options} {name} repairs {them}"
                )
            }
        }
    }

    /// The remedy if a repair does not help.
    fn way_out(&self) -> String {
        let name = self.name;
        match self.report.problems.iter().any(|problem| problem.is(Code::DeviceTooSmall)) {
            true => format!(
                "copy the whole volume again; if no complete copy exists, extend it to that size with \
                 truncate(1) or a larger device; cffs fsck -y {name} then recovers what is left"
            ),
            false => String::from(
                "mount it read-only, or run cffs export, to copy what can be read, and make a new \
                 volume",
            ),
        }
    }
}

/// The message about sectors that cannot be read. Those of a volume in an object store are in objects that
/// are missing or damaged; no device fails.
fn unreadable(in_store: bool, sectors: u64) -> String {
    let sectors = counted(sectors, "sector");
    match in_store {
        true => format!("{sectors} cannot be read from the store"),
        false => {
            format!("{sectors} of the device cannot be read; copy what you need to another device")
        }
    }
}

/// The problems by kind, and their losses.
fn summary(report: &CheckReport) -> String {
    let mut kinds: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for CheckProblem { code, title, .. } in &report.problems {
        *kinds.entry((code, title)).or_default() += 1;
    }
    let kinds = kinds.iter().map(|((code, title), count)| match title.is_empty() {
        true => format!("{code} ({count})"),
        false => format!("{code} {title} ({count})"),
    });
    let mut parts = vec![kinds.collect::<Vec<_>>().join(", ")];
    let losses = loss_counts(report);
    if !losses.is_empty() {
        parts.push(losses.join(", "));
    }
    format!("{}: {}", counted(report.problem_count, "problem"), parts.join("; "))
}

fn loss_counts(report: &CheckReport) -> Vec<String> {
    report.loss_counts.iter().map(|(what, count)| loss_count(what, *count)).collect()
}

/// A number of files with a loss, which is in the words of a [`CheckLoss`].
fn loss_count(what: &str, count: u64) -> String {
    let files = counted(count, "file");
    match what.split_once(' ') {
        Some((part @ ("contents" | "attributes"), lost)) => format!("{part} of {files} {lost}"),
        _ => format!("{files} {what}"),
    }
}

/// A line for all problems with the same kind and message, in the order of their first occurrence.
fn problems(problems: &[CheckProblem]) -> Vec<String> {
    let key = |problem: &CheckProblem| {
        (problem.code.clone(), problem.message.clone(), problem.fixed, split(&problem.place).0)
    };
    let lines = grouped(problems, key, |problem| split(&problem.place).1);
    lines
        .into_iter()
        .map(|((code, message, fixed, place), numbers)| {
            let outcome = if fixed { " (repaired)" } else { "" };
            format!("{code} {}: {message}{outcome}", with_numbers(&place, &numbers))
        })
        .collect()
}

/// A line for each file with a loss; one for all files of a directory whose names are lost.
fn losses(losses: &[CheckLoss]) -> Vec<String> {
    let is_named = |loss: &CheckLoss| !loss.path.is_empty() && !loss.path.ends_with('/');
    // Files with names do not share a line.
    let key = |loss: &CheckLoss| (loss.what.clone(), loss.path.clone(), is_named(loss));
    let lines = grouped(losses, key, |loss| Some(loss.inode));
    lines
        .into_iter()
        .map(|((what, path, is_named), inodes)| {
            let path = output::printable(path.as_bytes());
            let (names, files) = match inodes.len() {
                1 => ("name", "a file"),
                _ => ("names", "files"),
            };
            let inodes = with_numbers("inode", &inodes);
            match (is_named, path.as_str()) {
                (true, path) => format!("{what}: {path} ({inodes})"),
                (false, "") => format!("{what}: {inodes} ({names} unknown)"),
                (false, path) => format!("{what}: {inodes} ({names} unknown, {files} in {path})"),
            }
        })
        .collect()
}

/// Groups items by key, in the order of the keys' first occurrence, and collects their numbers.
fn grouped<T, K: Ord + Clone>(
    items: &[T],
    key: impl Fn(&T) -> K,
    number: impl Fn(&T) -> Option<u64>,
) -> Vec<(K, Vec<u64>)> {
    let mut positions = BTreeMap::new();
    let mut lines: Vec<(K, Vec<u64>)> = Vec::new();
    for item in items {
        let key = key(item);
        let position = *positions.entry(key.clone()).or_insert_with(|| {
            lines.push((key, Vec::new()));
            lines.len() - 1
        });
        lines[position].1.extend(number(item));
    }
    lines
}

/// Splits a place into its text and the number at its end: `inode 16 sector 3` becomes `inode 16 sector` and
/// 3.
fn split(place: &str) -> (String, Option<u64>) {
    let number = place.rsplit_once(' ').and_then(|(head, tail)| Some((head, tail.parse().ok()?)));
    match number {
        Some((head, number)) => (head.to_owned(), Some(number)),
        None => (place.to_owned(), None),
    }
}

/// A place with its numbers; its last word is plural if there are several: `inodes 18-158, 160`.
fn with_numbers(place: &str, numbers: &[u64]) -> String {
    let mut numbers = numbers.to_vec();
    numbers.sort_unstable();
    numbers.dedup();
    match numbers.as_slice() {
        [] => place.to_owned(),
        [number] => format!("{place} {number}"),
        several => {
            let plural = match place.strip_suffix('y') {
                Some(stem) => format!("{stem}ies"),
                None => format!("{place}s"),
            };
            format!("{plural} {}", ranges(several))
        }
    }
}

/// Ascending numbers, with consecutive ones as a range.
fn ranges(numbers: &[u64]) -> String {
    let runs = numbers.chunk_by(|one, next| *next == one + 1);
    let shown = runs.map(|run| match run {
        [one] => one.to_string(),
        [one, two] => format!("{one}, {two}"),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    shown.collect::<Vec<_>>().join(", ")
}
