//! Removal of trees.

use super::Node;
use crate::error::Result;
use crate::files::DirItem;
use crate::format::inode::FileType;

/// A directory that is being removed, its name, and its remaining entries.
struct Removing {
    dir: Node,
    name: Vec<u8>,
    left: Vec<DirItem>,
}

impl Removing {
    fn begin(above: &Node, name: &[u8]) -> Result<Removing> {
        let dir = above.lookup(name)?;
        Ok(Removing { left: dir.entries()?, dir, name: name.to_vec() })
    }
}

impl Node {
    /// Removes a file of this type from this directory, and everything below it. Returns the number of names
    /// removed.
    ///
    /// # Errors
    ///
    /// Those of [`Node::unlink`] and [`Node::remove_dir`], after which a part may be removed.
    pub fn remove_all(&self, name: &[u8], file_type: FileType) -> Result<u64> {
        if file_type != FileType::Directory {
            return self.unlink(name).map(|()| 1);
        }
        let mut removed = 0;
        let mut levels = vec![Removing::begin(self, name)?];
        while let Some(level) = levels.last_mut() {
            match level.left.pop() {
                Some(DirItem { name, attr }) if attr.file_type == FileType::Directory => {
                    let below = Removing::begin(&level.dir, &name)?;
                    levels.push(below);
                    continue;
                }
                Some(DirItem { name, .. }) => level.dir.unlink(&name)?,
                None => {
                    let name = std::mem::take(&mut level.name);
                    levels.pop();
                    levels.last().map_or(self, |level| &level.dir).remove_dir(&name)?;
                }
            }
            removed += 1;
        }
        Ok(removed)
    }
}
