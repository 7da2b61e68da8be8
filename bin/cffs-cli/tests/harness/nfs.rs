//! An NFS client that follows RFC 1813 when its connection breaks: it reconnects, and repeats the call with
//! the same transaction number.

use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::time::Duration;

use nfs_wire::record::{self, Limits};
use nfs_wire::xdr::{Reader, Writer};
use nfs_wire::{mount, nfs};

const LIMITS: Limits = Limits { bytes_max: 2 << 20, fragments_max: 64 };
const PATIENCE: Duration = Duration::from_secs(60);

/// A status: `nfsstat3`.
pub const OK: u32 = 0;
pub const NO_ENTRY: u32 = 2;

/// Where servers listen if the port does not matter: at one that the kernel chooses, which no other program
/// has.
pub const ANY_PORT: &str = "127.0.0.1:0";

/// The port in the message of a server that chose it, if this is that message.
pub fn port_in(line: &str) -> Option<u16> {
    let (_, address) = line.split_once(": listens at ")?;
    address.trim_end().rsplit_once(':')?.1.parse().ok()
}

/// Runs a command that starts a server at [`ANY_PORT`] in the background, and returns the port.
pub fn started(command: &mut Command) -> u16 {
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    said.lines().find_map(port_in).expect("the message")
}

/// A client on this machine, acting as root.
pub struct Client {
    port: u16,
    stream: Option<TcpStream>,
    last_xid: u32,
    /// The number of repeated calls.
    pub repeated: u64,
}

/// A call with its transaction number, which stays the same in repetitions.
pub struct Call {
    message: Vec<u8>,
}

impl Client {
    /// A client whose transaction numbers begin after `last_xid`: clients at the same address should use
    /// different numbers.
    pub fn new(port: u16, last_xid: u32) -> Client {
        Client { port, stream: None, last_xid, repeated: 0 }
    }

    /// Prepares a call of an NFS procedure.
    pub fn prepare(&mut self, procedure: u32, arguments: impl FnOnce(&mut Writer)) -> Call {
        self.prepare_of(nfs::PROGRAM, nfs::VERSION, procedure, arguments)
    }

    fn prepare_of(
        &mut self,
        program: u32,
        version: u32,
        procedure: u32,
        arguments: impl FnOnce(&mut Writer),
    ) -> Call {
        self.last_xid += 1;
        let mut w = Writer::after(vec![0; record::HEADER_BYTES]);
        [self.last_xid, 0, 2, program, version, procedure].into_iter().for_each(|n| w.u32(n));
        let mut credentials = Writer::default();
        credentials.u32(0);
        credentials.opaque(b"test");
        (0..3).for_each(|_| credentials.u32(0));
        w.u32(1);
        w.opaque(credentials.bytes());
        w.u32(0);
        w.u32(0);
        arguments(&mut w);
        let mut message = w.into_bytes();
        record::finish(&mut message);
        Call { message }
    }

    /// The results of a call, which is repeated whenever its connection breaks. A server must always be
    /// listening.
    pub fn make(&mut self, call: &Call) -> Vec<u8> {
        loop {
            match self.make_once(call) {
                Ok(results) => return results,
                Err(_) => {
                    self.stream = None;
                    self.repeated += 1;
                }
            }
        }
    }

    /// The same without repetitions: fails if the connection breaks, or without an answer within a minute.
    pub fn make_once(&mut self, call: &Call) -> io::Result<Vec<u8>> {
        let stream = self.connected();
        stream.write_all(&call.message)?;
        let mut stream = BufReader::new(stream);
        let mut header = [0; record::HEADER_BYTES];
        stream.read_exact(&mut header)?;
        let reply = record::read(&mut stream, header, LIMITS).map_err(io::Error::other)?;
        assert_eq!(reply[..4], call.message[4..8], "the reply to another call");
        Ok(results(&reply))
    }

    /// Makes a call, and drops its reply with the connection. Returns when the server has closed the
    /// connection.
    pub fn make_and_lose(&mut self, call: &Call) {
        let stream = self.connected();
        let sent = stream.write_all(&call.message).and_then(|()| stream.shutdown(Shutdown::Write));
        if sent.is_ok() {
            // The server may reset it as well.
            let _ = io::copy(stream, &mut io::sink());
        }
        self.stream = None;
        self.repeated += 1;
    }

    fn connected(&mut self) -> &mut TcpStream {
        self.stream.get_or_insert_with(|| {
            let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a server listens");
            stream.set_read_timeout(Some(PATIENCE)).expect("set");
            stream.set_nodelay(true).expect("set");
            stream
        })
    }

    /// The handle of an exported directory; the status of a failure.
    pub fn mount(&mut self, path: &str) -> Result<Vec<u8>, u32> {
        let call =
            self.prepare_of(mount::PROGRAM, mount::VERSION, 1, |w| w.opaque(path.as_bytes()));
        let results = self.make(&call);
        let mut r = Reader::new(&results);
        match r.u32().expect("a status") {
            OK => Ok(r.opaque(64).expect("a handle").to_vec()),
            status => Err(status),
        }
    }
}

/// The results after the head of a reply.
fn results(reply: &[u8]) -> Vec<u8> {
    let mut r = Reader::new(reply);
    let head: [u32; 6] = std::array::from_fn(|_| r.u32().expect("a head"));
    assert_eq!(head[1..], [1, 0, 0, 0, 0], "accepted");
    r.rest().to_vec()
}

/// The status at the beginning of results.
pub fn status(results: &[u8]) -> u32 {
    Reader::new(results).u32().expect("a status")
}

/// The arguments for a name in a directory.
pub fn entry(dir: &[u8], name: &str) -> impl FnOnce(&mut Writer) {
    move |w| {
        w.opaque(dir);
        w.opaque(name.as_bytes());
    }
}

/// The handle of a created file.
pub fn made(results: &[u8]) -> Vec<u8> {
    let mut r = Reader::new(results);
    assert_eq!(r.u32(), Ok(OK));
    r.optional(|r| r.opaque(64)).expect("well-formed").expect("a handle").to_vec()
}

/// The verifier at the end of the results of WRITE and COMMIT.
pub fn verifier(results: &[u8]) -> [u8; 8] {
    assert_eq!(status(results), OK);
    *results.last_chunk().expect("long enough")
}
