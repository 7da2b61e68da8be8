//! A store in memory with the faults of networks and servers.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt, stream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};

use super::Numbers;

/// The fault of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// It is applied, and the answer is lost: the same as a 500, 503 or 429 after the effect.
    AnswerLost,
    /// It is lost: the same as a 500, 503 or 429 before the effect.
    RequestLost,
    /// It is answered with a conflict, and not applied: another request was running.
    Conflict,
    /// The client sends it twice, both are applied, and the second is answered.
    SentTwice,
    /// The client gives it up, and it arrives after later requests.
    Late,
    /// It takes longer than later requests.
    Slow,
    /// The connection breaks during the answer, or after the request was applied in part.
    CutShort,
    /// A listing lacks the newest objects.
    Lagging,
    /// It is not allowed.
    Forbidden,
    /// The bucket does not exist.
    NoBucket,
}

const OF_PUTS: [Fault; 6] = [
    Fault::AnswerLost,
    Fault::RequestLost,
    Fault::Conflict,
    Fault::SentTwice,
    Fault::Late,
    Fault::Slow,
];
const OF_GETS: [Fault; 3] = [Fault::RequestLost, Fault::CutShort, Fault::Slow];
const OF_LISTS: [Fault; 2] = [Fault::RequestLost, Fault::CutShort];
const OF_DELETES: [Fault; 3] = [Fault::RequestLost, Fault::AnswerLost, Fault::CutShort];

/// For a delete request of up to this many objects: each object is once the only one deleted, and once the
/// only one left.
const DELETED_APART: usize = 6;
/// For up to this many PUTs in flight, each subset is tried.
const IN_FLIGHT_MAX: usize = 3;
/// A lagging listing may lack the last this many records.
const LAG: usize = 3;

/// Faults by chance, the same for each seed.
struct Chance {
    numbers: Numbers,
    of_100: u64,
    is_lagging: bool,
    /// PUTs in flight, and how many requests overtake them.
    late: Vec<(u64, Path, PutPayload, PutOptions)>,
    /// The created objects, in order.
    created: Vec<Path>,
    happened: BTreeMap<Fault, u64>,
}

impl Chance {
    fn draw(&mut self, faults: &[Fault]) -> Option<Fault> {
        // An opening takes a hundred GETs, and no client repeats failed ones here.
        let of = if faults == OF_GETS { 400 } else { 100 };
        if self.numbers.below(of) >= self.of_100 {
            return None;
        }
        let fault = faults[self.numbers.below(faults.len() as u64) as usize];
        *self.happened.entry(fault).or_default() += 1;
        Some(fault)
    }
}

/// How the store treats the condition that the object does not exist.
#[derive(Clone, Copy)]
enum Conditions {
    Kept,
    Ignored,
    /// Checked before the request, so that concurrent requests do not see each other.
    Racing,
}

/// The store and the disk as a machine that stops leaves them.
pub struct Image {
    /// The store.
    pub store: InMemory,
    /// The local disk: the copy of a directory, if one is copied.
    pub local: Option<PathBuf>,
}

/// A directory that is copied with each image, the target, and the number of copies.
struct LocalCopies {
    directory: PathBuf,
    copies: PathBuf,
    count: usize,
}

type Put = (Path, PutPayload, PutOptions);

pub struct FaultStore {
    inner: InMemory,
    /// The faults of the next PUTs, last one first.
    faults: Mutex<Vec<Option<Fault>>>,
    chance: Mutex<Option<Chance>>,
    images: Mutex<Option<Vec<Image>>>,
    local_copies: Mutex<Option<LocalCopies>>,
    /// PUTs that were sent and not answered, by number.
    in_flight: Mutex<BTreeMap<u64, Put>>,
    /// How many more records may pass, if the number is limited.
    passes: Mutex<Option<u64>>,
    /// The latency of a request.
    delay: Mutex<Duration>,
    /// The longest chain of GETs that each began when the previous one was answered.
    gets_in_a_row: AtomicU64,
    conditions: Conditions,
    /// The fault of all GETs, and how many have failed by it.
    gets_fail: Mutex<(Option<Fault>, u64)>,
    /// The object whose next PUTs are lost, and how many more.
    lost_puts: Mutex<Option<(String, u64)>>,
    /// How many listings succeed, and how many fail after those.
    failing_listings: Mutex<(u64, u64)>,
}

impl FaultStore {
    pub fn new() -> FaultStore {
        FaultStore::over(InMemory::new())
    }

    /// A store with the contents of another one.
    pub fn over(inner: InMemory) -> FaultStore {
        FaultStore {
            inner,
            faults: Mutex::default(),
            chance: Mutex::default(),
            images: Mutex::default(),
            local_copies: Mutex::default(),
            in_flight: Mutex::default(),
            passes: Mutex::default(),
            delay: Mutex::default(),
            gets_in_a_row: AtomicU64::default(),
            conditions: Conditions::Kept,
            gets_fail: Mutex::default(),
            lost_puts: Mutex::default(),
            failing_listings: Mutex::default(),
        }
    }

    /// A store that accepts every PUT, conditional or not.
    pub fn without_conditions() -> FaultStore {
        FaultStore { conditions: Conditions::Ignored, ..FaultStore::new() }
    }

    /// A store whose conditional PUTs hold only between sequential requests.
    pub fn with_racing_conditions() -> FaultStore {
        FaultStore { conditions: Conditions::Racing, ..FaultStore::new() }
    }

    /// Sets what happens to the next PUTs, in order.
    pub fn set_faults(&self, faults: impl DoubleEndedIterator<Item = Option<Fault>>) {
        *self.faults.lock().expect("faults") = faults.rev().collect();
    }

    /// Sets the fault of all further GETs, or none. Returns how many have failed so far.
    pub fn fail_gets(&self, fault: Option<Fault>) -> u64 {
        let (_, failed) = std::mem::replace(&mut *self.gets_fail.lock().expect("GETs"), (fault, 0));
        failed
    }

    /// How many GETs have failed since the last call of `fail_gets`.
    pub fn failed_gets(&self) -> u64 {
        self.gets_fail.lock().expect("GETs").1
    }

    /// Loses the next PUTs of one object.
    pub fn lose_puts(&self, name: &str, count: u64) {
        *self.lost_puts.lock().expect("PUTs") = Some((format!("bucket/volume/{name}"), count));
    }

    /// Fails `count` listings after the next `first`.
    pub fn fail_listings(&self, first: u64, count: u64) {
        *self.failing_listings.lock().expect("listings") = (first, count);
    }

    /// How many listings will still fail.
    pub fn left_failing(&self) -> u64 {
        self.failing_listings.lock().expect("listings").1
    }

    fn fails_to_list(&self) -> bool {
        let mut listings = self.failing_listings.lock().expect("listings");
        if listings.0 > 0 {
            listings.0 -= 1;
            return false;
        }
        let fails = listings.1 > 0;
        listings.1 = listings.1.saturating_sub(1);
        fails
    }

    fn is_lost(&self, at: &Path) -> bool {
        match &mut *self.lost_puts.lock().expect("PUTs") {
            Some((name, left)) if *left > 0 && *name == at.to_string() => {
                *left -= 1;
                true
            }
            _ => false,
        }
    }

    /// From now on, `of_100` of 100 requests get a fault.
    pub fn set_chance(&self, seed: u64, of_100: u64) {
        *self.chance.lock().expect("chance") = Some(Chance {
            numbers: Numbers(seed),
            of_100,
            is_lagging: false,
            late: Vec::new(),
            created: Vec::new(),
            happened: BTreeMap::new(),
        });
    }

    /// From now on listings lack the newest objects.
    pub fn have_listings_lag(&self) {
        if let Some(chance) = &mut *self.chance.lock().expect("chance") {
            chance.is_lagging = true;
        }
    }

    /// Ends random faults, and delivers PUTs in flight. Returns the number of each kind of fault.
    pub fn mend(&self) -> BTreeMap<Fault, u64> {
        let chance = self.chance.lock().expect("chance").take();
        let Some(chance) = chance else { return BTreeMap::new() };
        chance.late.into_iter().for_each(|(_, at, load, how)| self.arrive(&at, load, how));
        chance.happened
    }

    /// From now on keeps images of the store: now, after each PUT with each subset of those in flight, and
    /// after each part of a delete request.
    pub fn keep_images(&self) {
        *self.images.lock().expect("images") = Some(Vec::new());
        self.keep_image();
    }

    /// The same, with a copy of a directory for each.
    pub fn keep_images_with(&self, directory: PathBuf, copies: PathBuf) {
        std::fs::create_dir(&copies).expect("made");
        *self.local_copies.lock().expect("copies") =
            Some(LocalCopies { directory, copies, count: 0 });
        self.keep_images();
    }

    /// The contents of the store now.
    pub fn image(&self) -> InMemory {
        self.inner.fork()
    }

    pub fn images(&self) -> Vec<InMemory> {
        self.images_from(0).into_iter().map(|image| image.store).collect()
    }

    /// The images; ends keeping them.
    pub fn take_images(&self) -> Vec<InMemory> {
        let mut images = self.images.lock().expect("images");
        images.iter_mut().flat_map(std::mem::take).map(|image| image.store).collect()
    }

    /// The images except the first ones.
    pub fn images_from(&self, first: usize) -> Vec<Image> {
        let images = self.images.lock().expect("images");
        let copy = |image: &Image| Image { store: image.store.fork(), local: image.local.clone() };
        images.iter().flatten().skip(first).map(copy).collect()
    }

    /// Keeps an image of the current state.
    pub fn keep_image(&self) {
        let in_flight: Vec<Put> =
            self.in_flight.lock().expect("PUTs").values().take(IN_FLIGHT_MAX).cloned().collect();
        let Some(images) = &mut *self.images.lock().expect("images") else { return };
        let local = self.local_copies.lock().expect("copies").as_mut().map(LocalCopies::copy);
        for subset in (0..1_usize << in_flight.len()).rev() {
            let store = self.inner.fork();
            for (index, (at, load, how)) in in_flight.iter().enumerate() {
                if subset & 1 << index != 0 {
                    let put = store.put_opts(at, load.clone(), how.clone());
                    let _ = put.now_or_never().expect("memory answers at once");
                }
            }
            images.push(Image { store, local: local.clone() });
        }
    }

    /// Keeps the images of a store that stops during a delete request, which deletes in any order.
    fn keep_images_amid(&self, deleted: &[Path]) {
        let Some(images) = &mut *self.images.lock().expect("images") else { return };
        let local = self.local_copies.lock().expect("copies").as_mut().map(LocalCopies::copy);
        for chosen in 0..deleted.len().min(DELETED_APART) {
            let (alone, others) = (self.inner.fork(), self.inner.fork());
            for (number, path) in deleted.iter().enumerate() {
                let image = if number == chosen { &alone } else { &others };
                let gone = image.delete(path).now_or_never().expect("memory answers at once");
                gone.expect("deleted");
            }
            images.extend([alone, others].map(|store| Image { store, local: local.clone() }));
        }
    }

    /// Sets the latency of requests from now on.
    pub fn set_delay(&self, delay: Duration) {
        *self.delay.lock().expect("delay") = delay;
    }

    /// The length of the longest chain of GETs that each began when the previous one was answered.
    pub fn gets_in_a_row(&self) -> u64 {
        self.gets_in_a_row.load(Ordering::SeqCst)
    }

    /// From now on, `count` more records pass, and later ones wait; without a number all pass.
    pub fn let_pass(&self, count: Option<u64>) {
        *self.passes.lock().expect("passes") = count;
    }

    fn may_pass(&self, at: &Path) -> bool {
        match &mut *self.passes.lock().expect("passes") {
            Some(left) if at.to_string().contains("/volume/log/") => {
                let passes = *left > 0;
                *left -= u64::from(passes);
                passes
            }
            _ => true,
        }
    }

    /// Removes an object, as an operator might.
    pub fn remove(&self, at: &Path) {
        self.inner.delete(at).now_or_never().expect("memory answers at once").expect("deleted");
    }

    /// The fault of the next request; late requests may arrive before it.
    fn next(&self, faults: &[Fault]) -> Option<Fault> {
        let mut chance = self.chance.lock().expect("chance");
        let chance = chance.as_mut()?;
        let mut arrived = Vec::new();
        for index in (0..chance.late.len()).rev() {
            match chance.late[index].0 {
                0 => arrived.push(chance.late.remove(index)),
                _ => chance.late[index].0 -= 1,
            }
        }
        arrived.into_iter().for_each(|(_, at, load, how)| self.arrive(&at, load, how));
        chance.draw(faults)
    }

    /// Applies a PUT whose answer is ignored.
    fn arrive(&self, at: &Path, load: PutPayload, how: PutOptions) {
        let _ = self.inner.put_opts(at, load, how).now_or_never().expect("memory answers at once");
    }

    fn send_later(&self, at: &Path, load: PutPayload, how: PutOptions) {
        if let Some(chance) = &mut *self.chance.lock().expect("chance") {
            let passed_by = chance.numbers.below(12);
            chance.late.push((passed_by, at.clone(), load, how));
        }
    }

    /// The objects that a lagging listing lacks, and the number of entries before a listing breaks.
    fn lacks(&self) -> (Vec<Path>, usize) {
        let mut chance = self.chance.lock().expect("chance");
        let Some(chance) = chance.as_mut() else { return (Vec::new(), 0) };
        let broken_after = chance.numbers.below(4) as usize;
        if !chance.is_lagging {
            return (Vec::new(), broken_after);
        }
        let lag = (chance.numbers.below(LAG as u64 + 1) as usize).min(chance.created.len());
        if lag > 0 {
            *chance.happened.entry(Fault::Lagging).or_default() += 1;
        }
        (chance.created[chance.created.len() - lag..].to_vec(), broken_after)
    }

    /// Records a PUT in flight.
    fn sent(&self, at: &Path, load: &PutPayload, how: &PutOptions) -> u64 {
        let mut in_flight = self.in_flight.lock().expect("PUTs");
        let number = in_flight.last_key_value().map_or(0, |(number, _)| number + 1);
        in_flight.insert(number, (at.clone(), load.clone(), how.clone()));
        number
    }

    fn note_created(&self, at: &Path) {
        if let Some(chance) = &mut *self.chance.lock().expect("chance") {
            chance.created.push(at.clone());
        }
    }
}

impl LocalCopies {
    fn copy(&mut self) -> PathBuf {
        self.count += 1;
        super::staging::copied(&self.directory, self.copies.join(self.count.to_string()))
    }
}

fn failed(what: &'static str) -> Error {
    Error::Generic { store: "test", source: what.into() }
}

fn fails_with<T: Send + 'static>(what: &'static str) -> BoxStream<'static, Result<T>> {
    stream::iter([Err(failed(what))]).boxed()
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
        let planned = self.faults.lock().expect("faults").pop();
        let planned = if self.is_lost(at) { Some(Some(Fault::RequestLost)) } else { planned };
        let fault = planned.unwrap_or_else(|| self.next(&OF_PUTS));
        let path = at.to_string();
        match self.conditions {
            Conditions::Racing if how.mode == PutMode::Create => {
                if self.inner.head(at).await.is_ok() {
                    return Err(Error::AlreadyExists { path, source: "412".into() });
                }
                tokio::time::sleep(Duration::from_millis(3)).await;
                how.mode = PutMode::Overwrite;
            }
            Conditions::Ignored => how.mode = PutMode::Overwrite,
            Conditions::Kept | Conditions::Racing => {}
        }
        match fault {
            Some(Fault::RequestLost) => return Err(failed("503 Slow Down")),
            Some(Fault::Conflict) => {
                return Err(Error::AlreadyExists { path, source: "409".into() });
            }
            Some(Fault::Forbidden) => {
                return Err(Error::PermissionDenied { path, source: "403".into() });
            }
            Some(Fault::NoBucket) => {
                return Err(Error::NotFound { path, source: "NoSuchBucket".into() });
            }
            Some(Fault::Late) => {
                self.send_later(at, load, how);
                return Err(failed("timeout"));
            }
            Some(Fault::SentTwice) => self.arrive(at, load.clone(), how.clone()),
            Some(Fault::Slow) => tokio::time::sleep(Duration::from_millis(3)).await,
            Some(Fault::AnswerLost | Fault::CutShort | Fault::Lagging) | None => {}
        }
        let number = self.sent(at, &load, &how);
        while !self.may_pass(at) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let outcome = self.inner.put_opts(at, load, how).await;
        self.in_flight.lock().expect("PUTs").remove(&number);
        self.keep_image();
        if outcome.is_ok() && at.to_string().contains("/log/") {
            self.note_created(at);
        }
        match fault {
            Some(Fault::AnswerLost) => Err(failed("connection reset")),
            _ => outcome,
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
        let always = {
            let (fault, failed) = &mut *self.gets_fail.lock().expect("GETs");
            *failed += u64::from(fault.is_some());
            *fault
        };
        let fault = always.or_else(|| self.next(&OF_GETS));
        match fault {
            Some(Fault::Forbidden) => {
                let path = at.to_string();
                return Err(Error::PermissionDenied { path, source: "403".into() });
            }
            Some(Fault::RequestLost) => return Err(failed("500 Internal Error")),
            Some(Fault::Slow) => tokio::time::sleep(Duration::from_millis(3)).await,
            _ => {}
        }
        let before = self.gets_in_a_row();
        let delay = *self.delay.lock().expect("delay");
        tokio::time::sleep(delay).await;
        let answer = self.inner.get_opts(at, how).await?;
        self.gets_in_a_row.fetch_max(before + 1, Ordering::SeqCst);
        if fault != Some(Fault::CutShort) {
            return Ok(answer);
        }
        let (meta, range) = (answer.meta.clone(), answer.range.clone());
        let (attributes, extensions) = (answer.attributes.clone(), answer.extensions.clone());
        let bytes = answer.bytes().await?;
        let half = bytes.slice(..bytes.len() / 2);
        let body = stream::iter([Ok(half), Err(failed("the body ended early"))]);
        let payload = GetResultPayload::Stream(body.boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let fault = self.next(&OF_DELETES);
        let paths: Vec<_> = paths.collect().now_or_never().expect("they are at hand");
        if fault == Some(Fault::RequestLost) {
            return fails_with("503 Slow Down");
        }
        self.keep_images_amid(&paths.iter().flatten().cloned().collect::<Vec<_>>());
        let deleted = if fault == Some(Fault::CutShort) { paths.len() / 2 } else { paths.len() };
        for path in paths.iter().take(deleted).flatten() {
            let gone = self.inner.delete(path).now_or_never().expect("memory answers at once");
            gone.expect("deleted");
            self.keep_image();
        }
        match fault {
            Some(_) => fails_with("connection reset"),
            None => stream::iter(paths).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let fault = match self.fails_to_list() {
            true => Some(Fault::RequestLost),
            false => self.next(&OF_LISTS),
        };
        let (lacks, broken_after) = self.lacks();
        let all = self.inner.list(prefix).filter(move |entry| {
            let is_there = entry.as_ref().map_or(true, |meta| !lacks.contains(&meta.location));
            std::future::ready(is_there)
        });
        match fault {
            Some(Fault::RequestLost) => fails_with("429 Too Many Requests"),
            Some(_) => all.take(broken_after).chain(fails_with("connection reset")).boxed(),
            None => all.boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, how: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, how).await
    }
}
