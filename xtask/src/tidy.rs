//! Long lines, and unfinished work.

use std::path::Path;

use crate::tree::{Finding, Tree};

#[cfg(test)]
mod tests;

const LINE_CHARS_MAX: usize = 110;

/// Documents with the exact texts of a table in the source.
const QUOTING: [&str; 1] = ["docs/FSCK.md"];

/// Markers of unfinished work. Written in two parts, so that this file is clean.
const UNFINISHED: [&str; 4] = [
    concat!("tod", "o!("),
    concat!("unimplement", "ed!("),
    concat!("FIX", "ME"),
    concat!("db", "g!("),
];

/// The beginning of a path that exists only on one developer's machine.
const PRIVATE_PATH: &str = concat!("/wo", "rk/");

/// Everything untidy.
pub fn check(tree: &Tree) -> Vec<Finding> {
    tree.files.iter().flat_map(|(path, text)| check_file(path, text)).collect()
}

fn check_file(path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |line, message| findings.push(Finding::new(path, line, message));

    let may_be_long = path.extension().is_some_and(|extension| extension == "toml")
        || QUOTING.iter().any(|quoting| path == Path::new(quoting));
    for (number, line) in (1..).zip(text.lines()) {
        let chars = line.chars().count();
        if chars > LINE_CHARS_MAX && !may_be_long && !is_table_row(line) && can_be_broken(line) {
            find(number, format!("{chars} characters are too many, {LINE_CHARS_MAX} the limit"));
        }
        for word in UNFINISHED {
            if is_code(path) && line.contains(word) {
                find(number, format!("unfinished: {word}"));
            }
        }
        if names_private_path(line) {
            find(number, format!("a path that others do not have: {PRIVATE_PATH}"));
        }
    }
    if path.extension().is_some_and(|extension| extension == "rs")
        && let Some(line) = text.lines().position(|line| line.trim_start() == "mod tests {")
    {
        find(line + 1, "tests stand in a file of their own, tests.rs".to_owned());
    }
    findings
}

fn is_code(path: &Path) -> bool {
    path.extension().is_none_or(|extension| extension != "md" && extension != "toml")
}

/// Whether the line is a row of a table, in a document or in a comment.
fn is_table_row(line: &str) -> bool {
    line.trim_start().trim_start_matches(['/', '!', '#']).trim_start().starts_with('|')
}

/// Whether the line can be shortened: not if it is long because of an address, or because of a message that
/// stays in one piece so that a search for it succeeds.
fn can_be_broken(line: &str) -> bool {
    let is_long = |piece: &str| piece.chars().count() > LINE_CHARS_MAX * 3 / 4;
    let is_text = line.matches('"').count() == 2 && line.split('"').nth(1).is_some_and(is_long);
    !is_text && !line.split_whitespace().any(is_long)
}

/// Whether the line has the path from its start, not as a part of another path.
fn names_private_path(line: &str) -> bool {
    line.match_indices(PRIVATE_PATH).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-*~$})".contains(c))
    })
}
