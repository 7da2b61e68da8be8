//! A picture of the layout of directories: the device as rows of cells, each directory in its own colour.
//!
//! A well-placed tree consists of a few bands of one colour each; an aged one looks like confetti. The
//! directories are listed below the map, those whose scan takes most requests first. The picture is no wider
//! than the map, so that its texts are legible in one of two columns, and dark for viewers who prefer that.

use std::fmt::Write;
use std::ops::Range;

use cffs_serve::layout::{DirectoryReport, LayoutReport};

use crate::output::counted;
use crate::size;

const COLUMNS: u64 = 96;
const ROWS_MAX: u64 = 56;
const CELL: u64 = 8;
/// The smallest size of a cell: a block.
const CELL_BYTES_MIN: u64 = 4096;
/// The maximum number of directories listed below the map.
const LISTED_MAX: usize = 24;
const LIST_ROW: u64 = 20;
const MARGIN: u64 = 24;
const HEAD: u64 = 92;
/// The length of the longest bar, and the left end of bars.
const BAR: u64 = 240;
const BARS_AT: u64 = 290;
/// The colour of name bytes in a cell, and of texts.
const NAMES: &str = "#222222";
/// The colours of background, map, texts, names, and secondary texts, for viewers who prefer dark.
const DARK: &str = "@media (prefers-color-scheme: dark) { .ground { fill: #1e2428 } .map { fill: #2d363c } \
    text, .names { fill: #e8ecef } .soft { fill: #a5b0b8 } }";

/// The bytes in a cell: per directory, by its number, and for the names of all.
#[derive(Clone, Default)]
struct Cell {
    contents: Vec<(usize, u64)>,
    names: u64,
}

/// The style of secondary texts.
const SOFT: &str = "class=\"soft\" fill=\"#666666\"";

/// Draws the layout of a tree.
pub fn draw(report: &LayoutReport, title: &str) -> String {
    let map = Map::new(report);
    let order = by_requests(report);
    let listed = order.len().min(LISTED_MAX);
    let list_at = HEAD + map.rows() * CELL + MARGIN;
    let width = 2 * MARGIN + COLUMNS * CELL;
    let height = list_at + (listed as u64 + 1) * LIST_ROW + MARGIN;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\">\n\
         <style>{DARK}</style>\n\
         <rect class=\"ground\" width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    draw_head(&mut out, report, title, map.cell_bytes);
    map.draw(&mut out);
    draw_list(&mut out, report, &order[..listed], list_at);
    out.push_str("</svg>\n");
    out
}

struct Map {
    start: u64,
    cell_bytes: u64,
    cells: Vec<Cell>,
}

impl Map {
    /// The part of the device that contains the tree.
    fn new(report: &LayoutReport) -> Map {
        let runs =
            || report.directories.iter().flat_map(|dir| dir.contents.iter().chain(&dir.names));
        let start = runs().map(|run| run.start).min().unwrap_or(0);
        let end = runs().map(|run| run.end).max().unwrap_or(start);
        let mut cell_bytes = CELL_BYTES_MIN;
        while (end - start / cell_bytes * cell_bytes).div_ceil(cell_bytes) > COLUMNS * ROWS_MAX {
            cell_bytes *= 2;
        }
        let start = start / cell_bytes * cell_bytes;
        let count = (end - start).div_ceil(cell_bytes).next_multiple_of(COLUMNS).max(COLUMNS);
        let mut map = Map { start, cell_bytes, cells: vec![Cell::default(); count as usize] };
        for (number, dir) in report.directories.iter().enumerate() {
            for run in &dir.contents {
                map.visit(run, |cell, bytes| match cell.contents.last_mut() {
                    Some(last) if last.0 == number => last.1 += bytes,
                    _ => cell.contents.push((number, bytes)),
                });
            }
            for run in &dir.names {
                map.visit(run, |cell, bytes| cell.names += bytes);
            }
        }
        map
    }

    fn visit(&mut self, run: &Range<u64>, mut add: impl FnMut(&mut Cell, u64)) {
        let mut at = run.start;
        while at < run.end {
            let index = (at - self.start) / self.cell_bytes;
            let end = run.end.min(self.start + (index + 1) * self.cell_bytes);
            add(&mut self.cells[index as usize], end - at);
            at = end;
        }
    }

    fn rows(&self) -> u64 {
        self.cells.len() as u64 / COLUMNS
    }

    fn draw(&self, out: &mut String) {
        let (width, height) = (COLUMNS * CELL, self.rows() * CELL);
        let _ = writeln!(
            out,
            "<rect class=\"map\" x=\"{MARGIN}\" y=\"{HEAD}\" width=\"{width}\" height=\"{height}\" \
             fill=\"#f1f1f1\"/>"
        );
        for (index, cell) in (0..).zip(&self.cells) {
            let (x, y) = (MARGIN + index % COLUMNS * CELL, HEAD + index / COLUMNS * CELL);
            self.draw_cell(out, cell, x, y);
        }
    }

    /// A cell with a stripe for each directory, whose height is the directory's share.
    fn draw_cell(&self, out: &mut String, cell: &Cell, x: u64, y: u64) {
        let contents = cell.contents.iter().map(|(number, bytes)| ("", colour(*number), *bytes));
        let names = (cell.names > 0).then(|| ("class=\"names\" ", NAMES.to_owned(), cell.names));
        let used: u64 = cell.names + cell.contents.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let whole = used.max(self.cell_bytes / 2) as f64;
        let mut top = y as f64;
        for (class, fill, bytes) in contents.chain(names) {
            let height = bytes as f64 / whole * CELL as f64;
            let _ = writeln!(
                out,
                "<rect {class}x=\"{x}\" y=\"{top:.2}\" width=\"{CELL}\" height=\"{height:.2}\" \
                 fill=\"{fill}\"/>"
            );
            top += height;
        }
    }
}

fn draw_head(out: &mut String, report: &LayoutReport, title: &str, cell_bytes: u64) {
    let sum = |of: fn(&DirectoryReport) -> u64| -> u64 { report.directories.iter().map(of).sum() };
    let summary = format!(
        "{}, {} in {}: a cold scan takes {} and reads {}",
        counted(report.directories.len() as u64, "directory"),
        counted(sum(|dir| dir.files), "file"),
        counted(sum(|dir| dir.places), "place"),
        counted(report.requests, "request"),
        size::show(report.read_bytes)
    );
    let key = format!(
        "Each cell is {} of the device, each row {}; each directory has a colour; names and inodes have the colour of text.",
        size::show(cell_bytes),
        size::show(cell_bytes * COLUMNS)
    );
    text(out, (MARGIN, 34), 20, title, "font-weight=\"bold\"");
    text(out, (MARGIN, 58), 15, &summary, "");
    text(out, (MARGIN, 78), 12, &key, SOFT);
}

/// The numbers of the directories with files, those whose scan takes most requests first.
fn by_requests(report: &LayoutReport) -> Vec<usize> {
    let has_files = |number: &usize| report.directories[*number].files > 0;
    let mut order: Vec<usize> = (0..report.directories.len()).filter(has_files).collect();
    order.sort_by_key(|number| {
        let dir = &report.directories[*number];
        std::cmp::Reverse((dir.requests, dir.places))
    });
    order
}

fn draw_list(out: &mut String, report: &LayoutReport, listed: &[usize], top: u64) {
    let x = MARGIN;
    let all = report.directories.iter().filter(|dir| dir.files > 0).count();
    let heading = if listed.len() < all {
        format!("The {} of {all} directories with most requests", listed.len())
    } else {
        String::from("Requests of the scan, by directory")
    };
    text(out, (x, top + 12), 13, &heading, "font-weight=\"bold\"");
    let most = listed.iter().map(|number| report.directories[*number].requests).max();
    let most = most.unwrap_or(0).max(1);
    for (row, number) in (1..).zip(listed) {
        let dir = &report.directories[*number];
        let y = top + 4 + row * LIST_ROW;
        let fill = colour(*number);
        let bar = dir.requests * BAR / most;
        let path = if dir.path.is_empty() { "." } else { &dir.path };
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" fill=\"{fill}\"/>\n\
             <rect x=\"{}\" y=\"{y}\" width=\"{bar}\" height=\"12\" fill=\"{fill}\"/>",
            x + BARS_AT
        );
        text(out, (x + 18, y + 11), 12, &shortened(path), "");
        let requests = match dir.requests {
            0 => String::from("read along with others,"),
            requests => requests.to_string(),
        };
        let figures = format!("{requests} in {}", counted(dir.places, "place"));
        text(out, (x + BARS_AT + 6 + bar, y + 11), 12, &figures, SOFT);
    }
}

/// The end of a path that is too long for the list.
fn shortened(path: &str) -> String {
    const CHARS_MAX: usize = 36;
    let count = path.chars().count();
    if count <= CHARS_MAX {
        return path.to_owned();
    }
    format!("…{}", path.chars().skip(count - CHARS_MAX + 1).collect::<String>())
}

/// A colour for each number, different from those of neighbouring numbers.
fn colour(number: usize) -> String {
    let hue = number as f64 * 137.508 % 360.0;
    let lightness = [0.45, 0.60, 0.35][number / 5 % 3];
    let [red, green, blue] = [0.0, 8.0, 4.0].map(|n| {
        let k = (n + hue / 30.0) % 12.0;
        let part = 0.65 * f64::min(lightness, 1.0 - lightness);
        let value = lightness - part * (k - 3.0).min(9.0 - k).clamp(-1.0, 1.0);
        (value * 255.0).round() as u8
    });
    format!("#{red:02x}{green:02x}{blue:02x}")
}

fn text(out: &mut String, (x, y): (u64, u64), size: u64, text: &str, more: &str) {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let escaped: String = escaped.chars().filter(|c| !c.is_control()).collect();
    let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" {more}>{escaped}</text>");
}
