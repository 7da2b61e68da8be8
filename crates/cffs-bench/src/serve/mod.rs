//! The emulated disk for programs and for the kernel.
//!
//! Stands on [`crate::disk`] for what happens and when; adds real time, data, and the ways in.
//!
//! - [`pacer`]: sleeps until the model says that a request is done;
//! - [`media`]: the bytes, and what a power cut loses of them;
//! - [`image`]: a FUSE file system of one file over both;
//! - [`pages`]: how long requests may be on their way there;
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
