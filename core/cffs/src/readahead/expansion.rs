//! Expansion ahead: a separate thread expands the clusters that a walk reads next.
//!
//! Without it, the reader expands each cluster when it needs it, while other processors are idle. When a
//! reader of a directory enters a cluster, the thread expands the next ones of the directory, and of those
//! that follow it in the walk. It only expands clusters in memory, and reads nothing from the device.

#[cfg(test)]
mod tests;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::survey::Survey;
use super::walk::next_directories;
use crate::format::extent::Extent;
use crate::format::inode::InodeFlags;
use crate::format::sector::Body;
use crate::inode::{InodeCache, Vnode};
use crate::lock::{self, Condvar, Mutex, Rank};
use crate::namespace::scan;
use crate::units::{BlockNo, Container, FragNo, InodeNo, SectorIndex};

/// The most clusters that are expanded before the reader needs them.
const CLUSTERS_MAX: usize = 8;
/// A file is read in order if its sector is at most this far after that of the file before.
const SECTORS_PASSED: u32 = 4;
/// The most sectors of a directory that are searched for the next clusters.
const SECTORS_MAX: u32 = 32;

/// The thread that expands clusters, and the progress of the reader.
pub(super) struct Expansion {
    is_served: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The sector of the last file that was read.
    last: Option<Container>,
    /// When the reader enters this cluster, the next ones are due.
    trigger: Option<FragNo>,
    job: Option<Job>,
    ended: bool,
}

/// A request to expand the clusters that follow this one.
struct Job {
    container: Container,
    ino: InodeNo,
    cluster: FragNo,
}

impl Default for Expansion {
    fn default() -> Expansion {
        Expansion {
            is_served: AtomicBool::new(false),
            state: Mutex::new(Rank::Leaf, State::default()),
            changed: Condvar::default(),
        }
    }
}

/// Ends the thread when the work that it accompanies returns or panics.
struct End<'a>(&'a Expansion);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.is_served.store(false, Ordering::Relaxed);
        self.0.state.lock().ended = true;
        self.0.changed.notify_all();
    }
}

impl Expansion {
    /// Does `work` while a thread expands clusters, if the volume may have any.
    pub(super) fn during<T>(&self, inodes: &InodeCache, work: impl FnOnce() -> T) -> T {
        if !inodes.layout.has_clusters() {
            return work();
        }
        lock::scope(|scope| {
            *self.state.lock() = State::default();
            self.is_served.store(true, Ordering::Relaxed);
            let _end = End(self);
            scope.spawn(|| self.serve(&Survey::new(inodes)));
            work()
        })
    }

    /// Called before the first read of a file. `walks`: whether the reader goes from directory to directory.
    pub(super) fn before_read(&self, inodes: &InodeCache, vnode: &Vnode, walks: bool) {
        if !self.is_served.load(Ordering::Relaxed) {
            return;
        }
        let (container, cluster) = {
            let file = vnode.state.read();
            let Some(run) = inodes.contents().clusters(&file).next() else { return };
            let Some(container) = file.container else { return };
            (container, run.start)
        };
        let is_expanded = inodes.cache.expanded.get(cluster).is_some();
        let mut state = self.state.lock();
        let before = state.last.replace(container);
        let same = before.filter(|before| before.file == container.file);
        let in_order = same.map_or(walks && container.sector.0 < 2, |before| {
            container.sector.0.wrapping_sub(before.sector.0) <= SECTORS_PASSED
        });
        let is_due = same.is_none() || state.trigger == Some(cluster) || !is_expanded;
        if in_order && is_due {
            state.job = Some(Job { container, ino: vnode.ino, cluster });
            drop(state);
            self.changed.notify_all();
        }
    }

    fn serve(&self, survey: &Survey<'_>) {
        while let Some(job) = self.next() {
            let trigger = expand_after(survey, &job);
            self.state.lock().trigger = trigger;
        }
    }

    /// Waits for a job; `None` when the work has ended.
    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            match state.job.take() {
                _ if state.ended => return None,
                Some(job) => return Some(job),
                None => self.changed.wait(&mut state),
            }
        }
    }
}

/// Expands the next clusters as far as they are in memory. Returns the one at which more are due.
fn expand_after(survey: &Survey<'_>, job: &Job) -> Option<FragNo> {
    let inodes = survey.inodes;
    let mut expanded = Vec::new();
    for (vnode, extent) in extents_after(survey, job) {
        let file = vnode.state.read();
        let blocks = survey.blocks_of_run(extent.run());
        if !blocks.clone().all(|block| inodes.cache.resident(BlockNo(block))) {
            break;
        }
        match inodes.contents().expand(&file, &extent) {
            Ok(Some(_)) => expanded.push(extent.start),
            // The file has changed since it was found, or the cluster may be in flight.
            Ok(None) => {}
            // The reader gets the error as well, and returns it.
            Err(_) => break,
        }
    }
    expanded.get(expanded.len() / 2).copied()
}

/// A file, and its extent in each of the next clusters of a walk.
fn extents_after(survey: &Survey<'_>, job: &Job) -> Vec<(Arc<Vnode>, Extent)> {
    let most = CLUSTERS_MAX.min(survey.inodes.cache.expanded.clusters_max() / 4);
    let mut found = Vec::new();
    let Some(dir) = survey.inodes.peek(job.container.file) else { return found };
    let mut last = job.cluster;
    let after = Some((job.container.sector, job.ino));
    add_extents(survey, &dir, after, most, &mut last, &mut found);
    let container = dir.state.read().container;
    if let Some(container) = container.filter(|_| found.len() < most) {
        for next in next_directories(survey, dir.ino, container) {
            add_extents(survey, &next, None, most, &mut last, &mut found);
        }
    }
    found
}

/// Adds the extents in clusters of a directory's files, or of those after one of them, as far as its sectors
/// are in memory. `last` is the cluster of the file before.
fn add_extents(
    survey: &Survey<'_>,
    dir: &Arc<Vnode>,
    after: Option<(SectorIndex, InodeNo)>,
    most: usize,
    last: &mut FragNo,
    found: &mut Vec<(Arc<Vnode>, Extent)>,
) {
    let state = dir.state.read();
    let from = after.map_or(SectorIndex(0), |(sector, _)| sector);
    if found.len() >= most
        || !state.inode.is_dir()
        || !survey.is_resident(&state, from, SECTORS_MAX)
    {
        return;
    }
    let mut passed = after.is_none();
    let sectors = from.0..from.0.saturating_add(SECTORS_MAX);
    // Sectors after an unreadable one are ignored.
    let _ = scan(survey.inodes, &state, sectors, |sector, entry| {
        let Body::Embedded(record) = &entry.body else { return ControlFlow::Continue(()) };
        if !passed || record.inode.inode_flags().contains(InodeFlags::INLINE) {
            passed |= after.is_some_and(|(_, ino)| entry.ino() == ino);
            return ControlFlow::Continue(());
        }
        for extent in Extent::decode_list(record.data).filter(|extent| extent.cluster.is_some()) {
            let container = Container { file: dir.ino, sector };
            if extent.start != *last
                && let Ok(vnode) = survey.inodes.adopt(record, container)
            {
                *last = extent.start;
                found.push((vnode, extent));
            }
        }
        if found.len() >= most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    found.truncate(most);
}
