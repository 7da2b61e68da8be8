//! Walking along a path as the kernel does, but stopping before a server is asked that must not be.
//!
//! To look a name up below the root of a mount, the kernel may have to ask its server; to reach the root
//! itself it need not. So a path that ends at a mount's root can be walked even if the server is stopped.

use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::Mounted;

#[cfg(test)]
mod tests;

/// The kernel follows at most this many links.
const LINKS_MAX: usize = 40;

/// Where a path ends.
pub struct Walked {
    /// The path without links.
    pub path: PathBuf,
    /// The C-FFS mounts that it enters, in this order.
    pub entered: Vec<Mounted>,
}

impl Walked {
    /// The mount whose root the path names.
    pub fn root_of(&self) -> Option<&Mounted> {
        self.entered.last().filter(|mounted| mounted.directory == self.path)
    }
}

/// Walks along a path. Before the server of one of the `mounts` would be asked, `may_ask` is: if it fails,
/// the walk does. Names that do not exist are not resolved.
pub fn walk(
    path: &Path,
    mounts: &[Mounted],
    may_ask: &dyn Fn(&Mounted) -> anyhow::Result<()>,
) -> anyhow::Result<Walked> {
    let mut ahead: Vec<OsString> = names(&std::path::absolute(path)?);
    let mut walked = Walked { path: PathBuf::from("/"), entered: Vec::new() };
    let mut links = 0;
    while let Some(name) = ahead.pop() {
        let inside = walked.entered.iter().rev().find(|at| walked.path.starts_with(&at.directory));
        inside.map_or(Ok(()), may_ask)?;
        if name == ".." {
            walked.path.pop();
            continue;
        }
        walked.path.push(name);
        if let Some(at) = mounts.iter().rev().find(|mounted| mounted.directory == walked.path) {
            walked.entered.push(at.clone());
            continue;
        }
        // Links in /proc do not end where their text says.
        if links == LINKS_MAX || walked.path.starts_with("/proc") {
            continue;
        }
        if let Ok(target) = fs::read_link(&walked.path) {
            links += 1;
            walked.path.pop();
            if target.has_root() {
                walked.path = PathBuf::from("/");
            }
            ahead.extend(names(&target));
        }
    }
    Ok(walked)
}

/// The names of a path, the last one first.
fn names(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    names.collect()
}
