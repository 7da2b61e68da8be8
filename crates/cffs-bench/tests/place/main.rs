//! `place` on ext4, XFS and btrfs, on an emulated disk that counts.
//!
//! Needs root, since it mounts; as another user it says so and passes.

mod accuracy;
mod disk;
mod pack;
mod power;
mod show;
mod trace;
mod trees;
mod truth;
mod warm;
