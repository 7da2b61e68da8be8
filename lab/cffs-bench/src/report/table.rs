//! The tables of results, for terminals and for the documentation.

use std::fmt::Write as _;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

use super::Report;
use super::summary::Row;
use crate::serve::pages::DISK_REQUEST_BYTES;
use crate::workload::Phase;

/// Characters in a line of text.
const LINE_WIDTH: usize = 100;

const HEADER: [&str; 12] = [
    "phase",
    "",
    "files/s",
    "MB/s",
    "req/file",
    "flush/file",
    "busy s",
    "time s",
    "× best peer",
    "device ×",
    "of limit",
    "instr/file",
];

pub fn text(report: &Report) -> String {
    render(report, presets::UTF8_HORIZONTAL_ONLY, |title| format!("\n{title}\n"))
}

pub fn markdown(report: &Report) -> String {
    render(report, presets::ASCII_MARKDOWN, |title| format!("\n## {title}\n\n"))
}

/// The phases of one workload that was run once.
pub fn phases(phases: &[Phase]) -> Table {
    let mut table = new_table(
        presets::UTF8_HORIZONTAL_ONLY,
        &["phase", "files/s", "MB/s", "req/file", "busy s", "time s", "instr/file"],
    );
    for phase in phases {
        let optional = |value: Option<f64>| value.map_or_else(|| String::from("-"), figure);
        table.add_row([
            phase.name.clone(),
            figure(phase.files_per_sec()),
            figure(phase.megabytes_per_sec()),
            optional(phase.requests_per_file()),
            optional(phase.device.map(|device| device.busy_secs())),
            figure(phase.seconds),
            optional(phase.instructions_per_file()),
        ]);
    }
    right_align(&mut table, 1..7);
    table
}

fn render(report: &Report, preset: &str, title: impl Fn(&str) -> String) -> String {
    let mut out = circumstances(report);
    let mut workloads: Vec<_> = report.rows.iter().map(|row| row.workload).collect();
    workloads.dedup();
    for workload in workloads {
        out += &title(&workload.name());
        let mut table = new_table(preset, &HEADER);
        let mut last_phase = None;
        for row in report.rows.iter().filter(|row| row.workload == workload) {
            let repeated = last_phase.replace(&row.phase) == Some(&row.phase);
            table.add_row(cells(row, if repeated { "" } else { &row.phase }));
        }
        right_align(&mut table, 2..HEADER.len());
        let _ = writeln!(out, "{table}");
        let of_it = || report.rows.iter().filter(|row| row.workload == workload);
        if of_it().any(|row| row.programs_secs.is_some_and(|secs| secs > 0.0)) {
            out += &title(&format!("{}, processor time", workload.name()));
            let _ = writeln!(out, "{}", processor_time(preset, of_it()));
        }
    }
    if !report.bars.is_empty() {
        out += &title("Bars");
        let limited = report.bars.iter().any(|verdict| verdict.fuse_limit.is_some());
        let header = ["", "goal", "measured", "", "FUSE at most"];
        let columns = if limited { 5 } else { 4 };
        let mut table = new_table(preset, &header[..columns]);
        for verdict in &report.bars {
            let met = if verdict.met { "met" } else { "MISSED" };
            let limit = verdict.fuse_limit.map_or_else(|| String::from("-"), figure);
            let (goal, measured) = (figure(verdict.goal), figure(verdict.measured));
            let row = [verdict.bar.clone(), goal, measured, met.to_owned(), limit];
            table.add_row(&row[..columns]);
        }
        right_align(&mut table, 1..3);
        if limited {
            right_align(&mut table, 4..5);
        }
        let _ = writeln!(out, "{table}");
    }
    if !report.failures.is_empty() {
        out += &title("Runs that failed");
        for f in &report.failures {
            let _ = writeln!(out, "- {} on {}: {}", f.workload.name(), f.peer, f.reason);
        }
    }
    out
}

/// The processor time of programs and servers, and their share of the elapsed time.
fn processor_time<'a>(preset: &str, rows: impl Iterator<Item = &'a Row>) -> Table {
    let header = ["phase", "", "time s", "programs s", "server s", "processor, of the time"];
    let mut table = new_table(preset, &header);
    let mut last_phase = None;
    for row in rows {
        let repeated = last_phase.replace(&row.phase) == Some(&row.phase);
        let seconds = |secs: Option<f64>| secs.map_or_else(|| String::from("-"), figure);
        let used = row.programs_secs.unwrap_or_default() + row.server_secs.unwrap_or_default();
        table.add_row([
            if repeated { String::new() } else { row.phase.clone() },
            row.peer.to_string(),
            figure(row.seconds),
            seconds(row.programs_secs),
            seconds(row.server_secs),
            format!("{:.0} %", used * 100.0 / row.seconds),
        ]);
    }
    right_align(&mut table, 2..header.len());
    table
}

/// The circumstances of the measurement.
fn circumstances(report: &Report) -> String {
    let e = &report.environment;
    let repetitions = report.rows.iter().map(|row| row.repetitions).min().unwrap_or_default();
    let stroke = match e.stroke {
        crate::disk::Stroke::Whole => "the volume is the whole disk on a smaller scale",
        crate::disk::Stroke::Slice => "the volume is a slice of a large disk",
    };
    let mut details = format!(
        "{} Emulated device: {} ({stroke}). {} Medians of {repetitions}.",
        e.placement,
        e.profile.name(),
        e.contents
    );
    if let Some(kib) = e.request_kib {
        let disk = u64::from(DISK_REQUEST_BYTES >> 10);
        let less = if kib < disk { ", as FUSE and loop devices allow" } else { "" };
        let _ = write!(
            details,
            " The longest request that reaches the device is {kib} KiB{less}; the kernel's default for a \
             disk is {disk} KiB."
        );
    }
    if let Some(transport) = e.transport {
        let _ = write!(details, " Servers over FUSE get their requests by {transport}.");
    }
    let versions: Vec<_> = e.versions.iter().map(|(peer, v)| format!("{peer}: {v}")).collect();
    let _ = write!(details, " {}.", versions.join("; "));
    let head = e.machine.head(&format!("Measured on `{}`", e.name), &details);
    head.trim_end().to_owned() + "\n"
}

/// Breaks a paragraph into lines of at most the length of source code.
pub(crate) fn wrap(paragraph: &str) -> String {
    let (mut out, mut width) = (String::new(), 0);
    for word in paragraph.split(' ') {
        let len = word.chars().count();
        if width > 0 && width + 1 + len > LINE_WIDTH {
            out.push('\n');
            width = 0;
        } else if width > 0 {
            out.push(' ');
            width += 1;
        }
        out.push_str(word);
        width += len;
    }
    out + "\n"
}

fn cells(row: &Row, phase: &str) -> Vec<String> {
    let optional = |value: Option<f64>| value.map_or_else(|| String::from("-"), figure);
    let percent = row
        .ratio_to_limit
        .map_or_else(|| String::from("-"), |r| format!("{} %", figure(r * 100.0)));
    vec![
        phase.to_owned(),
        row.peer.to_string(),
        figure(row.files_per_sec),
        figure(row.megabytes_per_sec),
        optional(row.requests_per_file),
        optional(row.flushes_per_file),
        optional(row.busy_secs),
        figure(row.seconds),
        optional(row.ratio_to_best),
        optional(row.device_ratio_to_best),
        percent,
        optional(row.instructions_per_file),
    ]
}

/// Three significant digits, or a whole number if that has more.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        v if v == 0.0 || v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        v if v >= 0.1 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

/// A table for the documentation; the columns from `numbers` on are numbers.
pub(crate) fn markdown_table(
    header: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
    numbers: usize,
) -> String {
    let mut table = new_table(presets::ASCII_MARKDOWN, header);
    table.add_rows(rows);
    right_align(&mut table, numbers..header.len());
    format!("{table}\n")
}

fn new_table(preset: &str, header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(preset).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().map(Cell::new));
    table
}

fn right_align(table: &mut Table, columns: std::ops::Range<usize>) {
    for i in columns {
        if let Some(column) = table.column_mut(i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}
