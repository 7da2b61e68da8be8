//! Requests to a store that wait for their answer.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt;
use futures_util::future::join_all;
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
};
use tokio::runtime::{Builder, Runtime};

use crate::error::Error;

/// How many requests were made, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Objects created or overwritten.
    pub puts: u64,
    /// Objects or ranges read.
    pub gets: u64,
    /// Listings; one counts once, however many pages it has.
    pub lists: u64,
}

/// A store, and the prefix of a volume in it.
pub struct Store {
    inner: Arc<dyn ObjectStore>,
    prefix: Path,
    runtime: Runtime,
    puts: AtomicU64,
    gets: AtomicU64,
    lists: AtomicU64,
}

/// Threads that drive requests; they wait for the network, so few do for many.
const THREADS: usize = 2;

impl Store {
    /// Requests to the objects below the prefix.
    pub fn new(inner: Arc<dyn ObjectStore>, prefix: Path) -> Result<Store, Error> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("store")
            .enable_all()
            .build()
            .map_err(Error::Runtime)?;
        let (puts, gets, lists) = Default::default();
        Ok(Store { inner, prefix, runtime, puts, gets, lists })
    }

    /// The prefix, to be shown.
    pub fn prefix(&self) -> String {
        self.prefix.to_string()
    }

    /// How many requests were made.
    pub fn requests(&self) -> Requests {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Requests { puts: load(&self.puts), gets: load(&self.gets), lists: load(&self.lists) }
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
        self.puts.fetch_add(1, Ordering::Relaxed);
        let path = self.path(name);
        let options = PutOptions { mode, ..PutOptions::default() };
        let outcome = self.runtime.block_on(self.inner.put_opts(&path, payload, options));
        outcome.map(|_| ()).map_err(of(&path))
    }

    /// Has so many requests at once create the object; how many succeed.
    pub fn create_at_once(&self, name: &str, tried: usize) -> Result<usize, Error> {
        self.puts.fetch_add(tried as u64, Ordering::Relaxed);
        let path = self.path(name);
        let outcomes = self.runtime.block_on(join_all((0..tried).map(|number| {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            self.inner.put_opts(&path, PutPayload::from(vec![number as u8]), options)
        })));
        let mut created = 0;
        for outcome in outcomes {
            match outcome {
                Ok(_) => created += 1,
                Err(object_store::Error::AlreadyExists { .. }) => {}
                Err(error) => return Err(of(&path)(error)),
            }
        }
        Ok(created)
    }

    /// Deletes an object.
    pub fn delete(&self, name: &str) -> Result<(), Error> {
        let path = self.path(name);
        self.runtime.block_on(self.inner.delete(&path)).map_err(of(&path))
    }

    /// An object's bytes, or those of a range that there are.
    pub fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Vec<u8>, Error> {
        self.runtime.block_on(self.fetch(name, range))
    }

    /// Ranges of objects, asked for at once.
    pub fn get_many(&self, wanted: &[(String, Range<u64>)]) -> Result<Vec<Vec<u8>>, Error> {
        let fetches = wanted.iter().map(|(name, range)| self.fetch(name, Some(range.clone())));
        self.runtime.block_on(join_all(fetches)).into_iter().collect()
    }

    async fn fetch(&self, name: &str, range: Option<Range<u64>>) -> Result<Vec<u8>, Error> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        let path = self.path(name);
        let options = GetOptions { range: range.map(GetRange::Bounded), ..GetOptions::default() };
        let answer = self.inner.get_opts(&path, options).await.map_err(of(&path))?;
        Ok(answer.bytes().await.map_err(of(&path))?.to_vec())
    }

    /// The names below `folder` that come after `name`, in order.
    pub fn list_after(&self, folder: &str, name: &str) -> Result<Vec<String>, Error> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        let (folder, after) = (self.path(folder), self.path(name));
        let names = async {
            let mut found = Vec::new();
            let mut listing = self.inner.list_with_offset(Some(&folder), &after);
            while let Some(meta) = listing.next().await {
                let location = meta.map_err(of(&folder))?.location;
                found.extend(location.filename().map(str::to_owned));
            }
            Ok(found)
        };
        let mut names: Vec<String> = self.runtime.block_on(names)?;
        names.sort_unstable();
        Ok(names)
    }

    fn path(&self, name: &str) -> Path {
        Path::from_iter(self.prefix.parts().chain(Path::from(name).parts()))
    }
}

fn of(path: &Path) -> impl Fn(object_store::Error) -> Error + use<> {
    let object = path.to_string();
    move |source| Error::Store { object: object.clone(), source }
}
