//! A server in the background.
//!
//! The command starts itself as a *monitor*, and the monitor starts itself as the *server*, each with a pipe
//! as its standard output. Until the server is ready, its errors go to the caller's standard error and the
//! caller waits. Then the server writes a line to its pipe, the monitor writes one to the caller's, both
//! detach from the terminal, and the caller ends. A server that fails prints the reason and ends without that
//! line. So no process with threads is forked.
//!
//! If the caller was interrupted meanwhile, the server ends as soon as it is ready: the user expects no mount
//! then, and has perhaps looked for one to unmount already.
//!
//! The monitor runs until the server has ended. It logs the server's output on standard error, and the signal
//! that ended the server, if one did: a killed process cannot log that itself. The server's line has the
//! number of its connection to the kernel, if it has one. The monitor aborts the connection if the server is
//! killed and does not end ([`crate::connection_abort`]).
//!
//! ```text
//!   caller ──spawn──▶ monitor ──spawn──▶ server: opens, mounts ──ready()──▶ serves, detached
//!     └─ reads the pipe ─┴─ reads the pipe ── line: the caller ends with 0; then the crash report
//!                                             end of file: ends as the server did
//! ```

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use cffs::device::file::keep_descriptors_from_children;
use cffs_object::Location;
use rustix::process::{Pid, Signal};
use rustix::thread::CapabilitySet;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::role::{ROLE_VARIABLE, Role, role};
use crate::working_directory::{self, absolute_argument};
use crate::{connection_abort, crash_report, keys, log, privileges, successor};

/// The path by which this program can be started again. An upgrade may replace its file at any time; then the
/// kernel still knows the old one.
pub fn program() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    Ok(if path.exists() { path } else { PathBuf::from("/proc/self/exe") })
}

/// Starts this command again in another role, its standard output a pipe.
fn again(role: &str) -> anyhow::Result<(Child, BufReader<ChildStdout>)> {
    // Otherwise a lock of the caller would be held, and a pipe kept open, while the volume is served.
    keep_descriptors_from_children().context("closing the caller's descriptors")?;
    let program = program().context("finding the program itself")?;
    let key = keys::of_named_file()?;
    let stdin = if key.is_some() { Stdio::piped() } else { Stdio::null() };
    let mut child = successor::this_command(&program)
        .env(ROLE_VARIABLE, role)
        // A server has a thread for each core, and often one thread frees memory that another allocated. With
        // a heap per thread, glibc would keep twice the memory in use.
        .env("MALLOC_ARENA_MAX", "1")
        .stdin(stdin)
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting the {role}"))?;
    if let Some(key) = key {
        keys::pass(&key, child.stdin.take());
    }
    let output = child.stdout.take().context("the pipe")?;
    Ok((child, BufReader::new(output)))
}

/// Waits for the line with which a child reports that it is ready; `None` if the child ended without it.
fn readiness(output: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    output.read_line(&mut line)?;
    Ok(line.strip_suffix('\n').map(str::to_owned))
}

/// The exit code of a child that did not become ready.
fn failure(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);
    ExitCode::from(code.unwrap_or(32))
}

/// Performs this process's role in serving `source`: the command starts the other processes and ends, the
/// monitor ends with the server, and the server continues, in the background or not, with its log set up.
pub fn enter(
    foreground: bool,
    source: &Path,
    log_file: Option<&Path>,
) -> anyhow::Result<ControlFlow<ExitCode, bool>> {
    let role = match role() {
        Role::Caller if !foreground => return start().map(ControlFlow::Break),
        Role::Caller => {
            log::to_stderr();
            return Ok(ControlFlow::Continue(false));
        }
        role => role,
    };
    leave_session();
    let volume = match Location::url_of(source) {
        // The path may lead through the mount, which does not answer while its program is replaced.
        None if successor::is_one() => absolute_argument(source)?,
        _ => source.canonicalize().unwrap_or_else(|_| source.to_owned()),
    };
    // The monitor and the server write to the same log, and only one of them reports if there is none.
    let is_monitor = role == Role::Monitor;
    log::to_background(log_file, &volume, is_monitor);
    if is_monitor {
        return watch(source).map(ControlFlow::Break);
    }
    crash_report::log_panics();
    Ok(ControlFlow::Continue(true))
}

/// Starts this command again in the background and waits until it serves or fails.
fn start() -> anyhow::Result<ExitCode> {
    let (mut monitor, mut output) = again("monitor")?;
    if readiness(&mut output)?.is_some() {
        return Ok(ExitCode::SUCCESS);
    }
    Ok(failure(monitor.wait()?))
}

/// Starts the server of this image and waits for its end, which is logged if a signal caused it.
fn watch(image: &Path) -> anyhow::Result<ExitCode> {
    let (mut server, mut output) = again("server")?;
    let pid = server.id();
    let Some(connection) = readiness(&mut output)? else {
        let status = server.wait()?;
        crash_report::log_end(image, pid, status);
        return Ok(failure(status));
    };
    let abort = connection_abort::open(&connection);
    // A program that ends all processes of a service waits for the server, and therefore for the monitor.
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    if !say_ready("")? {
        tracing::warn!("the command was interrupted, so the server ends");
        let server = Pid::from_child(&server);
        rustix::process::kill_process(server, Signal::TERM)?;
    }
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    std::env::set_current_dir("/")?;
    // The monitor only waits and logs, which needs no capabilities.
    if let Err(error) = privileges::give_up_all_but(CapabilitySet::empty()) {
        tracing::warn!("{error:#}");
    }
    if let Some(abort) = abort {
        connection_abort::abort_when_dying(Pid::from_child(&server), abort);
    }
    crash_report::log_output(output);
    let status = server.wait()?;
    crash_report::log_end(image, pid, status);
    Ok(if status.success() { ExitCode::SUCCESS } else { failure(status) })
}

/// Leaves the caller's session, so that the server outlives it.
fn leave_session() {
    // Fails only if the process already leads a session, which has the same effect.
    let _ = rustix::process::setsid();
}

/// Reports success to the monitor, with the number of the connection to the kernel, and releases the caller's
/// terminal and directory. From now on the monitor receives standard error.
pub fn ready(connection: Option<u32>) -> anyhow::Result<()> {
    // Without a monitor, the server is not interrupted either.
    say_ready(&connection.map(|number| number.to_string()).unwrap_or_default())?;
    rustix::stdio::dup2_stderr(io::stdout())?;
    working_directory::leave()?;
    Ok(())
}

/// Reports to the process that started this one; false if it has ended.
fn say_ready(line: &str) -> io::Result<bool> {
    let said = writeln!(io::stdout(), "{line}").and_then(|()| io::stdout().flush());
    match said {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        said => said.map(|()| true),
    }
}
