//! FUSE over io_uring: the kernel delivers a request to a thread on the core where it was made.
//!
//! The kernel has one queue per possible core. A server hands it *entries*: a pair of buffers, registered for
//! one queue by a command on the server's io_uring. The command completes when the kernel has put a request
//! into the buffers. The server puts the answer into the same buffers and commits them by a second command,
//! which also waits for the next request. So a request costs one system call, and a wake-up that stays on its
//! core.
//!
//! ```text
//!   REGISTER ──▶ with the kernel ──completion──▶ with us: request
//!                      ▲                              │ handler
//!                      └──────COMMIT_AND_FETCH────────┘ answer
//! ```
//!
//! Pitfalls, each of which is handled below:
//!
//! - The kernel uses no queue before **all** queues have an entry, including those of offline cores; until
//!   then every caller waits. [`plan`] assigns each queue to a thread.
//! - A newly registered entry gets **none of the requests that already wait**. See
//!   [`start_file`](crate::start_file) and [`hold`](super::hold).
//! - The answer to `INIT` commits both sides. So rings and buffers are made before it ([`Worker::new`]),
//!   while failures can still be handled.
//! - Request and answer **share the payload buffer**. See [`Entry::serve`].
//! - `FORGET`, `INTERRUPT` and notifications still use `/dev/fuse`, which a thread keeps reading.
//! - The `io-uring` crate has no way to set the length of a command, without which the kernel
//!   refuses to register: see [`register`].

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use zerocopy::IntoBytes;

use super::device::Device;
use super::entry::{Entry, HEAD_LEN, Held, is_online};
use super::hold::Hold;
use super::memory::Pages;
use crate::Handler;
use crate::dispatch::Dispatcher;
use crate::protocol::wire::UringCmdReq;

/// `FUSE_IO_URING_CMD_REGISTER`: hands an entry's buffers over and waits for a request.
const REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`: answers a request and waits for the next.
const COMMIT_AND_FETCH: u32 = 2;

/// Distinguish the completions of polls from those of entries: for the end, for the beginning of an attempt
/// to hold requests, and for its end.
const STOP: u64 = u64::MAX;
const BEGUN: u64 = u64::MAX - 1;
const DECIDED: u64 = u64::MAX - 2;

/// The maximum number of polls that are in flight or about to be pushed, in addition to one command per
/// entry.
const POLLS: usize = 3;

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// Which cores serve, and which queues each of them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// A core and its queues.
    pub(crate) cores: Vec<(usize, Vec<u16>)>,
}

/// The kernel's switch for FUSE over io_uring.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Enables FUSE over io_uring for later mounts, if the kernel supports it; root only. Returns whether it was
/// off before.
pub fn switch_rings_on() -> io::Result<bool> {
    if obstacle().is_none() || !std::fs::exists(SWITCH)? {
        return Ok(false);
    }
    std::fs::write(SWITCH, "Y").map(|()| true)
}

/// Why rings cannot be used, if that is known in advance.
pub(crate) fn obstacle() -> Option<String> {
    match std::fs::read_to_string(SWITCH) {
        Ok(value) if value.trim_start().starts_with(['Y', '1']) => None,
        Ok(value) => Some(format!("{SWITCH} is {}", value.trim())),
        Err(_) => Some(String::from("the kernel has no FUSE over io_uring")),
    }
}

/// Plans for this machine: the cores that this process may run on serve their own queues, and
/// share those of all other cores that the machine could ever have.
pub(crate) fn plan() -> io::Result<Plan> {
    let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let queues = count_list(&possible)
        .ok_or_else(|| io::Error::other(format!("cannot read the list of cores: {possible}")))?;
    let affinity = sched_getaffinity(None)?;
    let usable: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| affinity.is_set(core)).collect();
    Ok(share(queues, &usable))
}

fn share(queues: u16, usable: &[usize]) -> Plan {
    let mut cores: Vec<_> = usable.iter().map(|&core| (core, Vec::new())).collect();
    for queue in 0..queues {
        let own = usable.binary_search(&usize::from(queue));
        let index = own.unwrap_or(usize::from(queue) % usable.len().max(1));
        if let Some((_, list)) = cores.get_mut(index) {
            list.push(queue);
        }
    }
    cores.retain(|(_, queues)| !queues.is_empty());
    Plan { cores }
}

/// The number of numbers in a list like `0-3,8,10-11`.
fn count_list(list: &str) -> Option<u16> {
    list.trim().split(',').try_fold(0_u16, |count, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        count.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// One thread's ring and the entries that it serves, one for each of its core's queues.
pub(crate) struct Worker {
    /// Dropped first: the kernel must have released the buffers before they are unmapped.
    ring: Ring,
    entries: Vec<Entry>,
    core: usize,
}

impl Worker {
    /// Makes everything whose creation can fail. The ring is disabled until a thread adopts it.
    pub(crate) fn new(core: usize, queues: &[u16], payload_len: usize) -> io::Result<Worker> {
        let entry = |&queue| Entry::new(queue, Pages::placed(HEAD_LEN + payload_len)?);
        Worker::with(core, queues.iter().map(entry).collect::<io::Result<_>>()?)
    }

    /// The same with the entries of another session, and the requests in them.
    pub(crate) fn resume(held: Held) -> io::Result<Worker> {
        let Held { core, mut entries } = held;
        for entry in &mut entries {
            // The others were dropped with their ring.
            entry.is_registered = entry.has_request;
        }
        Worker::with(core, entries)
    }

    fn with(core: usize, entries: Vec<Entry>) -> io::Result<Worker> {
        let ring = IoUring::builder()
            // A child that inherited this memory would keep the connection open (see `apart`).
            .dontfork()
            .setup_r_disabled()
            .setup_single_issuer()
            // This thread copies requests into the buffers when it enters the kernel, so no interrupt is
            // needed. With `DEFER_TASKRUN` only this thread could do that: if it is killed, and the ring
            // stays open because another thread of the process cannot end, an abort of the connection would
            // not end the requests that the kernel has assigned to its entries.
            .setup_coop_taskrun()
            .build((entries.len() + POLLS).next_power_of_two() as u32)?;
        Ok(Worker { ring, entries, core })
    }

    /// The queues of its entries, one for each.
    pub(crate) fn queues(&self) -> impl Iterator<Item = u16> {
        self.entries.iter().map(|entry| entry.queue)
    }

    /// Whether the next program in this process can use its memory.
    pub(crate) fn is_placed(&self) -> bool {
        self.entries.iter().all(|entry| entry.buffers.is_placed())
    }

    /// Serves requests until the connection ends, `stop` becomes readable, or all are held for the next
    /// session.
    pub(crate) fn serve<H: Handler>(
        mut self,
        dispatcher: &Dispatcher<H>,
        device: &Device,
        stop: BorrowedFd<'_>,
        hold: &Hold,
    ) -> io::Result<()> {
        pin(self.core);
        self.ring.submitter().register_enable_rings()?;
        let fd = types::Fd(device.as_fd().as_raw_fd());
        self.poll(stop, STOP)?;
        let mut attempt = hold.attempt();
        self.poll(attempt.begun(), BEGUN)?;
        let mut live = self.entries.len();
        self.register(fd)?;
        // A held request is served only then, since it may wait for all threads to have started.
        hold.started();
        self.release(dispatcher, fd)?;
        let (mut is_asked, mut is_full) = (false, false);
        while live > 0 {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            // One request at a time, so that no answer waits for another request to be handled. With more
            // completions at hand the next call does not sleep.
            let Some(completion) = self.ring.completion().next() else { continue };
            match completion.user_data() {
                STOP => return Ok(()),
                BEGUN => {
                    self.entries
                        .iter_mut()
                        .for_each(|entry| entry.is_idle = !is_online(entry.queue));
                    self.poll(attempt.decided(), DECIDED)?;
                    is_asked = true;
                    hold.asked(&attempt);
                }
                DECIDED if attempt.is_over() => {
                    hold.leave(Held { core: self.core, entries: self.entries });
                    return Ok(());
                }
                DECIDED => {
                    attempt = hold.attempt();
                    (is_asked, is_full) = (false, false);
                    self.poll(attempt.begun(), BEGUN)?;
                    // Requests that fill entries for the next attempt may be among the held ones.
                    if !attempt.has_begun() {
                        self.release(dispatcher, fd)?;
                    }
                }
                index => {
                    let Some(entry) = self.entries.get_mut(index as usize) else { continue };
                    match errno_of(completion.result()) {
                        None if attempt.has_begun() => entry.has_request = true,
                        None => {
                            entry.serve(dispatcher)?;
                            push(&mut self.ring, commit(fd, entry, index))?;
                        }
                        Some(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED) => live -= 1,
                        Some(errno) => return Err(errno.into()),
                    }
                }
            }
            if is_asked && !is_full && self.is_full() {
                is_full = true;
                hold.full(&attempt);
            }
        }
        Ok(())
    }

    /// Registers the entries that the kernel does not know, and returns once it knows them.
    fn register(&mut self, fd: types::Fd) -> io::Result<()> {
        for (index, entry) in self.entries.iter_mut().enumerate() {
            if !std::mem::replace(&mut entry.is_registered, true) {
                push(&mut self.ring, register(fd, entry, index as u64))?;
            }
        }
        self.ring.submit().map(drop)
    }

    /// Returns the entries that have requests to the kernel, with answers.
    fn release<H: Handler>(&mut self, dispatcher: &Dispatcher<H>, fd: types::Fd) -> io::Result<()> {
        for (index, entry) in self.entries.iter_mut().enumerate() {
            if std::mem::take(&mut entry.has_request) {
                entry.serve(dispatcher)?;
                push(&mut self.ring, commit(fd, entry, index as u64))?;
            }
        }
        Ok(())
    }

    /// Whether each entry has a request that is held.
    fn is_full(&self) -> bool {
        self.entries.iter().all(|entry| entry.has_request || entry.is_idle)
    }

    fn poll(&mut self, fd: BorrowedFd<'_>, name: u64) -> io::Result<()> {
        let flags = u32::from(PollFlags::IN.bits());
        let poll = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), flags);
        push(&mut self.ring, poll.build().user_data(name).into())
    }
}

/// The error of an entry's command by its completion; none if a request has arrived.
fn errno_of(result: i32) -> Option<Errno> {
    (result < 0).then(|| Errno::from_raw_os_error(-result))
}

/// Builds the command that registers an entry.
///
/// The kernel requires the number of buffers in the length of the command. The builder leaves that at zero,
/// so it is set in the finished entry.
fn register(fd: types::Fd, entry: &mut Entry, index: u64) -> squeue::Entry128 {
    const LEN: std::ops::Range<usize> = 24..28;
    let command = command(fd, REGISTER, entry).addr(Some(entry.iovecs.as_ptr() as u64));
    let built = command.build().user_data(index);
    // SAFETY: `Entry128` is `repr(C)` over the kernel's 128-byte entry, which consists of plain numbers: its
    // bytes may be read, and any bytes are valid.
    let mut bytes: [u8; 128] = unsafe { std::mem::transmute(built) };
    bytes[LEN].copy_from_slice(&2_u32.to_ne_bytes());
    // SAFETY: as above.
    unsafe { std::mem::transmute(bytes) }
}

/// Builds the command that returns an entry with an answer.
fn commit(fd: types::Fd, entry: &Entry, index: u64) -> squeue::Entry128 {
    command(fd, COMMIT_AND_FETCH, entry).build().user_data(index)
}

fn command(fd: types::Fd, code: u32, entry: &Entry) -> opcode::UringCmd80 {
    let request =
        UringCmdReq { flags: 0, commit_id: entry.commit_id, qid: entry.queue, padding: [0; 6] };
    let mut area = [0; 80];
    area[..size_of::<UringCmdReq>()].copy_from_slice(request.as_bytes());
    opcode::UringCmd80::new(fd, code).cmd(area)
}

fn push(ring: &mut Ring, entry: squeue::Entry128) -> io::Result<()> {
    // SAFETY: the command points to the buffers of an `Entry`, which the `Worker` owns and drops after the
    // ring.
    unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)
}

/// A thread on another core is only slower; a container may forbid the binding.
fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    if let Err(errno) = sched_setaffinity(None, &set) {
        tracing::warn!(core, %errno, "cannot pin a server thread");
    }
}

#[cfg(test)]
mod tests;
