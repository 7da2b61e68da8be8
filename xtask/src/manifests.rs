//! The order of the crates, and the check that their manifests keep it.

use std::path::Path;

use toml::{Table, Value};

use crate::tree::{Finding, Tree};

#[cfg(test)]
mod tests;

/// A crate, and the others that it may depend on.
type Crate = (&'static str, &'static [&'static str]);

/// The folders of the workspace, each with its crates, and which others a crate may depend on: only crates of
/// its folder and of the folders before it.
const FOLDERS: [(&str, &[Crate]); 8] = [
    // These know nothing of C-FFS.
    (
        "libs",
        &[
            ("fuse-ring", &[]),
            ("nfs-wire", &[]),
            ("tar-wire", &[]),
            ("man-page", &[]),
            ("mount-list", &[]),
        ],
    ),
    // The core knows no front end. Only cffs-object has clients of stores and their dependencies.
    ("core", &[("cffs", &[]), ("cffs-object", &["cffs"])]),
    // It works on kernel file systems.
    ("place", &[("cffs-place", &["man-page", "mount-list"]), ("place-c", &["cffs-place"])]),
    (
        "serve",
        &[
            ("cffs-serve", &["cffs", "fuse-ring", "mount-list", "nfs-wire"]),
            // The page and its HTTP server; the server of the volume provides its data.
            ("cffs-web", &["cffs", "cffs-serve"]),
        ],
    ),
    ("bindings", &[("cffs-c", &["cffs"]), ("cffs-python", &["cffs", "cffs-object"])]),
    (
        "bin",
        &[(
            "cffs-cli",
            &[
                "cffs",
                "cffs-object",
                "cffs-serve",
                "cffs-web",
                "man-page",
                "mount-list",
                "tar-wire",
            ],
        )],
    ),
    // Tests, measurements and fuzzing.
    (
        "lab",
        &[
            ("cffs-testing", &["cffs"]),
            ("cffs-bench", &["cffs", "cffs-place", "cffs-serve", "fuse-ring", "nfs-wire"]),
            (
                "cffs-fuzz",
                &["cffs", "cffs-testing", "fuse-ring", "nfs-wire", "tar-wire", "cffs-serve"],
            ),
        ],
    ),
    ("", &[("xtask", &[])]),
];

/// All crates in their order: the folder, the name, and which others it may depend on.
fn crates() -> impl Iterator<Item = (&'static str, &'static str, &'static [&'static str])> {
    FOLDERS.iter().flat_map(|(folder, crates)| {
        crates.iter().map(move |(name, allowed)| (*folder, *name, *allowed))
    })
}

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
    let directory = path.parent().unwrap_or(path);
    let Some((.., allowed)) = crates()
        .find(|&(folder, known, _)| known == name && directory == Path::new(folder).join(known))
    else {
        let top = path.iter().next().unwrap_or_default();
        let in_workspace = FOLDERS.iter().any(|(folder, _)| top == *folder) || top == "xtask";
        return match in_workspace {
            true => finding(
                1,
                format!(
                    "the crate {name} has no place in {}: give it one in xtask/src/manifests.rs and in \
                     docs/ARCHITECTURE.md",
                    directory.display()
                ),
            ),
            // Test programs and fuzz targets may depend on everything.
            false => Vec::new(),
        };
    };
    dependencies(&manifest)
        .into_iter()
        .filter(|(_, used)| crates().any(|(_, known, _)| known == used))
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
