//! The identity of this host and process, injected from outside, and the fate of another process.
//!
//! A process that opens a volume for writing leaves a mark in its superblock ([`Holder`]). Another host with
//! access to the same device finds it, and so does a process on this host that uses a path which no lock
//! covers. Offers [`Host`], which makes the mark of this process and judges the marks of others, and
//! [`SystemHost`], which asks the running system. A volume that is opened without a host is not marked.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::format::superblock::Holder;

#[cfg(test)]
mod tests;

/// The process on this host that opens volumes.
pub trait Host: Send + Sync + fmt::Debug {
    /// The mark of this process, but for the time.
    fn holder(&self) -> Holder;

    /// The relation of another mark to this process.
    fn standing(&self, mark: &Holder) -> Standing;
}

/// The state of the process that left a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is this one.
    Own,
    /// It is alive, on this host.
    Alive,
    /// It was on this host and has ended.
    Gone,
    /// It is of this boot of this host, and the process may be in a process namespace that is not visible.
    Hidden,
    /// It was, or is, on another host.
    Foreign,
}

/// The host that the program runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemHost;

impl Host for SystemHost {
    fn holder(&self) -> Holder {
        let pid = std::process::id();
        Holder {
            host: host_id(),
            boot: boot_id(),
            name: rustix::system::uname().nodename().to_bytes().to_vec(),
            pid,
            process_started: stat("self").map_or(0, |stat| stat.started),
            started: 0,
        }
    }

    fn standing(&self, mark: &Holder) -> Standing {
        let own = self.holder();
        // Containers on one kernel may differ in their machine-id, but were booted with it.
        let same_boot = mark.boot == own.boot && own.boot != [0; 16];
        if !same_boot {
            return if mark.host == own.host { Standing::Gone } else { Standing::Foreign };
        }
        if (mark.pid, mark.process_started) == (own.pid, own.process_started) {
            return Standing::Own;
        }
        match is_alive(mark) {
            true => Standing::Alive,
            false if sees_all_processes() => Standing::Gone,
            false => Standing::Hidden,
        }
    }
}

/// From `/etc/machine-id`, or the host's name where there is none.
fn host_id() -> [u8; 16] {
    match fs::read_to_string("/etc/machine-id").ok().and_then(|text| parse_id(&text)) {
        // The contents of the file are confidential (machine-id(5)), so they are hashed.
        Some(id) => digest(&id),
        None => digest(rustix::system::uname().nodename().to_bytes()),
    }
}

fn boot_id() -> [u8; 16] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.ok().and_then(|text| parse_id(&text)).unwrap_or_default()
}

/// 32 hexadecimal digits, with or without dashes.
fn parse_id(text: &str) -> Option<[u8; 16]> {
    uuid::Uuid::try_parse(text.trim()).ok().map(uuid::Uuid::into_bytes)
}

fn digest(bytes: &[u8]) -> [u8; 16] {
    use std::hash::Hasher;
    let half = |key| {
        let mut hasher = siphasher::sip::SipHasher13::new_with_keys(0x6366_6673, key);
        hasher.write(bytes);
        hasher.finish().to_le_bytes()
    };
    let mut id = [0; 16];
    id[..8].copy_from_slice(&half(0));
    id[8..].copy_from_slice(&half(1));
    id
}

/// Whether the process that left the mark runs, in this process namespace or in one below it, where it has
/// another number.
fn is_alive(mark: &Holder) -> bool {
    let is_it = |name: &str| {
        stat(name).is_some_and(|stat| !stat.is_dead && stat.started == mark.process_started)
    };
    if is_it(&mark.pid.to_string()) {
        return true;
    }
    let Ok(processes) = fs::read_dir("/proc") else { return false };
    processes.flatten().any(|process| {
        let name = process.file_name();
        let Some(name) = name.to_str().filter(|name| name.parse::<u32>().is_ok()) else {
            return false;
        };
        innermost_pid(name) == Some(mark.pid) && is_it(name)
    })
}

/// Whether `/proc` shows the processes of all users and of all namespaces.
fn sees_all_processes() -> bool {
    /// The inode of the first process namespace, whatever the host (`PROC_PID_INIT_INO`).
    const FIRST_NAMESPACE: u64 = 0xefff_fffc;
    let namespace = fs::metadata("/proc/self/ns/pid").map(|found| found.ino());
    namespace.is_ok_and(|ino| ino == FIRST_NAMESPACE) && Path::new("/proc/1/stat").exists()
}

struct ProcessStat {
    /// It has ended, and its parent has not fetched its exit code yet.
    is_dead: bool,
    /// In clock ticks since the host was booted: the lower 32 bits.
    started: u32,
}

fn stat(process: &str) -> Option<ProcessStat> {
    parse_stat(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// A line is `pid (name) state ppid …`; the name may contain any characters. The start time of the process is
/// the 22nd field (proc(5)).
fn parse_stat(line: &str) -> Option<ProcessStat> {
    let mut fields = line[line.rfind(')')? + 1..].split_whitespace();
    let is_dead = matches!(fields.next()?, "Z" | "X" | "x");
    let started: u64 = fields.nth(18)?.parse().ok()?;
    Some(ProcessStat { is_dead, started: started as u32 })
}

/// The number that a process has for itself.
fn innermost_pid(process: &str) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}
