//! URLs of volumes, and the clients for them.

use std::borrow::Cow;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path as HostPath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, RetryConfig};
use url::Url;

use crate::answer::Place;
use crate::cache::DiskCache;
use crate::error::Error;
use crate::format::check_version;
use crate::keys::{self, Keys};
use crate::requests::{Counter, CountingConnector, Requests};
use crate::secret::Secret;
use crate::staging::Staging;
use crate::store::{Client, Store, Threads};

/// How long the client itself repeats a request; after that, this crate checks the outcome first.
const RETRY_FOR: Duration = Duration::from_secs(20);

const NOT_TEXT: &str = "the path of a volume in a directory must be UTF-8";

/// A client.
struct Built {
    store: Arc<dyn ObjectStore>,
    /// The server, if it was configured.
    endpoint: Option<String>,
    /// See [`Location::service`].
    service: String,
    keys: Keys,
}

/// A client, or the error in the environment or the profile.
type Outcome = Result<Built, String>;

/// The place of a volume: a store and a prefix in it.
#[derive(Clone)]
pub struct Location {
    name: String,
    /// The store as a URL: the bucket, or the parent of the volume's directory.
    root: String,
    client: Client,
    prefix: Path,
    version: Option<String>,
    service: String,
}

impl Location {
    /// The URL that an argument is, unless it is a path. Bytes that are not UTF-8 are replaced, and
    /// [`Location::parse`] refuses the outcome.
    pub fn url_of(argument: &HostPath) -> Option<Cow<'_, str>> {
        let bytes = argument.as_os_str().as_bytes();
        if !bytes.windows(3).any(|part| part == b"://") {
            return None;
        }
        Some(String::from_utf8_lossy(bytes))
    }

    /// The place that a URL names: `file:///directory`, or, with the bucket, `s3://bucket/prefix`, `gs://` or
    /// `az://`. The name of a version follows the last `@` in the last part. The text after `file://` is a
    /// path without escapes; with a slash at its end, an `@` belongs to the directory's name.
    ///
    /// Credentials, region and endpoint are taken from the environment, under the names that each store's own
    /// tools use (for S3 `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`,
    /// `AWS_ENDPOINT_URL`, and `AWS_ALLOW_HTTP=true` for one without TLS), and for S3 from the profile in
    /// `~/.aws` that `AWS_PROFILE` names. A URL contains none.
    ///
    /// # Errors
    ///
    /// [`Error::Url`] with the reason; nothing is sent yet.
    pub fn parse(text: &str) -> Result<Location, Error> {
        let (text, version) = split_version(text);
        let mut location = Self::parse_volume(text)?;
        if let Some(version) = version {
            check_version(version).map_err(|why| wrong(&location.name, why))?;
            location.version = Some(version.to_owned());
        }
        Ok(location)
    }

    fn parse_volume(text: &str) -> Result<Location, Error> {
        if let Some(path) = text.strip_prefix("file://") {
            return Self::local(text, path.strip_prefix("localhost").unwrap_or(path));
        }
        // Credentials, a query and a fragment may be secret, which a message must not show.
        let url = Url::parse(text).map_err(|error| {
            let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
            let has_credentials = text.contains('@');
            let shown = if has_credentials { format!("{scheme}://") } else { text.to_owned() };
            wrong(&shown, format!("{error}; write {scheme}://bucket/prefix, or file:///directory"))
        })?;
        let shown = || format!("{}://{}", url.scheme(), url.host_str().unwrap_or_default());
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong(
                &shown(),
                "a URL has no credentials; they come from the environment",
            ));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(wrong(
                &shown(),
                "a URL ends with the path; write a ? or # of the path as %3F or %23",
            ));
        }
        match url.scheme() {
            "s3" | "gs" | "az" => Self::cloud(text, &url),
            other => Err(wrong(
                text,
                format!("unknown store {other}://; the stores are s3://, gs://, az:// and file://"),
            )),
        }
    }

    /// A place in a store, given a client for it.
    pub fn new(name: &str, store: Arc<dyn ObjectStore>, prefix: &str) -> Location {
        let (prefix, version) = split_version(prefix);
        let version = version.map(str::to_owned);
        let (name, root) = (name.to_owned(), name.to_owned());
        let client = uncounted(store, &name, &name);
        Location { name, root, client, prefix: prefix_of(prefix), version, service: String::new() }
    }

    /// Whether both places are in the same store.
    pub(crate) fn is_beside(&self, other: &Location) -> bool {
        self.root == other.root && self.prefix != other.prefix
    }

    /// The volume with another prefix in the same store.
    pub(crate) fn sibling(&self, prefix: &str) -> Location {
        let mut location = Location { prefix: prefix_of(prefix), version: None, ..self.clone() };
        let scheme = if self.client.parent.is_some() { "file://" } else { "" };
        location.name = format!("{scheme}{}/{prefix}", self.root);
        location.client.place.url.clone_from(&location.name);
        location
    }

    /// A place below this one.
    pub(crate) fn below(&self, name: &str) -> Location {
        let mut location = self.volume();
        location.prefix = prefix_of(&format!("{}/{name}", self.prefix));
        location.name = self.url_below(name);
        location.client.place.url.clone_from(&location.name);
        location
    }

    /// The URL of a place below this one, which [`Location::parse`] accepts.
    fn url_below(&self, name: &str) -> String {
        let above = self.name.trim_end_matches('/');
        let escaped = match self.client.parent {
            // The text after file:// has no escapes.
            Some(_) => name.to_owned(),
            None => name.replace('%', "%25").replace('?', "%3F").replace('#', "%23"),
        };
        let end = if name.contains('@') { "/" } else { "" };
        format!("{above}/{escaped}{end}")
    }

    /// The URL of the volume, without a version.
    pub fn volume_url(&self) -> String {
        split_version(&self.name).0.to_owned()
    }

    /// The directory, for a place in one.
    pub(crate) fn directory(&self) -> Option<PathBuf> {
        self.client.parent.as_ref().map(|parent| parent.join(self.prefix.as_ref()))
    }

    /// The volume, without a version.
    pub fn volume(&self) -> Location {
        Location { version: None, ..self.clone() }
    }

    /// The name of the version, if the place has one.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    fn local(text: &str, path: &str) -> Result<Location, Error> {
        let directory = HostPath::new(path);
        if !path.is_empty() && directory.is_relative() {
            // It may be meant as a URL with credentials.
            return Err(wrong("file://", "write file:///directory, with an absolute path"));
        }
        let (Some(parent), Some(name)) = (directory.parent(), directory.file_name()) else {
            return Err(wrong(
                text,
                "write file:///directory, with a directory only for the volume",
            ));
        };
        if path.contains(char::REPLACEMENT_CHARACTER) {
            return Err(wrong(text, NOT_TEXT));
        }
        if path.contains(|letter: char| letter.is_ascii_control()) {
            return Err(wrong(text, "the path of a volume has no control characters"));
        }
        if !parent.is_dir() {
            return Err(wrong(text, format!("directory {} does not exist", parent.display())));
        }
        // The client panics for such paths, even if symbolic links refer to them.
        let resolved = parent.canonicalize().map_err(|error| wrong(text, error.to_string()))?;
        let root = resolved.to_str().ok_or_else(|| wrong(text, NOT_TEXT))?.to_owned();
        let store = LocalFileSystem::new_with_prefix(&resolved)
            .map_err(|error| wrong(text, error.to_string()))?
            .with_fsync(true);
        let prefix = prefix_of(name.to_str().ok_or_else(|| wrong(text, NOT_TEXT))?);
        let name = text.to_owned();
        let parent = Some(resolved);
        let client = Client { parent, ..uncounted(Arc::new(store), &name, &root) };
        Ok(Location { name, root, client, prefix, version: None, service: String::new() })
    }

    fn cloud(text: &str, url: &Url) -> Result<Location, Error> {
        let scheme = url.scheme();
        let bucket = url.host_str().filter(|bucket| !bucket.is_empty());
        let bucket =
            bucket.ok_or_else(|| wrong(text, format!("write {scheme}://bucket/prefix")))?;
        // If another provider is installed already, that one is used.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let counter = Counter::default();
        let built = match scheme {
            "gs" => google(bucket, &counter),
            "az" => azure(bucket, &counter),
            _ => s3(bucket, &counter),
        };
        let Built { store, endpoint, service, keys } = built.map_err(|why| wrong(text, why))?;
        let prefix =
            Path::from_url_path(url.path()).map_err(|error| wrong(text, error.to_string()))?;
        let (name, root) = (text.to_owned(), format!("{scheme}://{bucket}"));
        let place = Place { url: name.clone(), bucket: bucket.to_owned(), endpoint, keys };
        let client = Client {
            store,
            counter,
            counts: true,
            cache: None,
            staging: None,
            secret: None,
            place,
            parent: None,
            threads: Threads::default(),
        };
        let service = service.trim_end_matches('/').to_owned();
        Ok(Location { name, root, client, prefix, version: None, service })
    }

    /// The service in which a URL names a bucket, from the environment or the profile: its endpoint, if that
    /// is not the default, and for `az://` the account. Two URLs name the same volume only if they have the
    /// same service. Empty for `file://`.
    pub fn service(&self) -> &str {
        &self.service
    }

    /// The number of requests sent from this place, and from the places below it.
    pub fn requests(&self) -> Requests {
        self.counter().requests()
    }

    /// The counter of the requests of all its stores.
    pub(crate) fn counter(&self) -> &Counter {
        &self.client.counter
    }

    /// The same place, with a cache of its objects on a local disk.
    pub fn with_cache(mut self, cache: DiskCache) -> Location {
        self.client.cache = Some(Arc::new(cache));
        self
    }

    /// The same place, with a directory on a local disk in which syncs wait to be sent.
    pub fn with_staging(mut self, staging: Arc<Staging>) -> Location {
        self.client.staging = Some(staging);
        self
    }

    /// The same place, whose volume is encrypted with this secret.
    pub fn with_secret(mut self, secret: Option<Arc<Secret>>) -> Location {
        self.client.secret = secret;
        self
    }

    /// The secret of its volume, if one was given.
    pub fn secret(&self) -> Option<Arc<Secret>> {
        self.client.secret.clone()
    }

    /// A store that can send requests.
    pub(crate) fn connect(&self) -> Result<Store, Error> {
        Store::new(self.client.clone(), self.prefix.clone())
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The prefix of a volume with this path in a store. Its names are used unchanged, except those that no
/// object can have.
pub(crate) fn prefix_of(path: &str) -> Path {
    Path::parse(path).unwrap_or_else(|_| Path::from(path))
}

fn retry() -> RetryConfig {
    RetryConfig { retry_timeout: RETRY_FOR, ..RetryConfig::default() }
}

fn s3(bucket: &str, counter: &Counter) -> Outcome {
    let (builder, endpoint, keys) = keys::s3_builder()?;
    let store = builder
        .with_bucket_name(bucket)
        .with_http_connector(CountingConnector(counter.clone()))
        .with_retry(retry());
    let store = Arc::new(store.build().map_err(|error| error.to_string())?);
    let service = endpoint.clone().unwrap_or_default();
    Ok(Built { store, endpoint, service, keys })
}

fn google(bucket: &str, counter: &Counter) -> Outcome {
    let store = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(bucket)
        .with_http_connector(CountingConnector(counter.clone()))
        .with_retry(retry());
    let service = store.get_config_value(&GoogleConfigKey::BaseUrl).unwrap_or_default();
    let store = Arc::new(store.build().map_err(|error| error.to_string())?);
    Ok(Built { store, endpoint: None, service, keys: Keys::Client })
}

fn azure(container: &str, counter: &Counter) -> Outcome {
    let mut store = MicrosoftAzureBuilder::from_env()
        .with_container_name(container)
        .with_http_connector(CountingConnector(counter.clone()))
        .with_retry(retry());
    // The names that Azure's own tools use.
    for (name, key) in [
        ("AZURE_STORAGE_ACCOUNT", AzureConfigKey::AccountName),
        ("AZURE_STORAGE_KEY", AzureConfigKey::AccessKey),
    ] {
        if let Ok(value) = std::env::var(name) {
            store = store.with_config(key, value);
        }
    }
    let config = |key| store.get_config_value(&key).unwrap_or_default();
    let account = config(AzureConfigKey::AccountName);
    let service = format!("{account} {}", config(AzureConfigKey::Endpoint));
    let store = Arc::new(store.build().map_err(|error| error.to_string())?);
    Ok(Built { store, endpoint: None, service, keys: Keys::Client })
}

/// A client without HTTP, which does not count its requests.
fn uncounted(store: Arc<dyn ObjectStore>, url: &str, bucket: &str) -> Client {
    let (url, bucket) = (url.to_owned(), bucket.to_owned());
    let place = Place { url, bucket, endpoint: None, keys: Keys::Client };
    let counter = Counter::default();
    Client {
        store,
        counter,
        counts: false,
        cache: None,
        staging: None,
        secret: None,
        place,
        parent: None,
        threads: Threads::default(),
    }
}

/// Splits a path at the `@` in its last part.
fn split_version(text: &str) -> (&str, Option<&str>) {
    let path = text.split_once("://").map_or(text, |(_, rest)| rest);
    match path.rsplit_once('@') {
        Some((before, version)) if before.contains('/') && !version.contains('/') => {
            (&text[..text.len() - version.len() - 1], Some(version))
        }
        _ => (text, None),
    }
}

fn wrong(url: &str, why: impl Into<String>) -> Error {
    Error::Url { url: url.to_owned(), why: why.into() }
}
