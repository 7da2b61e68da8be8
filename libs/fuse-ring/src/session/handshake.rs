//! The beginning of a session: `INIT`, and the choice of the transport.

use std::collections::BTreeSet;
use std::io;
use std::num::NonZeroUsize;
use std::thread;

use rustix::io::Errno;
use rustix::param::page_size;

use super::connection::Rings;
use super::{
    Config, READERS_MIN, RING_THREADS_MIN, SPARES, THREADS_PER_CORE_MIN, Transport, TransportChoice,
};
use crate::protocol::init::encode_retry;
use crate::protocol::{
    Dialect, Features, Frame, Granted, InitRequest, Negotiation, Operation, Request, encode,
    negotiate,
};
use crate::transport::dev::Buffers;
use crate::transport::device::{Device, Received};
use crate::transport::entry::Held;
use crate::transport::uring::{self, Worker};

/// The result of the handshake.
pub(super) struct Agreed {
    pub(super) granted: Granted,
    pub(super) transport: Transport,
    pub(super) workers: Vec<Worker>,
}

/// More than the length of any `INIT`.
const INIT_LEN_MAX: usize = 1 << 16;

/// Waits for the kernel's `INIT` and answers it.
pub(super) fn run(device: &Device, config: &Config) -> io::Result<Agreed> {
    let page = u32::try_from(page_size()).map_err(|_| Errno::INVAL)?;
    let mut buffers = Buffers::new(INIT_LEN_MAX)?;
    loop {
        let (unique, init) = receive_init(device, &mut buffers)?;
        match negotiate(&init, &config.wishes, page) {
            Negotiation::Agreed(granted) => {
                let agreed = choose(granted, &init, config)?;
                tracing::debug!(offered = ?init, granted = ?agreed.granted, "INIT");
                let body = agreed.granted.encode(&config.wishes, page);
                device.send(&encode::header(unique, Ok(body.len())), &body)?;
                return Ok(agreed);
            }
            Negotiation::Retry => {
                let body = encode_retry();
                device.send(&encode::header(unique, Ok(body.len())), &body)?;
            }
            Negotiation::Unsupported => {
                let _ = device.send(&encode::header(unique, Err(Errno::PROTO)), &[]);
                let version = format!("the kernel speaks FUSE {}.{}", init.major, init.minor);
                return Err(io::Error::new(io::ErrorKind::Unsupported, version));
            }
        }
    }
}

fn receive_init(device: &Device, buffers: &mut Buffers) -> io::Result<(u64, InitRequest)> {
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let len = loop {
        match device.receive(buffers.message())? {
            Received::Message(len) => break len,
            Received::Nothing => {}
            Received::Ended => return Err(Errno::NOTCONN.into()),
        }
    };
    let dialect = Dialect::default();
    let frame = Frame::contiguous(&buffers.message()[..len], dialect).map_err(invalid)?;
    match Request::decode(&frame, dialect).map_err(invalid)?.operation {
        Operation::Init(init) => Ok((frame.unique().0, init)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the first request is not INIT")),
    }
}

/// Creates the transport for a connection from an earlier session, of the same kind.
pub(super) fn resume(
    granted: Granted,
    rings: Option<Rings>,
    config: &Config,
) -> io::Result<Agreed> {
    let Some(Rings(held)) = rings else {
        return Ok(on_dev(granted, config, String::from("a server on /dev/fuse was replaced")));
    };
    let cores = held.iter().map(Held::core).collect::<BTreeSet<_>>().len();
    let transport = Transport::Uring { cores, threads_per_core: held.len() / cores.max(1) };
    let workers = held.into_iter().map(Worker::resume).collect::<io::Result<_>>()?;
    Ok(Agreed { granted, transport, workers })
}

/// Chooses a transport. Everything that io_uring needs is created here: once the kernel has
/// received a request for it, there is no way back.
fn choose(mut granted: Granted, init: &InitRequest, config: &Config) -> io::Result<Agreed> {
    let why_not = match rings(&granted, init, config) {
        Ok((workers, transport)) => {
            granted.features |= Features::OVER_IO_URING;
            return Ok(Agreed { granted, transport, workers });
        }
        Err(why_not) if config.transport == TransportChoice::Uring => {
            return Err(io::Error::new(io::ErrorKind::Unsupported, why_not));
        }
        Err(why_not) => why_not,
    };
    granted.features.remove(Features::OVER_IO_URING);
    Ok(on_dev(granted, config, why_not))
}

fn on_dev(granted: Granted, config: &Config, why_not_uring: String) -> Agreed {
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let (threads, readers) = match config.threads {
        Some(threads) => (threads.get(), threads.get()),
        None => (cores.max(READERS_MIN) + SPARES, cores.max(READERS_MIN)),
    };
    let transport = Transport::Dev { threads, readers, why_not_uring };
    Agreed { granted, transport, workers: Vec::new() }
}

/// The default number of threads of each of `cores` cores.
fn threads_per_core(cores: usize) -> usize {
    RING_THREADS_MIN.div_ceil(cores.max(1)).max(THREADS_PER_CORE_MIN)
}

/// Rings for all cores, or the reason for not using them.
fn rings(
    granted: &Granted,
    init: &InitRequest,
    config: &Config,
) -> Result<(Vec<Worker>, Transport), String> {
    if config.transport == TransportChoice::Dev {
        return Err(String::from("not asked for"));
    }
    if config.transport == TransportChoice::Auto && config.waits_long {
        return Err(String::from("programs that wait for long can be killed on /dev/fuse only"));
    }
    if let Some(obstacle) = uring::obstacle() {
        return Err(obstacle);
    }
    if !init.offered.contains(Features::OVER_IO_URING) {
        return Err(String::from("the kernel does not offer it"));
    }
    let plan = uring::plan().map_err(|error| error.to_string())?;
    let share = || threads_per_core(plan.cores.len());
    let threads_per_core = config.threads.map_or_else(share, NonZeroUsize::get);
    let mut workers = Vec::new();
    for (core, queues) in &plan.cores {
        for _ in 0..threads_per_core {
            let worker = Worker::new(*core, queues, granted.payload_len());
            workers.push(worker.map_err(|error| format!("io_uring: {error}"))?);
        }
    }
    Ok((workers, Transport::Uring { cores: plan.cores.len(), threads_per_core }))
}

#[cfg(test)]
mod tests;
