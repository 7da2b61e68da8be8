//! Programs that request a ticket, to attach to the server.

use std::sync::Arc;

use cffs::device::Access;
use cffs::error::Result;
use fuse_ring::protocol::{Context, NodeId};

use crate::attached::Sessions;
use crate::fuse::credentials;
use crate::fuse::translate::ino;
use crate::fuse::volume_handle::VolumeHandle;

/// Makes a ticket for a program that the kernel lets set an attribute.
pub(super) fn ask(
    sessions: &Arc<Sessions>,
    cx: &Context<'_>,
    node: NodeId,
    number: Result<u64>,
) -> Result<()> {
    let examine = || credentials::user_apart(cx, Access::ReadWrite);
    sessions.ask(ino(node), number?, credentials::uid(cx), examine)
}

/// Makes a ticket to read, and returns the answer with it. The volume of a mount that follows another
/// program's changes is replaced, so it has none.
pub(super) fn to_read(
    sessions: &Arc<Sessions>,
    volume: &VolumeHandle,
    cx: &Context<'_>,
    node: NodeId,
    number: u64,
) -> Result<Vec<u8>> {
    let examine = || match volume {
        VolumeHandle::Fixed(_) => credentials::user_apart(cx, Access::ReadOnly),
        VolumeHandle::Following(..) => Err("the mount follows another program's changes"),
    };
    sessions.ask_to_read(ino(node), number, credentials::uid(cx), examine)
}
