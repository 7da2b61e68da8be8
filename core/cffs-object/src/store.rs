//! Blocking requests to a store.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, PutMode, PutOptions, PutPayload};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};

use crate::answer::{self, Place};
use crate::cache::DiskCache;
use crate::error::Error;
use crate::format::{DATA, IDENTITY, LOG, PROBES, Record, TAKE_OVER};
use crate::home::Home;
use crate::requests::{Counter, Kind};
use crate::secret::Secret;
use crate::staging::Staging;
use crate::vault::{self, Instance, Owner, Vault};

/// An object in a listing.
pub struct Listed {
    /// Its name below the prefix.
    pub name: String,
    /// Its length, without what sealing adds.
    pub bytes: u64,
    /// Its time of creation by the store's clock, for display only.
    pub made: SystemTime,
}

/// A store, and the prefix of a volume in it.
pub struct Store {
    client: Client,
    prefix: Path,
    runtime: Arc<Runtime>,
    /// Its directory, if the volume is stored in one.
    home: Option<Home>,
    /// Seals and opens objects, once the identity of an encrypted volume was read.
    vault: OnceLock<Arc<Vault>>,
}

/// The address of an object of this volume, or of one that it was cloned from.
#[derive(Clone, Debug)]
pub struct Address {
    /// Its path in the store.
    pub path: Path,
    /// The volume that made it, if objects are sealed.
    pub owner: Owner,
    /// Its name below the prefix of that volume.
    pub name: String,
    /// Its instance, if objects are sealed.
    pub instance: Instance,
}

/// A client of a store, with its counter.
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
    /// The directory of staged records.
    pub staging: Option<Arc<Staging>>,
    /// The secret of an encrypted volume.
    pub secret: Option<Arc<Secret>>,
    /// The destination of its requests.
    pub place: Place,
    /// The directory with the directories of volumes.
    pub parent: Option<PathBuf>,
    /// The threads of the stores in use.
    pub threads: Threads,
}

/// Threads that drive the requests of all stores with clones of one client, while there is such a store.
/// These share connections, which end with the threads that opened them: so one thread must not drop the last
/// store while another opens one. A process that was forked has none of these threads, and may not use the
/// client.
#[derive(Clone, Default)]
pub struct Threads(Arc<Mutex<Weak<Runtime>>>);

impl Threads {
    fn start(&self) -> Result<Arc<Runtime>, Error> {
        let mut running = self.0.lock();
        if let Some(runtime) = running.upgrade() {
            return Ok(runtime);
        }
        let mut runtime = Builder::new_multi_thread();
        runtime.worker_threads(THREADS).thread_name("store").enable_all();
        let runtime = Arc::new(runtime.build().map_err(Error::Runtime)?);
        *running = Arc::downgrade(&runtime);
        Ok(runtime)
    }
}

/// The number of ranges requested concurrently: more than saturate the connection of one machine.
pub const PARALLEL: usize = 16;
/// The number of objects that one request deletes.
const DELETED_AT_ONCE: usize = 1000;
/// The threads that drive requests; they wait for the network, so a few serve many requests.
const THREADS: usize = 2;

impl Store {
    /// Requests to the objects below the prefix.
    pub fn new(client: Client, prefix: Path) -> Result<Store, Error> {
        let runtime = client.threads.start()?;
        let home = client.parent.as_ref().map(|parent| Home::new(parent.join(prefix.as_ref())));
        Ok(Store { client, prefix, runtime, home, vault: OnceLock::new() })
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

    /// The directory of staged records, if staging was requested.
    pub fn staging(&self) -> Option<&Arc<Staging>> {
        self.client.staging.as_ref()
    }

    /// The secret that was given for the volume.
    pub fn secret(&self) -> Option<&Secret> {
        self.client.secret.as_deref()
    }

    /// The vault of an encrypted volume whose identity was read.
    pub fn vault(&self) -> Option<&Arc<Vault>> {
        self.vault.get()
    }

    /// Seals and opens all further objects, and the records in the staging directory.
    pub fn unlock(&self, vault: Vault) -> &Arc<Vault> {
        let vault = self.vault.get_or_init(|| Arc::new(vault));
        if let Some(staging) = self.staging() {
            staging.seal_with(Arc::clone(vault));
        }
        vault
    }

    /// Records that the volume with this UUID was found, or made. Its directory must stay the same.
    pub fn opened(&self, volume: Owner) {
        if let Some(home) = &self.home {
            home.opened(volume);
        }
    }

    /// Fails if the volume's directory is gone.
    fn check_home(&self) -> Result<(), Error> {
        self.home.as_ref().map_or(Ok(()), |home| home.check().map_err(Error::Gone))
    }

    /// The vault, if it covers the object. The identity, which has the wrapped key, and objects without
    /// contents are not sealed.
    fn vault_of(&self, name: &str) -> Option<&Arc<Vault>> {
        let is_open = name == IDENTITY || name == TAKE_OVER || name.starts_with(PROBES);
        self.vault().filter(|_| !is_open)
    }

    /// Seals bytes for a file of this machine, under a name that no object has.
    pub fn seal_here<'a>(&self, name: &str, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        match self.vault() {
            Some(vault) => vault.seal(name, Instance::Named, bytes).into(),
            None => bytes.into(),
        }
    }

    /// Opens bytes that were sealed for a file of this machine.
    ///
    /// # Errors
    ///
    /// They were changed.
    pub fn open_here(&self, name: &str, bytes: Vec<u8>) -> Result<Bytes, String> {
        match self.vault() {
            Some(vault) => {
                vault.open(&vault.owner(), (name, Instance::Named), &(0..u64::MAX), &bytes)
            }
            None => Ok(bytes.into()),
        }
    }

    /// The counter, unless the client counts its own requests.
    fn uncounted(&self) -> Option<&Counter> {
        (!self.client.counts).then_some(&self.client.counter)
    }

    fn count(&self, kind: Kind, requests: u64) {
        if let Some(counter) = self.uncounted() {
            counter.count(kind, requests);
        }
    }

    /// Creates an object; fails with `AlreadyExists` if it exists, possibly from an earlier try of
    /// this request.
    pub fn create(&self, name: &str, bytes: impl Into<Bytes>) -> Result<(), Error> {
        self.put_as(name, bytes.into(), PutMode::Create)
    }

    /// Creates or overwrites an object.
    pub fn put(&self, name: &str, bytes: impl Into<Bytes>) -> Result<(), Error> {
        self.put_as(name, bytes.into(), PutMode::Overwrite)
    }

    fn put_as(&self, name: &str, bytes: Bytes, mode: PutMode) -> Result<(), Error> {
        self.check_home()?;
        // A record has the instance of its writer, to which extents refer.
        let instance = match Record::instance_of(&bytes).filter(|_| name.starts_with(LOG)) {
            Some(instance) => Instance::Known(instance),
            None => instance_by_name(name),
        };
        let sealed = self.vault_of(name).map(|vault| vault.seal(name, instance, &bytes));
        let payload: PutPayload = sealed.map_or(bytes, Bytes::from).into();
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
        self.runtime.block_on(self.with_new_keys(ask))?;
        // It may have been replaced while the object was written.
        self.check_home()?;
        if let Some(home) = self.home.as_ref().filter(|_| name.starts_with(LOG)) {
            home.has_record(name);
        }
        Ok(())
    }

    /// Sends `tried` concurrent requests to create the object, and returns how many succeed.
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

    /// Deletes objects, some of which may not exist.
    pub fn delete(&self, names: &[String]) -> Result<(), Error> {
        self.check_home()?;
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

    /// An object's bytes, or the existing ones of a range.
    pub fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Bytes, Error> {
        self.runtime.block_on(self.fetch(self.address(name), range))
    }

    /// Ranges of objects of this volume or another, requested concurrently.
    pub fn get_many(&self, wanted: &[(Address, Range<u64>)]) -> Result<Vec<Bytes>, Error> {
        let fetches =
            wanted.iter().map(|(object, range)| self.fetch(object.clone(), Some(range.clone())));
        self.runtime.block_on(stream::iter(fetches).buffered(PARALLEL).try_collect())
    }

    async fn fetch(&self, object: Address, range: Option<Range<u64>>) -> Result<Bytes, Error> {
        self.count(Kind::Get, 1);
        let Address { path, owner, name, instance } = object;
        let vault = self.vault_of(&name);
        let asked = range.clone().map(|range| match vault {
            Some(_) => vault::sealed_range(&range, instance),
            None => range,
        });
        let options = GetOptions { range: asked.map(GetRange::Bounded), ..GetOptions::default() };
        let ask = || async {
            let answer = match self.client.store.get_opts(&path, options.clone()).await {
                Err(error) if answer::is_beyond_end(&error) => return Ok(Bytes::new()),
                answer => answer.map_err(self.failed(&path))?,
            };
            answer.bytes().await.map_err(self.failed(&path))
        };
        let answer = self.with_new_keys(ask).await;
        // Another directory can have objects of the same names.
        self.check_home()?;
        let bytes = answer?;
        if let Some(counter) = self.uncounted() {
            counter.received(bytes.len() as u64);
        }
        let Some(vault) = vault else { return Ok(bytes) };
        let wanted = range.unwrap_or(0..u64::MAX);
        let opened = vault.open(&owner, (&name, instance), &wanted, &bytes);
        opened.map_err(|why| Error::Damaged { object: path.to_string(), why })
    }

    /// The names below `folder` that come after `name`, in order.
    pub fn list_after(&self, folder: &str, name: &str) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        self.list(folder, Some(name), |listed| names.push(listed.name))?;
        names.sort_unstable();
        Ok(names)
    }

    /// Passes the objects below `folder`, or those after `after`, to a function, in any order.
    pub fn list(
        &self,
        folder: &str,
        after: Option<&str>,
        mut each: impl FnMut(Listed),
    ) -> Result<(), Error> {
        self.check_home()?;
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
                // A server that ignores the offset lists everything.
                if after.is_some_and(|after| name.as_str() <= after) {
                    continue;
                }
                let plain = |_| vault::plain_len(meta.size, instance_by_name(&name));
                let bytes = self.vault_of(&name).and_then(plain).unwrap_or(meta.size);
                each(Listed { name, bytes, made: meta.last_modified.into() });
            }
            Ok(())
        };
        self.runtime.block_on(listing)
    }

    /// The names directly below the prefix that have objects below them, in order.
    pub fn folders(&self) -> Result<Vec<String>, Error> {
        self.count(Kind::List, 1);
        let ask = || async {
            let listed = self.client.store.list_with_delimiter(Some(&self.prefix)).await;
            listed.map_err(self.failed(&self.prefix))
        };
        let listed = self.runtime.block_on(self.with_new_keys(ask))?;
        let names = listed.common_prefixes.iter().filter_map(|path| path.filename());
        Ok(names.map(str::to_owned).collect())
    }

    /// The lengths of the objects in a folder of a volume with this prefix, with what sealing adds, by path.
    pub fn lengths(&self, prefix: &Path, folder: &str) -> Result<HashMap<Path, u64>, Error> {
        self.check_home()?;
        self.count(Kind::List, 1);
        let folder = below(prefix, folder);
        let listed = self.client.store.list(Some(&folder));
        let named = listed.map_ok(|meta| (meta.location, meta.size));
        self.runtime.block_on(named.try_collect()).map_err(self.failed(&folder))
    }

    /// Sends a request, and repeats it once if the store rejects the keys and new ones may exist.
    async fn with_new_keys<T, F: Future<Output = Result<T, Error>>>(
        &self,
        ask: impl Fn() -> F,
    ) -> Result<T, Error> {
        match ask().await {
            Err(error) if error.is_about_keys() && self.client.place.keys.renew() => ask().await,
            outcome => outcome,
        }
    }

    /// Converts the client's error for an object to this crate's.
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

    /// An error about an object of this volume.
    pub fn damaged(&self, name: &str) -> impl Fn(String) -> Error + use<> {
        let object = format!("{}/{name}", self.prefix);
        move |why| Error::Damaged { object: object.clone(), why }
    }

    /// The path of an object of this volume.
    fn path(&self, name: &str) -> Path {
        below(&self.prefix, name)
    }

    /// The address of an object of this volume.
    pub fn address(&self, name: &str) -> Address {
        let owner = self.vault().map_or([0; 16], |vault| vault.owner());
        let (name, instance) = (name.to_owned(), instance_by_name(name));
        Address { path: self.path(&name), owner, name, instance }
    }
}

/// The instance of an object, as far as its name tells.
fn instance_by_name(name: &str) -> Instance {
    if name.starts_with(DATA) { Instance::Named } else { Instance::Leading }
}

/// The path of an object below a prefix.
pub fn below(prefix: &Path, name: &str) -> Path {
    Path::from_iter(prefix.parts().chain(Path::from(name).parts()))
}
