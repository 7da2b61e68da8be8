//! NFS servers side by side: `cffs serve`, and nfs-ganesha over ext4.
//!
//! ```text
//!   workload ──► client ──► server ──► loop device ──► serve: the emulated disk
//!      └────► calls            (C-FFS by itself, nfs-ganesha over a mounted ext4)
//! ```
//!
//! - [`calls`]: the calls that the workload makes, and what it takes from their replies;
//! - [`client`]: one connection with several calls under way;
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
