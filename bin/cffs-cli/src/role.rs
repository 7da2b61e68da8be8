//! The role of a process in serving a volume, which `background` gives to the processes that it starts.

/// The environment variable that tells monitor and server their role.
pub const ROLE_VARIABLE: &str = "CFFS_BACKGROUND_ROLE";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The process that a user called.
    Caller,
    /// The process that waits for the end of the server.
    Monitor,
    /// The process that serves the volume.
    Server,
}

pub fn role() -> Role {
    match std::env::var_os(ROLE_VARIABLE).as_deref().and_then(|role| role.to_str()) {
        Some("monitor") => Role::Monitor,
        Some("server") => Role::Server,
        _ => Role::Caller,
    }
}
