//! The commands, and functions that several of them use.

pub mod cat;
pub mod controlled;
pub mod disk;
pub mod generate;
pub mod groups;
pub mod init;
pub mod memory;
pub mod pack;
pub mod show;
pub mod trace;
pub mod warm;

use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

use crate::output::note;
use cffs_place::list::{self, Ends};
use cffs_place::tree::Unseen;

/// The paths given as arguments; `-` stands for a list from standard input.
pub fn paths(given: &[PathBuf], ends: Ends) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for path in given {
        match path.as_os_str() == "-" {
            true => paths.extend(list::read(io::stdin().lock(), ends).context("standard input")?),
            false => paths.push(path.clone()),
        }
    }
    Ok(paths)
}

pub fn paths_in(file: &Path, ends: Ends) -> Result<Vec<PathBuf>> {
    let at = || file.display().to_string();
    let open = std::fs::File::open(file).with_context(at)?;
    list::read(BufReader::new(open), ends).with_context(at)
}

/// The terminator of the paths of a list.
pub fn ends(zero: bool) -> Ends {
    if zero { Ends::Zero } else { Ends::Line }
}

/// A progress bar on standard error; hidden if that is not a terminal.
pub fn bar(files: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}");
    let bar = ProgressBar::new(files).with_message(what);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// A counter of files on standard error, for an unknown total.
pub fn counter(what: &'static str) -> ProgressBar {
    let counter = ProgressBar::new_spinner().with_message(what);
    counter.enable_steady_tick(Duration::from_millis(200));
    counter.set_style(
        ProgressStyle::with_template("{msg} {pos}")
            .unwrap_or_else(|_| ProgressStyle::default_spinner()),
    );
    counter
}

/// Prints the paths that could not be read; true if there were any.
pub fn print_unseen(unseen: &[Unseen]) -> bool {
    for (path, error) in unseen {
        note!("place: {}: {error}", path.display());
    }
    !unseen.is_empty()
}

/// A size in bytes with an optional binary suffix.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        other => return Err(format!("unknown suffix {other}; use K, M, G or T")),
    };
    let number: u64 = digits.parse().map_err(|e| format!("{e}"))?;
    number.checked_mul(1 << shift).ok_or_else(|| String::from("too large"))
}
