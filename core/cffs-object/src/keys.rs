//! S3 keys that change while a volume is open.
//!
//! ```text
//!   a request ─▶ have the files of the profile changed, or did the store refuse the keys? ── no ─▶ as before
//!                      └─ yes ─▶ read the files, run credential_process ─▶ the new keys
//!                                      └─ fails: logged, and the old keys are used
//! ```
//!
//! Keys in a process's environment cannot change. Keys provided by machines, containers and the other clouds
//! are renewed by the client.

use std::env;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential};
use tokio::sync::Mutex;

use crate::profile::{Files, Profile, Stamp};

/// How long a program that prints keys may take.
const PROCESS_TIME_MAX: Duration = Duration::from_secs(60);
const PROCESS_LOOK: Duration = Duration::from_millis(10);

/// The source of the keys.
#[derive(Clone, Debug)]
pub enum Keys {
    /// The environment of this process: its keys never change.
    Environment,
    /// A profile in `~/.aws`.
    Renewed(Renewal),
    /// The client obtains them, and renews them if they expire.
    Client,
}

impl Keys {
    /// Makes the next request search for new keys, since the store rejects these. Returns false if no new
    /// ones are possible.
    pub fn renew(&self) -> bool {
        if let Keys::Renewed(Renewal(is_due)) = self {
            is_due.store(true, Ordering::Release);
        }
        matches!(self, Keys::Renewed(_))
    }
}

/// An S3 client configured by the environment and, for missing values, by the profile; the server, if it is
/// configured; and the source of the keys.
///
/// # Errors
///
/// The reason why the profile cannot be used.
pub fn s3_builder() -> Result<(AmazonS3Builder, Option<String>, Keys), String> {
    let mut builder = AmazonS3Builder::from_env();
    let has_key = builder.get_config_value(&AmazonS3ConfigKey::AccessKeyId).is_some();
    let files = Files::of_user();
    let profile = files.profile(has_key)?;
    let mut keys = if has_key { Keys::Environment } else { Keys::Client };
    if !has_key && let Some((of_profile, renewal)) = ProfileKeys::of(files, &profile)? {
        builder = builder.with_credentials(Arc::new(of_profile));
        keys = Keys::Renewed(renewal);
    }
    let has_region =
        ["AWS_REGION", "AWS_DEFAULT_REGION"].map(env::var_os).iter().any(Option::is_some);
    if let Some(region) = profile.region.filter(|_| !has_region) {
        builder = builder.with_region(region);
    }
    let is_ignored = env::var("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS").is_ok_and(|is| is == "true");
    let named = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
    let endpoint = named.iter().find_map(|name| env::var(name).ok());
    let endpoint = endpoint.or(profile.endpoint.filter(|_| !is_ignored));
    if let Some(endpoint) = &endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    Ok((builder, endpoint, keys))
}

/// Whether the keys of a profile must be read again.
#[derive(Clone, Debug, Default)]
pub struct Renewal(Arc<AtomicBool>);

/// The keys of a profile.
#[derive(Debug)]
pub struct ProfileKeys {
    files: Files,
    renewal: Renewal,
    /// Locked during a renewal, so that concurrent requests wait for it.
    current: Mutex<(Stamp, Arc<AwsCredential>)>,
}

impl ProfileKeys {
    /// The keys of a profile that was read from these files, if the profile has any.
    ///
    /// # Errors
    ///
    /// The reason why the program that prints them failed.
    pub fn of(files: Files, profile: &Profile) -> Result<Option<(ProfileKeys, Renewal)>, String> {
        let stamp = files.stamp();
        let Some(keys) = keys_of(profile)? else { return Ok(None) };
        let renewal = Renewal::default();
        let current = Mutex::new((stamp, Arc::new(keys)));
        Ok(Some((ProfileKeys { files, renewal: renewal.clone(), current }, renewal)))
    }
}

#[async_trait]
impl CredentialProvider for ProfileKeys {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut current = self.current.lock().await;
        let stamp = self.files.stamp();
        let is_due = self.renewal.0.swap(false, Ordering::AcqRel);
        if is_due || stamp != current.0 {
            let files = self.files.clone();
            let reading = tokio::task::spawn_blocking(move || {
                keys_of(&files.profile(false)?)?
                    .ok_or_else(|| String::from("the profile has no keys"))
            });
            // Files that are invalid now are read again after their next change.
            current.0 = stamp;
            match reading.await? {
                Ok(keys) => {
                    tracing::info!("read the keys of the profile again");
                    current.1 = Arc::new(keys);
                }
                Err(why) => tracing::warn!(why, "keeping the previous keys of the profile"),
            }
        }
        Ok(Arc::clone(&current.1))
    }
}

/// The keys in a profile, or those that its program prints.
fn keys_of(profile: &Profile) -> Result<Option<AwsCredential>, String> {
    match (&profile.key, &profile.process) {
        (Some((id, secret, token)), _) => Ok(Some(AwsCredential {
            key_id: id.clone(),
            secret_key: secret.clone(),
            token: token.clone(),
        })),
        (None, Some(program)) => {
            let given = run(program).map_err(|why| format!("credential_process: {why}"))?;
            Ok(Some(given))
        }
        (None, None) => Ok(None),
    }
}

/// Runs a profile's program, whose output is JSON in the format of Amazon's own tools.
fn run(program: &str) -> Result<AwsCredential, String> {
    let failed = |error: std::io::Error| error.to_string();
    let mut command = Command::new("/bin/sh");
    command.args(["-c", program]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let output = child.stdout.take().map(|mut output| {
        thread::spawn(move || {
            let mut text = String::new();
            output.read_to_string(&mut text).map(|_| text)
        })
    });
    let began = Instant::now();
    let status = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break status,
            None if began.elapsed() < PROCESS_TIME_MAX => thread::sleep(PROCESS_LOOK),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("no keys after {} s", PROCESS_TIME_MAX.as_secs()));
            }
        }
    };
    if !status.success() {
        return Err(format!("the program ended with {status}"));
    }
    let text = output.and_then(|reading| reading.join().ok()).transpose().map_err(failed)?;
    let given: serde_json::Value = serde_json::from_str(&text.unwrap_or_default())
        .map_err(|error| format!("its output is not JSON: {error}"))?;
    let value = |name: &str| given[name].as_str().map(str::to_owned);
    match (value("AccessKeyId"), value("SecretAccessKey")) {
        (Some(key_id), Some(secret_key)) => {
            Ok(AwsCredential { key_id, secret_key, token: value("SessionToken") })
        }
        _ => Err(String::from("its output has no AccessKeyId or no SecretAccessKey")),
    }
}

#[cfg(test)]
mod tests;
