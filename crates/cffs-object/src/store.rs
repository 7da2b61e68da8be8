//! Requests to a store that wait for their answer.

use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, PutMode, PutOptions, PutPayload};
use tokio::runtime::{Builder, Runtime};

use crate::answer::{self, Place};
use crate::cache::DiskCache;
use crate::error::Error;
use crate::requests::{Counter, Kind};
use crate::staging::Staging;

/// An object as a listing has it.
pub struct Listed {
    /// Its name below the prefix.
    pub name: String,
    /// How long it is.
    pub bytes: u64,
    /// When it was made, by the clock of the store: to be shown.
    pub made: SystemTime,
}

/// A store, and the prefix of a volume in it.
pub struct Store {
    client: Client,
    prefix: Path,
    runtime: Runtime,
}

/// A client of a store, and what counts its requests.
#[derive(Clone)]
pub struct Client {
    /// The client.
    pub store: Arc<dyn ObjectStore>,
    /// The counter.
    pub counter: Counter,
    /// Whether the client counts its requests, so that they are not counted again here.
    pub counts: bool,
    /// The cache of chunks on a local disk.
    pub cache: Option<Arc<DiskCache>>,
    /// Where records wait on a local disk.
    pub staging: Option<Arc<Staging>>,
    /// Where it sends requests.
    pub place: Place,
}

/// How many ranges are requested at once: more than saturate the connection of one machine.
pub const PARALLEL: usize = 16;
/// How many objects one request deletes.
const DELETED_AT_ONCE: usize = 1000;
/// Threads that drive requests; they wait for the network, so few do for many.
const THREADS: usize = 2;

impl Store {
    /// Requests to the objects below the prefix.
    pub fn new(client: Client, prefix: Path) -> Result<Store, Error> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("store")
            .enable_all()
            .build()
            .map_err(Error::Runtime)?;
        Ok(Store { client, prefix, runtime })
    }

    /// The volume, as the user names it.
    pub fn url(&self) -> String {
        self.client.place.url.clone()
    }

    /// The prefix.
    pub fn prefix(&self) -> String {
        self.prefix.to_string()
    }

    /// The counter of requests.
    pub fn counter(&self) -> &Counter {
        &self.client.counter
    }

    /// The cache of chunks on a local disk, if one was configured.
    pub fn cache(&self) -> Option<&DiskCache> {
        self.client.cache.as_deref()
    }

    /// Where records wait on a local disk, if that was asked for.
    pub fn staging(&self) -> Option<&Arc<Staging>> {
        self.client.staging.as_ref()
    }

    /// The counter, unless the client counts by itself.
    fn uncounted(&self) -> Option<&Counter> {
        (!self.client.counts).then_some(&self.client.counter)
    }

    fn count(&self, kind: Kind, requests: u64) {
        if let Some(counter) = self.uncounted() {
            counter.count(kind, requests);
        }
    }

    /// Creates an object; fails with `AlreadyExists` if there is one, which may be this one.
    pub fn create(&self, name: &str, bytes: impl Into<PutPayload>) -> Result<(), Error> {
        self.put_as(name, bytes.into(), PutMode::Create)
    }

    /// Creates or overwrites an object.
    pub fn put(&self, name: &str, bytes: impl Into<PutPayload>) -> Result<(), Error> {
        self.put_as(name, bytes.into(), PutMode::Overwrite)
    }

    fn put_as(&self, name: &str, payload: PutPayload, mode: PutMode) -> Result<(), Error> {
        self.count(Kind::Put, 1);
        if let Some(counter) = self.uncounted() {
            counter.sent(payload.content_length() as u64);
        }
        let path = self.path(name);
        let options = PutOptions { mode, ..PutOptions::default() };
        let ask = || async {
            let asked = self.client.store.put_opts(&path, payload.clone(), options.clone());
            asked.await.map(|_| ()).map_err(self.failed(&path))
        };
        self.runtime.block_on(self.with_new_keys(ask))
    }

    /// Sends `tried` requests at once that create the object, and returns how many succeed.
    pub fn create_at_once(&self, name: &str, tried: usize) -> Result<usize, Error> {
        self.count(Kind::Put, tried as u64);
        let path = self.path(name);
        let outcomes = self.runtime.block_on(join_all((0..tried).map(|number| {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            self.client.store.put_opts(&path, PutPayload::from(vec![number as u8]), options)
        })));
        let mut created = 0;
        for outcome in outcomes {
            match outcome {
                Ok(_) => created += 1,
                Err(object_store::Error::AlreadyExists { .. }) => {}
                Err(error) => return Err(self.failed(&path)(error)),
            }
        }
        Ok(created)
    }

    /// Deletes objects, of which some may be gone already.
    pub fn delete(&self, names: &[String]) -> Result<(), Error> {
        for names in names.chunks(DELETED_AT_ONCE) {
            self.count(Kind::Delete, 1);
            let paths: Vec<_> = names.iter().map(|name| Ok(self.path(name))).collect();
            let mut deleted = self.client.store.delete_stream(stream::iter(paths).boxed());
            self.runtime.block_on(async {
                while let Some(outcome) = deleted.next().await {
                    match outcome {
                        Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                        Err(error) => return Err(self.failed(&self.prefix)(error)),
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// An object's bytes, or those of a range that there are.
    pub fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Bytes, Error> {
        self.runtime.block_on(self.fetch(self.path(name), range))
    }

    /// Ranges of objects of this volume or another, asked for at once.
    pub fn get_many(&self, wanted: &[(Path, Range<u64>)]) -> Result<Vec<Bytes>, Error> {
        let fetches =
            wanted.iter().map(|(path, range)| self.fetch(path.clone(), Some(range.clone())));
        self.runtime.block_on(stream::iter(fetches).buffered(PARALLEL).try_collect())
    }

    async fn fetch(&self, path: Path, range: Option<Range<u64>>) -> Result<Bytes, Error> {
        self.count(Kind::Get, 1);
        let options = GetOptions { range: range.map(GetRange::Bounded), ..GetOptions::default() };
        let ask = || async {
            let asked = self.client.store.get_opts(&path, options.clone());
            let answer = asked.await.map_err(self.failed(&path))?;
            answer.bytes().await.map_err(self.failed(&path))
        };
        let bytes = self.with_new_keys(ask).await?;
        if let Some(counter) = self.uncounted() {
            counter.received(bytes.len() as u64);
        }
        Ok(bytes)
    }

    /// The names below `folder` that come after `name`, in order.
    pub fn list_after(&self, folder: &str, name: &str) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        self.list(folder, Some(name), |listed| names.push(listed.name))?;
        names.sort_unstable();
        Ok(names)
    }

    /// Shows the objects below `folder`, or those of them that come after `after`, in any order.
    pub fn list(
        &self,
        folder: &str,
        after: Option<&str>,
        mut each: impl FnMut(Listed),
    ) -> Result<(), Error> {
        self.count(Kind::List, 1);
        let folder = self.path(folder);
        let listing = async {
            let mut listing = match after {
                Some(after) => self.client.store.list_with_offset(Some(&folder), &self.path(after)),
                None => self.client.store.list(Some(&folder)),
            };
            while let Some(meta) = listing.next().await {
                let meta = meta.map_err(self.failed(&folder))?;
                let Some(parts) = meta.location.prefix_match(&self.prefix) else { continue };
                let name = Path::from_iter(parts).to_string();
                // A server that does not know where to begin lists all.
                if after.is_some_and(|after| name.as_str() <= after) {
                    continue;
                }
                each(Listed { name, bytes: meta.size, made: meta.last_modified.into() });
            }
            Ok(())
        };
        self.runtime.block_on(listing)
    }

    /// Asks, and once more if the store refuses keys in whose place there may be new ones.
    async fn with_new_keys<T, F: Future<Output = Result<T, Error>>>(
        &self,
        ask: impl Fn() -> F,
    ) -> Result<T, Error> {
        match ask().await {
            Err(error) if error.is_about_keys() && self.client.place.keys.renew() => ask().await,
            outcome => outcome,
        }
    }

    /// Converts the client's error for an object to one of this crate.
    fn failed(&self, object: &Path) -> impl Fn(object_store::Error) -> Error + '_ {
        let object = object.to_string();
        move |cause| {
            let (object, place) = (object.clone(), self.client.place.clone());
            match answer::lacks_bucket(&cause) {
                true => Error::NoBucket { bucket: place.bucket, cause },
                false => Error::Store { object, place: Box::new(place), cause },
            }
        }
    }

    /// The path of an object of this volume.
    pub fn path(&self, name: &str) -> Path {
        below(&self.prefix, name)
    }
}

/// The path of an object below a prefix.
pub fn below(prefix: &Path, name: &str) -> Path {
    Path::from_iter(prefix.parts().chain(Path::from(name).parts()))
}
