//! From a path to an inode.

use super::Node;
use crate::error::{Error, Result};
use crate::format::inode::FileType;

/// The most symbolic links in a path, as on Linux.
const LINKS_FOLLOWED_MAX: u32 = 40;

/// The inode at a path below a directory, which the path cannot leave. A symbolic link at the end is
/// followed if `follow_last`; those before it always.
pub fn node(root: &Node, path: &[u8], follow_last: bool) -> Result<Node> {
    if let Some(found) = root.walk_remote(path, follow_last) {
        return found;
    }
    // A slash at the end requires a directory, so the link is followed, too.
    let wants_directory = path.ends_with(b"/");
    let mut pending = names(path);
    pending.reverse();
    let mut above = vec![root.try_clone()?];
    let mut followed = 0;
    while let Some(name) = pending.pop() {
        // The root stays at the bottom.
        let Some(dir) = above.last() else { return Err(Error::NotFound) };
        if name == b".." {
            require_directory(dir)?;
            above.truncate((above.len() - 1).max(1));
            continue;
        }
        let found = dir.lookup(&name)?;
        let is_followed = follow_last || wants_directory || !pending.is_empty();
        if !is_followed || found.file_type() != FileType::Symlink {
            above.push(found);
            continue;
        }
        followed += 1;
        if followed > LINKS_FOLLOWED_MAX {
            return Err(Error::Loop);
        }
        let target = found.read_link()?;
        if target.starts_with(b"/") {
            above.truncate(1);
        }
        pending.extend(names(&target).into_iter().rev());
    }
    let node = above.pop().ok_or(Error::NotFound)?;
    if wants_directory {
        require_directory(&node)?;
    }
    Ok(node)
}

pub fn require_directory(node: &Node) -> Result<()> {
    match node.file_type() {
        FileType::Directory => Ok(()),
        _ => Err(Error::NotDirectory),
    }
}

/// The inode at a path, or a new one that `make` makes at the path or at the target of a symbolic link at its
/// end; and whether it is new.
pub fn node_or_new(
    root: &Node,
    path: &[u8],
    make: impl Fn(&[u8]) -> Result<Node>,
) -> Result<(Node, bool)> {
    let mut path = path.to_vec();
    for _ in 0..=LINKS_FOLLOWED_MAX {
        if path.ends_with(b"/") {
            return match node(root, &path, true) {
                Err(Error::NotFound) => Err(Error::IsDirectory),
                found => Ok((found?, false)),
            };
        }
        match make(&path) {
            Err(Error::Exists) => {}
            made => return Ok((made?, true)),
        }
        match node(root, &path, true) {
            Err(Error::NotFound) => {}
            found => return Ok((found?, false)),
        }
        // A link without a target has the name, unless another program has changed that meanwhile.
        let (dir, name) = parent(root, &path)?;
        let link = match dir.lookup(&name) {
            Ok(link) if link.file_type() == FileType::Symlink => link,
            Ok(_) | Err(Error::NotFound) => continue,
            Err(error) => return Err(error),
        };
        // The server has checked the link that was there before.
        if !dir.may_follow(&link)? {
            return Err(Error::AccessDenied);
        }
        let target = link.read_link()?;
        if target.starts_with(b"/") {
            path = target;
        } else {
            path.truncate(path.len() - name.len());
            path.extend(target);
        }
    }
    Err(Error::Loop)
}

/// The directory in which a path's last name is made or removed, and that name.
pub fn parent(root: &Node, path: &[u8]) -> Result<(Node, Vec<u8>)> {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let path = &path[..end];
    let at = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let (dir, name) = path.split_at(at);
    match name {
        b"" => Err(Error::Exists),
        b"." | b".." => Err(Error::Invalid("the path does not end in a name")),
        // The dot tells a server that a link before it is not the last name of the path.
        _ if !dir.is_empty() => Ok((node(root, &[dir, b"./"].concat(), true)?, name.to_vec())),
        _ => Ok((node(root, dir, true)?, name.to_vec())),
    }
}

/// The directory in which something other than a directory is made, and its name. After a slash, only a
/// directory can be made.
pub fn parent_of_file(root: &Node, path: &[u8]) -> Result<(Node, Vec<u8>)> {
    let (dir, name) = parent(root, path)?;
    if path.ends_with(b"/") {
        dir.lookup(&name)?;
        return Err(Error::Exists);
    }
    Ok((dir, name))
}

/// The names of a path; `.` and empty ones say nothing.
fn names(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
        .map(<[u8]>::to_vec)
        .collect()
}
