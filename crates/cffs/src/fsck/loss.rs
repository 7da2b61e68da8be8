//! Losses that a repair cannot avoid, by path as far as it is known: people know files by names.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::Checker;
use super::problems::Code;
use super::report::{Loss, LossKind, Place};
use crate::format::inode::FileType;
use crate::units::{Container, InodeNo};

/// The losses of all rounds.
#[derive(Default)]
pub(super) struct Losses {
    pub sectors: HashSet<Container>,
    /// Directories that lack sectors.
    pub incomplete: BTreeSet<InodeNo>,
    /// The lost names by inode: the directory of each, and the name.
    pub names: BTreeMap<InodeNo, (InodeNo, Vec<u8>)>,
}

impl Checker<'_> {
    /// Notes the name of a file that goes.
    pub(super) fn lose_entry(&mut self, container: Container, slot: u16) {
        if container.file == InodeNo::EXTERNAL {
            return;
        }
        if let Some(entry) = self.load_entry(container, slot) {
            self.losses.names.insert(entry.ino, (container.file, entry.name));
        }
    }

    /// Lists what is lost, when the truth is right again and the locator table still as it was.
    pub(super) fn list_losses(&mut self) {
        if !self.is_damaged() {
            return;
        }
        let mut losses = Vec::new();
        for (ino, place) in self.missing_inodes() {
            let Some((container, _)) = place else { continue };
            let (dir, name) = match self.losses.names.get(&ino) {
                Some((dir, name)) => (*dir, name.clone()),
                None => (container.file, Vec::new()),
            };
            let path = match self.path_of(dir) {
                Some(path) => join(path, &name),
                None => Vec::new(),
            };
            losses.push(Loss { kind: LossKind::File, path, ino });
        }
        let listed: Vec<InodeNo> = losses.iter().map(|loss| loss.ino).collect();
        for (ino, (dir, name)) in self.losses.names.clone() {
            if self.walk.inventory.get(ino).is_none() && !listed.contains(&ino) {
                let path = self.path_of(dir).map_or(Vec::new(), |path| join(path, &name));
                losses.push(Loss { kind: LossKind::File, path, ino });
            }
        }
        for (code, place) in
            self.report.problems.iter().map(|p| (p.code, p.place)).collect::<Vec<_>>()
        {
            let Place::Inode(ino) = place else { continue };
            let kind = match code {
                Code::ExtentRange
                | Code::ExtentBlock
                | Code::SharedFragments
                | Code::Contents
                | Code::SymlinkTarget => LossKind::Contents,
                Code::AttributeList | Code::AttributeBlock => LossKind::Attributes,
                Code::LostDirectory | Code::Nameless => LossKind::Moved,
                _ => continue,
            };
            let Some(found) = self.walk.inventory.get(ino).copied() else { continue };
            if kind == LossKind::Contents && found.file_type == FileType::Directory {
                continue;
            }
            let path = self.path_of(ino).unwrap_or_default();
            losses.push(Loss { kind, path, ino });
        }
        losses.sort();
        losses.dedup();
        self.report.losses = losses;
    }

    /// The path of an inode that was found; one of them, if it has several names.
    fn path_of(&mut self, ino: InodeNo) -> Option<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = ino;
        // A chain that is longer than there are directories goes in a circle.
        for _ in 0..=self.walk.inventory.containers.len() {
            if at == InodeNo::ROOT {
                return Some(names.iter().rev().fold(b"/".to_vec(), |path, name| join(path, name)));
            }
            let found = *self.walk.inventory.get(at)?;
            let (container, slot) = match found.is_external() {
                false => (found.container, found.slot),
                true => {
                    let names = &self.walk.inventory.references;
                    let name = names.iter().find(|reference| reference.ino == at)?;
                    (name.container, name.slot)
                }
            };
            names.push(self.load_entry(container, slot)?.name);
            at = container.file;
        }
        None
    }
}

/// A name in a directory.
fn join(mut path: Vec<u8>, name: &[u8]) -> Vec<u8> {
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}
