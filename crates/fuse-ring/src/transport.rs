//! How messages travel between the kernel and the server's threads.
//!
//! - [`dev`]: reads and writes on `/dev/fuse`.
//! - [`answer`]: a message on it, from its frame to the reply.
//! - [`reader_slots`]: the threads that read it, and the spares.
//! - [`readers`]: how they are called back from the kernel.
//! - [`sync_pool`]: threads for requests that wait for the device.
//! - [`waiting`]: which requests wait, and callers that are killed meanwhile.
//! - [`uring`]: a queue per core, on io_uring.
//! - [`entry`]: the buffers of its requests.
//! - [`hold`]: how requests in them outlive the session; [`fill`]: makes requests for that purpose.
//! - [`device`]: the device itself, which both need.
//! - [`memory`]: their buffers.
//!
//! A transport knows how messages are cut and delivered. It does not know what they mean; that is
//! the dispatcher's.

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
