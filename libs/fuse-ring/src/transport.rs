//! Delivery of messages between the kernel and the server's threads.
//!
//! - [`dev`]: reads and writes on `/dev/fuse`.
//! - [`answer`]: serves and answers one message of `/dev/fuse`.
//! - [`reader_slots`]: the threads that read `/dev/fuse`, and the spare threads.
//! - [`readers`]: makes reading threads return from the kernel.
//! - [`sync_pool`]: threads for requests that wait for the device.
//! - [`waiting`]: tracks waiting requests, and callers that are killed meanwhile.
//! - [`uring`]: io_uring, with a queue per core.
//! - [`entry`]: the buffers of its requests.
//! - [`hold`]: keeps requests in them for the next session; [`fill`]: makes requests for that
//!   purpose.
//! - [`device`]: `/dev/fuse` itself, which both transports need.
//! - [`memory`]: their buffers.
//!
//! A transport delivers messages and splits them into parts. The dispatcher interprets them.

mod answer;
pub(crate) mod dev;
pub(crate) mod device;
pub(crate) mod entry;
pub(crate) mod fill;
pub(crate) mod hold;
pub(crate) mod memory;
pub(crate) mod reader_slots;
pub(crate) mod readers;
pub(crate) mod sync_pool;
pub(crate) mod uring;
pub(crate) mod waiting;
