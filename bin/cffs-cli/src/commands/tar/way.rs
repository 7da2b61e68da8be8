//! The directories down to that of the last entry of an archive.

use cffs::error::Error;
use cffs::files::Node;
use cffs::format::inode::FileType;
use cffs::vfs::types::NewKind;

use crate::output::printable;

/// The mode of a directory without an entry in the archive.
const UNNAMED: u32 = 0o755;

/// The open directories from the top downwards: the next entry is usually in or near the last one, and
/// looking each up from the top would take time quadratic in the depth.
pub struct Way {
    top: Node,
    names: Vec<Vec<u8>>,
    nodes: Vec<Node>,
}

impl Way {
    pub fn from(top: Node) -> Way {
        Way { top, names: Vec::new(), nodes: Vec::new() }
    }

    /// The directory in which it begins.
    pub fn top(&self) -> &Node {
        &self.top
    }

    /// The last directory.
    pub fn end(&self) -> &Node {
        self.nodes.last().unwrap_or(&self.top)
    }

    /// Opens the directory with these names, and creates missing ones.
    pub fn lead(&mut self, names: &[&[u8]]) -> anyhow::Result<&Node> {
        self.steps(names, |dir, name| match dir.lookup(name) {
            Err(Error::NotFound) => dir.make(name, &dir.new_file(NewKind::Directory, UNNAMED)?),
            found => found,
        })
    }

    /// Goes on to a directory in the last one, which was opened.
    pub fn enter(&mut self, name: &[u8], dir: Node) {
        self.names.push(name.to_vec());
        self.nodes.push(dir);
    }

    /// Opens the directory with these names; fails if one is missing.
    pub fn find(&mut self, names: &[&[u8]]) -> anyhow::Result<&Node> {
        self.steps(names, Node::lookup)
    }

    /// Goes to the directory with these names; `next` opens each in the directory before it.
    fn steps(
        &mut self,
        names: &[&[u8]],
        next: impl Fn(&Node, &[u8]) -> Result<Node, Error>,
    ) -> anyhow::Result<&Node> {
        let common = self.names.iter().zip(names).take_while(|(one, other)| one == *other).count();
        self.names.truncate(common);
        self.nodes.truncate(common);
        for name in &names[common..] {
            let next = next(self.end(), name)?;
            if next.file_type() != FileType::Directory {
                let what = format!("{} is not a directory; nothing was created", printable(name));
                return Err(anyhow::Error::new(Error::NotDirectory).context(what));
            }
            self.names.push(name.to_vec());
            self.nodes.push(next);
        }
        Ok(self.end())
    }
}
