//! The costs of programs and servers, counted from outside: by the kernel's records in `/proc`.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::growth::{Costs, Measure};
use crate::peer::run;
use crate::processor::Used;

/// The longest interval between two samples of a program's memory. Growth after the last sample is missed.
const LOOK_MAX: Duration = Duration::from_millis(20);
const LOOK_MIN: Duration = Duration::from_micros(200);
/// The longest duration of a mount.
const MOUNT_TIME_MAX: Duration = Duration::from_secs(600);

/// Runs a program that should succeed, and returns its costs. `feed` writes its standard input.
pub fn measure(
    command: &mut Command,
    feed: impl FnOnce(ChildStdin) -> Result<()> + Send,
) -> Result<(Costs, String)> {
    let started = Instant::now();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child =
        command.spawn().with_context(|| format!("start {:?}", command.get_program()))?;
    let (stdin, mut stdout, mut stderr) = child
        .stdin
        .take()
        .zip(child.stdout.take())
        .zip(child.stderr.take())
        .map(|((stdin, stdout), stderr)| (stdin, stdout, stderr))
        .context("pipes to the program")?;
    thread::scope(|scope| {
        let feeder = scope.spawn(move || feed(stdin));
        let printed = scope.spawn(move || read_all(&mut stdout));
        let complaint = scope.spawn(move || read_all(&mut stderr));
        let costs = watch(&child, started);
        // The process is reaped only now: until then, the kernel keeps its figures.
        let status = child.wait().context("wait for the program")?;
        let (fed, printed, complaint) = (joined(feeder), joined(printed)?, joined(complaint)?);
        if !status.success() {
            // Of many messages, only the last one is kept.
            let last = complaint.trim().lines().last().unwrap_or_default();
            bail!("{command:?} ended with {status}: {last}");
        }
        fed.with_context(|| format!("write to {:?}", command.get_program()))?;
        Ok((costs?, printed))
    })
}

/// Waits until a program has ended and returns its costs, without reaping it.
fn watch(child: &Child, started: Instant) -> Result<Costs> {
    let pid = Pid::from_child(child);
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let mut peak_bytes = 0.0_f64;
    while waitid(WaitId::Pid(pid), ended).context("wait for the program")?.is_none() {
        peak_bytes = peak_bytes.max(peak(child.id()).unwrap_or_default());
        thread::sleep((started.elapsed() / 50).clamp(LOOK_MIN, LOOK_MAX));
    }
    let mut costs = snapshot(child.id())?;
    costs.insert(Measure::Seconds, started.elapsed().as_secs_f64());
    costs.insert(Measure::PeakBytes, peak_bytes);
    Ok(costs)
}

fn read_all(from: &mut impl Read) -> Result<String> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).context("read what the program prints")?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn joined<T>(worker: thread::ScopedJoinHandle<'_, T>) -> T {
    worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The costs of a process so far, without its memory.
fn snapshot(pid: u32) -> Result<Costs> {
    let text = |file: &str| {
        let path = format!("/proc/{pid}/{file}");
        fs::read_to_string(&path).with_context(|| format!("read {path}"))
    };
    let io = text("io")?;
    let counter = |name: &str| field(&io, name).with_context(|| format!("no {name} in the counts"));
    let seconds = Used::by(pid).context("no times of the process")?.own;
    Ok(Costs::from([
        (Measure::CpuSeconds, seconds),
        (Measure::Reads, counter("syscr:")?),
        (Measure::Writes, counter("syscw:")?),
        (Measure::MovedBytes, counter("rchar:")? + counter("wchar:")?),
    ]))
}

/// The value of a line that begins with `name`.
fn field(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

fn peak(pid: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    field(&status, "VmHWM:").map(|kib| kib * 1024.0)
}

/// A mounted volume with its server.
pub struct Mount {
    child: Option<Child>,
    cffs: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// Mounts an image; returns the mount and the costs until it answered.
    pub fn new(cffs: &Path, image: &Path, point: &Path) -> Result<(Mount, Costs)> {
        fs::create_dir_all(point).with_context(|| format!("make {}", point.display()))?;
        let before = fs::metadata(point)?.dev();
        let started = Instant::now();
        let child = Command::new(cffs)
            .args(["mount", "-f", "-o", "noatime"])
            .args([image, point])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("start cffs mount")?;
        let mut mount =
            Mount { child: Some(child), cffs: cffs.to_owned(), point: point.to_owned() };
        while fs::metadata(point)?.dev() == before {
            let child = mount.child.as_mut().context("a server")?;
            if let Some(status) = child.try_wait()? {
                mount.child = None;
                bail!("cffs mount of {} ended with {status}", image.display());
            }
            if started.elapsed() > MOUNT_TIME_MAX {
                bail!("cffs mount of {} does not answer", image.display());
            }
            thread::sleep(Duration::from_millis(1));
        }
        rustix::fs::statfs(point).context("ask the mounted volume for its size")?;
        let mut costs = mount.so_far()?;
        costs.insert(Measure::Seconds, started.elapsed().as_secs_f64());
        Ok((mount, costs))
    }

    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Does some work, and returns its duration and its costs for the server.
    pub fn measure(&self, work: impl FnOnce(&Path) -> Result<()>) -> Result<Costs> {
        let (started, before) = (Instant::now(), self.so_far()?);
        work(&self.point)?;
        let seconds = started.elapsed().as_secs_f64();
        let mut costs = self.so_far()?;
        for (measure, cost) in &mut costs {
            if *measure != Measure::PeakBytes {
                *cost -= before.get(measure).unwrap_or(&0.0);
            }
        }
        costs.insert(Measure::Seconds, seconds);
        Ok(costs)
    }

    /// Makes everything durable.
    pub fn sync(&self) -> Result<()> {
        run(Command::new(&self.cffs).arg("sync").arg(&self.point))
    }

    /// Unmounts the volume; returns when the image is complete.
    pub fn unmount(mut self) -> Result<()> {
        run(Command::new(&self.cffs).arg("umount").arg(&self.point))?;
        let child = self.child.take().context("a server")?.wait().context("wait for the server")?;
        if child.success() { Ok(()) } else { bail!("the server ended with {child}") }
    }

    /// Kills the server, and removes the rest of the mount.
    pub fn crash(mut self) -> Result<()> {
        let mut child = self.child.take().context("a server")?;
        child.kill().context("kill the server")?;
        child.wait().context("wait for the server")?;
        run(Command::new("umount").arg(&self.point))
    }

    fn so_far(&self) -> Result<Costs> {
        let pid = self.child.as_ref().context("a server")?.id();
        let mut costs = snapshot(pid)?;
        costs.insert(Measure::PeakBytes, peak(pid).context("no memory of the server")?);
        Ok(costs)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
            let _ = run(Command::new("umount").arg("-l").arg(&self.point));
        }
    }
}
