//! The values of mount options.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{anyhow, bail};

use crate::output::printable;
use crate::size;
use crate::working_directory::absolute_argument;

/// Represents a name that is not UTF-8, and so not that of an option.
const UNKNOWN: &str = "?";
/// Values that mount(8) accepts for flags of a mount (util-linux 2.39).
const LAYERS: [&str; 3] = ["vfs", "fs", "recursive"];

/// A given option: `name` or `name=value`.
pub(super) struct Given<'a> {
    pub name: &'a str,
    pub value: Option<&'a OsStr>,
    /// The option in the help, with its values.
    pub term: &'a str,
}

impl<'a> Given<'a> {
    pub fn parse(option: &'a [u8]) -> Given<'a> {
        let (name, value) = match option.iter().position(|byte| *byte == b'=') {
            Some(at) => (&option[..at], Some(OsStr::from_bytes(&option[at + 1..]))),
            None => (option, None),
        };
        Given { name: str::from_utf8(name).unwrap_or(UNKNOWN), value, term: "" }
    }

    /// The name of an option that has no values; an error if a value was given.
    pub fn flag(&self) -> anyhow::Result<&'a str> {
        match self.value {
            None => Ok(self.name),
            Some(value) => bail!(
                "mount option '{}' takes no value, but '{}' was given",
                self.name,
                printable(value.as_bytes())
            ),
        }
    }

    /// Like [`Given::flag`], for a flag of mount(8), which accepts some values: `user=NAME`, and for a flag
    /// of the mount the layers to which it applies. The mount of a volume has the flag in all of them.
    pub fn mount_flag(&self) -> anyhow::Result<&'a str> {
        let is_layer = self.value.is_some_and(|value| LAYERS.iter().any(|layer| value == *layer));
        if is_layer || self.name == "user" { Ok(self.name) } else { self.flag() }
    }

    /// The value; an error if it is missing.
    fn bytes_of_value(&self) -> anyhow::Result<&'a OsStr> {
        self.value.ok_or_else(|| self.lacks_value())
    }

    fn lacks_value(&self) -> anyhow::Error {
        anyhow!("mount option '{}' needs a value: {}", self.name, self.term)
    }

    /// The value; an error if it is missing, or not UTF-8.
    pub fn text(&self) -> anyhow::Result<&'a str> {
        let value = self.bytes_of_value()?;
        let wrong =
            || anyhow!("mount option '{}' cannot be '{}'", self.name, printable(value.as_bytes()));
        value.to_str().ok_or_else(wrong)
    }

    /// The value that corresponds to one of these words.
    pub fn one_of<T: Copy>(&self, words: &[(&str, T)]) -> anyhow::Result<T> {
        let text = self.text()?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Ok(*value);
        }
        let quoted: Vec<String> = words.iter().map(|(word, _)| format!("'{word}'")).collect();
        let (last, others) = quoted.split_last().ok_or_else(|| anyhow!("no value is possible"))?;
        bail!("mount option '{}' is {} or {last}, not '{text}'", self.name, others.join(", "))
    }

    /// A path, made absolute because the server changes its working directory.
    pub fn path(&self) -> anyhow::Result<PathBuf> {
        Ok(absolute_argument(self.bytes_of_value()?.as_ref())?)
    }

    pub fn bytes_from(&self, min: u64) -> anyhow::Result<u64> {
        match self.bytes(self.text()?)? {
            bytes if bytes < min => bail!(
                "mount option '{}' is a size of {} or more, such as 64M, not '{}'",
                self.name,
                size::show(min),
                self.text()?
            ),
            bytes => Ok(bytes),
        }
    }

    /// `DIR=SIZE`.
    pub fn directory_and_bytes(&self) -> anyhow::Result<(PathBuf, u64)> {
        let value = self.bytes_of_value()?.as_bytes();
        let wrong =
            || anyhow!("mount option '{}' is DIR=SIZE, not '{}'", self.name, printable(value));
        let at = value.iter().rposition(|byte| *byte == b'=').filter(|at| *at > 0);
        let at = at.ok_or_else(wrong)?;
        let size = str::from_utf8(&value[at + 1..]).map_err(|_| wrong())?;
        let directory = absolute_argument(Path::new(OsStr::from_bytes(&value[..at])))?;
        Ok((directory, self.bytes(size)?))
    }

    pub fn seconds(&self) -> anyhow::Result<Duration> {
        let text = self.text()?;
        match text.parse() {
            Ok(seconds @ 1..=3600) => Ok(Duration::from_secs(seconds)),
            _ => bail!("mount option '{}' is {}, not '{text}'", self.name, self.syntax()),
        }
    }

    /// The values of the option, if they are or contain a number of seconds.
    fn syntax(&self) -> String {
        let values = self.term.trim_start_matches(self.name).trim_matches(['[', ']', '=']);
        match values {
            "SECONDS" => String::from("a number of seconds from 1 to 3600"),
            values => format!("{} with 1 to 3600 SECONDS", values.replace('|', ", ")),
        }
    }

    /// Seconds with a fraction: from a millisecond to an hour.
    pub fn fraction_of_seconds(&self) -> anyhow::Result<Duration> {
        let text = self.text()?;
        match text.parse() {
            Ok(seconds @ 0.001..=3600.0) => Ok(Duration::from_secs_f64(seconds)),
            _ => bail!(
                "mount option '{}' is a number of seconds from 0.001 to 3600, not '{text}'",
                self.name
            ),
        }
    }

    pub fn percent(&self) -> anyhow::Result<u32> {
        let text = self.text()?;
        match text.parse() {
            Ok(percent @ 1..=100) => Ok(percent),
            _ => bail!("mount option '{}' is a number from 1 to 100, not '{text}'", self.name),
        }
    }

    fn bytes(&self, text: &str) -> anyhow::Result<u64> {
        size::parse(text).map_err(|why| anyhow!("mount option '{}': {why}", self.name))
    }
}
