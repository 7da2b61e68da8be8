//! A document with tables after marked lines.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;

use anyhow::{Context, Result};

/// A Markdown file, as lines.
pub struct Document {
    path: PathBuf,
    lines: Vec<String>,
    is_changed: bool,
}

const BEGIN: &str = "<!-- exact: ";
const END: &str = " -->";

/// The line before the table of this name. An empty line follows it.
pub fn marker(name: &str) -> String {
    format!("{BEGIN}{name}{END}")
}

impl Document {
    pub fn read(path: PathBuf) -> Result<Document> {
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(Document::new(path, &text))
    }

    pub fn new(path: PathBuf, text: &str) -> Document {
        let lines = text.lines().map(String::from).collect();
        Document { path, lines, is_changed: false }
    }

    pub fn path(&self) -> String {
        self.path.display().to_string()
    }

    /// The names of the tables that are quoted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().filter_map(|line| line.strip_prefix(BEGIN)?.strip_suffix(END))
    }

    pub fn quotes(&self, name: &str) -> bool {
        self.names().any(|quoted| quoted == name)
    }

    /// The number of the line where the quoted table begins, if it differs from `table`.
    pub fn differs(&self, name: &str, table: &str) -> Option<usize> {
        let place = self.place(name)?;
        let quoted = self.lines[place.clone()].iter().map(String::as_str);
        (!quoted.eq(quotation(table))).then_some(place.start + 2)
    }

    /// Replaces the quoted table by `table`.
    pub fn replace(&mut self, name: &str, table: &str) {
        if self.differs(name, table).is_none() {
            return;
        }
        if let Some(place) = self.place(name) {
            self.is_changed = true;
            self.lines.splice(place, quotation(table).map(String::from));
        }
    }

    /// Writes the file if a table was replaced.
    pub fn save(&self) -> Result<()> {
        if !self.is_changed {
            return Ok(());
        }
        fs::write(&self.path, self.text()).with_context(|| format!("write {}", self.path.display()))
    }

    pub fn text(&self) -> String {
        self.lines.join("\n") + "\n"
    }

    /// The lines after the marker of this name: empty ones, and those of a table.
    fn place(&self, name: &str) -> Option<Range<usize>> {
        let first = self.lines.iter().position(|line| *line == marker(name))? + 1;
        let after = &self.lines[first..];
        let empty = after.iter().take_while(|line| line.is_empty()).count();
        let table = after[empty..].iter().take_while(|line| line.starts_with('|')).count();
        Some(first..first + empty + table)
    }
}

/// The lines after a marker. Without the empty one, Markdown takes the table for a part of the comment.
fn quotation(table: &str) -> impl Iterator<Item = &str> {
    std::iter::once("").chain(table.lines())
}
