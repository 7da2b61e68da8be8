//! Notifies the service manager that started this program, if any: systemd, or another one with its
//! protocol (sd_notify(3)).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

#[cfg(test)]
mod tests;

/// Reports that the service is ready. Does nothing without a service manager.
pub fn ready() {
    let Some(address) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(&address, b"READY=1") {
        tracing::warn!(%error, "cannot reach the service manager");
    }
}

/// Sends a message to an address: a path, or after an `@` an abstract name.
fn send(address: &OsStr, message: &[u8]) -> io::Result<()> {
    let address = match address.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(address)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message, &address)?;
    Ok(())
}
