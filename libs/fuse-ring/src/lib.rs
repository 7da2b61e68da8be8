//! The FUSE kernel protocol and its transports, for any file system.
//!
//! A file system implements [`Handler`]. [`Session::mount`] mounts it and [`Session::serve`] serves
//! it, over io_uring if the kernel supports that, and otherwise over `/dev/fuse`.
//!
//! ```text
//!   kernel ◀──▶ transport ──▶ protocol::Request ──▶ dispatch ──▶ Handler
//!                  ▲                                    │
//!                  └───────── protocol::encode ◀────────┘
//! ```
//!
//! - [`protocol`]: bytes to requests, values to bytes. Pure.
//! - `dispatch`: requests to methods of the handler.
//! - `transport`: delivery of messages.
//! - `mount`: `mount(2)` and `fusermount3`.
//! - [`Session`]: a mount and the threads that serve it. [`Notifier`]: messages to the kernel.
//!
//! A file system with one file, whose attributes are valid for a minute:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use fuse_ring::protocol::{Attr, AttrReply, Context, Entry, FileHandle, NodeId, Read};
//! use fuse_ring::{Config, Errno, Handler, MountOptions, Session};
//!
//! struct Hello;
//!
//! const TEXT: &[u8] = b"Hello, world\n";
//! const TTL: Duration = Duration::from_secs(60);
//!
//! fn attr(node: NodeId) -> Attr {
//!     let mode = if node == NodeId::ROOT { 0o040_755 } else { 0o100_444 };
//!     Attr { ino: node.0, mode, nlink: 1, size: TEXT.len() as u64, ..Attr::default() }
//! }
//!
//! impl Handler for Hello {
//!     fn lookup(&self, _: &Context<'_>, _: NodeId, name: &[u8]) -> Result<Entry, Errno> {
//!         let node = if name == b"hello" { NodeId(2) } else { return Err(Errno::NOENT) };
//!         Ok(Entry { node, generation: 0, attr: attr(node), entry_ttl: TTL, attr_ttl: TTL })
//!     }
//!
//!     fn getattr(
//!         &self,
//!         _: &Context<'_>,
//!         node: NodeId,
//!         _: Option<FileHandle>,
//!     ) -> Result<AttrReply, Errno> {
//!         Ok(AttrReply { attr: attr(node), ttl: TTL })
//!     }
//!
//!     fn read(
//!         &self,
//!         _: &Context<'_>,
//!         _: NodeId,
//!         read: &Read,
//!         buf: &mut [u8],
//!     ) -> Result<usize, Errno> {
//!         let rest = TEXT.get(read.offset as usize..).unwrap_or_default();
//!         let len = rest.len().min(buf.len());
//!         buf[..len].copy_from_slice(&rest[..len]);
//!         Ok(len)
//!     }
//! }
//!
//! fn main() -> std::io::Result<()> {
//!     let (options, config) = (MountOptions::default(), Config::default());
//!     let session = Session::mount(Hello, "/mnt", &options, &config)?;
//!     println!("{:?}", session.transport());
//!     session.serve().map(drop)
//! }
//! ```
//!
//! Everything is synchronous, with a fixed number of threads, and requests allocate no memory.

mod apart;
mod dispatch;
mod handler;
mod mount;
mod notify;
pub mod protocol;
mod serving;
mod session;
mod start_file;
mod transport;

pub use handler::Handler;
pub use mount::{MountOptions, Unmount, sees_all_processes};
pub use notify::{CachedData, CachedName, Notifier};
pub use rustix::io::Errno;
pub use serving::current_request;
pub use session::{
    Config, Connection, Ended, READERS_MIN, RING_THREADS_MIN, Rings, SPARES, Session, Suspender,
    THREADS_PER_CORE_MIN, Transport, TransportChoice, Unmounter, will_wait,
};
pub use transport::device::{connection_number, device_number};
pub use transport::entry::HeldEntry;
pub use transport::fill::make_requests;
pub use transport::uring::switch_rings_on;
