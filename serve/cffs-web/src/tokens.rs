//! Tokens, by which browsers authenticate.
//!
//! A token file has the lines `run TOKEN` and `look TOKEN`, and must be readable by its owner only.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::rand::{GetRandomFlags, getrandom};

/// The shortest token accepted: shorter ones could be guessed.
const LETTERS_MIN: usize = 16;

/// The rights of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// View figures and messages.
    Look,
    /// View, and start actions that change the volume or keep it busy.
    Run,
}

/// The tokens of both roles.
#[derive(Clone)]
pub struct Tokens {
    /// For viewing.
    pub look: String,
    /// For full control.
    pub run: String,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Tokens must not be logged.
        out.write_str("Tokens")
    }
}

/// Why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadTokens {
    /// It cannot be read or created.
    #[error("{}: {source}", .path.display())]
    Io {
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users can read it.
    #[error("{}: other users can read it; run: chmod 600 {}", .0.display(), .0.display())]
    Readable(PathBuf),
    /// Its contents are invalid.
    #[error(
        "{}: it must have the lines `run TOKEN` and `look TOKEN`, with different tokens of \
         {LETTERS_MIN} letters or more; if the file does not exist, it is created", .0.display()
    )]
    Malformed(PathBuf),
}

impl Tokens {
    /// New random tokens.
    ///
    /// # Errors
    ///
    /// Errors of getrandom(2).
    pub fn new() -> io::Result<Tokens> {
        Ok(Tokens { look: random()?, run: random()? })
    }

    /// The tokens of a file, which is created if it does not exist.
    ///
    /// # Errors
    ///
    /// [`BadTokens`]
    pub fn from_file(path: &Path) -> Result<Tokens, BadTokens> {
        let io = |source| BadTokens::Io { path: path.to_owned(), source };
        let new = File::options().write(true).create_new(true).mode(0o600).open(path);
        match new {
            Ok(mut file) => {
                let tokens = Tokens::new().map_err(io)?;
                let text = format!("run {}\nlook {}\n", tokens.run, tokens.look);
                file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(io)?;
                return Ok(tokens);
            }
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(io(error)),
            Err(_) => {}
        }
        if fs::metadata(path).map_err(io)?.permissions().mode() & 0o077 != 0 {
            return Err(BadTokens::Readable(path.to_owned()));
        }
        let text = fs::read_to_string(path).map_err(io)?;
        Self::parse(&text).ok_or_else(|| BadTokens::Malformed(path.to_owned()))
    }

    fn parse(text: &str) -> Option<Tokens> {
        let token = |role: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            let (_, token) = lines.find(|(name, _)| *name == role)?;
            let is_good = token.len() >= LETTERS_MIN && token.bytes().all(|b| b.is_ascii_graphic());
            is_good.then(|| token.to_owned())
        };
        let tokens = Tokens { look: token("look")?, run: token("run")? };
        (tokens.look != tokens.run).then_some(tokens)
    }

    /// The role that a token gives.
    pub(crate) fn role(&self, token: &str) -> Option<Role> {
        // Both are compared, so that the time of an answer reveals neither.
        let (run, look) = (is_same(token, &self.run), is_same(token, &self.look));
        if run { Some(Role::Run) } else { look.then_some(Role::Look) }
    }
}

/// Compares in a time that does not depend on where two texts of equal length differ.
fn is_same(left: &str, right: &str) -> bool {
    let difference = left.bytes().zip(right.bytes()).fold(0, |sum, (l, r)| sum | (l ^ r));
    left.len() == right.len() && std::hint::black_box(difference) == 0
}

fn random() -> io::Result<String> {
    let mut bytes = [0; 24];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    let mut text = String::new();
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}
