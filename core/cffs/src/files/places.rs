//! The directories of a source tree, each by its parent and its name.
//!
//! Their whole paths would take memory quadratic in the depth of the tree.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A directory of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(usize);

/// The directories of a tree.
#[derive(Debug)]
pub struct Places(Vec<Known>);

#[derive(Debug)]
struct Known {
    above: Place,
    name: OsString,
    /// The number of names from the top.
    depth: usize,
}

impl Place {
    /// The directory at which the tree begins.
    pub const TOP: Place = Place(0);
}

impl Places {
    /// A tree that consists of its top.
    pub fn new() -> Places {
        Places(vec![Known { above: Place::TOP, name: OsString::new(), depth: 0 }])
    }

    /// Adds a directory.
    pub fn add(&mut self, above: Place, name: &OsStr) -> Place {
        let depth = self.0[above.0].depth + 1;
        self.0.push(Known { above, name: name.to_owned(), depth });
        Place(self.0.len() - 1)
    }

    /// The difference from the path `steps` to a place: the number of steps to keep, and the names and places
    /// that follow them.
    pub fn route(&self, to: Place, steps: &[Place]) -> (usize, Vec<(OsString, Place)>) {
        let (mut at, mut ahead) = (to, Vec::new());
        while at != Place::TOP {
            let known = &self.0[at.0];
            if steps.get(known.depth - 1) == Some(&at) {
                break;
            }
            ahead.push((known.name.clone(), at));
            at = known.above;
        }
        ahead.reverse();
        (self.0[at.0].depth, ahead)
    }

    /// The path of a place below the top.
    pub fn path(&self, place: Place) -> PathBuf {
        self.route(place, &[]).1.into_iter().map(|(name, _)| name).collect()
    }
}

/// The path of a file in a tree, for messages. A walk over the tree appends and removes one name at a time:
/// building each path from its names would take time quadratic in the depth of the tree.
#[derive(Debug)]
pub struct Trail(Vec<u8>);

impl Trail {
    /// Begins with a path.
    pub fn from(path: &Path) -> Trail {
        Trail(path.as_os_str().as_bytes().to_vec())
    }

    /// Appends a name. Returns the length before, for [`Trail::cut`].
    pub fn push(&mut self, name: &OsStr) -> usize {
        let len = self.0.len();
        if !self.0.is_empty() && !self.0.ends_with(b"/") {
            self.0.push(b'/');
        }
        self.0.extend_from_slice(name.as_bytes());
        len
    }

    /// The length, for [`Trail::cut`].
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes the names that were appended since the path had this length.
    pub fn cut(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// The path.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }
}
