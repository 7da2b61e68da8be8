//! How the kernel hands requests to the FUSE servers that are compared.

use std::fmt;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The transport of C-FFS and of the server that does nothing. Both use the same one in a comparison, since
/// the cost of FUSE depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// A queue for each core, on io_uring.
    #[default]
    Rings,
    /// Reads and writes on `/dev/fuse`.
    Dev,
}

impl Transport {
    /// Enables it in the kernel.
    pub fn prepare(self) -> Result<()> {
        if self == Transport::Rings {
            fuse_ring::switch_rings_on().context("enable FUSE over io_uring")?;
        }
        Ok(())
    }

    /// The value of C-FFS's mount option.
    pub(super) fn mount_option(self) -> &'static str {
        match self {
            Transport::Rings => "transport=rings",
            Transport::Dev => "transport=dev",
        }
    }

    /// The argument of fuse-ring's example.
    pub(super) fn argument(self) -> &'static str {
        match self {
            Transport::Rings => "--transport=uring",
            Transport::Dev => "--transport=dev",
        }
    }

    /// The part of file names by which reports over this transport are recognized.
    pub fn suffix(self) -> &'static str {
        match self {
            Transport::Rings => "",
            Transport::Dev => "-dev",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Rings => "io_uring",
            Transport::Dev => "/dev/fuse",
        })
    }
}
