//! No cycles of files: files of one crate whose modules use each other, directly or through others, can only
//! be understood together.
//!
//! A module may use the modules that contain it: they declare its vocabulary. Tests may use everything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::paths;
use crate::tree::{Finding, Tree, is_test};

#[cfg(test)]
mod tests;

/// Known cycles. An entry is removed when its cycle is; none is added.
const KNOWN: [&[&str]; 0] = [];

/// A module by its path within its crate.
type Module = Vec<String>;

/// Every unknown cycle, and every known one that no longer exists.
pub fn check(tree: &Tree) -> Vec<Finding> {
    check_against(tree, &KNOWN)
}

fn check_against(tree: &Tree, known: &[&[&str]]) -> Vec<Finding> {
    let circles: Vec<BTreeSet<PathBuf>> =
        crates(tree).values().flat_map(|files| circles_of(tree, files)).collect();
    let is_known = |circle: &BTreeSet<PathBuf>, entry: &[&str]| {
        circle.iter().all(|path| entry.iter().any(|known| path == Path::new(known)))
    };
    let mut findings = Vec::new();
    for circle in &circles {
        if !known.iter().any(|entry| is_known(circle, entry)) {
            let names: Vec<String> = circle.iter().map(|p| p.display().to_string()).collect();
            let message = format!(
                "these files use each other in a circle: {}; move what they share to a file of its \
                 own",
                names.join(", ")
            );
            findings.extend(circle.first().map(|path| Finding::new(path, 1, message)));
        }
    }
    for entry in known {
        if !circles.iter().any(|circle| is_known(circle, entry)) {
            let message = format!(
                "no circle is left of {}: take it from the list in xtask/src/circles.rs",
                entry.join(", ")
            );
            findings.push(Finding::new(Path::new("xtask/src/circles.rs"), 1, message));
        }
    }
    findings
}

/// The files of each crate, by the directory of its source.
fn crates(tree: &Tree) -> BTreeMap<PathBuf, BTreeMap<Module, PathBuf>> {
    let mut crates: BTreeMap<PathBuf, BTreeMap<Module, PathBuf>> = BTreeMap::new();
    for (path, _) in tree.below("", "rs").filter(|(path, _)| !is_test(path)) {
        let source = path.ancestors().find(|directory| directory.ends_with("src"));
        if let Some(source) = source {
            let module = paths::module_of(source, path);
            crates.entry(source.to_owned()).or_default().insert(module, path.to_owned());
        }
    }
    crates
}

fn circles_of(tree: &Tree, files: &BTreeMap<Module, PathBuf>) -> Vec<BTreeSet<PathBuf>> {
    let uses: BTreeMap<&Module, BTreeSet<&Module>> = files
        .iter()
        .map(|(module, path)| (module, used_by(module, &tree.files[path], files)))
        .collect();
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        files.keys().map(|module| (module, reachable(module, &uses))).collect();
    let mut circles = BTreeSet::new();
    for (module, reached_from) in &reached {
        if reached_from.contains(module) {
            let circle = reached_from.iter().filter(|other| reached[*other].contains(*module));
            circles.insert(circle.map(|module| files[*module].clone()).collect());
        }
    }
    circles.into_iter().collect()
}

/// The modules with a file of their own that `module` names, except those that contain it.
fn used_by<'a>(
    module: &Module,
    text: &str,
    files: &'a BTreeMap<Module, PathBuf>,
) -> BTreeSet<&'a Module> {
    // The check of the layers reports files that cannot be parsed.
    let references = paths::references(text, module).unwrap_or_default();
    let with_file = |path: &[String]| {
        let prefixes = (0..=path.len()).rev().map(|len| &path[..len]);
        prefixes.into_iter().find_map(|prefix| files.get_key_value(prefix)).map(|(key, _)| key)
    };
    references
        .iter()
        .filter_map(|reference| with_file(&reference.path))
        .filter(|used| !module.starts_with(used))
        .collect()
}

/// The files that `start` uses, directly or through others.
fn reachable<'a>(
    start: &Module,
    uses: &BTreeMap<&'a Module, BTreeSet<&'a Module>>,
) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut waiting: Vec<&Module> = uses[start].iter().copied().collect();
    while let Some(module) = waiting.pop() {
        if reached.insert(module) {
            waiting.extend(&uses[module]);
        }
    }
    reached
}
