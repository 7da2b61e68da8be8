//! Taking a volume over from a writer that continues.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::*;
use crate::commit::{self, RECORDS_PER_LOOK};

/// A writer stops by itself after this many syncs, so that a failing test ends.
const SYNCS_MAX: u64 = RECORDS_PER_LOOK as u64 * 12;

/// A race for the next slot that the writer always wins.
#[derive(Default)]
struct Race {
    records: AtomicU64,
    /// Whether the writer has seen the request to give way, or has ended.
    gives_way: AtomicBool,
    /// Whether the other program is about to put its claim: the writer may put one record before.
    is_claiming: AtomicBool,
    is_over: AtomicBool,
}

/// The store as one of the two programs sees it.
struct Lane {
    inner: Arc<dyn ObjectStore>,
    race: Arc<Race>,
    is_writer: bool,
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a store in which one program is quicker")
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[async_trait]
impl ObjectStore for Lane {
    async fn put_opts(&self, at: &Path, load: PutPayload, how: PutOptions) -> Result<PutResult> {
        let is_record = at.to_string().contains("/log/");
        if is_record && !self.is_writer {
            let before = self.race.records.load(Ordering::SeqCst);
            self.race.is_claiming.store(true, Ordering::SeqCst);
            while self.race.records.load(Ordering::SeqCst) == before
                && !self.race.gives_way.load(Ordering::SeqCst)
            {
                tokio::task::yield_now().await;
            }
        }
        let put = self.inner.put_opts(at, load, how).await;
        if is_record && self.is_writer && put.is_ok() {
            self.race.records.fetch_add(1, Ordering::SeqCst);
        }
        put
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        how: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, how).await
    }

    async fn get_opts(&self, at: &Path, how: GetOptions) -> Result<GetResult> {
        let got = self.inner.get_opts(at, how).await;
        if self.is_writer && got.is_ok() && at.to_string().ends_with("/takeover") {
            self.race.gives_way.store(true, Ordering::SeqCst);
        }
        got
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
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

/// Syncs each time that the other program is about to put its claim; returns how often that succeeded, and
/// the error that ended it.
fn sync_on(writer: &LogDevice, race: &Race) -> (u64, Option<std::io::Error>) {
    let mut outcome = (0, None);
    while outcome.0 < SYNCS_MAX {
        while !race.is_claiming.swap(false, Ordering::SeqCst)
            && !race.is_over.load(Ordering::SeqCst)
        {
            std::thread::yield_now();
        }
        write(writer, 0, &u64::to_le_bytes(outcome.0 + 1));
        match writer.sync() {
            Ok(()) => outcome.0 += 1,
            Err(error) => {
                outcome.1 = Some(error);
                break;
            }
        }
    }
    race.gives_way.store(true, Ordering::SeqCst);
    outcome
}

/// Regression: a writer that synced without pause put its next record into the slot before another program,
/// which had to read the last record first, could claim it: `-o takeover` waited forever. It is needed
/// exactly where a writer must be stopped.
#[test]
fn a_writer_that_syncs_without_pause_is_taken_over() {
    for is_staging in [false, true] {
        let scratch = tempfile::tempdir().expect("made");
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        make_zeros(&at(store.clone()), GEOMETRY);
        let race = Arc::new(Race::default());
        let lane = |is_writer: bool| {
            at(Arc::new(Lane { inner: store.clone(), race: race.clone(), is_writer }))
        };
        let location = match is_staging {
            false => lane(true),
            true => {
                let staging = crate::Staging::open(&scratch.path().join("staging"));
                lane(true).with_staging(Arc::new(staging.expect("made")))
            }
        };
        let writer = LogDevice::open(&location, OpenOptions::default()).expect("released");
        let taker = lane(false);
        let next = std::thread::scope(|scope| {
            let taking = scope.spawn(|| {
                let opened = LogDevice::open(&taker, TAKE_OVER);
                race.is_over.store(true, Ordering::SeqCst);
                opened
            });
            let (synced, ended) = sync_on(&writer, &race);
            let next = taking.join().expect("no panic").expect("taken over");
            if !is_staging {
                let ended = ended.expect("it was taken over while it went on");
                assert!(ended.to_string().contains("took the volume over"), "{ended}");
                let seen: [u8; 8] = read(&next, 0, 8).try_into().expect("eight bytes");
                assert_eq!(u64::from_le_bytes(seen), synced, "all that was acknowledged is there");
            }
            next
        });
        write(&next, 0, b"taken");
        next.sync().expect("the volume is the other's");
        assert!(store_has_no_request(&*store), "the request went with the claim");
        // Staged syncs that were not sent are rejected.
        let _ = writer.release();
    }
}

fn store_has_no_request(store: &dyn ObjectStore) -> bool {
    super::collection::objects(store).iter().all(|(name, _)| !name.ends_with("/takeover"))
}

/// A takeover request of a program that has ended delays the writer once.
#[test]
fn a_takeover_request_of_an_ended_program_is_forgotten() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let writer = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
    commit::ask_for_way(&at(store.clone()).connect().expect("connected")).expect("put");
    for number in 0..u64::from(RECORDS_PER_LOOK) * 2 {
        write(&writer, 0, &number.to_le_bytes());
        writer.sync().expect("it goes on");
    }
    assert!(store_has_no_request(&*store));
}
