//! Limits of the sizes of types: the number of methods of a type, and of files with its methods. A type that
//! is spread over many files has several jobs. Types that were larger when the limits were introduced are
//! listed with their counts, which may only become smaller.
//!
//! Inherent methods count, outside of tests. An impl belongs to the type of its name that is defined nearest
//! to it, so types of one name are told apart.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::paths;
use crate::tree::{Finding, Tree, is_test};

mod known;
#[cfg(test)]
mod tests;

use known::LARGE_TYPES;

const LIST: &str = "xtask/src/rooms/known.rs";
const FILES_MAX: usize = 3;
const METHODS_MAX: usize = 60;

/// A type beyond a limit: the source directory of its crate, its path there, its files, its methods.
type Known = (&'static str, &'static str, usize, usize);

/// Types that are too large, and unnecessary list entries.
pub fn check(tree: &Tree) -> Vec<Finding> {
    check_against(tree, &LARGE_TYPES)
}

fn check_against(tree: &Tree, known: &[Known]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut needed = vec![false; known.len()];
    for ((source, path), size) in sizes(tree) {
        let (files, methods) = (size.files.len(), size.methods);
        if files <= FILES_MAX && methods <= METHODS_MAX {
            continue;
        }
        let entry = known.iter().position(|(known_source, known_path, ..)| {
            source == Path::new(known_source) && path == *known_path
        });
        let (files_max, methods_max) = entry.map_or((FILES_MAX, METHODS_MAX), |entry| {
            needed[entry] = true;
            (known[entry].2.max(FILES_MAX), known[entry].3.max(METHODS_MAX))
        });
        if files > files_max || methods > methods_max {
            let message = format!(
                "the type {path} has {methods} methods in {files} files, of at most {methods_max} in \
                 {files_max}: give a part of its fields to a type of their own"
            );
            findings.extend(size.files.first().map(|file| Finding::new(file, 1, message)));
        }
    }
    for ((_, path, ..), _) in known.iter().zip(needed).filter(|(_, is_needed)| !is_needed) {
        let message = format!("{path} is within the limits now: take it from the list");
        findings.push(Finding::new(Path::new(LIST), 1, message));
    }
    findings
}

#[derive(Default)]
struct Size {
    files: BTreeSet<PathBuf>,
    methods: usize,
}

/// The sizes of all types, by the source of their crate and their path in it.
fn sizes(tree: &Tree) -> BTreeMap<(PathBuf, String), Size> {
    let mut crates: BTreeMap<&Path, Vec<(&Path, Items)>> = BTreeMap::new();
    for (path, text) in tree.below("", "rs").filter(|(path, _)| !is_test(path)) {
        if let Some(source) = path.ancestors().find(|directory| directory.ends_with("src")) {
            let items = Items::of(text, &paths::module_of(source, path));
            crates.entry(source).or_default().push((path, items));
        }
    }
    let mut sizes: BTreeMap<(PathBuf, String), Size> = BTreeMap::new();
    for (source, files) in crates {
        let types: Vec<&Vec<String>> = files.iter().flat_map(|(_, items)| &items.types).collect();
        for (path, items) in &files {
            for (module, name, methods) in &items.impls {
                let of_name = types.iter().filter(|path| path.last() == Some(name));
                // An impl without a type in its crate belongs to a macro.
                let Some(nearest) = of_name.max_by_key(|path| shared(path, module)) else {
                    continue;
                };
                let size = sizes.entry((source.to_owned(), nearest.join("::"))).or_default();
                size.files.insert(path.to_path_buf());
                size.methods += methods;
            }
        }
    }
    sizes
}

/// How many modules a type's path shares with the module of an impl, and that the type is not deeper.
fn shared(path: &[String], module: &[String]) -> (usize, bool) {
    let parents = &path[..path.len() - 1];
    let shared = parents.iter().zip(module).take_while(|(a, b)| a == b).count();
    (shared, shared == parents.len())
}

/// The types that a file defines, and its inherent impls.
#[derive(Default)]
struct Items {
    types: Vec<Vec<String>>,
    /// The module of each, the type's name, and the number of methods.
    impls: Vec<(Vec<String>, String, usize)>,
}

impl Items {
    fn of(text: &str, module: &[String]) -> Items {
        let mut items = Items::default();
        // A file that cannot be parsed is reported by the check of the layers, or does not compile.
        if let Ok(tokens) = TokenStream::from_str(text) {
            items.scan(&tokens.into_iter().collect::<Vec<_>>(), module);
        }
        items
    }

    fn scan(&mut self, tokens: &[TokenTree], module: &[String]) {
        for at in 0..tokens.len() {
            match &tokens[at..] {
                [TokenTree::Ident(keyword), TokenTree::Ident(name), TokenTree::Group(body), ..]
                    if keyword == "mod" && name != "tests" =>
                {
                    let inner: Vec<String> =
                        module.iter().cloned().chain([name.to_string()]).collect();
                    self.scan(&body.stream().into_iter().collect::<Vec<_>>(), &inner);
                }
                [TokenTree::Ident(keyword), TokenTree::Ident(name), ..]
                    if ["struct", "enum", "union"].iter().any(|kind| keyword == kind) =>
                {
                    self.types.push(module.iter().cloned().chain([name.to_string()]).collect());
                }
                [TokenTree::Ident(keyword), rest @ ..]
                    if keyword == "impl" && begins_item(&tokens[..at]) =>
                {
                    if let Some((name, methods)) = inherent(rest) {
                        self.impls.push((module.to_vec(), name, methods));
                    }
                }
                _ => {}
            }
        }
    }
}

/// Whether an item may begin after these tokens: `impl` also occurs in types.
fn begins_item(before: &[TokenTree]) -> bool {
    match before.last() {
        None => true,
        Some(TokenTree::Group(group)) => group.delimiter() != Delimiter::Parenthesis,
        Some(TokenTree::Punct(mark)) => mark.as_char() == ';',
        Some(TokenTree::Ident(word)) => word == "unsafe",
        Some(TokenTree::Literal(_)) => false,
    }
}

/// The type's name and the number of methods of the impl that continues with these tokens, if it is not one
/// of a trait.
fn inherent(rest: &[TokenTree]) -> Option<(String, usize)> {
    let (mut depth, mut name, mut is_arrow) = (0usize, None, false);
    for (at, token) in rest.iter().enumerate() {
        match token {
            TokenTree::Punct(mark) if mark.as_char() == '<' => depth += 1,
            TokenTree::Punct(mark) if mark.as_char() == '>' && !is_arrow => {
                depth = depth.saturating_sub(1);
            }
            TokenTree::Ident(word) if depth == 0 && word == "for" => return None,
            TokenTree::Ident(word) if depth == 0 && word != "where" => {
                name = Some(word.to_string())
            }
            TokenTree::Ident(_) | TokenTree::Group(_) if depth == 0 => {
                let body = rest[at..].iter().find_map(braces)?;
                return name.map(|name| (name, methods(body)));
            }
            _ => {}
        }
        is_arrow = matches!(token, TokenTree::Punct(mark) if mark.as_char() == '-');
    }
    None
}

fn braces(token: &TokenTree) -> Option<TokenStream> {
    match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(group.stream()),
        _ => None,
    }
}

fn methods(body: TokenStream) -> usize {
    let tokens: Vec<TokenTree> = body.into_iter().collect();
    let is_method = |pair: &&[TokenTree]| match pair {
        [TokenTree::Ident(word), TokenTree::Ident(_)] => word == "fn",
        _ => false,
    };
    tokens.windows(2).filter(is_method).count()
}
