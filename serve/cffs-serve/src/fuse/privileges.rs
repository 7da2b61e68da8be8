//! Set-id bits: which ones a caller may set, and which ones a change of contents clears.

use cffs::vfs::types::{Attr, SetAttr, Unprivileged};
use cffs::vfs::{Caller, Groups, Volume};
use fuse_ring::Errno;
use fuse_ring::protocol::{self, Context, NodeId};

use super::credentials;
use super::translate::{errno, ino};

const SET_ID_BITS: u32 = 0o6000;
pub(super) const SET_GROUP_ID_BIT: u32 = 0o2000;

/// The caller of a request, as far as the request names it; without supplementary groups.
pub(super) fn caller(cx: &Context<'_>) -> Caller<'static> {
    let groups = Groups::Listed(&[]);
    Caller { uid: cx.uid, gid: cx.gid, groups, umask: 0, process: cx.pid, condition: None }
}

/// Completes the changes of a `SETATTR` with those of the set-id bits.
///
/// An empty request is a chown(2) without an owner, or precedes a write, a `fallocate` or a copy, whose own
/// request clears the bits. The kernel does not check its caller, so only the owner clears bits by it. For
/// others it succeeds: it may belong to a write through a descriptor, which needs no permission.
pub(super) fn complete(
    volume: &Volume,
    cx: &Context<'_>,
    node: NodeId,
    change: &protocol::SetAttr,
    changes: &mut SetAttr,
) -> Result<(), Errno> {
    let is_empty = *changes == SetAttr::default();
    if !change.kill_suid_sgid && !is_empty {
        return Ok(());
    }
    let attr = volume.attr(ino(node)).map_err(errno("setattr"))?;
    if is_empty && !credentials::owns(cx, &attr) {
        return Ok(());
    }
    let is_chown = change.uid.is_some() || change.gid.is_some() || is_empty;
    let is_privileged = is_chown && credentials::keeps_set_id(cx);
    changes.clear_privileges =
        Some(if is_privileged { Unprivileged::Member } else { unprivileged(cx, &attr) });
    Ok(())
}

/// Clears set-id bits of a file whose contents an unprivileged caller changes. Returns whether it had any.
pub(super) fn clear(volume: &Volume, cx: &Context<'_>, node: NodeId) -> Result<bool, Errno> {
    let attr = volume.attr(ino(node)).map_err(errno("write"))?;
    if attr.permissions & SET_ID_BITS == 0 {
        return Ok(false);
    }
    let clear_privileges = Some(unprivileged(cx, &attr));
    let changes = SetAttr { clear_privileges, ..SetAttr::default() };
    volume.set_attr(&caller(cx), ino(node), &changes).map_err(errno("write"))?;
    Ok(true)
}

/// The same unless the caller has the capability to keep them, for requests that carry no flag about this.
pub(super) fn clear_unless_kept(
    volume: &Volume,
    cx: &Context<'_>,
    node: NodeId,
) -> Result<bool, Errno> {
    let attr = volume.attr(ino(node)).map_err(errno("write"))?;
    if attr.permissions & SET_ID_BITS == 0 || credentials::keeps_set_id(cx) {
        return Ok(false);
    }
    clear(volume, cx, node)
}

/// The relation of an unprivileged caller to a file's group.
pub(super) fn unprivileged(cx: &Context<'_>, attr: &Attr) -> Unprivileged {
    let is_member =
        attr.permissions & SET_GROUP_ID_BIT == 0 || credentials::has_group(cx, attr.gid);
    if is_member { Unprivileged::Member } else { Unprivileged::Stranger }
}

/// Whether the caller may make a program set-group-ID. Linux checks this itself from version 6.0 on.
pub(super) fn may_set_gid(cx: &Context<'_>) -> impl Fn(u32) -> bool {
    |gid| credentials::has_group(cx, gid) || credentials::keeps_set_id(cx)
}
