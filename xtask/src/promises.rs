//! The promises of `docs/SEMANTICS.md`: each chapter names the tests that show them, and they exist.
//!
//! A test is named in a code span, in a paragraph that begins with "Shown by" or in the last column of
//! a table that is headed so. It is a Rust test, a method of an acceptance test's class, or an
//! acceptance case.

use std::path::Path;

use crate::tree::{Finding, Tree};

#[cfg(test)]
mod tests;

const DOCUMENT: &str = "docs/SEMANTICS.md";
const SHOWN_BY: &str = "Shown by ";

/// Chapters without tests, and tests that do not exist.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let path = Path::new(DOCUMENT);
    let Some(text) = tree.files.get(path) else {
        return vec![Finding::new(path, 1, "there is no such document".to_owned())];
    };
    let mut findings = Vec::new();
    let mut chapter: Option<(usize, &str, usize)> = None;
    let mut in_paragraph = false;
    let mut in_table = false;
    let end = [(text.lines().count() + 1, "## ")];
    for (number, line) in (1..).zip(text.lines()).chain(end) {
        if let Some(title) = line.strip_prefix("## ") {
            if let Some((at, title, 0)) = chapter {
                let message = format!("the chapter \"{title}\" names no test that shows it");
                findings.push(Finding::new(path, at, message));
            }
            chapter = Some((number, title, 0));
        }
        in_paragraph = line.starts_with(SHOWN_BY) || in_paragraph && !line.is_empty();
        in_table = line.starts_with('|') && (in_table || line.ends_with("| shown by |"));
        let named = match (in_paragraph, in_table) {
            (true, _) => line,
            (_, true) => line.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default(),
            _ => continue,
        };
        for test in named.split('`').skip(1).step_by(2) {
            if let Some((_, _, tests)) = &mut chapter {
                *tests += 1;
            }
            if !exists(tree, test) {
                findings.push(Finding::new(path, number, format!("there is no test {test}")));
            }
        }
    }
    findings
}

/// Whether a Rust test, a method of an acceptance test's class, or an acceptance case has the name.
pub(crate) fn exists(tree: &Tree, test: &str) -> bool {
    let rust = format!("fn {test}(");
    let method = format!("def {test}(self");
    let case = format!("case(\"{test}\"");
    tree.files.iter().any(|(path, text)| match path.extension().and_then(|end| end.to_str()) {
        Some("rs") => text.contains(&rust),
        Some("py") => text.contains(&method) || text.contains(&case),
        _ => false,
    })
}
