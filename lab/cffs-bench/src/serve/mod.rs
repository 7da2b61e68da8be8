//! The emulated disk for programs and for the kernel.
//!
//! Uses [`crate::disk`] for the timing of requests; adds real time, data, and interfaces.
//!
//! - [`pacer`]: sleeps until the model says that a request is done;
//! - [`media`]: the bytes, and their loss in a power cut;
//! - [`image`]: a FUSE file system of one file over both;
//! - [`pages`]: the longest request that reaches it;
//! - [`server`]: that file system mounted, and a loop device that makes it a block device;
//! - [`control`]: a socket through which another process reads the counters, and cuts the power.

pub mod control;
pub mod image;
pub mod media;
pub mod pacer;
pub mod pages;
pub mod server;

#[cfg(test)]
mod tests;
