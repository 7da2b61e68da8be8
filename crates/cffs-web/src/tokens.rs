//! Tokens: what a browser shows to be let in.
//!
//! A file has one line for each, `run TOKEN` and `look TOKEN`, and is its owner's alone.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::rand::{GetRandomFlags, getrandom};

/// The shortest token of a file: what is shorter can be guessed.
const LETTERS_MIN: usize = 16;

/// The rights of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// See figures and messages.
    Look,
    /// That, and start what changes or keeps the volume busy.
    Run,
}

/// A token for each role.
#[derive(Clone)]
pub struct Tokens {
    /// Lets look.
    pub look: String,
    /// Lets look and run.
    pub run: String,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // They do not belong into a log.
        out.write_str("Tokens")
    }
}

/// Why a file of tokens cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadTokens {
    /// It cannot be read or made.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Others can read it.
    #[error("{}: other users can read it; run: chmod 600 FILE", .0.display())]
    Readable(PathBuf),
    /// It holds something else.
    #[error(
        "{}: it has to have the lines `run TOKEN` and `look TOKEN`, each token different and of \
         {LETTERS_MIN} letters or more; without the file, one is made", .0.display()
    )]
    Malformed(PathBuf),
}

impl Tokens {
    /// New ones that cannot be guessed.
    ///
    /// # Errors
    ///
    /// Those of getrandom(2).
    pub fn new() -> io::Result<Tokens> {
        Ok(Tokens { look: random()?, run: random()? })
    }

    /// Those of a file, which is made if there is none.
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

    /// The role of a token's bearer.
    pub(crate) fn role(&self, token: &str) -> Option<Role> {
        // Both are compared, so that the time of an answer tells nothing of either.
        let (run, look) = (is_same(token, &self.run), is_same(token, &self.look));
        if run { Some(Role::Run) } else { look.then_some(Role::Look) }
    }
}

/// Compares in a time that does not depend on where two texts of one length differ.
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
