//! The map from the papers to the code: what it cites exists, and its states are well-formed.
//!
//! A row of `docs/PAPERS.md` has six cells: section, item, state, code, test or command, measurement or
//! decision. The code is named by paths, the tests by their names, and commands are not run.

use std::path::{Path, PathBuf};

use crate::promises;
use crate::tree::{Finding, Tree};

#[cfg(test)]
mod tests;

const DOCUMENT: &str = "docs/PAPERS.md";
/// The directory of paths in the document, unless they begin at the root of the tree.
const CORE: &str = "core/cffs/src";
const CELLS: usize = 6;
const DECISION_LINK: &str = "](decisions/";

/// Rows of another form, and paths, tests and make targets that do not exist.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let path = Path::new(DOCUMENT);
    let Some(text) = tree.files.get(path) else {
        return vec![Finding::new(path, 1, "there is no such document".to_owned())];
    };
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let is_row = line.starts_with("| ") && !line.starts_with("| section") && !is_rule(line);
        if is_row {
            let found = check_row(tree, line);
            findings.extend(found.into_iter().map(|what| Finding::new(path, number, what)));
        }
    }
    findings
}

/// Whether the line separates the head of a table from its rows.
fn is_rule(line: &str) -> bool {
    line.chars().all(|c| matches!(c, '|' | '-' | ' ' | ':'))
}

fn check_row(tree: &Tree, line: &str) -> Vec<String> {
    let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    let &[_, _, state, code, test, _] = &cells[..] else {
        return vec![format!("a row has {} cells, not {CELLS}", cells.len())];
    };
    let mut wrong = Vec::new();
    if !is_state(state) {
        wrong.push(format!(
            "the state \"{state}\" is not works, partly (…), missing, or different with a decision"
        ));
    }
    let is_there = |place: &str| {
        [PathBuf::from(place), Path::new(CORE).join(place)].iter().any(|path| tree.contains(path))
    };
    for place in spans(code).filter(|place| !is_there(place)) {
        wrong.push(format!("there is no file {place}"));
    }
    for named in spans(test) {
        match named.split_once(' ') {
            Some(("make", rest)) if !has_target(tree, rest) => {
                wrong.push(format!("the Makefile has no target {rest}"));
            }
            Some(_) => {}
            None if named.contains('/') && !is_there(named) => {
                wrong.push(format!("there is no file {named}"));
            }
            None if !named.contains('/') && !promises::exists(tree, named) => {
                wrong.push(format!("there is no test {named}"));
            }
            None => {}
        }
    }
    wrong
}

fn is_state(state: &str) -> bool {
    let explained = |word: &str| state.strip_prefix(word).is_some_and(|rest| rest.ends_with(')'));
    matches!(state, "works" | "missing")
        || explained("partly (")
        || explained("different (") && state.contains(DECISION_LINK)
}

/// The texts of the code spans of a cell.
fn spans(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Whether the Makefile has the target that the arguments of make begin with.
fn has_target(tree: &Tree, arguments: &str) -> bool {
    let target = arguments.split(' ').next().unwrap_or_default();
    let makefile = tree.files.get(Path::new("Makefile"));
    let rule = format!("{target}:");
    makefile.is_some_and(|text| text.lines().any(|line| line.starts_with(&rule)))
}
