//! Real mounts, over both transports.
//!
//! The tests need `/dev/fuse`; if it cannot be opened, they print that and pass. Tests over io_uring need a
//! kernel that supports it, and root to enable it while they run.

#[path = "../../examples/null/tree/mod.rs"]
mod tree;

mod ends;
mod files;
mod harness;
mod killed;
mod notices;
mod requests;
mod unasked;
mod users;

/// Makes one test per transport out of a function that takes a [`harness::Setup`].
macro_rules! on_both_transports {
    ($($name:ident)*) => {
        mod dev {
            $(#[test] fn $name() { crate::harness::on_dev(super::$name); })*
        }
        mod uring {
            $(#[test] fn $name() { crate::harness::on_uring(super::$name); })*
        }
    };
}
use on_both_transports;
