//! Resolves a path as the kernel does, but stops before it queries a forbidden server.
//!
//! To look up a name below the root of a mount, the kernel may have to query its server; to reach the root
//! itself it does not. So a path that ends at a mount's root can be resolved even if the server is stopped.

use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::Mounted;

#[cfg(test)]
mod tests;

/// The kernel follows at most this many links.
const LINKS_MAX: usize = 40;

/// The result of resolving a path.
pub struct Walked {
    /// The path without symbolic links.
    pub path: PathBuf,
    /// The C-FFS mounts that it enters, in order.
    pub entered: Vec<Mounted>,
}

impl Walked {
    /// The mount whose root is the path's end.
    pub fn root_of(&self) -> Option<&Mounted> {
        self.entered.last().filter(|mounted| mounted.directory == self.path)
    }
}

/// Resolves a path. Before the server of one of the `mounts` would be queried, calls `may_ask`; if that
/// fails, so does this function. Missing names are not resolved.
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
        // The targets of links in /proc differ from their text.
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

/// The components of a path, last one first.
fn names(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    names.collect()
}
