//! Profiles in `~/.aws`, as Amazon's own tools read them.
//!
//! | file | or the one that is named by | its sections |
//! | --- | --- | --- |
//! | `~/.aws/credentials` | `AWS_SHARED_CREDENTIALS_FILE` | `[NAME]` |
//! | `~/.aws/config` | `AWS_CONFIG_FILE` | `[default]`, `[profile NAME]`, `[services NAME]` |
//!
//! The profile is the one that `AWS_PROFILE` names, else `default`. The environment goes before both files,
//! and the first before the second.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::{env, fmt, fs, io};

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

/// Ways of a profile to get credentials that would take other services or programs.
const ELSEWHERE: [&str; 5] =
    ["credential_process", "credential_source", "role_arn", "sso_session", "sso_start_url"];

/// What a profile says. It is not printed, since it has a secret.
#[derive(Default, PartialEq, Eq)]
pub struct Profile {
    /// Access key, secret, and the token of a session if there is one.
    pub key: Option<(String, String, Option<String>)>,
    /// The region.
    pub region: Option<String>,
    /// The URL of the server.
    pub endpoint: Option<String>,
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Profile { key, region, endpoint } = self;
        let mut shown = f.debug_struct("Profile");
        shown.field("has_key", &key.is_some()).field("region", region);
        shown.field("endpoint", endpoint).finish()
    }
}

/// A client for S3 with what the environment says and, where it says nothing, the profile.
///
/// # Errors
///
/// What is wrong with the profile, in words.
pub fn s3_builder() -> Result<AmazonS3Builder, String> {
    let mut builder = AmazonS3Builder::from_env();
    let has_key = builder.get_config_value(&AmazonS3ConfigKey::AccessKeyId).is_some();
    let profile = Profile::of_user(has_key)?;
    if let Some((id, secret, token)) = profile.key.filter(|_| !has_key) {
        builder = builder.with_access_key_id(id).with_secret_access_key(secret);
        if let Some(token) = token {
            builder = builder.with_token(token);
        }
    }
    let has_region =
        ["AWS_REGION", "AWS_DEFAULT_REGION"].map(env::var_os).iter().any(Option::is_some);
    if let Some(region) = profile.region.filter(|_| !has_region) {
        builder = builder.with_region(region);
    }
    let is_ignored = env::var("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS").is_ok_and(|is| is == "true");
    let named = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
    let endpoint = named.iter().find_map(|name| env::var(name).ok());
    if let Some(endpoint) = endpoint.or(profile.endpoint.filter(|_| !is_ignored)) {
        builder = builder.with_endpoint(endpoint);
    }
    Ok(builder)
}

impl Profile {
    /// The user's; whose credentials come from elsewhere only if there are others.
    fn of_user(has_key: bool) -> Result<Profile, String> {
        let named = ["AWS_PROFILE", "AWS_DEFAULT_PROFILE"];
        let name =
            named.iter().find_map(|name| env::var(name).ok().filter(|name| !name.is_empty()));
        let file = |variable: &str, usual: &str| {
            let home = env::var_os("HOME").map(PathBuf::from);
            let path = env::var_os(variable).map(PathBuf::from);
            let Some(path) = path.or(home.map(|home| home.join(".aws").join(usual))) else {
                return Ok(String::new());
            };
            match fs::read_to_string(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
                read => read.map_err(|error| format!("{}: {error}", path.display())),
            }
        };
        let credentials = file("AWS_SHARED_CREDENTIALS_FILE", "credentials")?;
        let config = file("AWS_CONFIG_FILE", "config")?;
        Profile::of_files(name.as_deref(), &credentials, &config, has_key)
    }

    /// The profile of that name, or the one that needs no name, as the two files have it.
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
            return Err(format!("there is no profile {shown} in ~/.aws (AWS_PROFILE names it)"));
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
        let elsewhere = ELSEWHERE.into_iter().find(|key| value(key).is_some());
        if let Some(elsewhere) = elsewhere.filter(|_| key.is_none() && !has_key) {
            return Err(format!(
                "the profile {shown} gets its credentials by {elsewhere}, which cffs does not do; put them \
                 into the environment: eval \"$(aws configure export-credentials --profile {shown} --format \
                 env)\""
            ));
        }
        let services = value("services").and_then(|name| config.get(&format!("services {name}")));
        let of_s3 = services.and_then(|services| services.get("s3.endpoint_url")).cloned();
        let endpoint = of_s3.or_else(|| value("endpoint_url"));
        Ok(Profile { key, region: value("region"), endpoint })
    }
}

type Section = BTreeMap<String, String>;

/// The sections of a file. A line that is indented belongs to the key before it, and is `KEY.ITS_KEY`.
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
