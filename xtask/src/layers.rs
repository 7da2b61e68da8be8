//! The order of the modules of `cffs` and of `cffs-serve`, and the check that no module uses one above
//! itself.
//!
//! Test code may use everything: a test of fsck needs a volume to check.

use std::path::Path;

use crate::paths;
use crate::tree::{Finding, Tree, is_test};

#[cfg(test)]
mod tests;

/// The modules of a crate in their order.
struct Order {
    source: &'static str,
    /// Modules that every module may use, including each other.
    base: &'static [&'static str],
    /// The others, from the bottom.
    layers: &'static [(&'static str, Uses)],
}

const ORDERS: [&Order; 2] = [&CORE, &SERVE];

const CORE: Order = Order { source: "core/cffs/src", base: &BASE, layers: &LAYERS };

/// The front ends, `nfs` and `fuse`, use the modules for every protocol, but not each other.
const SERVE: Order = Order {
    source: "serve/cffs-serve/src",
    base: &[],
    layers: &[
        ("access", Uses::Only(&[])),
        ("shared", Uses::Only(&[])),
        ("stopped", Uses::Only(&[])),
        ("socket", Uses::Only(&["stopped"])),
        ("layout", Uses::Only(&[])),
        ("describe", Uses::Only(&[])),
        ("served", Uses::Only(&["access", "shared", "socket", "layout", "describe"])),
        ("unmounted", Uses::Only(&["served", "socket"])),
        ("nfs", Uses::Only(&["access", "shared"])),
        ("attached", Uses::Only(&["access", "shared"])),
        ("fuse", Uses::Only(&["access", "attached", "shared", "served"])),
    ],
};

/// Modules that every module may use, including each other.
const BASE: [&str; 11] = [
    "units",
    "error",
    "clock",
    "padded",
    "lock",
    "runs",
    "locality",
    "tuning",
    "waiter",
    "printable",
    "processors",
];

/// The modules that a module may use in addition to [`BASE`].
enum Uses {
    /// All modules before it in the table.
    Below,
    /// Only these.
    Only(&'static [&'static str]),
}

/// The modules above the base, from the bottom.
const LAYERS: [(&str, Uses); 20] = [
    ("device", Uses::Below),
    ("trace", Uses::Only(&["device"])),
    // Codecs do no I/O, so they do not use devices.
    ("format", Uses::Only(&[])),
    ("journal", Uses::Only(&["device", "format"])),
    ("memory", Uses::Only(&[])),
    ("host", Uses::Only(&["format"])),
    ("options", Uses::Only(&["format", "host", "trace"])),
    ("cache", Uses::Below),
    ("alloc", Uses::Below),
    ("inode", Uses::Below),
    ("namespace", Uses::Below),
    ("readahead", Uses::Below),
    ("epoch", Uses::Below),
    ("mkfs", Uses::Only(&["device", "format", "journal"])),
    // It trusts neither the allocator that it audits nor modules that use the allocator.
    ("fsck", Uses::Only(&["device", "format", "journal"])),
    ("admin", Uses::Below),
    ("vfs", Uses::Below),
    ("wire", Uses::Only(&["format", "vfs"])),
    ("open", Uses::Below),
    ("files", Uses::Below),
];

/// Every use of a module above the user, and every mistake in the tables here.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = check_uses(tree);
    findings.extend(check_tables(tree));
    findings
}

fn check_uses(tree: &Tree) -> Vec<Finding> {
    let files =
        |order: &'static Order| tree.below(order.source, "rs").map(move |file| (order, file));
    ORDERS
        .into_iter()
        .flat_map(files)
        .filter(|(_, (path, _))| !is_test(path))
        .flat_map(|(order, (path, text))| check_file(order, path, text))
        .collect()
}

/// Every module in the tables that does not exist.
fn check_tables(tree: &Tree) -> Vec<Finding> {
    ORDERS.into_iter().flat_map(|order| check_table(order, tree)).collect()
}

fn check_table(order: &Order, tree: &Tree) -> Vec<Finding> {
    let exists = |module: &str| {
        let path = Path::new(order.source).join(module.replace("::", "/"));
        tree.files.contains_key(&path.join("mod.rs"))
            || tree.files.contains_key(&path.with_extension("rs"))
    };
    let uses = order.layers.iter().flat_map(|(_, uses)| match uses {
        Uses::Below => [].iter(),
        Uses::Only(modules) => modules.iter(),
    });
    let named = order.base.iter().chain(order.layers.iter().map(|(module, _)| module)).chain(uses);
    let missing = named.filter(|module| !exists(module));
    missing
        .map(|module| {
            let message = format!("there is no module {module} in {}", order.source);
            Finding::new(Path::new("xtask/src/layers.rs"), 1, message)
        })
        .collect()
}

fn check_file(order: &Order, path: &Path, text: &str) -> Vec<Finding> {
    let module = paths::module_of(Path::new(order.source), path);
    let Some(layer) = module.first() else {
        // The crate's root only lists the modules and re-exports items.
        return Vec::new();
    };
    let Some(allowed) = order.allowed(layer) else {
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
        let message = if order.allowed(root).is_some() {
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

impl Order {
    /// The modules that `layer` may use, or `None` if there is no such layer.
    fn allowed(&self, layer: &str) -> Option<Vec<&'static str>> {
        if self.base.contains(&layer) {
            return Some(self.base.to_vec());
        }
        let place = self.layers.iter().position(|(module, _)| *module == layer)?;
        let above_base: Vec<&str> = match self.layers[place].1 {
            Uses::Below => self.layers[..place].iter().map(|(module, _)| *module).collect(),
            Uses::Only(modules) => modules.to_vec(),
        };
        Some([self.base, &above_base].concat())
    }
}

/// Whether `named` is `module` or an item in it.
fn covers(module: &str, named: &str) -> bool {
    named.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}
