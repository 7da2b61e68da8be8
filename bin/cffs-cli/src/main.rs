//! The single binary of C-FFS.
//!
//! `cffs COMMAND` has all functions; under the names `mkfs.cffs`, `fsck.cffs`, `mount.cffs` and variants
//! (`mount.fuseblk.cffs`) the same binary follows the conventions of those programs. Each module of
//! [`commands`] defines one command's flags and the function that runs it, and calls the library. The other
//! modules contain code that several commands share.

// These macros panic if they cannot write: see `output`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod applet;
mod background;
mod cli;
mod commands;
mod connection_abort;
mod crash_report;
mod durable;
mod ending;
mod exit;
mod first_publish;
mod following;
mod hidden_server;
mod host_space;
mod image;
mod interrupt;
mod keys;
mod log;
mod mirror;
mod mount_options;
mod mounts;
mod names;
mod output;
mod policies;
mod privileges;
mod progress;
mod role;
mod service_manager;
mod signatures;
mod size;
mod stored;
mod successor;
mod tree;
mod udev;
mod web;
mod working_directory;

use std::process::ExitCode;

fn main() -> ExitCode {
    applet::run(std::env::args_os().collect())
}
