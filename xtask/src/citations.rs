//! Cited things must exist: chapters of the documents, decisions, and the targets of links.
//!
//! A comment cites a chapter as `(DESIGN: epochs)`, by its title without regard to case and number,
//! or as `FORMAT chapter 13`, and a decision as `decision 008`.

use std::path::{Component, Path, PathBuf};

use crate::tree::{Finding, Tree};

#[cfg(test)]
mod tests;

const DOCUMENTS: [&str; 6] =
    ["ARCHITECTURE", "DESIGN", "FORMAT", "FSCK", "RELIABILITY", "SEMANTICS"];
const DECISIONS: &str = "docs/decisions";

/// Every citation of something that does not exist.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in &tree.files {
        // Texts about citations are not citations.
        if path.starts_with("xtask/src/citations") || path == Path::new("xtask/src/citations.rs") {
            continue;
        }
        let prose = Prose::of(text);
        for name in DOCUMENTS {
            for (line, message) in chapters(tree, name, &prose) {
                findings.push(Finding::new(path, line, message));
            }
        }
        for (line, number) in numbers_after(&prose, "decision ") {
            if number.len() == 3 && !has_decision(tree, number) {
                findings.push(Finding::new(path, line, format!("there is no decision {number}")));
            }
        }
        if path.extension().is_some_and(|extension| extension == "md") {
            findings.extend(links(tree, path, text));
        }
    }
    findings
}

/// A text without comment markers, its lines joined, so that a citation may span lines.
struct Prose {
    text: String,
    /// Where each line begins.
    lines: Vec<usize>,
}

impl Prose {
    fn of(text: &str) -> Prose {
        let mut prose = Prose { text: String::new(), lines: Vec::new() };
        for line in text.lines() {
            prose.lines.push(prose.text.len());
            prose.text.push_str(line.trim().trim_start_matches(['/', '!', '#']).trim());
            prose.text.push(' ');
        }
        prose
    }

    fn line_at(&self, at: usize) -> usize {
        self.lines.partition_point(|start| *start <= at)
    }

    /// The text after each occurrence of `what`, with its line.
    fn after<'a>(&'a self, what: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
        let places = self.text.match_indices(what);
        places.map(|(at, _)| (self.line_at(at), &self.text[at + what.len()..]))
    }
}

/// The citations of chapters of a document that has no such chapter.
fn chapters(tree: &Tree, name: &str, prose: &Prose) -> Vec<(usize, String)> {
    let document = tree.files.get(Path::new(&format!("docs/{name}.md")));
    let titles: Vec<&str> = document.map(|text| titles(text)).unwrap_or_default();
    let plain = |title: &str| {
        let title = title.to_lowercase();
        title.strip_prefix("the ").unwrap_or(&title).to_owned()
    };
    let has_title =
        |cited: &str| titles.iter().any(|title| plain(without_number(title)) == plain(cited));
    let has_number = |number: &str| {
        titles.iter().any(|title| title.split_once(". ").is_some_and(|(first, _)| first == number))
    };
    let by_title = format!("{name}: ");
    let by_number = format!("{name} chapter ");
    let missing_title = prose.after(&by_title).filter_map(|(line, rest)| {
        let cited = rest.split([')', ';', ',']).next().unwrap_or_default();
        let message = || format!("docs/{name}.md has no chapter \"{cited}\"");
        (!has_title(cited)).then(|| (line, message()))
    });
    let missing_number = numbers_after(prose, &by_number)
        .filter(|(_, number)| !has_number(number))
        .map(|(line, number)| (line, format!("docs/{name}.md has no chapter {number}")));
    missing_title.chain(missing_number).collect()
}

fn titles(text: &str) -> Vec<&str> {
    let titles = text.lines().filter(|line| line.starts_with('#'));
    titles.map(|line| line.trim_start_matches('#').trim()).collect()
}

fn without_number(title: &str) -> &str {
    match title.split_once(". ") {
        Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => rest,
        _ => title,
    }
}

/// The numbers that follow `what`; other words after it are skipped.
fn numbers_after<'a>(prose: &'a Prose, what: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    prose.after(what).filter_map(|(line, rest)| {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        (end > 0).then(|| (line, &rest[..end]))
    })
}

fn has_decision(tree: &Tree, number: &str) -> bool {
    let begins = |path: &PathBuf| {
        path.starts_with(DECISIONS)
            && path
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(&format!("{number}-")))
    };
    tree.files.keys().any(begins)
}

/// The links of a document whose targets do not exist. Links to other sites are not checked.
fn links(tree: &Tree, path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut is_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        is_code ^= line.trim_start().starts_with("```");
        // In code spans, brackets do not mark links.
        let outside: String = line.split('`').step_by(2).collect();
        let targets = outside.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !is_code && !target.contains("://")) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let target_path = match file {
                "" => path.to_owned(),
                file => joined(path.parent().unwrap_or(Path::new("")), file),
            };
            let document = tree.files.get(&target_path);
            let is_there = tree.contains(&target_path);
            let has_anchor = anchor.is_empty()
                || document.is_some_and(|text| titles(text).iter().any(|t| anchor_of(t) == anchor));
            if !is_there || !has_anchor {
                let message = format!("the link to {target} leads nowhere");
                findings.push(Finding::new(path, number, message));
            }
        }
    }
    findings
}

fn joined(directory: &Path, file: &str) -> PathBuf {
    let mut path = directory.to_owned();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path
}

/// The anchor that a title gets: in lower case, without marks, with hyphens for spaces.
fn anchor_of(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}
