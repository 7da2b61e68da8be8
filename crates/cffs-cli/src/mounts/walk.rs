//! Walking along a path as the kernel does, but stopping before a server is asked that must not be.
//!
//! To look a name up below the root of a mount, the kernel may have to ask its server; to reach the root
//! itself it need not. So a path that ends at a mount's root can be walked even if the server is stopped.

use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::Mounted;

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
/// the walk does. Names that do not exist are taken as they are.
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::fs::symlink;

    use anyhow::bail;

    use super::*;

    fn mounted(directory: PathBuf, device: u32) -> Mounted {
        Mounted {
            source: "/image".into(),
            shown_source: "/image".into(),
            directory,
            device: (0, device),
            options: Vec::new(),
            is_read_only: false,
        }
    }

    /// A link to a mount, and one in it that points out of it.
    #[test]
    fn a_server_is_asked_for_what_is_below_its_mount_alone() {
        let scratch = tempfile::tempdir().expect("made");
        let top = scratch.path().canonicalize().expect("there");
        for name in ["mount/dir", "other"] {
            fs::create_dir_all(top.join(name)).expect("made");
        }
        symlink("mount", top.join("link")).expect("linked");
        symlink("../../other", top.join("mount/dir/out")).expect("linked");
        let table = [mounted(top.join("mount"), 1), mounted(top.join("other"), 2)];
        let asked = Cell::new(0);
        let walked = |name: &str| {
            asked.set(0);
            let count = |_: &Mounted| {
                asked.set(asked.get() + 1);
                Ok(())
            };
            walk(&top.join(name), &table, &count).expect("walked")
        };
        let root = walked("link/");
        assert_eq!((root.root_of(), asked.get()), (Some(&table[0]), 0));
        assert_eq!(walked("link/dir").path, top.join("mount/dir"));
        assert_eq!(asked.get(), 1);
        let out = walked("link/dir/out");
        assert_eq!((out.root_of(), out.entered.len(), asked.get()), (Some(&table[1]), 2, 4));
        assert_eq!(walked("missing/../other/x").path, top.join("other/x"));
        assert_eq!(asked.get(), 1);

        let refused = |at: &Mounted| if at.device == (0, 1) { bail!("stopped") } else { Ok(()) };
        assert!(walk(&top.join("link"), &table, &refused).is_ok());
        assert!(walk(&top.join("link/dir"), &table, &refused).is_err());
        assert!(walk(&top.join("other/file"), &table, &refused).is_ok());
    }
}
