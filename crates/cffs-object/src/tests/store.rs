//! A store in memory with faults, as a network and a server make them.

use std::fmt;
use std::sync::Mutex;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// What becomes of a PUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is applied, and the answer is lost.
    AnswerLost,
    /// It is lost.
    RequestLost,
    /// It is answered with a conflict, and not applied: another request was under way.
    Conflict,
    /// It is not allowed.
    Forbidden,
    /// There is no bucket for it.
    NoBucket,
}

pub struct FaultStore {
    inner: InMemory,
    /// What happens to the PUTs to come, the last first.
    faults: Mutex<Vec<Option<Fault>>>,
    images: Mutex<Option<Vec<InMemory>>>,
    ignores_conditions: bool,
}

impl FaultStore {
    pub fn new() -> FaultStore {
        FaultStore {
            inner: InMemory::new(),
            faults: Mutex::default(),
            images: Mutex::default(),
            ignores_conditions: false,
        }
    }

    /// A store that takes every PUT, conditional or not.
    pub fn without_conditions() -> FaultStore {
        FaultStore { ignores_conditions: true, ..FaultStore::new() }
    }

    /// Sets what happens to the next PUTs, in order.
    pub fn set_faults(&self, faults: impl DoubleEndedIterator<Item = Option<Fault>>) {
        *self.faults.lock().expect("faults") = faults.rev().collect();
    }

    /// From now on keeps what is in the store before and after each PUT.
    pub fn keep_images(&self) {
        *self.images.lock().expect("images") = Some(Vec::new());
    }

    pub fn images(&self) -> Vec<InMemory> {
        let images = self.images.lock().expect("images");
        images.iter().flatten().map(InMemory::fork).collect()
    }

    fn keep_image(&self) {
        if let Some(images) = &mut *self.images.lock().expect("images") {
            images.push(self.inner.fork());
        }
    }
}

fn failed(what: &'static str) -> Error {
    Error::Generic { store: "test", source: what.into() }
}

impl fmt::Display for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a store with faults")
    }
}

impl fmt::Debug for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[async_trait]
impl ObjectStore for FaultStore {
    async fn put_opts(
        &self,
        at: &Path,
        load: PutPayload,
        mut how: PutOptions,
    ) -> Result<PutResult> {
        let fault = self.faults.lock().expect("faults").pop().flatten();
        let path = at.to_string();
        match fault {
            Some(Fault::RequestLost) => return Err(failed("no route")),
            Some(Fault::Conflict) => {
                return Err(Error::AlreadyExists { path, source: "409".into() });
            }
            Some(Fault::Forbidden) => {
                return Err(Error::PermissionDenied { path, source: "403".into() });
            }
            Some(Fault::NoBucket) => {
                return Err(Error::NotFound { path, source: "NoSuchBucket".into() });
            }
            Some(Fault::AnswerLost) | None => {}
        }
        if self.ignores_conditions {
            how.mode = PutMode::Overwrite;
        }
        self.keep_image();
        let outcome = self.inner.put_opts(at, load, how).await;
        self.keep_image();
        match fault {
            Some(_) => Err(failed("connection reset")),
            None => outcome,
        }
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        how: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, how).await
    }

    async fn get_opts(&self, at: &Path, how: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(at, how).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.keep_image();
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, how: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, how).await
    }
}
