//! The web page of a served volume: its options and messages.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use cffs_object::versions;
use cffs_object::{Location, Secret};
use cffs_serve::served::Served;
use cffs_web::{Forms, Options, Page, Server, Snapshot, Snapshots, Target, Tokens};
use clap::Args;

use crate::commands::{layout, stats};
use crate::keys;
use crate::log;
use crate::output::note;
use crate::working_directory::absolute_argument;

/// Options of commands that serve a volume.
#[derive(Debug, Default, Args)]
pub struct WebOptions {
    /// Serve a web page at this address, to watch and manage the volume; without a certificate only for this
    /// machine. Prints the page's address with a token for full control, and with one for viewing.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    pub web: Option<SocketAddr>,
    /// Read the page's tokens from this file, which is created if it does not exist, and do not print them.
    #[arg(long, value_name = "FILE", requires = "web")]
    web_token: Option<PathBuf>,
    /// A certificate and its key for the page, in PEM format.
    #[arg(long, value_name = "FILE", requires = "web")]
    web_cert: Option<PathBuf>,
    /// A host name under which browsers may reach the page, besides localhost and addresses.
    #[arg(long, value_name = "NAME", requires = "web")]
    web_name: Vec<String>,
}

/// Parses an address to listen on.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| String::from("write ADDRESS:PORT, such as 127.0.0.1:2049 or [::1]:2049"))
}

/// A page that listens, if one was requested.
pub struct Bound(Option<Listening>);

/// A page that listens, with its address in words and a function to print it.
type Listening = (Server, String, fn(&str));

impl WebOptions {
    /// Listens, if a page was requested. Its address is printed when it starts.
    pub fn bind(&self, source: &Path, dir: Option<&Path>) -> anyhow::Result<Bound> {
        self.bind_and(source, dir, |address| note!("cffs: {address}"))
    }

    /// Listens, if a page was requested, and reports the address when it starts.
    fn bind_and(
        &self,
        source: &Path,
        dir: Option<&Path>,
        report: fn(&str),
    ) -> anyhow::Result<Bound> {
        let Some(address) = self.web else { return Ok(Bound(None)) };
        let web_token = self.web_token.as_deref().map(absolute_argument).transpose()?;
        let web_cert = self.web_cert.as_deref().map(absolute_argument).transpose()?;
        let tokens = match &web_token {
            Some(file) => Tokens::from_file(file).context("the page's tokens")?,
            None => Tokens::new().context("making the page's tokens")?,
        };
        let recent = log::recent();
        let absolute = |path: &Path| {
            let path = absolute_argument(path).unwrap_or_else(|_| path.to_owned());
            path.canonicalize().unwrap_or(path)
        };
        for (path, word) in [(Some(source), "IMAGE"), (dir, "DIR")] {
            for path in path.into_iter().flat_map(|path| [absolute(path), path.to_owned()]) {
                recent.hide(&path.to_string_lossy(), word);
            }
        }
        // Messages may contain the directory of a store without the scheme.
        if let Some(dir) = source.to_string_lossy().strip_prefix("file://") {
            recent.hide(dir, "IMAGE");
        }
        let server = Server::bind(Options {
            address,
            names: self.web_name.clone(),
            certificate: web_cert,
            tokens: tokens.clone(),
            log: recent,
            target: Target {
                directory: dir.map(absolute),
                image: if is_url(source) { source.to_owned() } else { absolute(source) },
            },
            snapshots: StoredVersions::of(source),
            forms: Forms { picture: layout::draw, metrics: stats::render },
        });
        let server = server.context("serving the page")?;
        let url = format!("{}://{}/", server.scheme(), server.address()?);
        let address = match &self.web_token {
            Some(file) => format!("the page is {url}; its tokens are in {}", file.display()),
            None => {
                format!("the page is {url}#{}\ncffs: view only: {url}#{}", tokens.run, tokens.look)
            }
        };
        Ok(Bound(Some((server, address, report))))
    }

    /// The files that the page needs.
    pub fn files(&self) -> impl Iterator<Item = PathBuf> {
        [&self.web_token, &self.web_cert].into_iter().flatten().cloned()
    }

    /// The same for a program that replaced another one: tokens that were printed earlier are no longer
    /// known.
    pub fn bind_again(&self, source: &Path, dir: Option<&Path>) -> anyhow::Result<Bound> {
        if self.web.is_some() && self.web_token.is_none() {
            bail!("with --web-token it would continue");
        }
        // Standard error of this program is in the log, as errors.
        let bound = self.bind_and(source, dir, |address| tracing::info!("{address}"));
        bound.map_err(|error| anyhow!("{error:#}; another restart tries again"))
    }
}

fn is_url(source: &Path) -> bool {
    Location::url_of(source).is_some()
}

/// The versions of a volume in an object store.
#[derive(Debug)]
struct StoredVersions {
    url: String,
    /// The secret of the volume, if it is encrypted.
    secret: Option<Arc<Secret>>,
}

impl StoredVersions {
    /// The versions of a source that is a volume in a store, and not itself a version.
    fn of(source: &Path) -> Option<Arc<dyn Snapshots>> {
        let url = Location::url_of(source)?.into_owned();
        let location = Location::parse(&url).ok()?;
        let is_volume = location.version().is_none();
        let secret = keys::secret().ok()?;
        is_volume.then(|| Arc::new(StoredVersions { url, secret }) as Arc<dyn Snapshots>)
    }

    fn version(&self, name: &str) -> Result<Location, String> {
        self.place(&format!("{}@{name}", self.url))
    }

    fn place(&self, url: &str) -> Result<Location, String> {
        let location = Location::parse(url).map_err(|error| error.to_string())?;
        Ok(location.with_secret(self.secret.clone()))
    }
}

impl Snapshots for StoredVersions {
    fn list(&self) -> Result<Vec<Snapshot>, String> {
        let listed = versions::list(&self.place(&self.url)?);
        let versions = listed.map_err(|error| error.to_string())?.into_iter();
        Ok(versions
            .map(|version| Snapshot {
                name: version.name,
                made: version.made,
                for_clone: version.clone.is_some(),
            })
            .collect())
    }

    fn create(&self, name: &str) -> Result<(), String> {
        versions::create(&self.version(name)?).map_err(|error| error.to_string())
    }

    fn remove(&self, name: &str) -> Result<(), String> {
        versions::remove(&self.version(name)?).map_err(|error| error.to_string())
    }
}

impl Bound {
    /// Serves the page in new threads until the result is dropped, and prints its address.
    pub fn start(self, served: Arc<Served>) -> anyhow::Result<Option<Page>> {
        let Some((server, address, report)) = self.0 else { return Ok(None) };
        let page = server.start(served).context("serving the page")?;
        report(&address);
        Ok(Some(page))
    }
}
