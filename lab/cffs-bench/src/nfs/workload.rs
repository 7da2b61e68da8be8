//! The requests that a workload sends to a server, and the time that the answers take.
//!
//! Offers [`run`], which works on any [`Target`]. A server's answers are checked, so that none is fast by
//! omitting something: contents that are read equal those that were written, a listing has every name with
//! attributes and handle, and no data covered by a COMMIT was lost since its WRITE.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::calls::{self, Handle, Position};
use super::client::Client;
use crate::disk::Counters;
use crate::workload::Phase;
use crate::workload::random::Random;

const FILE_BYTES: usize = 4096;
/// The number of files in a directory, as in source trees and mailboxes.
const FILES_PER_DIR: usize = 100;

/// The phases, in their order.
pub const CREATE: &str = "create";
/// WRITE of 4 KiB to each of many files, and a COMMIT of each.
pub const COMMIT: &str = "write, COMMIT";
/// READ of whole files from a server that has just been started.
pub const READ_COLD: &str = "read, cold";
/// READ of whole files that were read before.
pub const READ: &str = "read";
/// READDIRPLUS from a server that has just been started.
pub const LIST_COLD: &str = "READDIRPLUS, cold";
/// READDIRPLUS of directories that were listed before.
pub const LIST: &str = "READDIRPLUS";
/// REMOVE of the created files.
pub const REMOVE: &str = "remove";

/// A server that is measured.
pub trait Target {
    /// A connection to the server.
    fn connect(&mut self) -> Result<Client>;

    /// The handle of the directory that it exports.
    fn root(&mut self) -> Result<Handle>;

    /// Restarts the server with empty caches.
    fn chill(&mut self) -> Result<()>;

    /// Switches the delays of the device off, or back on.
    fn set_free(&self, free: bool);

    fn counters(&self) -> Counters;
}

#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The files of the tree that is written to, read and listed.
    pub files: usize,
    /// The longest duration of a phase, not counting the wait for calls in progress.
    pub phase_time_max: Duration,
    /// The seed of all random choices.
    pub seed: u64,
}

/// Puts a load on a server and returns the costs of the phases, which are named by the constants above.
pub fn run(target: &mut dyn Target, load: Load) -> Result<Vec<Phase>> {
    target.set_free(true);
    let tree = Tree::make(target, load)?;
    let mut run = Run { target, load, tree, phases: Vec::new() };
    let created = run.create()?;
    run.commit()?;
    run.target.chill()?;
    let mut order: Vec<usize> = (0..load.files).collect();
    run.read(READ_COLD, &order)?;
    Random::new(load.seed).shuffle(&mut order);
    run.read(READ, &order)?;
    run.target.chill()?;
    run.list(LIST_COLD, 1)?;
    run.list(LIST, u64::MAX)?;
    run.remove(created)?;
    Ok(run.phases)
}

/// Directories and files that exist from the beginning.
struct Tree {
    dirs: Vec<Handle>,
    files: Vec<Handle>,
    /// Empty directories for new files.
    empty: Vec<Handle>,
}

impl Tree {
    fn make(target: &mut dyn Target, load: Load) -> Result<Tree> {
        let root = target.root()?;
        let client = &mut target.connect()?;
        let count = load.files.div_ceil(FILES_PER_DIR);
        let dirs = make_all(client, count, |i| calls::make_dir(&root, &format!("tree-{i}")))?;
        let empty = make_all(client, count, |i| calls::make_dir(&root, &format!("new-{i}")))?;
        let files = make_all(client, load.files, |i| calls::create(dir_of(&dirs, i), &name(i)))?;
        let tree = Tree { dirs, files, empty };
        write_and_commit(client, tree.files.iter().enumerate(), |_| ())?;
        Ok(tree)
    }
}

/// The handles of the files that these calls create.
fn make_all(
    client: &mut Client,
    count: usize,
    call: impl Fn(usize) -> calls::Call,
) -> Result<Vec<Handle>> {
    let mut made = vec![Handle::new(); count];
    client.work(
        0..count,
        |i| call(*i),
        |i, results| {
            made[i] = calls::made(results)?;
            Ok(None)
        },
    )?;
    Ok(made)
}

fn dir_of(dirs: &[Handle], file: usize) -> &Handle {
    &dirs[file / FILES_PER_DIR]
}

fn name(file: usize) -> String {
    format!("file-{file:07}")
}

/// The contents of a file, different from those of all other files.
fn contents(file: usize) -> Vec<u8> {
    let mut random = Random::new(file as u64);
    (0..FILE_BYTES / 8).flat_map(|_| random.number().to_le_bytes()).collect()
}

/// Writes to files and makes each durable; `done` is called for each.
fn write_and_commit<'a>(
    client: &mut Client,
    files: impl Iterator<Item = (usize, &'a Handle)>,
    mut done: impl FnMut(usize),
) -> Result<()> {
    client.work(
        files.map(|(i, file)| (i, file, None)),
        |(i, file, written)| match written {
            None => calls::write(file, &contents(*i)),
            Some(_) => calls::commit(file),
        },
        |(i, file, written), results| match written {
            None => {
                let (count, verifier) = calls::written(results)?;
                ensure!(count == FILE_BYTES, "{count} bytes of {FILE_BYTES} were written");
                Ok(Some((i, file, Some(verifier))))
            }
            Some(verifier) => {
                ensure!(
                    calls::committed(results)? == verifier,
                    "a COMMIT came from another server than its WRITE"
                );
                done(i);
                Ok(None)
            }
        },
    )
}

/// The run of a load on a server.
struct Run<'a> {
    target: &'a mut dyn Target,
    load: Load,
    tree: Tree,
    phases: Vec<Phase>,
}

impl Run<'_> {
    /// Measures `work`, which returns the number of its operations, and begins no operation after the given
    /// time.
    fn phase(
        &mut self,
        name: &str,
        work: impl FnOnce(&mut Client, &Tree, Instant) -> Result<u64>,
    ) -> Result<()> {
        let mut client = self.target.connect()?;
        self.target.set_free(false);
        let before = self.target.counters();
        let begun = Instant::now();
        let files = work(&mut client, &self.tree, begun + self.load.phase_time_max)?;
        let seconds = begun.elapsed().as_secs_f64();
        let device = Some(self.target.counters().since(&before));
        self.target.set_free(true);
        let name = name.to_owned();
        self.phases.push(Phase { name, files, seconds, device, ..Phase::default() });
        Ok(())
    }

    /// Creates files, and returns their number.
    fn create(&mut self) -> Result<usize> {
        let (count, mut created) = (self.load.files, 0);
        self.phase(CREATE, |client, tree, end| {
            client.work(
                (0..count).take_while(|_| Instant::now() < end),
                |i| calls::create(dir_of(&tree.empty, *i), &name(*i)),
                |_, results| {
                    calls::made(results)?;
                    created += 1;
                    Ok(None)
                },
            )?;
            Ok(created as u64)
        })?;
        Ok(created)
    }

    fn commit(&mut self) -> Result<()> {
        self.phase(COMMIT, |client, tree, end| {
            let mut commits = 0;
            let files = tree.files.iter().enumerate().take_while(|_| Instant::now() < end);
            write_and_commit(client, files, |_| commits += 1)?;
            Ok(commits)
        })
    }

    fn read(&mut self, phase: &str, order: &[usize]) -> Result<()> {
        self.phase(phase, |client, tree, end| {
            let mut reads = 0;
            client.work(
                order.iter().copied().take_while(|_| Instant::now() < end),
                |i| calls::read(&tree.files[*i], FILE_BYTES as u32),
                |i, results| {
                    ensure!(
                        calls::contents(results)? == contents(i),
                        "the contents of file {i} differ from those that were written"
                    );
                    reads += 1;
                    Ok(None)
                },
            )?;
            Ok(reads)
        })
    }

    /// Lists all directories `rounds` times; the operations of this phase are names.
    fn list(&mut self, phase: &str, rounds: u64) -> Result<()> {
        let count = self.load.files;
        self.phase(phase, |client, tree, end| {
            let dirs = (0..rounds).flat_map(|_| tree.dirs.iter().enumerate());
            let mut names = 0;
            client.work(
                dirs.take_while(|_| Instant::now() < end)
                    .map(|(i, dir)| (i, dir, Position::default(), 0)),
                |(_, dir, position, _)| calls::list(dir, position),
                |(i, dir, _, so_far), results| {
                    let listed = calls::listed(results)?;
                    let so_far = so_far + listed.names;
                    names += listed.names;
                    if let Some(next) = listed.next {
                        return Ok(Some((i, dir, next, so_far)));
                    }
                    let there = FILES_PER_DIR.min(count - i * FILES_PER_DIR) as u64;
                    ensure!(so_far == there, "{so_far} names were listed of {there}");
                    Ok(None)
                },
            )?;
            Ok(names)
        })
    }

    fn remove(&mut self, count: usize) -> Result<()> {
        self.phase(REMOVE, |client, tree, end| {
            let mut removed = 0;
            client.work(
                (0..count).take_while(|_| Instant::now() < end),
                |i| calls::remove(dir_of(&tree.empty, *i), &name(*i)),
                |_, results| {
                    calls::removed(results)?;
                    removed += 1;
                    Ok(None)
                },
            )?;
            Ok(removed)
        })
    }
}
