//! Profiles in `~/.aws`, as Amazon's own tools read them.
//!
//! | file | variable for another path | sections |
//! | --- | --- | --- |
//! | `~/.aws/credentials` | `AWS_SHARED_CREDENTIALS_FILE` | `[NAME]` |
//! | `~/.aws/config` | `AWS_CONFIG_FILE` | `[default]`, `[profile NAME]`, `[services NAME]` |
//!
//! `AWS_PROFILE` names the profile; the default is `default`. The environment takes precedence over both
//! files, and the first file over the second. A profile contains keys, or names a program that prints them
//! (`credential_process`).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::SystemTime;
use std::{env, fmt, fs, io};

/// Settings by which a profile gets credentials from services that this crate does not support.
const ELSEWHERE: [&str; 4] = ["credential_source", "role_arn", "sso_session", "sso_start_url"];

/// The values of a profile. It has no `Debug`, since it contains a secret.
#[derive(Default, PartialEq, Eq)]
pub struct Profile {
    /// Access key, secret, and session token if there is one.
    pub key: Option<(String, String, Option<String>)>,
    /// The program that prints them.
    pub process: Option<String>,
    /// The region.
    pub region: Option<String>,
    /// The URL of the server.
    pub endpoint: Option<String>,
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Profile { key, process, region, endpoint } = self;
        let mut shown = f.debug_struct("Profile");
        shown.field("has_key", &key.is_some()).field("has_process", &process.is_some());
        shown.field("region", region);
        shown.field("endpoint", endpoint).finish()
    }
}

/// The place of a profile.
#[derive(Clone, Debug)]
pub struct Files {
    /// Its name, if `AWS_PROFILE` is set.
    name: Option<String>,
    credentials: Option<PathBuf>,
    config: Option<PathBuf>,
}

/// The modification time and the length of each of a profile's files.
pub type Stamp = [Option<(SystemTime, u64)>; 2];

impl Files {
    /// The files that the environment names, or those of the user.
    pub fn of_user() -> Files {
        let named = ["AWS_PROFILE", "AWS_DEFAULT_PROFILE"];
        let name =
            named.iter().find_map(|name| env::var(name).ok().filter(|name| !name.is_empty()));
        let file = |variable: &str, usual: &str| {
            let home = env::var_os("HOME").map(PathBuf::from);
            let path = env::var_os(variable).map(PathBuf::from);
            path.or(home.map(|home| home.join(".aws").join(usual)))
        };
        let credentials = file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
        Files { name, credentials, config: file("AWS_CONFIG_FILE", "config") }
    }

    #[cfg(test)]
    pub fn named(name: Option<String>, credentials: PathBuf, config: PathBuf) -> Files {
        Files { name, credentials: Some(credentials), config: Some(config) }
    }

    /// A value that changes when the files change.
    pub fn stamp(&self) -> Stamp {
        [&self.credentials, &self.config].map(|path| {
            let there = fs::metadata(path.as_deref()?).ok()?;
            Some((there.modified().ok()?, there.len()))
        })
    }

    /// Reads the profile. Refuses a profile with keys from an unsupported service, unless there are other
    /// keys.
    pub fn profile(&self, has_key: bool) -> Result<Profile, String> {
        let read = |path: &Option<PathBuf>| {
            let Some(path) = path else { return Ok(String::new()) };
            match fs::read_to_string(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
                read => read.map_err(|error| format!("{}: {error}", path.display())),
            }
        };
        let (credentials, config) = (read(&self.credentials)?, read(&self.config)?);
        Profile::of_files(self.name.as_deref(), &credentials, &config, has_key)
    }
}

impl Profile {
    /// The profile of that name, or the default one, from the two files.
    fn of_files(
        name: Option<&str>,
        credentials: &str,
        config: &str,
        has_key: bool,
    ) -> Result<Profile, String> {
        let (credentials, config) = (sections(credentials), sections(config));
        let shown = name.unwrap_or("default");
        let of_config = config.get(&format!("profile {shown}"));
        let of_config = of_config.or_else(|| config.get(shown).filter(|_| shown == "default"));
        let found = [credentials.get(shown), of_config];
        if name.is_some() && found == [None, None] {
            return Err(format!("~/.aws has no profile {shown} (AWS_PROFILE names it)"));
        }
        let value = |key: &str| {
            let mut values = found.iter().flatten().filter_map(|section| section.get(key));
            values.find(|value| !value.is_empty()).cloned()
        };
        let key = match (value("aws_access_key_id"), value("aws_secret_access_key")) {
            (Some(id), Some(secret)) => Some((id, secret, value("aws_session_token"))),
            (None, None) => None,
            _ => {
                return Err(format!(
                    "the profile {shown} has only one of aws_access_key_id and aws_secret_access_key"
                ));
            }
        };
        let process = value("credential_process");
        let has_key = has_key || key.is_some() || process.is_some();
        let elsewhere = ELSEWHERE.into_iter().find(|key| value(key).is_some());
        if let Some(elsewhere) = elsewhere.filter(|_| !has_key) {
            return Err(format!(
                "the profile {shown} gets its credentials by {elsewhere}, which cffs does not support; put \
                 them into the environment: eval \"$(aws configure export-credentials --profile \
                 {shown} --format env)\""
            ));
        }
        let services = value("services").and_then(|name| config.get(&format!("services {name}")));
        let of_s3 = services.and_then(|services| services.get("s3.endpoint_url")).cloned();
        let endpoint = of_s3.or_else(|| value("endpoint_url"));
        Ok(Profile { key, process, region: value("region"), endpoint })
    }
}

type Section = BTreeMap<String, String>;

/// The sections of a file. An indented line belongs to the key before it, and becomes `KEY.ITS_KEY`.
fn sections(text: &str) -> BTreeMap<String, Section> {
    let mut all: BTreeMap<String, Section> = BTreeMap::new();
    let (mut section, mut outer) = (None, String::new());
    for line in text.lines() {
        let is_indented = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let name: Vec<&str> = name.split_whitespace().collect();
            let name = name.join(" ").replace('"', "");
            section = Some(all.entry(name).or_default());
            continue;
        }
        let (Some(section), Some((key, value))) = (section.as_mut(), line.split_once('=')) else {
            continue;
        };
        let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().to_owned());
        if is_indented && !outer.is_empty() {
            section.insert(format!("{outer}.{key}"), value);
        } else {
            outer = if value.is_empty() { key.clone() } else { String::new() };
            section.insert(key, value);
        }
    }
    all
}

#[cfg(test)]
mod tests;
