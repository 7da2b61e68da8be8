//! Which items of its own crate a source file names.
//!
//! Works on tokens, not on a syntax tree: so it also sees the arguments of macros, and does not depend on the
//! version of the language. A path within the crate always begins with `crate` or `super`. Comments and
//! strings are no tokens of their own and do not count.

use std::path::Path;
use std::str::FromStr;

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// An item that is named, by its path from the crate's root.
///
/// A glob ends in `*`. The path of the root itself is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    pub path: Vec<String>,
    pub line: usize,
}

/// The text does not consist of Rust tokens.
#[derive(Debug)]
pub struct NotRust {
    pub line: usize,
    pub message: String,
}

/// The module of a file, if the crate's source is in `source`: `device/file/mod.rs` is `device::file`.
pub fn module_of(source: &Path, path: &Path) -> Vec<String> {
    let within = path.strip_prefix(source).unwrap_or(path).with_extension("");
    let mut module: Vec<String> =
        within.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&&**last)) {
        module.pop();
    }
    module
}

/// Every path in `text`, the source of `module`, that leads through `crate` or `super`.
pub fn references(text: &str, module: &[String]) -> Result<Vec<Reference>, NotRust> {
    let tokens = TokenStream::from_str(text)
        .map_err(|error| NotRust { line: error.span().start().line, message: error.to_string() })?;
    let mut found = Vec::new();
    scan(&tokens.into_iter().collect::<Vec<_>>(), module, &mut found);
    Ok(found)
}

fn scan(tokens: &[TokenTree], module: &[String], found: &mut Vec<Reference>) {
    let mut at = 0;
    while at < tokens.len() {
        let rest = &tokens[at..];
        if let [TokenTree::Ident(keyword), TokenTree::Ident(name), TokenTree::Group(body), ..] =
            rest
            && keyword == "mod"
        {
            let inner: Vec<String> = module.iter().cloned().chain([name.to_string()]).collect();
            scan(&trees(body.stream()), &inner, found);
            at += 3;
            continue;
        }
        match &rest[0] {
            TokenTree::Ident(word) if word == "crate" && is_named(&rest[1..]) => {
                at += 1 + follow(Vec::new(), &rest[1..], word.span().start().line, found);
            }
            TokenTree::Ident(word) if word == "super" && is_named(&rest[1..]) => {
                let parent = parent(module);
                at += 1 + follow(parent, &rest[1..], word.span().start().line, found);
            }
            TokenTree::Group(group) => {
                scan(&trees(group.stream()), module, found);
                at += 1;
            }
            _ => at += 1,
        }
    }
}

/// Whether the tokens after `crate` or `super` make it a path: not in `pub(crate)`.
fn is_named(rest: &[TokenTree]) -> bool {
    let renamed = matches!(rest.first(), Some(TokenTree::Ident(word)) if word == "as");
    renamed || starts_with_separator(rest)
}

fn starts_with_separator(tokens: &[TokenTree]) -> bool {
    matches!(
        tokens,
        [TokenTree::Punct(first), TokenTree::Punct(second), ..]
            if first.as_char() == ':'
                && first.spacing() == Spacing::Joint
                && second.as_char() == ':'
    )
}

/// Follows a path on from `base`: `tokens` begin with `::`, or the path has ended. Returns the
/// number of tokens that belong to the path.
fn follow(
    mut base: Vec<String>,
    tokens: &[TokenTree],
    line: usize,
    found: &mut Vec<Reference>,
) -> usize {
    let mut at = 0;
    while starts_with_separator(&tokens[at..]) {
        match tokens.get(at + 2) {
            Some(TokenTree::Ident(word)) if word == "super" => base = parent(&base),
            Some(TokenTree::Ident(word)) if word == "self" => {}
            Some(TokenTree::Ident(word)) => base.push(word.to_string()),
            Some(TokenTree::Punct(star)) if star.as_char() == '*' => base.push("*".to_owned()),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                branch(&base, &trees(group.stream()), found);
                return at + 3;
            }
            // A path may continue with generic arguments; these are scanned separately.
            _ => break,
        }
        at += 3;
    }
    found.push(Reference { path: base, line });
    at
}

/// Follows each of the paths in the braces of a `use`.
fn branch(base: &[String], tokens: &[TokenTree], found: &mut Vec<Reference>) {
    let is_comma =
        |token: &TokenTree| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ',');
    for item in tokens.split(is_comma) {
        let mut base = base.to_vec();
        let Some(first) = item.first() else {
            continue;
        };
        let line = first.span().start().line;
        match first {
            TokenTree::Ident(word) if word == "super" => base = parent(&base),
            TokenTree::Ident(word) if word == "self" => {}
            TokenTree::Ident(word) => base.push(word.to_string()),
            TokenTree::Group(group) => {
                branch(&base, &trees(group.stream()), found);
                continue;
            }
            _ => base.push("*".to_owned()),
        }
        follow(base, &item[1..], line, found);
    }
}

fn trees(stream: TokenStream) -> Vec<TokenTree> {
    stream.into_iter().collect()
}

fn parent(module: &[String]) -> Vec<String> {
    module[..module.len().saturating_sub(1)].to_vec()
}
