//! The FUSE kernel protocol and its transports, for any file system.
//!
//! A file system implements [`Handler`]. [`Session::mount`] mounts it and [`Session::serve`] serves
//! it, over io_uring where the kernel offers that and over `/dev/fuse` where it does not.
//!
//! ```text
//!   kernel ◀──▶ transport ──▶ protocol::Request ──▶ dispatch ──▶ Handler
//!                  ▲                                    │
//!                  └───────── protocol::encode ◀────────┘
//! ```
//!
//! - [`protocol`]: bytes to requests, values to bytes. Pure.
//! - `dispatch`: requests to methods of the handler.
//! - `transport`: how messages travel.
//! - `mount`: `mount(2)` and `fusermount3`.
//! - [`Session`]: the life of a mount. [`Notifier`]: messages to the kernel.
//!
//! Everything is synchronous, with a fixed number of threads, and nothing is allocated per
//! request.

mod dispatch;
mod handler;
mod mount;
mod notify;
pub mod protocol;
mod session;
mod transport;

pub use handler::Handler;
pub use mount::{MountOptions, Unmount};
pub use notify::{CachedData, CachedName, Notifier};
pub use rustix::io::Errno;
pub use session::{
    Config, Session, THREADS_MIN, THREADS_PER_CORE, Transport, TransportChoice, Unmounter,
};
