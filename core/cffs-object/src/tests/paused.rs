//! Pauses a program before each of its requests in turn, while another one writes and collects.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::*;
use crate::destroy::{self, DestroyOptions};
use crate::versions;

/// A store whose n-th request waits until it is released.
pub struct PausedStore {
    inner: Arc<dyn ObjectStore>,
    left: AtomicUsize,
    reached: Mutex<mpsc::Sender<bool>>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

impl PausedStore {
    /// A store that does not pause yet, a receiver that is told about the pause, and the sender that ends it.
    pub fn new(
        inner: Arc<dyn ObjectStore>,
    ) -> (PausedStore, mpsc::Receiver<bool>, mpsc::Sender<()>) {
        let (reached, is_reached) = mpsc::channel();
        let (let_go, go_on) = mpsc::channel();
        let (reached, go_on) = (Mutex::new(reached), Mutex::new(go_on));
        let left = AtomicUsize::new(0);
        (PausedStore { inner, left, reached, go_on }, is_reached, let_go)
    }

    /// Makes the next request wait.
    pub fn pause(&self) {
        self.left.store(1, Ordering::SeqCst);
    }

    fn step(&self) {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.reached.lock().expect("open").send(true).expect("heard");
            self.go_on.lock().expect("open").recv().expect("let go");
        }
    }
}

impl fmt::Display for PausedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a store that pauses")
    }
}

impl fmt::Debug for PausedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[async_trait]
impl ObjectStore for PausedStore {
    async fn put_opts(&self, at: &Path, load: PutPayload, how: PutOptions) -> Result<PutResult> {
        self.step();
        self.inner.put_opts(at, load, how).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        how: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, how).await
    }

    async fn get_opts(&self, at: &Path, how: GetOptions) -> Result<GetResult> {
        self.step();
        self.inner.get_opts(at, how).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.step();
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.step();
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, how: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, how).await
    }
}

/// A volume with a mostly collected log, its writer, and the number in its first block.
fn begun() -> (Arc<InMemory>, LogDevice) {
    let store = Arc::new(InMemory::new());
    let device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
    for number in 1..4 {
        put(&device, number);
    }
    device.collect().expect("collected");
    put(&device, 4);
    put(&device, 5);
    (store, device)
}

fn put(device: &LogDevice, number: u64) {
    write(device, 0, &number.to_le_bytes());
    device.sync().expect("synced");
}

fn number(device: &LogDevice) -> std::io::Result<u64> {
    let mut buf = [0; 8];
    device.read_at(0, &mut buf).map(|()| u64::from_le_bytes(buf))
}

/// Runs a function on a store that pauses before its n-th request, for each n; meanwhile the writer commits
/// and collects. Passes the outcome, the store and the writer to a check; returns the number of requests.
fn at_each_request<T: Send + 'static>(
    version: &str,
    act: fn(&Location) -> T,
    check: impl Fn(T, &Arc<InMemory>, &LogDevice),
) -> usize {
    at_each_request_with(version, act, |_| (), check)
}

/// The same, with another function that runs during the pause; with the version `KEPT` of the volume if it
/// exists.
fn at_each_request_with<T: Send + 'static>(
    version: &str,
    act: fn(&Location) -> T,
    meanwhile: impl Fn(&Arc<InMemory>),
    check: impl Fn(T, &Arc<InMemory>, &LogDevice),
) -> usize {
    for request in 1.. {
        let (store, writer) = begun();
        if version == KEPT {
            versions::create(&kept(&store)).expect("kept");
        }
        let (reached, is_paused) = mpsc::channel();
        let (let_go, go_on) = mpsc::channel();
        let paused = Arc::new(PausedStore {
            inner: store.clone(),
            left: AtomicUsize::new(request),
            reached: Mutex::new(reached.clone()),
            go_on: Mutex::new(go_on),
        });
        let location = located(paused.clone(), &format!("bucket/volume{version}"));
        let acting = std::thread::spawn(move || {
            let outcome = act(&location);
            let _ = reached.send(false);
            outcome
        });
        let is_paused = is_paused.recv().expect("it pauses or ends");
        if is_paused {
            meanwhile(&store);
            for number in 6..10 {
                if writer.sync().is_ok() {
                    write(&writer, 0, &u64::to_le_bytes(number));
                    let _ = writer.sync();
                }
            }
            let _ = writer.collect();
            write(&writer, 0, &u64::to_le_bytes(10));
            let _ = writer.sync();
            let_go.send(()).expect("it waits");
        }
        let outcome = acting.join().expect("no panic");
        paused.left.store(usize::MAX, Ordering::SeqCst);
        check(outcome, &store, &writer);
        if !is_paused {
            return request - 1;
        }
    }
    0
}

/// A claim applies to the end of the log, however old the history that it was made from.
#[test]
pub fn a_claim_after_a_pause_is_made_at_the_end_of_the_log() {
    let claim = |location: &Location| LogDevice::open(location, TAKE_OVER).expect("claimed");
    let requests = at_each_request("", claim, |claimed, store, writer| {
        write(writer, 0, &[0xff; 8]);
        assert!(writer.sync().is_err(), "the other is fenced");
        let seen = number(&claimed).expect("read");
        assert!(seen == 5 || seen == 10, "{seen}");
        put(&claimed, seen + 100);
        let fresh = LogDevice::open(&at(store.clone()), READ_ONLY).expect("opened");
        assert_eq!(number(&fresh).expect("read"), seen + 100);
    });
    assert!(requests >= 6, "{requests}");
}

/// An opening for reading finds an actual version, or reports that the version was collected.
#[test]
pub fn a_paused_reader_finds_a_version_or_reports_its_deletion() {
    let open = |location: &Location| LogDevice::open(location, READ_ONLY).expect("opened");
    let requests = at_each_request("", open, |device, _, _| match number(&device) {
        Ok(seen) => assert!((5..=10).contains(&seen), "{seen}"),
        Err(error) => assert!(error.to_string().contains("was deleted"), "{error}"),
    });
    assert!(requests >= 5, "{requests}");
}

/// A kept version can be read, however long keeping it took.
#[test]
pub fn a_version_kept_after_a_pause_can_be_read() {
    let requests = at_each_request("@v1", versions::create, |kept, store, writer| {
        kept.expect("kept");
        for number in 11..14 {
            put(writer, number);
        }
        writer.collect().expect("collected");
        let version = located(store.clone(), "bucket/volume@v1");
        let device = LogDevice::open(&version, READ_ONLY).expect("opened");
        let seen = number(&device).expect("read");
        assert!((5..=10).contains(&seen), "{seen}");
    });
    assert!(requests >= 6, "{requests}");
}

/// The version that is removed and cloned.
const KEPT: &str = "@kept";

fn kept(store: &Arc<InMemory>) -> Location {
    located(store.clone(), "bucket/volume@kept")
}

fn clone_of_it(store: Arc<dyn ObjectStore>) -> Location {
    located(store, "bucket/clone")
}

/// A clone contains all shared data, however often the volume is collected.
fn is_whole(store: &Arc<InMemory>, writer: &LogDevice) {
    for number in 11..14 {
        put(writer, number);
    }
    writer.collect().expect("collected");
    let clone = LogDevice::open(&clone_of_it(store.clone()), READ_ONLY).expect("opened");
    assert_eq!(number(&clone).expect("all of it is there"), 5);
}

/// The version is removed while it is being cloned: either the clone is complete, or cloning fails.
#[test]
pub fn a_clone_during_a_removal_is_complete_or_fails() {
    let clone = |from: &Location| versions::clone(from, &from.sibling("bucket/clone"));
    let remove = |store: &Arc<InMemory>| {
        // This may fail because clones need the version.
        let _ = versions::remove(&kept(store));
    };
    let made = std::cell::Cell::new((0, 0));
    let requests = at_each_request_with(KEPT, clone, remove, |cloned, store, writer| {
        let (whole, failed) = made.get();
        match cloned {
            Ok(()) => {
                is_whole(store, writer);
                made.set((whole + 1, failed));
            }
            Err(error) => {
                assert!(!matches!(error, Error::Damaged { .. }), "{error}");
                made.set((whole, failed + 1));
            }
        }
    });
    let (whole, failed) = made.get();
    assert!(requests >= 6 && whole > 1 && failed > 1, "{requests} {whole} {failed}");
}

/// A program on a store that pauses before its n-th request.
struct Started<T> {
    thread: std::thread::JoinHandle<T>,
    is_paused: bool,
    let_go: mpsc::Sender<()>,
}

impl<T: Send + 'static> Started<T> {
    /// Runs it until the pause, or to its end.
    fn run(
        store: &Arc<InMemory>,
        request: usize,
        act: fn(Arc<dyn ObjectStore>) -> T,
    ) -> Started<T> {
        let (paused, is_paused, let_go) = PausedStore::new(store.clone());
        paused.left.store(request, Ordering::SeqCst);
        let ended = paused.reached.lock().expect("open").clone();
        let secret = encrypted::secret();
        let thread = std::thread::spawn(move || {
            let outcome = encrypted::with(secret, || act(Arc::new(paused)));
            let _ = ended.send(false);
            outcome
        });
        Started { thread, is_paused: is_paused.recv().expect("it pauses or ends"), let_go }
    }

    fn end(self) -> T {
        let _ = self.let_go.send(());
        self.thread.join().expect("no panic")
    }
}

/// The version is removed while it is being cloned, with each program paused before each of its requests: the
/// clone checks whether the version is still kept, and the removal whether a clone was completed meanwhile.
#[test]
pub fn a_removal_during_a_clone_keeps_the_clone_complete() {
    fn kept_in(store: Arc<dyn ObjectStore>) -> Location {
        located(store, "bucket/volume@kept")
    }
    let clone: fn(Arc<dyn ObjectStore>) -> _ =
        |store| versions::clone(&kept_in(store.clone()), &clone_of_it(store));
    let remove: fn(Arc<dyn ObjectStore>) -> _ = |store| versions::remove(&kept_in(store));
    let mut whole = 0;
    let is_last = |first: usize, second: usize, whole: &mut u32| {
        let (store, writer) = begun();
        versions::create(&kept(&store)).expect("kept");
        let cloning = Started::run(&store, first, clone);
        let removing = Started::run(&store, second, remove);
        let is_last = (!cloning.is_paused, !removing.is_paused);
        let cloned = cloning.end();
        // This may fail because a clone needs the version.
        let _ = removing.end();
        if cloned.is_ok() {
            is_whole(&store, &writer);
            *whole += 1;
        }
        is_last
    };
    for first in 1.. {
        let mut is_last_of_clone = false;
        for second in 1.. {
            let (of_clone, of_removal) = is_last(first, second, &mut whole);
            is_last_of_clone |= of_clone;
            if of_removal {
                break;
            }
        }
        if is_last_of_clone {
            break;
        }
    }
    assert!(whole > 3, "{whole}");
}

/// The volume is deleted while its version is being cloned, with each program paused before each of its
/// requests: either the clone is complete and its origin stays, or there is no clone.
#[test]
pub fn a_deletion_during_a_clone_leaves_a_complete_clone_or_none() {
    let clone: fn(Arc<dyn ObjectStore>) -> _ =
        |store| versions::clone(&located(store.clone(), "bucket/volume@kept"), &clone_of_it(store));
    let delete: fn(Arc<dyn ObjectStore>) -> _ =
        |store| destroy::destroy(&located(store, "bucket/volume"), &DestroyOptions::default());
    let (mut cloned, mut deleted) = (0, 0);
    for first in 1.. {
        let mut is_last_of_clone = false;
        for second in 1.. {
            let (store, writer) = begun();
            drop(writer);
            versions::create(&kept(&store)).expect("kept");
            let cloning = Started::run(&store, first, clone);
            let deleting = Started::run(&store, second, delete);
            is_last_of_clone |= !cloning.is_paused;
            let is_last = !deleting.is_paused;
            // The clone continues to its end during the pause of the deletion, or the other way round.
            let outcome = match second % 2 {
                0 => (cloning.end(), deleting.end()),
                _ => {
                    let deleted = deleting.end();
                    (cloning.end(), deleted)
                }
            };
            match outcome {
                (Ok(()), Ok(_)) => panic!("{first} {second}: the origin of a clone was deleted"),
                (Ok(()), Err(error)) => {
                    assert!(matches!(error, Error::HasClone { .. }), "{error}");
                    let writer = LogDevice::open(&at(store.clone()), OpenOptions::default());
                    is_whole(&store, &writer.expect("it stays"));
                    cloned += 1;
                }
                (Err(_), Ok(_)) => deleted += 1,
                (Err(_), Err(_)) => {
                    drop(
                        LogDevice::open(&at(store.clone()), OpenOptions::default())
                            .expect("it stays"),
                    );
                }
            }
            if is_last {
                break;
            }
        }
        if is_last_of_clone {
            break;
        }
    }
    assert!(cloned > 3 && deleted > 3, "{cloned} {deleted}");
}

/// A deletion stops when its tombstone was replaced: another run has finished it, and the place was used
/// again. Only the request that was sent before still arrives.
#[test]
fn a_deletion_stops_when_its_place_is_used_again() {
    const NEW: &[u8] = b"the identity of a new volume";
    let format = Path::from("bucket/volume/format");
    let delete: fn(Arc<dyn ObjectStore>) -> _ =
        |store| destroy::destroy(&located(store, "bucket/volume"), &DestroyOptions::default());
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let there = |store: &InMemory| {
        let read = runtime.block_on(async { store.get(&format).await?.bytes().await });
        read.map(|bytes| bytes.to_vec()).ok()
    };
    let (mut stopped, mut gone) = (0, 0);
    for request in 1.. {
        let (store, writer) = begun();
        drop(writer);
        let before = there(&store);
        let deleting = Started::run(&store, request, delete);
        if !deleting.is_paused {
            deleting.end().expect("deleted");
            break;
        }
        if there(&store) == before {
            // The tombstone is not there yet.
            let _ = deleting.end();
            continue;
        }
        runtime.block_on(store.put(&format, NEW.to_vec().into())).expect("put");
        match deleting.end() {
            Err(error) => {
                assert!(matches!(error, Error::Unfinished { .. }), "{error}");
                assert!(error.to_string().contains("a new volume exists there now"), "{error}");
                assert_eq!(there(&store).as_deref(), Some(NEW), "{request}");
                stopped += 1;
            }
            Ok(_) => gone += 1,
        }
    }
    assert!(stopped > 5 && gone == 1, "{stopped} {gone}");
}
