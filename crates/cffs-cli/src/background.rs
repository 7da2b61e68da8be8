//! A server in the background.
//!
//! The command starts itself once more, with a pipe as the child's standard output. Until the
//! child is ready it writes to the caller's standard error and the caller waits; then it writes a
//! byte to the pipe, lets go of the terminal, and the caller ends. A child that fails ends without
//! that byte, after it has said why. So no process is forked with threads in it.
//!
//! ```text
//!   caller ──spawn──▶ child: opens, mounts ──ready()──▶ serves, detached
//!     └────── reads the pipe ──── byte: ends with 0
//!                                 end of file: ends as the child did
//! ```

use std::fs::File;
use std::io::{self, Read, Write};
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;

/// In the environment of a child, so that it knows what it is.
const CHILD_VARIABLE: &str = "CFFS_BACKGROUND_CHILD";

/// Whether this process is the child.
pub fn is_child() -> bool {
    std::env::var_os(CHILD_VARIABLE).is_some()
}

/// Starts this command again as a child in the background and waits until it is ready or fails.
pub fn start() -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("finding the program itself")?;
    let mut arguments = std::env::args_os();
    let mut command = Command::new(program);
    if let Some(name) = arguments.next() {
        // The name decides what the program does.
        std::os::unix::process::CommandExt::arg0(&mut command, name);
    }
    let mut child = command
        .args(arguments)
        .env(CHILD_VARIABLE, "1")
        // A server has a thread for each core and frees in one what another took. With a heap for
        // each thread, glibc keeps twice the memory that is in use.
        .env("MALLOC_ARENA_MAX", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the server")?;
    let mut ready = [0];
    let read = match child.stdout.as_mut() {
        Some(pipe) => pipe.read(&mut ready)?,
        None => 0,
    };
    if read == 1 {
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait()?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);
    Ok(ExitCode::from(code.unwrap_or(32)))
}

/// Leaves the caller's session, so that its end does not end the server.
pub fn leave_session() {
    // Fails only where the process leads a session already, which is as good.
    let _ = rustix::process::setsid();
}

/// Tells the caller that all is well, and lets go of its terminal and directory.
pub fn ready() -> anyhow::Result<()> {
    let told = io::stdout().write_all(b"\n").and_then(|()| io::stdout().flush());
    match told {
        // The caller was killed meanwhile. Nobody waits, but the volume is mounted.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        told => told?,
    }
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    std::env::set_current_dir("/")?;
    Ok(())
}
