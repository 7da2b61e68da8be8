//! Standard output and standard error. A closed pipe does not cause a panic: a line that cannot be printed is
//! an error, after which the program ends quietly; a note that cannot be printed is dropped.

use std::fmt::Arguments;
use std::io::{self, Write};

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
    writeln!(io::stdout().lock(), "{text}").context("standard output")
}

/// Prints a line for [`note!`].
pub fn note_line(text: Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

pub fn json(value: &impl Serialize) -> Result<()> {
    say!("{}", serde_json::to_string_pretty(value)?)
}
