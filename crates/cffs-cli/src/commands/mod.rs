//! The commands: each module defines its flags and what they do.

pub mod cat;
pub mod explain;
pub mod export;
pub mod fsck;
pub mod generate;
pub mod grow;
pub mod import;
pub mod info;
pub mod inspect;
pub mod layout;
pub mod ls;
pub mod mkfs;
pub mod mount;
pub mod mount_helper;
pub mod path;
pub mod regroup;
mod remount;
pub mod restart;
pub mod scrub;
pub mod serve;
pub mod stats;
pub mod sync;
pub mod tar;
pub mod trace;
pub mod trim;
pub mod tune;
pub mod umount;
