//! Names in one directory of the library, on a device in memory. They are created, looked up in random order,
//! listed and removed; each step begins with cold caches and includes the sync.
//!
//! Each step is a separate function, so that a profiler can count its instructions if the processor does not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cffs::clock::SystemClock;
use cffs::device::MemoryDevice;
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{AtimeMode, Caller, NewFile, NewKind, OpenOptions, Volume};
use rustix::time::{ClockId, clock_gettime};

use super::growth::{Costs, Measure, Sample};
use super::{Part, announce};
use crate::disk::{Profile, Stroke};
use crate::instructions::Instructions;
use crate::virtual_disk::VirtualDisk;
use crate::workload::random::Random;

const DIRECTORY: &[u8] = b"names";

type Disk = Arc<VirtualDisk<MemoryDevice>>;
/// A step that works on each name; the last argument is a random order of them.
type Work = fn(&Volume, InodeNo, &[u64]) -> Result<()>;

const STEPS: [(&str, Work); 4] =
    [("create", create), ("look up at random", look_up), ("list", list), ("remove", remove)];

pub fn measure(names: u64) -> Result<Vec<Sample>> {
    announce(&format!("a directory of {names} names"));
    let memory = MemoryDevice::new((names * 2048).max(256 << 20).next_multiple_of(1 << 20));
    mkfs::make(&memory, &MkfsOptions::default()).context("make the volume")?;
    let disk = Arc::new(VirtualDisk::new(memory, Profile::None, Stroke::Whole));
    let mut order: Vec<u64> = (0..names).collect();
    Random::new(names).shuffle(&mut order);
    STEPS
        .into_iter()
        .map(|(step, work)| {
            let costs =
                one(&disk, &order, work).with_context(|| format!("{step} {names} names"))?;
            Ok(Sample::new(Part::Directory, step, names, costs))
        })
        .collect()
}

fn one(disk: &Disk, order: &[u64], work: Work) -> Result<Costs> {
    let options = OpenOptions { atime: AtimeMode::Never, ..OpenOptions::default() };
    let volume = Volume::open(disk.clone(), Arc::new(SystemClock), options)?;
    let dir = match volume.lookup(InodeNo::ROOT, DIRECTORY) {
        Ok(attr) => attr.ino,
        Err(_) => {
            volume.make(&Caller::ROOT, InodeNo::ROOT, DIRECTORY, &new(NewKind::Directory))?.ino
        }
    };
    let before = disk.counters();
    let mut instructions = Instructions::start();
    let (started, cpu, counted) = (Instant::now(), cpu_time(), instructions.so_far());
    work(&volume, dir, order)?;
    volume.sync()?;
    let (seconds, cpu_seconds) = (started.elapsed().as_secs_f64(), cpu_time() - cpu);
    let counted = instructions.so_far().zip(counted).map(|(now, before)| now - before);
    let device = disk.counters().since(&before);
    volume.release(dir, 1);
    volume.close()?;
    let mut costs = Costs::from([
        (Measure::Seconds, seconds),
        (Measure::CpuSeconds, cpu_seconds.as_secs_f64()),
        (Measure::Reads, device.reads as f64),
        (Measure::Writes, device.writes as f64),
        (Measure::MovedBytes, (device.read_bytes + device.write_bytes) as f64),
    ]);
    costs.extend(counted.map(|count| (Measure::Instructions, count as f64)));
    Ok(costs)
}

#[inline(never)]
fn create(volume: &Volume, dir: InodeNo, order: &[u64]) -> Result<()> {
    let file = new(NewKind::Regular);
    for number in 0..order.len() as u64 {
        let made = volume.make(&Caller::ROOT, dir, &name(number), &file)?;
        volume.release(made.ino, 1);
    }
    Ok(())
}

#[inline(never)]
fn look_up(volume: &Volume, dir: InodeNo, order: &[u64]) -> Result<()> {
    for number in order {
        let found = volume.lookup(dir, &name(*number))?;
        volume.release(found.ino, 1);
    }
    Ok(())
}

#[inline(never)]
fn list(volume: &Volume, dir: InodeNo, order: &[u64]) -> Result<()> {
    let mut found = 0;
    volume.read_dir(dir, 0, false, &mut |entry| {
        found += usize::from(entry.name.starts_with(b"n"));
        true
    })?;
    ensure!(found == order.len(), "{found} names of {} are listed", order.len());
    Ok(())
}

#[inline(never)]
fn remove(volume: &Volume, dir: InodeNo, order: &[u64]) -> Result<()> {
    (0..order.len() as u64)
        .try_for_each(|number| Ok(volume.unlink(&Caller::ROOT, dir, &name(number))?))
}

fn name(number: u64) -> Vec<u8> {
    format!("n{number:08}").into_bytes()
}

fn new(kind: NewKind<'_>) -> NewFile<'_> {
    NewFile { kind, permissions: 0o755, uid: 0, gid: 0, times: None }
}

/// The processor time of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}
