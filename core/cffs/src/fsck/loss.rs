//! The losses that a repair cannot avoid, by path as far as it is known: people know files by names.

use super::metadata::join;
use super::problems::Code;
use super::report::{Loss, LossKind, Place};
use super::search::Search;
use crate::format::inode::FileType;
use crate::units::InodeNo;

impl Search<'_, '_> {
    /// Lists the losses, when the truth is corrected and the locator table is still unchanged.
    pub(super) fn list_losses(&mut self) {
        if !self.walk.findings.is_damaged() {
            return;
        }
        let mut losses = Vec::new();
        for (ino, place) in self.missing_inodes() {
            let Some((container, _)) = place else { continue };
            let (dir, name) = match self.walk.losses.names.get(&ino) {
                Some((dir, name)) => (*dir, name.clone()),
                None => (container.file, Vec::new()),
            };
            let path = match self.walk.meta.path_of(dir) {
                Some(path) => join(path, &name),
                None => Vec::new(),
            };
            losses.push(Loss { kind: LossKind::File, path, ino });
        }
        let listed: Vec<InodeNo> = losses.iter().map(|loss| loss.ino).collect();
        for (ino, (dir, name)) in self.walk.losses.names.clone() {
            if self.walk.meta.inventory.get(ino).is_none() && !listed.contains(&ino) {
                let path = self.walk.meta.path_of(dir).map_or(Vec::new(), |path| join(path, &name));
                losses.push(Loss { kind: LossKind::File, path, ino });
            }
        }
        for (code, place) in
            self.walk.findings.report.problems.iter().map(|p| (p.code, p.place)).collect::<Vec<_>>()
        {
            let Place::Inode(ino) = place else { continue };
            let kind = match code {
                Code::ExtentRange
                | Code::ExtentBlock
                | Code::SharedFragments
                | Code::Contents
                | Code::ContentsLost
                | Code::SymlinkTarget => LossKind::Contents,
                Code::AttributeList | Code::AttributeBlock => LossKind::Attributes,
                Code::LostDirectory | Code::Nameless => LossKind::Moved,
                _ => continue,
            };
            let Some(found) = self.walk.meta.inventory.get(ino).copied() else { continue };
            if kind == LossKind::Contents && found.file_type == FileType::Directory {
                continue;
            }
            let path = self.walk.meta.path_of(ino).unwrap_or_default();
            losses.push(Loss { kind, path, ino });
        }
        losses.sort();
        losses.dedup();
        self.walk.findings.report.losses = losses;
    }
}
