//! One connection to a server, with several calls in progress.
//!
//! Offers [`Client`]. One thread sends and receives: a call is sent when another one has been answered, and
//! all calls that are ready are sent together, so that the client uses little of the processor that it shares
//! with the server.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use nfs_wire::record::{self, Limits};
use nfs_wire::xdr::{Reader, Writer};

use super::calls::Call;

/// The number of calls in progress at the same time.
pub const IN_FLIGHT: usize = 16;

/// How long a reply may take.
const PATIENCE: Duration = Duration::from_secs(60);
const LIMITS: Limits = Limits { bytes_max: 2 << 20, fragments_max: 64 };
const RPC_VERSION: u32 = 2;
const AUTH_SYS: u32 = 1;
const AUTH_BYTES_MAX: u32 = 400;

/// A connection whose calls are made as root.
pub struct Client {
    input: BufReader<TcpStream>,
    output: BufWriter<TcpStream>,
    last_xid: u32,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Result<Client> {
        let stream =
            TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let output = BufWriter::with_capacity(256 << 10, stream.try_clone()?);
        // Servers answer a known number with their earlier answer, even on another connection.
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let last_xid = since_1970.as_micros() as u32;
        Ok(Client { input: BufReader::with_capacity(256 << 10, stream), output, last_xid })
    }

    pub fn call<T>(&mut self, call: &Call, take: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
        let xid = self.send(call)?;
        let reply = self.receive()?;
        let (answered, results) = results(&reply)?;
        ensure!(answered == xid, "received the reply to another call");
        take(results)
    }

    /// Makes the call of each job, [`IN_FLIGHT`] at a time. `take` gets a job and the results of its call,
    /// and returns the job if there is another call to make for it.
    pub fn work<J>(
        &mut self,
        mut jobs: impl Iterator<Item = J>,
        call: impl Fn(&J) -> Call,
        mut take: impl FnMut(J, &[u8]) -> Result<Option<J>>,
    ) -> Result<()> {
        let mut under_way = HashMap::with_capacity(IN_FLIGHT);
        loop {
            while under_way.len() < IN_FLIGHT
                && let Some(job) = jobs.next()
            {
                under_way.insert(self.send(&call(&job))?, job);
            }
            if under_way.is_empty() {
                return Ok(());
            }
            let reply = self.receive()?;
            let (xid, results) = results(&reply)?;
            let job = under_way.remove(&xid).context("received a reply to no call")?;
            if let Some(job) = take(job, results)? {
                under_way.insert(self.send(&call(&job))?, job);
            }
        }
    }

    fn send(&mut self, call: &Call) -> Result<u32> {
        const CALL: u32 = 0;
        self.last_xid = self.last_xid.wrapping_add(1);
        let mut credentials = Writer::default();
        credentials.u32(0);
        credentials.opaque(b"bench");
        // User and group 0, and no further groups.
        (0..3).for_each(|_| credentials.u32(0));
        let mut w = Writer::after(vec![0; record::HEADER_BYTES]);
        let head = [self.last_xid, CALL, RPC_VERSION, call.program, call.version, call.procedure];
        head.into_iter().for_each(|number| w.u32(number));
        w.u32(AUTH_SYS);
        w.opaque(credentials.bytes());
        // No verifier.
        w.u32(0);
        w.u32(0);
        w.fixed(call.arguments.bytes());
        let mut message = w.into_bytes();
        record::finish(&mut message);
        self.output.write_all(&message).context("send a call")?;
        Ok(self.last_xid)
    }

    fn receive(&mut self) -> Result<Vec<u8>> {
        if self.input.buffer().is_empty() {
            self.output.flush().context("send calls")?;
            ensure!(!self.input.fill_buf()?.is_empty(), "the server closed the connection");
        }
        let mut header = [0; record::HEADER_BYTES];
        self.input.read_exact(&mut header).context("receive a reply")?;
        record::read(&mut self.input, header, LIMITS).context("receive a reply")
    }
}

/// The number of the call that a reply is for, and its results.
fn results(reply: &[u8]) -> Result<(u32, &[u8])> {
    const REPLY: u32 = 1;
    let mut r = Reader::new(reply);
    let (xid, kind) = (r.u32()?, r.u32()?);
    let accepted = r.u32()?;
    if kind != REPLY || accepted != 0 {
        bail!("the server did not accept a call");
    }
    let _verifier = (r.u32()?, r.opaque(AUTH_BYTES_MAX)?);
    let status = r.u32()?;
    ensure!(status == 0, "a call failed before its procedure, with status {status}");
    Ok((xid, r.rest()))
}
