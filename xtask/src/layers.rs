//! The order of the modules of `cffs`, and the check that no module uses one above itself.
//!
//! Test code may use everything: a test of fsck needs a volume to check.

use std::path::Path;

use crate::paths;
use crate::tree::{Finding, Tree, is_test};

#[cfg(test)]
mod tests;

const SOURCE: &str = "crates/cffs/src";

/// Modules that every module may use, including each other.
const BASE: [&str; 10] =
    ["units", "error", "caller", "clock", "line", "lock", "runs", "stretch", "tuning", "waiter"];

/// The modules that a module may use in addition to [`BASE`].
enum Uses {
    /// Everything that stands before it in the table.
    Below,
    /// Just these.
    Only(&'static [&'static str]),
}

/// The modules above the base, from the bottom.
const LAYERS: [(&str, Uses); 16] = [
    ("device", Uses::Below),
    ("trace", Uses::Only(&["device"])),
    // Codecs do no I/O, so they do not even see a device.
    ("format", Uses::Only(&[])),
    ("log", Uses::Only(&["device", "format"])),
    ("memory", Uses::Only(&[])),
    ("host", Uses::Only(&["format"])),
    ("cache", Uses::Below),
    ("alloc", Uses::Below),
    ("inode", Uses::Below),
    ("namespace", Uses::Below),
    ("readahead", Uses::Below),
    ("mkfs", Uses::Only(&["device", "format", "log"])),
    // It never trusts the allocator that it audits, nor anything that does.
    ("fsck", Uses::Only(&["device", "format", "log"])),
    ("vfs", Uses::Below),
    ("open", Uses::Below),
    ("files", Uses::Below),
];

/// Every use of something above the user, and every mistake in the tables here.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = check_uses(tree);
    findings.extend(check_tables(tree));
    findings
}

fn check_uses(tree: &Tree) -> Vec<Finding> {
    tree.below(SOURCE, "rs")
        .filter(|(path, _)| !is_test(path))
        .flat_map(|(path, text)| check_file(path, text))
        .collect()
}

/// Every module in the tables that there is not.
fn check_tables(tree: &Tree) -> Vec<Finding> {
    let exists = |module: &str| {
        let path = Path::new(SOURCE).join(module.replace("::", "/"));
        tree.files.contains_key(&path.join("mod.rs"))
            || tree.files.contains_key(&path.with_extension("rs"))
    };
    let uses = LAYERS.iter().flat_map(|(_, uses)| match uses {
        Uses::Below => [].iter(),
        Uses::Only(modules) => modules.iter(),
    });
    let named = BASE.iter().chain(LAYERS.iter().map(|(module, _)| module)).chain(uses);
    let missing = named.filter(|module| !exists(module));
    missing
        .map(|module| {
            let message = format!("there is no module {module} in {SOURCE}");
            Finding::new(Path::new("xtask/src/layers.rs"), 1, message)
        })
        .collect()
}

fn check_file(path: &Path, text: &str) -> Vec<Finding> {
    let module = paths::module_of(Path::new(SOURCE), path);
    let Some(layer) = module.first() else {
        // The crate's root only lists the modules and names the best of them again.
        return Vec::new();
    };
    let Some(allowed) = allowed(layer) else {
        let message = format!(
            "the module {layer} has no place in the order of the layers: give it one in \
             xtask/src/layers.rs and in docs/ARCHITECTURE.md"
        );
        return vec![Finding::new(path, 1, message)];
    };
    let references = match paths::references(text, &module) {
        Ok(references) => references,
        Err(error) => {
            return vec![Finding::new(path, error.line, format!("not Rust: {}", error.message))];
        }
    };
    let mut findings = Vec::new();
    for reference in references {
        let named = reference.path.join("::");
        let is_own = reference.path.first() == Some(layer);
        if is_own || allowed.iter().any(|module| covers(module, &named)) {
            continue;
        }
        let root = reference.path.first().map_or("", String::as_str);
        let message = if is_module(root) {
            format!(
                "{layer} uses crate::{named}, which is not below it: {layer} may use {}",
                allowed.join(", ")
            )
        } else {
            format!(
                "{layer} uses crate::{named} through the crate's root: name the module that it \
                 comes from, so that its layer shows"
            )
        };
        findings.push(Finding::new(path, reference.line, message));
    }
    findings
}

/// The modules that `layer` may use, or `None` if there is no such layer.
fn allowed(layer: &str) -> Option<Vec<&'static str>> {
    if BASE.contains(&layer) {
        return Some(BASE.to_vec());
    }
    let place = LAYERS.iter().position(|(module, _)| *module == layer)?;
    let above_base: Vec<&str> = match LAYERS[place].1 {
        Uses::Below => LAYERS[..place].iter().map(|(module, _)| *module).collect(),
        Uses::Only(modules) => modules.to_vec(),
    };
    Some([BASE.as_slice(), &above_base].concat())
}

fn is_module(name: &str) -> bool {
    allowed(name).is_some()
}

/// Whether `named` is `module` or something in it.
fn covers(module: &str, named: &str) -> bool {
    named.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}
