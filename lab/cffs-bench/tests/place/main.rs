//! `place` on ext4, XFS and btrfs, on an emulated disk that counts.
//!
//! Needs root, since it mounts file systems; as another user it prints that and passes.

mod accuracy;
mod disk;
mod pack;
mod power;
mod show;
mod trace;
mod trees;
mod truth;
mod warm;
