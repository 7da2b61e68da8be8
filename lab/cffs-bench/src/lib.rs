//! Measures C-FFS and its alternatives.
//!
//! ```text
//!   disk ──► serve ──► loop device ──► ext4, xfs, btrfs, C-FFS ◄── workload ──► report
//!     └────► virtual_disk ──► C-FFS as a library
//! ```
//!
//! - [`disk`]: the model of a device: pure, with a virtual clock;
//! - [`virtual_disk`]: the model as a device inside the process, in virtual time;
//! - [`serve`]: the model in real time, as a file and as a block device;
//! - [`placement`]: the placement of threads on cores;
//! - [`workload`]: the operations on a file system while it is measured;
//! - [`peer`]: the file systems, and a mounted one on an emulated disk;
//! - [`compare`]: every workload on every peer;
//! - [`library`]: C-FFS without a kernel, in virtual time;
//! - [`nfs`]: NFS servers side by side;
//! - [`questions`]: the questions that the papers left open, and the tables of their answers;
//! - [`figures`]: the tables in virtual time that README and docs quote;
//! - [`scale`]: how costs grow with clients, names, files and volumes;
//! - [`web`]: a web server's reads, for several layouts of its files and sizes of memory;
//! - [`units`]: what the size of clusters and the level of compression cost and save;
//! - [`store_proxy`]: a proxy in front of an object store, with the delays of a distant one;
//! - [`processor`]: the processor time of programs and servers;
//! - [`report`]: medians, bars and tables.

// No program outside the workspace uses this crate, so items whose names say enough have no comment.
#![allow(missing_docs)]

pub mod compare;
pub mod disk;
pub mod figures;
pub mod instructions;
pub mod library;
pub mod nfs;
pub mod peer;
pub mod placement;
pub mod processor;
pub mod questions;
pub mod report;
pub mod results;
pub mod scale;
pub mod serve;
pub mod store_proxy;
pub mod units;
pub mod virtual_disk;
pub mod web;
pub mod workload;
