//! The text files of a source tree, and findings in them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Directories that hold no source. (`.git` may be a file, too.)
const SKIPPED: [&str; 8] =
    [".git", "target", "mnt", "corpus", "artifacts", "node_modules", "papers", "__pycache__"];

/// The endings of source files. A file without one is source, too: scripts and the makefile.
const EXTENSIONS: [&str; 6] = ["rs", "toml", "md", "sh", "py", "yml"];

/// Source files by their path from the root.
#[derive(Debug, Default)]
pub struct Tree {
    /// The text of each file.
    pub files: BTreeMap<PathBuf, String>,
    /// The other files: those that are not source, or not text.
    pub others: BTreeSet<PathBuf>,
}

impl Tree {
    /// Reads every source file below `root`, except those that are not text.
    pub fn read(root: &Path) -> io::Result<Tree> {
        let mut tree = Tree::default();
        tree.read_directory(root, Path::new(""))?;
        Ok(tree)
    }

    fn read_directory(&mut self, root: &Path, directory: &Path) -> io::Result<()> {
        for entry in std::fs::read_dir(root.join(directory))? {
            let entry = entry?;
            let name = entry.file_name();
            let path = directory.join(&name);
            let kind = entry.file_type()?;
            if SKIPPED.iter().any(|skipped| name == *skipped) {
                continue;
            }
            if kind.is_dir() {
                self.read_directory(root, &path)?;
            } else if kind.is_file()
                && is_source(&path)
                && let Ok(text) = String::from_utf8(std::fs::read(entry.path())?)
            {
                self.files.insert(path, text);
            } else {
                self.others.insert(path);
            }
        }
        Ok(())
    }

    /// Whether there is such a file, of whatever kind, or a directory with files in it.
    pub fn contains(&self, path: &Path) -> bool {
        let mut all = self.files.keys().chain(&self.others);
        all.any(|known| known.starts_with(path))
    }

    /// The files below `directory` that end in `extension`, with their paths from the root.
    pub fn below<'a>(
        &'a self,
        directory: &'a str,
        extension: &'a str,
    ) -> impl Iterator<Item = (&'a Path, &'a str)> {
        self.files
            .iter()
            .filter(move |(path, _)| {
                path.starts_with(directory) && path.extension().is_some_and(|end| end == extension)
            })
            .map(|(path, text)| (path.as_path(), text.as_str()))
    }
}

fn is_source(path: &Path) -> bool {
    match path.extension() {
        None => true,
        Some(extension) => EXTENSIONS.iter().any(|source| extension == *source),
    }
}

/// Whether the file holds only tests.
pub fn is_test(path: &Path) -> bool {
    path.components().any(|part| {
        let part = part.as_os_str();
        ["tests", "tests.rs", "cffs-testing"].iter().any(|name| part == *name)
    })
}

/// A finding with its place. Prints like a compiler's message, so that editors find the place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The file, from the root of the tree.
    pub path: PathBuf,
    /// The line, counted from 1.
    pub line: usize,
    /// The finding, and the remedy.
    pub message: String,
}

impl Finding {
    /// A finding in `path` at `line`.
    pub fn new(path: &Path, line: usize, message: String) -> Finding {
        Finding { path: path.to_owned(), line, message }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.message)
    }
}
