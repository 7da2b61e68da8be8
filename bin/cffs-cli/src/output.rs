//! Standard output: lines, tables, JSON, and failed writes.
//!
//! Standard output is a command's result: if it cannot be written, the command fails. Notes on standard error
//! are additional: if they cannot be written, they are dropped.

use std::borrow::Cow;
use std::fmt::Arguments;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

pub use cffs::{counted, printable};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use nix::libc;
use rustix::io::Errno;
use serde::Serialize;
use serde_json::Value;

#[cfg(test)]
mod tests;
mod units;

use units::labelled;

/// The maximum line length of the help, in characters.
pub const HELP_WIDTH: usize = 100;

/// Standard output, buffered. Errors are returned, including a broken pipe; the program then ends quietly.
pub struct Stdout(BufWriter<io::StdoutLock<'static>>);

/// Standard output; the caller must flush it at the end.
pub fn stdout() -> Stdout {
    Stdout(BufWriter::with_capacity(1 << 16, io::stdout().lock()))
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match WAS_CLOSED.load(Ordering::Relaxed) {
            true => Err(named(Errno::BADF.into())),
            false => self.0.write(bytes).map_err(named),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(named)
    }
}

/// Whether standard output was closed when the program started. Rust's runtime then opens `/dev/null` in its
/// place, where a command's result would be lost without an error.
static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

// SAFETY: the C library calls each function in this section once, before Rust's runtime starts. The function
// needs nothing of the runtime: it makes a system call and sets a variable.
#[unsafe(link_section = ".init_array")]
#[used]
static BEFORE_THE_RUNTIME: extern "C" fn() = {
    extern "C" fn look() {
        // SAFETY: F_GETFD takes any number, and fails if no descriptor has it.
        let found = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
        WAS_CLOSED.store(found == -1, Ordering::Relaxed);
    }
    look
};

/// Names standard output in the error, so that "no space left" is not attributed to the volume.
fn named(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("standard output: {error}"))
}

/// Prints a line on standard output, formatted as by `format!`; fails if it cannot be written.
macro_rules! say {
    ($($format:tt)+) => { $crate::output::line(format_args!($($format)+)) };
}

/// Prints a line on standard error, formatted as by `format!`.
macro_rules! note {
    ($($format:tt)+) => { $crate::output::note_line(format_args!($($format)+)) };
}

pub(crate) use {note, say};

/// Prints the line of [`say!`].
pub fn line(text: Arguments<'_>) -> anyhow::Result<()> {
    let mut out = stdout();
    writeln!(out, "{}", for_stdout(text.to_string()))?;
    Ok(out.flush()?)
}

/// Prints the line of [`note!`].
pub fn note_line(text: Arguments<'_>) {
    // One write: the program may end, and other threads may print, between two.
    let line = without_controls(text.to_string()) + "\n";
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

/// Whether standard output is a terminal.
pub fn stdout_is_terminal() -> bool {
    static IS_TERMINAL: LazyLock<bool> = LazyLock::new(|| io::stdout().is_terminal());
    *IS_TERMINAL
}

fn for_stdout(text: String) -> String {
    if stdout_is_terminal() { without_controls(text) } else { text }
}

/// Escapes control characters, which could move the cursor of a terminal, except for newlines and tabs.
fn without_controls(text: String) -> String {
    escaped(text, |c| c.is_control() && !matches!(c, '\n' | '\t'))
}

/// Escapes all control characters of a message, so that it is one line.
pub fn on_one_line(message: String) -> String {
    escaped(message, char::is_control)
}

fn escaped(text: String, is_escaped: impl Fn(char) -> bool) -> String {
    if !text.contains(&is_escaped) {
        return text;
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_escaped(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// A name for standard output: as it is for programs, and printable for a terminal.
pub fn name_for(name: &[u8], is_terminal: bool) -> Cow<'_, [u8]> {
    match is_terminal {
        true => printable(name).into_bytes().into(),
        false => name.into(),
    }
}

/// Prints a value as JSON on its own lines.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = stdout();
    serde_json::to_writer_pretty(&mut out, value)?;
    out.write_all(b"\n")?;
    out.flush()?;
    Ok(())
}

/// A table without borders.
pub fn table() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table
}

/// The lines of a table; columns from `first_right` on are right-aligned.
pub fn lines(table: &mut Table, first_right: usize) -> impl Iterator<Item = String> {
    for column in table.column_iter_mut() {
        let side =
            if column.index >= first_right { CellAlignment::Right } else { CellAlignment::Left };
        column.set_cell_alignment(side);
        column.set_padding((0, 2));
    }
    table.lines()
}

/// Prints a table; columns from `first_right` on are right-aligned.
pub fn print(table: &mut Table, first_right: usize) -> anyhow::Result<()> {
    let mut out = stdout();
    for line in lines(table, first_right) {
        writeln!(out, "{}", for_stdout(line.trim_end().to_owned()))?;
    }
    out.flush()?;
    Ok(())
}

/// Whether standard error is a terminal.
pub fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// Prints a JSON value for display: a name and a value with its unit per line, lists of objects as tables.
pub fn key_values(value: &Value) -> anyhow::Result<()> {
    let mut rows = table();
    let mut lists = Vec::new();
    collect("", value, &mut rows, &mut lists);
    if !rows.is_empty() {
        print(&mut rows, usize::MAX)?;
    }
    for (name, list) in lists {
        println_list(&name, list)?;
    }
    Ok(())
}

fn collect<'v>(
    prefix: &str,
    value: &'v Value,
    rows: &mut Table,
    lists: &mut Vec<(String, &'v [Value])>,
) {
    let Value::Object(fields) = value else {
        rows.add_row([prefix.to_owned(), cell(value)]);
        return;
    };
    for (key, value) in fields {
        let (name, text) = labelled(key, value);
        let name = [prefix, &name].into_iter().filter(|part| !part.is_empty());
        let name = name.collect::<Vec<_>>().join(" ");
        match value {
            Value::Null => {}
            Value::Object(_) => collect(&name, value, rows, lists),
            Value::Array(list) if list.iter().any(Value::is_object) => lists.push((name, list)),
            _ => drop(rows.add_row([name, text])),
        }
    }
}

fn println_list(name: &str, list: &[Value]) -> anyhow::Result<()> {
    let mut rows = table();
    let keys: Vec<&String> = match list.first() {
        Some(Value::Object(fields)) => fields.keys().collect(),
        _ => Vec::new(),
    };
    let label = |key: &str| match labelled(key, &list[0][key]).0 {
        name if name.is_empty() => key.to_owned(),
        name => name,
    };
    rows.set_header(keys.iter().map(|key| label(key)));
    for item in list {
        rows.add_row(keys.iter().map(|key| labelled(key, &item[key.as_str()]).1));
    }
    let mut out = stdout();
    writeln!(out, "\n{name}:")?;
    out.flush()?;
    drop(out);
    print(&mut rows, usize::MAX)
}

fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(true) => String::from("yes"),
        Value::Bool(false) => String::from("no"),
        Value::Null => String::new(),
        Value::Array(list) => list.iter().map(cell).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}
