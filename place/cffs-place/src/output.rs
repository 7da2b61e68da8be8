//! Standard output and standard error. A closed pipe does not cause a panic: a line that cannot be printed is
//! an error, after which the program ends quietly; a note that cannot be printed is dropped.

use std::fmt::Arguments;
use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result};
use serde::Serialize;

/// Prints a line on standard output, formatted as by `format!`.
macro_rules! say {
    ($($format:tt)+) => { $crate::output::line(format_args!($($format)+)) };
}

/// Prints a line on standard error, formatted as by `format!`.
macro_rules! note {
    ($($format:tt)+) => { $crate::output::note_line(format_args!($($format)+)) };
}

pub(crate) use {note, say};

/// Prints a line for [`say!`].
pub fn line(text: Arguments<'_>) -> Result<()> {
    let mut out = io::stdout().lock();
    let text = text.to_string();
    let text = if out.is_terminal() { without_controls(text) } else { text };
    writeln!(out, "{text}").context("standard output")
}

/// A count with its noun, given in the singular.
pub fn counted(count: u64, one: &str) -> String {
    match one.strip_suffix('y') {
        _ if count == 1 => format!("1 {one}"),
        Some(stem) => format!("{count} {stem}ies"),
        None => format!("{count} {one}s"),
    }
}

/// Prints a line for [`note!`].
pub fn note_line(text: Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{}", without_controls(text.to_string()));
}

/// Escapes control characters, which could move the cursor of a terminal, except for newlines and tabs.
fn without_controls(text: String) -> String {
    let is_escaped = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(is_escaped) {
        return text;
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_escaped(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

pub fn json(value: &impl Serialize) -> Result<()> {
    say!("{}", serde_json::to_string_pretty(value)?)
}
