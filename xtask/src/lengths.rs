//! Limits of the lengths of functions and files. A function fits on a screen, and a file tells one story.
//! Functions and files that were longer when the limit was introduced are listed with their lengths, and may
//! only become shorter.

use std::path::Path;
use std::str::FromStr;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::tree::{Finding, Tree, is_test};

mod known;
#[cfg(test)]
mod tests;

use known::{LONG_FILES, LONG_FUNCTIONS};

const LIST: &str = "xtask/src/lengths/known.rs";
const FUNCTION_LINES_MAX: usize = 80;
const FILE_LINES_MAX: usize = 600;

/// A file or function that is longer than the limit: the file, the function's name, its lines.
type Known = (&'static str, &'static str, usize);

/// Functions and files that are too long, and unnecessary list entries. Tests are lists, and may be
/// longer.
pub fn check(tree: &Tree) -> Vec<Finding> {
    check_against(tree, &LONG_FUNCTIONS, &LONG_FILES)
}

fn check_against(tree: &Tree, long_functions: &[Known], long_files: &[Known]) -> Vec<Finding> {
    let functions =
        tree.below("", "rs").filter(|(path, _)| !is_test(path)).flat_map(|(path, text)| {
            let found = functions(text).into_iter();
            found.map(|(name, line, lines)| Measured { path, name, line, lines })
        });
    let mut findings = compare(functions, FUNCTION_LINES_MAX, long_functions);
    let files = tree.files.iter().filter(|(path, _)| is_code(path) && !is_test(path));
    let files = files.map(|(path, text)| {
        let lines = text.lines().count();
        Measured { path, name: String::new(), line: FILE_LINES_MAX + 1, lines }
    });
    findings.extend(compare(files, FILE_LINES_MAX, long_files));
    findings
}

struct Measured<'a> {
    path: &'a Path,
    /// A function's name; empty for a whole file.
    name: String,
    line: usize,
    lines: usize,
}

fn compare<'a>(
    all: impl Iterator<Item = Measured<'a>>,
    limit: usize,
    known: &[Known],
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut needed = vec![false; known.len()];
    for Measured { path, name, line, lines } in all.filter(|measured| measured.lines > limit) {
        let entry =
            known.iter().position(|(file, known, _)| path == Path::new(file) && name == *known);
        if let Some(entry) = entry {
            needed[entry] = true;
        }
        let allowed = entry.map_or(limit, |entry| known[entry].2);
        if lines > allowed {
            let what = if name.is_empty() { String::new() } else { format!("fn {name}: ") };
            let message = format!("{what}{lines} lines are too many, {allowed} the limit");
            findings.push(Finding::new(path, line, message));
        }
    }
    for ((file, name, _), _) in known.iter().zip(needed).filter(|(_, is_needed)| !is_needed) {
        let message =
            format!("{file} {name}: no longer than {limit} lines now: take it from the list");
        findings.push(Finding::new(Path::new(LIST), 1, message));
    }
    findings
}

fn is_code(path: &Path) -> bool {
    path.extension().is_none_or(|extension| extension != "md" && extension != "toml")
}

/// The functions in a text, each with its name, its first line and the number of its lines.
fn functions(text: &str) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    // A file that cannot be parsed is reported by the check of the layers, or does not compile.
    if let Ok(tokens) = TokenStream::from_str(text) {
        scan(&tokens.into_iter().collect::<Vec<_>>(), &mut found);
    }
    found
}

fn scan(tokens: &[TokenTree], found: &mut Vec<(String, usize, usize)>) {
    for (at, token) in tokens.iter().enumerate() {
        if let TokenTree::Group(group) = token {
            scan(&group.stream().into_iter().collect::<Vec<_>>(), found);
        }
        let [TokenTree::Ident(keyword), TokenTree::Ident(name), rest @ ..] = &tokens[at..] else {
            continue;
        };
        if keyword != "fn" {
            continue;
        }
        let ends = |token: &&TokenTree| match token {
            TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
            TokenTree::Punct(mark) => mark.as_char() == ';',
            _ => false,
        };
        if let Some(TokenTree::Group(body)) = rest.iter().find(ends) {
            let first = keyword.span().start().line;
            let last = body.span_close().end().line;
            found.push((name.to_string(), first, last + 1 - first));
        }
    }
}
