//! Compares `cffs.h` with the output of cbindgen.

use std::collections::BTreeSet;
use std::path::Path;

/// With `UPDATE_HEADER=1` in the environment, this writes the header.
#[test]
fn the_header_matches_the_functions() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let at = here.join("include/cffs.h");
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml")).expect("a configuration");
    let mut made = Vec::new();
    let bindings = cbindgen::Builder::new().with_crate(here).with_config(config).generate();
    bindings.expect("functions that C can call").write(&mut made);
    let made = without_safety(&String::from_utf8(made).expect("text"));
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(&at, &made).expect("written");
    }
    let is = std::fs::read_to_string(&at).expect("a header");
    assert!(
        is == made,
        "run UPDATE_HEADER=1 cargo test -p cffs-c --test header, and look at the difference"
    );
}

/// Users cannot find a function that the man page omits; one that no longer exists would mislead them.
#[test]
fn the_man_page_names_every_function() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = std::fs::read_to_string(here.join("include/cffs.h")).expect("a header");
    let page = std::fs::read_to_string(here.join("man/libcffs.3")).expect("a page");
    let functions = names(&header, |after| after.starts_with('('));
    assert!(functions.len() > 30, "{functions:?}");
    let types = names(&header, |after| after.starts_with(';') || after.starts_with(")("));
    let named = names(&page, |_| true);
    assert_eq!(functions.difference(&named).copied().collect::<Vec<_>>(), [""; 0]);
    let known: BTreeSet<_> = functions.union(&types).copied().collect();
    assert_eq!(named.difference(&known).copied().collect::<Vec<_>>(), [""; 0]);
}

/// The words of a text with the library's prefix whose following text meets a condition.
fn names(text: &str, follows: impl Fn(&str) -> bool) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("cffs_") {
        let rest = &text[at..];
        let is_end = |c: char| !c.is_ascii_lowercase() && c != '_';
        let (name, after) = rest.split_at(rest.find(is_end).unwrap_or(rest.len()));
        if follows(after) {
            found.insert(name);
        }
    }
    found
}

/// The safety sections are for readers of the source: in C, the caller is responsible for every pointer.
fn without_safety(header: &str) -> String {
    let mut lines = Vec::new();
    let mut is_in_section = false;
    for line in header.lines() {
        is_in_section |= line.trim() == "// # Safety";
        is_in_section &= line.starts_with("//");
        if is_in_section && lines.last() == Some(&"//") {
            lines.pop();
        }
        if !is_in_section {
            lines.push(line);
        }
    }
    lines.join("\n") + "\n"
}
