//! The order of the crates, and the check that their manifests keep it.

use std::path::Path;

use toml::{Table, Value};

use crate::tree::{Finding, Tree};

#[cfg(test)]
mod tests;

/// Every crate of the workspace, and which of the others it may depend on.
const CRATES: [(&str, &[&str]); 18] = [
    // The protocols know nothing of C-FFS, and the core nothing of any front end.
    ("fuse-ring", &[]),
    ("nfs-wire", &[]),
    ("tar-wire", &[]),
    ("man-page", &[]),
    ("mount-list", &[]),
    ("cffs", &[]),
    // Test code that several crates use.
    ("cffs-testing", &["cffs"]),
    // Only this crate has clients of stores and their dependencies.
    ("cffs-object", &["cffs"]),
    ("cffs-serve", &["cffs", "fuse-ring", "mount-list", "nfs-wire"]),
    // The page and its HTTP server; the server of the volume provides its data.
    ("cffs-web", &["cffs", "cffs-serve"]),
    (
        "cffs-cli",
        &["cffs", "cffs-object", "cffs-serve", "cffs-web", "man-page", "mount-list", "tar-wire"],
    ),
    ("cffs-c", &["cffs"]),
    ("cffs-python", &["cffs", "cffs-object"]),
    // It works on kernel file systems.
    ("cffs-place", &["man-page", "mount-list"]),
    ("place-c", &["cffs-place"]),
    ("cffs-bench", &["cffs", "fuse-ring", "nfs-wire", "cffs-serve", "cffs-cli", "cffs-place"]),
    ("cffs-fuzz", &["cffs", "cffs-testing", "fuse-ring", "nfs-wire", "tar-wire", "cffs-serve"]),
    ("xtask", &[]),
];

const KINDS: [&str; 3] = ["dependencies", TESTS, "build-dependencies"];
const TESTS: &str = "dev-dependencies";

/// The crates that the tests of a crate may use in addition.
const FOR_TESTS: [(&str, &str); 5] = [
    ("cffs", "cffs-testing"),
    ("cffs-object", "cffs-testing"),
    ("cffs-cli", "cffs-testing"),
    // The program's tests serve a failing disk, and act as NFS clients.
    ("cffs-cli", "fuse-ring"),
    ("cffs-cli", "nfs-wire"),
];

/// Every dependency that leads upward.
pub fn check(tree: &Tree) -> Vec<Finding> {
    tree.below("", "toml")
        .filter(|(path, _)| path.ends_with("Cargo.toml"))
        .flat_map(|(path, text)| check_manifest(path, text))
        .collect()
}

fn check_manifest(path: &Path, text: &str) -> Vec<Finding> {
    let finding = |line, message| vec![Finding::new(path, line, message)];
    let manifest: Table = match text.parse() {
        Ok(manifest) => manifest,
        Err(error) => return finding(1, format!("not a manifest: {error}")),
    };
    let Some(name) = manifest.get("package").and_then(|package| package.get("name")) else {
        // The workspace's own manifest.
        return Vec::new();
    };
    let name = name.as_str().unwrap_or_default();
    let in_workspace = path.starts_with("crates") || path.starts_with("xtask");
    let Some((_, allowed)) = CRATES.iter().find(|(known, _)| *known == name) else {
        return match in_workspace {
            true => finding(
                1,
                format!(
                    "the crate {name} has no place in the order of the crates: give it one in \
                     xtask/src/manifests.rs and in docs/ARCHITECTURE.md"
                ),
            ),
            // Test programs and fuzz targets may depend on everything.
            false => Vec::new(),
        };
    };
    dependencies(&manifest)
        .into_iter()
        .filter(|(_, used)| CRATES.iter().any(|(known, _)| known == used))
        .filter(|(_, used)| !allowed.contains(&used.as_str()))
        .filter(|(kind, used)| *kind != TESTS || !FOR_TESTS.contains(&(name, used.as_str())))
        .map(|(_, used)| {
            let may = match allowed {
                [] => "no other crate of the workspace".to_owned(),
                some => some.join(", "),
            };
            let message = format!("{name} depends on {used}, but it may only use {may}");
            Finding::new(path, line_of(text, &used), message)
        })
        .collect()
}

/// The packages that a manifest depends on, for whatever target, and the kind of each dependency.
fn dependencies(manifest: &Table) -> Vec<(&'static str, String)> {
    let targets = manifest.get("target").and_then(Value::as_table).into_iter();
    let for_targets = targets.flat_map(Table::values).filter_map(Value::as_table);
    let mut names = Vec::new();
    for scope in std::iter::once(manifest).chain(for_targets) {
        for kind in KINDS {
            let Some(table) = scope.get(kind).and_then(Value::as_table) else {
                continue;
            };
            for (key, value) in table {
                let renamed = value.get("package").and_then(Value::as_str);
                names.push((kind, renamed.unwrap_or(key).to_owned()));
            }
        }
    }
    names
}

/// The line that names a dependency; the first line if it is not found.
fn line_of(text: &str, dependency: &str) -> usize {
    let names_it = |line: &str| {
        line.trim_start()
            .strip_prefix(dependency)
            .is_some_and(|rest| rest.starts_with([' ', '.', '=']))
    };
    text.lines().position(names_it).map_or(1, |line| line + 1)
}
