//! NFS servers side by side: `cffs serve`, and nfs-ganesha over ext4.
//!
//! ```text
//!   workload ──► client ──► server ──► loop device ──► serve: the emulated disk
//!      └────► calls            (C-FFS by itself, nfs-ganesha over a mounted ext4)
//! ```
//!
//! - [`calls`]: the calls of the workload, and the decoding of their replies;
//! - [`client`]: one connection with several calls in progress;
//! - [`workload`]: the requests to a server, and the times of its answers;
//! - [`server`]: the servers, each on a volume of its own;
//! - [`comparison`]: all servers on all disks, several times;
//! - [`report`]: medians, bars and tables.

pub mod calls;
pub mod client;
pub mod comparison;
pub mod report;
pub mod server;
pub mod workload;

#[cfg(test)]
mod tests;
