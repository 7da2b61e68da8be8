//! Arbitrary bytes as an NFS client's: records, RPC calls, and valid calls of every procedure with some
//! damage. The volume is sound in the end.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, LazyLock};

use cffs::clock::SystemClock;
use cffs::device::{Image, MemoryDevice};
use cffs::fsck::Repair;
use cffs::vfs::types::OpenOptions;
use cffs_serve::nfs::{Peer, Service};
use cffs_serve::shared::NoObserver;
use nfs_wire::record::{self, Limits};

use crate::input::Input;
use crate::volume::check;

const VOLUME_BYTES: u64 = 4 << 20;
/// The maximum number of calls.
const CALLS_MAX: usize = 24;
const RECORD: Limits = Limits { bytes_max: 1 << 16, fragments_max: 8 };
const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;
/// The length of a handle, which precedes it.
const HANDLE_BYTES: usize = 36;

/// The arguments of each procedure: handle, name, attributes, guard, numbers of 4 and 8 bytes, a verifier,
/// data with its length, how to create, a node, a path.
const ARGUMENTS: [&str; 23] = [
    "", "h", "hag", "hn", "h4", "h", "h84", "h8w", "hnc", "hna", "hnap", "hnk", "hn", "hn", "hnhn",
    "hhn", "h8v4", "h8v44", "h", "h", "h", "h84", "",
];

static VOLUME: LazyLock<Image> = LazyLock::new(|| {
    let device = MemoryDevice::new(VOLUME_BYTES);
    cffs::mkfs::make(&device, &Default::default()).expect("a volume can be made");
    device.snapshot()
});

/// A client: the server, and the handles that it received.
struct Client {
    service: Service,
    peer: Peer,
    handles: Vec<Vec<u8>>,
}

/// Calls a server of a new volume.
pub fn nfs(data: &[u8]) {
    let device = Arc::new(MemoryDevice::from_image(VOLUME.clone()));
    let volume =
        cffs::open(Arc::clone(&device) as _, Arc::new(SystemClock), OpenOptions::default());
    let volume = Arc::new(volume.expect("the volume is whole"));
    let exports = vec!["/:insecure,no_root_squash".parse().expect("an export")];
    let service = Service::over(Arc::clone(&volume), exports, Arc::new(NoObserver));
    let service = service.expect("the root can be exported");
    let peer = Peer { address: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 1000 };
    let mut client = Client { service, peer, handles: Vec::new() };
    let root = head(&mut Input::new(&[]), MOUNT, 1, 0);
    client.call(&[root, opaque(b"/")].concat());
    assert!(!client.handles.is_empty(), "the root can be mounted");

    let mut input = Input::new(data);
    if input.byte().is_multiple_of(8) {
        client.stream(input.rest());
    } else {
        for number in 0..CALLS_MAX {
            if input.is_empty() {
                break;
            }
            let message = message(&mut input, &client.handles, number as u32);
            client.call(&message);
        }
    }
    assert!(!client.service.panicked());
    drop(client);
    volume.close().expect("a volume in memory can be closed");
    let report = check(&device, Repair::No).expect("it can be checked");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

impl Client {
    /// Sends bytes unchanged, until the connection ends.
    fn stream(&mut self, mut bytes: &[u8]) {
        while let Some((header, rest)) = bytes.split_first_chunk::<4>() {
            bytes = rest;
            let Ok(message) = record::read(&mut bytes, *header, RECORD) else { return };
            self.call(&message);
        }
    }

    fn call(&mut self, message: &[u8]) {
        let bytes_max = self.service.reply_bytes_max(message);
        let Some(reply) = self.service.answer(&self.peer, message) else { return };
        assert!(reply.len() <= bytes_max, "{} bytes, not {bytes_max}", reply.len());
        assert_eq!(reply.get(4..8), message.get(..4), "the number of the call");
        for at in (8..reply.len().saturating_sub(HANDLE_BYTES)).step_by(4) {
            if reply[at..].starts_with(&[0, 0, 0, HANDLE_BYTES as u8, 1, 0, 0, 0]) {
                let handle = reply[at + 4..][..HANDLE_BYTES].to_vec();
                if !self.handles.contains(&handle) {
                    self.handles.push(handle);
                }
            }
        }
    }
}

/// A call, possibly damaged.
fn message(input: &mut Input<'_>, handles: &[Vec<u8>], xid: u32) -> Vec<u8> {
    let shape = input.byte();
    let (program, version, procedure) = match shape % 16 {
        0 => (MOUNT, 3, input.below(7) as u32),
        1 => (NFS + input.below(3) as u32, input.below(5) as u32, input.below(30) as u32),
        _ => (NFS, 3, input.below(ARGUMENTS.len()) as u32),
    };
    let mut message = head(input, program, procedure, xid);
    message[12..20]
        .copy_from_slice(&[program.to_be_bytes(), u32::to_be_bytes(version)].concat()[..8]);
    let fields = ARGUMENTS.get(procedure as usize).copied().unwrap_or("");
    let fields = if program == MOUNT { "p" } else { fields };
    for field in fields.bytes() {
        message.extend(argument(input, field, handles));
    }
    match shape >> 4 {
        0 => input.damage(&mut message),
        1 => message.truncate(input.below(message.len())),
        2 => message.extend_from_slice(input.bytes(8)),
        _ => {}
    }
    message
}

/// The head of a call, as a user in a few groups makes it.
fn head(input: &mut Input<'_>, program: u32, procedure: u32, xid: u32) -> Vec<u8> {
    let uid = u32::from(input.byte() % 4) * 500;
    // A stamp, a name, user, group, and one more group.
    let credentials = [0, 0, uid, uid, 1, 7];
    let words = [xid, 0, 2, program, 3, procedure, 1, 4 * credentials.len() as u32];
    let words = words.into_iter().chain(credentials).chain([0, 0]);
    words.flat_map(u32::to_be_bytes).collect()
}

fn argument(input: &mut Input<'_>, field: u8, handles: &[Vec<u8>]) -> Vec<u8> {
    match field {
        b'h' => opaque(&handles[input.below(handles.len())]),
        b'n' => opaque(match input.byte() % 16 {
            0 => b"",
            1 => b".",
            2 => b"..",
            3 => b"a/b",
            4 => &[b'x'; 255],
            5 => &[b'y'; 300],
            6 => b"nul\0",
            7 => b"\xff\xfe",
            other => &b"abcdefgh"[usize::from(other) - 8..][..1],
        }),
        b'a' => attributes(input),
        b'g' => match input.byte() % 4 {
            0 => [1, u32::from(input.byte()), 0].into_iter().flat_map(u32::to_be_bytes).collect(),
            _ => vec![0; 4],
        },
        b'4' => number(input)[4..].to_vec(),
        b'8' => number(input),
        b'v' => vec![u8::from(input.byte().is_multiple_of(8)); 8],
        b'w' => {
            let data = vec![input.byte(); input.below(9000)];
            let counted = [data.len() as u32, u32::from(input.byte() % 4)];
            let counted = counted.into_iter().flat_map(u32::to_be_bytes);
            counted.chain(opaque(&data)).collect()
        }
        b'c' => match input.byte() % 4 {
            0 => [&[0, 0, 0, 2][..], &[input.byte(); 8]].concat(),
            how => [&[0, 0, 0, how % 2], &attributes(input)[..]].concat(),
        },
        b'k' => {
            let kind = input.byte() % 9;
            let device = if matches!(kind, 3 | 4) { &[0; 8][..] } else { &[] };
            [&[0, 0, 0, kind], &attributes(input)[..], device].concat()
        }
        _ => opaque(match input.byte() % 4 {
            0 => b"/",
            1 => b"/a",
            2 => b"",
            _ => &[b'/'; 5000],
        }),
    }
}

/// A number of 8 bytes: near the size of a small file, or one that provokes overflows.
fn number(input: &mut Input<'_>) -> Vec<u8> {
    let numbers =
        [0, 1, 4096, 10_000, 1 << 20, u64::from(u32::MAX), 1 << 40, i64::MAX as u64, u64::MAX];
    let number = numbers[input.below(numbers.len())];
    number.wrapping_add_signed(i64::from(input.byte() as i8)).to_be_bytes().to_vec()
}

/// Attributes to set, each present or absent.
fn attributes(input: &mut Input<'_>) -> Vec<u8> {
    let which = input.byte();
    let mut bytes = Vec::new();
    let mut field = |is_set: bool, value: &[u8]| {
        bytes.extend_from_slice(&u32::from(is_set).to_be_bytes());
        bytes.extend_from_slice(if is_set { value } else { &[] });
    };
    field(which & 1 != 0, &[0, 0, input.byte(), input.byte()]);
    field(which & 2 != 0, &[0, 0, 1, input.byte()]);
    field(which & 4 != 0, &[0, 0, 1, input.byte()]);
    field(which & 8 != 0, &number(input));
    for bits in [which >> 4 & 3, which >> 6] {
        bytes.extend_from_slice(&u32::from(bits).to_be_bytes());
        if bits == 2 {
            bytes.extend_from_slice(&number(input));
        }
    }
    bytes
}

/// Bytes with their length before them, and zeros up to a multiple of four.
fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut out = (bytes.len() as u32).to_be_bytes().to_vec();
    out.extend_from_slice(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}
