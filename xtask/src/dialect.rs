//! Phrases that only this project uses, counted. Each has a limit, which may only be lowered: the goal is
//! zero.
//! CONTRIBUTING (Language) shows what to write instead.

use std::path::Path;

use crate::tree::{Finding, Tree};

#[cfg(test)]
mod tests;

/// The texts that quote the phrases.
const QUOTING: [&str; 2] = ["xtask", "CONTRIBUTING.md"];

/// A phrase, in how many lines of the tree it may occur, and how to find it in a line of lower case.
struct Phrase {
    name: &'static str,
    limit: usize,
    occurs: fn(&str) -> bool,
}

/// Verbs after which a "who" mostly stands for a thread or a program.
const VERBS: [&str; 16] = [
    "reads", "writes", "waits", "needs", "calls", "goes", "comes", "asks", "has", "adds",
    "changes", "holds", "opens", "takes", "makes", "finds",
];

const PHRASES: [Phrase; 10] = [
    Phrase { name: "anew", limit: 0, occurs: |line| has_words(line, "anew") },
    Phrase { name: "so many", limit: 0, occurs: |line| has_words(line, "so many") },
    Phrase { name: "whoever", limit: 0, occurs: |line| has_words(line, "whoever") },
    Phrase { name: "who, for a program or a thread", limit: 0, occurs: has_who },
    Phrase { name: "beside, without \"the\"", limit: 0, occurs: has_bare_beside },
    Phrase { name: "leads there", limit: 0, occurs: leads_there },
    Phrase { name: "a comment that begins with \"What\"", limit: 0, occurs: begins_with_what },
    Phrase { name: "nobody", limit: 0, occurs: has_nobody },
    Phrase { name: "\"what is\" with a participle", limit: 0, occurs: has_what_participle },
    Phrase { name: "\"there is … that\"", limit: 0, occurs: has_there_that },
];

/// Each phrase that occurs more often than its limit.
pub fn check(tree: &Tree) -> Vec<Finding> {
    PHRASES.iter().filter_map(|phrase| check_phrase(tree, phrase)).collect()
}

/// Names the last line that has the phrase, if there are too many.
fn check_phrase(tree: &Tree, phrase: &Phrase) -> Option<Finding> {
    let Phrase { name, limit, occurs } = phrase;
    let quotes = |path: &Path| QUOTING.iter().any(|quoting| path.starts_with(quoting));
    let files = tree.files.iter().filter(|(path, _)| !quotes(path));
    let places: Vec<(&Path, usize)> = files
        .flat_map(|(path, text)| {
            let lines = (1..).zip(text.lines());
            lines
                .filter(|(_, line)| occurs(&line.to_lowercase()))
                .map(|(number, _)| (path.as_path(), number))
        })
        .collect();
    let count = places.len();
    let (path, line) = places.last().filter(|_| count > *limit)?;
    let message = format!(
        "{name}: {count} lines have it, {limit} may; CONTRIBUTING says what to write instead"
    );
    Some(Finding::new(path, *line, message))
}

/// Whether the line contains the words, not as a part of longer ones.
fn has_words(line: &str, words: &str) -> bool {
    let is_inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(words).any(|(at, _)| {
        !is_inside(line[..at].chars().next_back())
            && !is_inside(line[at + words.len()..].chars().next())
    })
}

fn has_who(line: &str) -> bool {
    VERBS.iter().any(|verb| has_words(line, &format!("who {verb}")))
}

fn has_bare_beside(line: &str) -> bool {
    has_words(line, "beside") && !has_words(line, "beside the")
}

fn leads_there(line: &str) -> bool {
    has_words(line, "leads there") || has_words(line, "lead there")
}

/// "Nobody waits", but not the user of that name.
fn has_nobody(line: &str) -> bool {
    line.match_indices("nobody ").any(|(at, word)| {
        let starts = !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        starts && line[at + word.len()..].starts_with(char::is_alphabetic)
    })
}

/// "What is written", and the like: a noun says more.
fn has_what_participle(line: &str) -> bool {
    ["what is ", "what are ", "what was ", "what were "].iter().any(|start| {
        line.match_indices(start).any(|(at, _)| {
            let next = line[at + start.len()..].split(|c: char| !c.is_alphabetic()).next();
            let is_participle =
                |word: &str| ["ed", "en", "wn"].iter().any(|end| word.ends_with(end));
            next.is_some_and(is_participle)
        })
    })
}

/// "There is a thread that waits": "A thread waits" is shorter.
fn has_there_that(line: &str) -> bool {
    ["there is ", "there are "]
        .iter()
        .any(|start| line.find(start).is_some_and(|at| has_words(&line[at..], "that")))
}

fn begins_with_what(line: &str) -> bool {
    let line = line.trim_start();
    ["/// what ", "//! what "].iter().any(|start| line.starts_with(start))
}
