//! The writer of a volume: its claim, its records, and its collection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::RwLock;
use uuid::Uuid;

use crate::chunks::{Chunks, Wanted};
use crate::collect::{self, Collection, Mark, Swept, WINDOW_BYTES};
use crate::commit::{self, Owner, Turns};
use crate::error::Error;
use crate::extents::Extents;
use crate::format::{self, Kind, Object, Place, Record};
use crate::history::History;
use crate::identity::Format;
use crate::state::State;
use crate::store::Store;
use crate::succession::{Predecessor, Term};
use crate::upload::Uploader;
use crate::vault;

/// The number of records after which a map is written, if at least the map's length in bytes was written.
/// Without a map, an opening would have to read all records.
const RECORDS_PER_MAP: u64 = 64;
/// A sweep follows when one part in this many of the live bytes was written since the last one.
const SHARE_UNTIL_SWEEP: u64 = 8;
/// When one part in this many of the live bytes was written during a sweep, commits wait for it. This keeps a
/// store that lists and deletes more slowly than it accepts writes from filling up.
const SHARE_UNTIL_WAIT: u64 = 2;
/// How long a program tries to take a volume over from a writer that continues.
const TAKE_OVER_FOR: Duration = Duration::from_secs(120);
/// The number of objects sent concurrently: while one is transferred, others wait for their answers.
const AHEAD_MAX: usize = 4;

/// Options for opening a volume in a store.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Claim nothing, and refuse writes.
    pub read_only: bool,
    /// Claim the volume although its last writer has not released it. That writer can no longer write.
    pub take_over: bool,
    /// Count missing and damaged objects as lost: reads of them fail as those of a bad sector do.
    pub without_objects: bool,
    /// How long a failing request is repeated; forever by default, since a failed sync ends all writing.
    pub patience: Option<Duration>,
    /// When dead objects are deleted.
    pub collection: Collection,
    /// Called with the reason why an opening waits, to show it to the user.
    pub note: Option<fn(&str)>,
    /// The program that has handed the volume over to this one. The volume is refused if another program has
    /// written it since. A failed opening is retried for up to `patience`.
    pub succeeds: Option<Predecessor>,
}

/// Appends to the log.
pub struct Writer {
    store: Arc<Store>,
    chunks: Arc<Chunks>,
    state: Arc<RwLock<State>>,
    format: Format,
    options: OpenOptions,
    /// Sends staged records, if there is a staging directory.
    uploader: Option<Uploader>,
    /// Its own records.
    turns: Turns,
    term: u64,
    /// The instance of the term's objects: it differs even if the store hides records of this slot.
    instance: u32,
    /// The last used slot.
    slot: u64,
    checksum: u32,
    /// The number of objects of contents in this term.
    data_count: u64,
    /// Contents that are being sent, the oldest first. A record waits for all of them.
    ahead: VecDeque<JoinHandle<Result<(), Error>>>,
    /// Whether one of its records has changed anything.
    has_written: bool,
    records_since_map: u64,
    bytes_since_map: u64,
    bytes_since_mark: u64,
    /// The mark to sweep after the grace period, and its time.
    mark: Option<(Instant, Mark)>,
    sweeping: Option<JoinHandle<Result<Swept, Error>>>,
    /// The bytes since the mark at which a commit waits for the current sweep.
    sweep_bytes_max: u64,
    /// Ranges of the device to compact.
    plan: VecDeque<(u64, u64)>,
}

/// A claimed volume.
pub struct Claimed {
    history: History,
    slot: u64,
    instance: u32,
    checksum: u32,
}

/// Claims a volume whose history was read before.
///
/// If many records were written since the history was read, the slot may have been collected. Then records
/// follow it, since the last one is never deleted, and the claim is void.
///
/// # Errors
///
/// [`Error::Claimed`]; [`Error::Busy`]; errors of the store.
pub fn claim(store: &Store, mut history: History, options: &OpenOptions) -> Result<Claimed, Error> {
    let began = Instant::now();
    let mut lost = 0;
    loop {
        let (uuid, term) = (&history.format.uuid, history.term);
        let was_here = || store.staging().is_some_and(|staging| staging.has_claimed(uuid, term));
        let last = Predecessor::Writer(Term { uuid: *uuid, slot: term });
        if options.succeeds.is_some_and(|predecessor| predecessor != last) {
            return Err(Error::Fenced { slot: term });
        }
        let is_anothers = !history.is_released && options.succeeds.is_none() && !was_here();
        if is_anothers && !options.take_over {
            return Err(Error::Claimed {
                term,
                by: None,
                has_ended: false,
                is_staging: history.is_staging,
            });
        }
        let slot = history.slot + 1;
        let claim = Record {
            uuid: history.format.uuid,
            slot,
            term: slot,
            nonce: *Uuid::new_v4().as_bytes(),
            previous: history.checksum,
            kind: Kind::Claim,
            is_staging: store.staging().is_some(),
            instance: store.vault().map_or(0, |_| vault::new_instance()),
            size_bytes: history.size_bytes,
            extents: Extents::default(),
        };
        let (bytes, checksum) = claim.encode();
        match commit::settle(store, slot, claim.nonce, &bytes.into(), options.patience)? {
            // The old writer was faster. Its commit is part of the claimed state.
            Owner::Another => {
                lost += 1;
                if lost > 1 {
                    outrun(store, lost, began, options)?;
                }
                if history.read_on(store).is_err() {
                    history = History::read(store)?;
                }
            }
            Owner::Ours if !is_followed(store, slot, options.patience)? => {
                if lost > 1 {
                    commit::withdraw(store);
                }
                if is_anothers && history.is_staging {
                    tracing::warn!(
                        "the volume was taken from a program with a staging directory: the changes staged \
                         there are lost"
                    );
                }
                return Ok(Claimed { history, slot, instance: claim.instance, checksum });
            }
            Owner::Ours => history = History::read(store)?,
        }
    }
}

/// Whether a record follows the slot of this program's claim. Other objects may have been put next to the
/// records. A failing listing is repeated: another attempt to open the volume would find the claim.
fn is_followed(store: &Store, slot: u64, patience: Option<Duration>) -> Result<bool, Error> {
    let list = || store.list_after("log", &format::record_name(slot));
    let names = commit::again(store.counter(), "list the log", patience, list)?;
    Ok(names.iter().any(|name| format::slot_of_record(name).is_some()))
}

/// Asks a writer that was faster again to wait for this program's claim. Gives up after a while.
fn outrun(store: &Store, lost: u32, began: Instant, options: &OpenOptions) -> Result<(), Error> {
    if began.elapsed() >= TAKE_OVER_FOR {
        commit::withdraw(store);
        return Err(Error::Busy { seconds: TAKE_OVER_FOR.as_secs() });
    }
    tracing::warn!(lost, "another program is writing to the volume; asking it to give way");
    if let Some(note) = options.note.filter(|_| lost == 2) {
        note("the program that has the volume open is still writing; asking it to give way");
    }
    commit::ask_for_way(store)
}

impl Claimed {
    /// The volume's identity.
    pub fn format(&self) -> &Format {
        &self.history.format
    }

    /// See [`History::is_unmade`].
    pub fn is_unmade(&self) -> bool {
        self.history.is_unmade()
    }

    /// A writer, and the state that it changes.
    ///
    /// # Errors
    ///
    /// Errors of the staging directory.
    pub fn into_writer(
        self,
        store: Arc<Store>,
        chunks: Arc<Chunks>,
        options: OpenOptions,
    ) -> Result<(Writer, Arc<RwLock<State>>), Error> {
        let Claimed { history, slot, instance, checksum } = self;
        let (format, records) = (history.format.clone(), history.records_since_map + 1);
        let state = Arc::new(RwLock::new(State::new(history)));
        let uploader = match store.staging() {
            Some(staging) => {
                staging.note_claim(&format.uuid, slot)?;
                let (staging, store) = (Arc::clone(staging), Arc::clone(&store));
                Some(Uploader::start(staging, store, options.patience)?)
            }
            None => None,
        };
        let writer = Writer {
            store,
            chunks,
            state: Arc::clone(&state),
            format,
            options,
            uploader,
            turns: Turns::default(),
            term: slot,
            slot,
            instance,
            checksum,
            data_count: 0,
            ahead: VecDeque::new(),
            has_written: false,
            records_since_map: records,
            bytes_since_map: 0,
            bytes_since_mark: 0,
            mark: None,
            sweeping: None,
            sweep_bytes_max: u64::MAX,
            plan: VecDeque::new(),
        };
        Ok((writer, state))
    }
}

impl Writer {
    /// Fails if the counters contradict each other. Debug builds check this after each record.
    fn check(&self) {
        assert!(self.slot >= self.term, "the writer's records follow its claim");
        assert!(self.ahead.len() <= AHEAD_MAX, "few objects are being sent");
        assert!(self.mark.is_none() || self.sweeping.is_none(), "one version is swept at a time");
        if let Some((_, mark)) = &self.mark {
            assert!(mark.slot <= self.slot, "a mark is of a version that exists");
            assert!(mark.data_count <= self.data_count, "a mark counts objects that exist");
        }
    }

    /// Commits all writes.
    pub fn commit(&mut self) -> Result<(), Error> {
        self.wait_for_ahead(0)?;
        let object = Object::record(self.slot + 1, self.instance);
        let Some((mut extents, contents)) = self.state.write().send(object) else { return Ok(()) };
        put_behind_head(&mut extents, object);
        self.append(Kind::Epoch, extents, contents)?;
        self.maintain()
    }

    /// Drops all uncommitted changes. Contents that were sent ahead become garbage.
    pub fn drop_changes(&mut self) -> Result<(), Error> {
        self.wait_for_ahead(0)?;
        self.state.write().drop_uncommitted();
        Ok(())
    }

    /// Sends the pending bytes ahead of their record, unless another thread did, and returns once at most
    /// [`AHEAD_MAX`] objects are being sent.
    pub fn send_ahead(&mut self) -> Result<(), Error> {
        let object = Object::data(self.term, self.data_count, self.instance);
        let contents = {
            let mut state = self.state.write();
            if !state.is_much() {
                return Ok(());
            }
            state.send_ahead(object)
        };
        let Some(contents) = contents.map(Bytes::from) else { return Ok(()) };
        self.data_count += 1;
        self.count(contents.len() as u64);
        let (store, patience) = (Arc::clone(&self.store), self.options.patience);
        let put = move || commit::put(&store, &object.name(), &contents, patience);
        let thread = std::thread::Builder::new().name(String::from("ahead"));
        self.ahead.push_back(thread.spawn(put).map_err(Error::Runtime)?);
        self.wait_for_ahead(AHEAD_MAX)
    }

    /// Waits until at most `most` objects are being sent.
    fn wait_for_ahead(&mut self, most: usize) -> Result<(), Error> {
        let is_due = |ahead: &VecDeque<JoinHandle<_>>| {
            ahead.len() > most || ahead.front().is_some_and(JoinHandle::is_finished)
        };
        while is_due(&self.ahead)
            && let Some(first) = self.ahead.pop_front()
        {
            first.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            self.state.write().arrived();
        }
        Ok(())
    }

    /// Ends the term. The map is written after the release, so that it includes the release for the next
    /// opening.
    pub fn release(mut self, may_compact: bool) -> Result<(), Error> {
        if let Some(sweeping) = self.sweeping.take() {
            self.swept(sweeping);
        }
        self.wait_for_ahead(0)?;
        if may_compact {
            self.compact_beginning()?;
        }
        self.drain()?;
        self.append(Kind::Release, Extents::default(), Vec::new())?;
        if self.has_written || self.records_since_map > RECORDS_PER_MAP {
            self.write_map_of(Kind::Release)?;
        }
        Ok(())
    }

    /// Ends writing, so that the next program can claim the volume with the returned term; all others are
    /// refused as before. A running sweep continues, or ends with the process as in a crash.
    pub fn hand_over(mut self) -> Result<Term, Error> {
        self.wait_for_ahead(0)?;
        self.drain()?;
        Ok(Term { uuid: self.format.uuid, slot: self.term })
    }

    /// Commits, then deletes dead objects immediately, without a grace period for readers that hold no
    /// snapshot, and compacts sparse ones.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub fn collect(&mut self) -> Result<Swept, Error> {
        self.commit()?;
        let mut all = Swept::default();
        for is_second in [false, true] {
            self.write_map()?;
            let swept = collect::sweep(&self.store, &self.new_mark())?;
            all.objects += swept.objects;
            all.bytes += swept.bytes;
            if is_second || swept.sparse.is_empty() {
                break;
            }
            self.plan = collect::ranges_of(&self.state.read().committed, &swept.sparse).into();
            while self.compact()? {}
        }
        Ok(all)
    }

    /// Puts a record into the next slot.
    fn append(
        &mut self,
        kind: Kind,
        extents: Extents<Place>,
        contents: Vec<u8>,
    ) -> Result<(), Error> {
        assert!(self.ahead.is_empty(), "a record waits for the objects that it names");
        let slot = self.slot + 1;
        let record = Record {
            uuid: self.format.uuid,
            slot,
            term: self.term,
            nonce: *Uuid::new_v4().as_bytes(),
            previous: self.checksum,
            kind,
            is_staging: self.uploader.is_some(),
            instance: self.instance,
            size_bytes: self.state.read().size_bytes,
            extents,
        };
        let (mut bytes, checksum) = record.encode();
        bytes.extend_from_slice(&contents);
        let bytes = Bytes::from(bytes);
        let len = bytes.len() as u64;
        let patience = self.options.patience;
        match self.uploader.as_ref().filter(|_| kind == Kind::Epoch) {
            Some(uploader) => uploader.put(slot, record.nonce, &bytes)?,
            None => match self.turns.settle(&self.store, slot, record.nonce, &bytes, patience)? {
                Owner::Another => return Err(Error::Fenced { slot }),
                Owner::Ours => {}
            },
        }
        self.slot = slot;
        self.checksum = checksum;
        self.records_since_map += 1;
        if kind == Kind::Epoch {
            self.has_written = true;
            self.count(len);
            self.state.write().commit(&record);
            // A superblock that was written will soon be read.
            self.chunks.keep_record(Object::record(slot, self.instance), &bytes);
        }
        if cfg!(debug_assertions) {
            self.check();
        }
        Ok(())
    }

    /// Waits until all staged records are in the store.
    fn drain(&self) -> Result<(), Error> {
        self.uploader.as_ref().map_or(Ok(()), Uploader::drain)
    }

    fn count(&mut self, bytes: u64) {
        self.bytes_since_map += bytes;
        self.bytes_since_mark += bytes;
    }

    /// Writes the map of all bytes after the last record, and the hint that names it.
    fn write_map(&mut self) -> Result<(), Error> {
        self.write_map_of(Kind::Epoch)
    }

    /// The same if the last record has this kind.
    fn write_map_of(&mut self, kind: Kind) -> Result<(), Error> {
        // A map may only refer to records that are in the store.
        self.drain()?;
        let map = {
            let state = self.state.read();
            let last = (self.slot, self.term, self.checksum);
            let extents = state.committed.clone();
            let is_staging = self.uploader.is_some();
            Record {
                kind,
                is_staging,
                ..Record::map(self.format.uuid, last, state.size_bytes, extents)
            }
        };
        let name = format::map_name(map.slot, map.term);
        commit::put(&self.store, &name, &map.encode().0.into(), self.options.patience)?;
        let hint = format::encode_hint(map.slot, map.term);
        commit::put(&self.store, "head", &hint.into(), self.options.patience)?;
        self.records_since_map = 0;
        self.bytes_since_map = 0;
        Ok(())
    }

    /// Does the due work after a commit: a map, a step of the plan, and a sweep.
    fn maintain(&mut self) -> Result<(), Error> {
        // This waits for the store, which a staged sync need not do.
        if self.uploader.as_ref().is_some_and(Uploader::is_behind) {
            return Ok(());
        }
        let map_bytes = Record::head_bytes(self.state.read().committed.len()) as u64;
        let is_due = self.records_since_map >= RECORDS_PER_MAP && self.bytes_since_map >= map_bytes;
        if is_due && self.uploader.as_ref().is_none_or(Uploader::has_caught_up) {
            self.write_map()?;
            self.plan_sweep();
        }
        let is_behind = self.bytes_since_mark >= self.sweep_bytes_max;
        if let Some(sweeping) =
            self.sweeping.take_if(|sweeping| sweeping.is_finished() || is_behind)
        {
            self.swept(sweeping);
        }
        let is_due =
            |(made, _): &mut (Instant, Mark)| made.elapsed() >= self.options.collection.grace;
        if let Some((_, mark)) = self.mark.take_if(is_due) {
            let store = Arc::clone(&self.store);
            let waited_for = mark.live.values().sum::<u64>() / SHARE_UNTIL_WAIT;
            self.sweep_bytes_max =
                self.bytes_since_mark + waited_for.max(self.options.collection.after_bytes);
            self.sweeping = Some(std::thread::spawn(move || collect::sweep(&store, &mark)));
        }
        let is_under_way = self.compact()?;
        self.keep_map_small(is_under_way)
    }

    /// Compacts fragmented ranges: one per commit if there are too many extents, all if there are far too
    /// many.
    fn keep_map_small(&mut self, is_under_way: bool) -> Result<(), Error> {
        let max = self.options.collection.extents_max;
        let count = self.state.read().committed.len();
        if count <= if is_under_way { max * 2 } else { max } {
            return Ok(());
        }
        self.plan = collect::fragmented(&self.state.read().committed, count - max / 2).into();
        while self.state.read().committed.len() > max * 2 && self.compact()? {}
        Ok(())
    }

    /// Plans a sweep from the map that was just written, if it may free much.
    fn plan_sweep(&mut self) {
        let is_planned = self.mark.is_some() || self.sweeping.is_some() || !self.plan.is_empty();
        if is_planned || self.bytes_since_mark < self.options.collection.after_bytes {
            return;
        }
        let mark = self.new_mark();
        if self.bytes_since_mark >= mark.live.values().sum::<u64>() / SHARE_UNTIL_SWEEP {
            self.mark = Some((Instant::now(), mark));
            self.bytes_since_mark = 0;
        }
    }

    /// The mark of the map that was just written.
    fn new_mark(&self) -> Mark {
        Mark {
            slot: self.slot,
            term: self.term,
            data_count: self.data_count,
            live: collect::live(&self.state.read().committed),
        }
    }

    /// Uses the result of a sweep. A failed sweep is left to the next one.
    fn swept(&mut self, sweeping: JoinHandle<Result<Swept, Error>>) {
        match sweeping.join() {
            Ok(Ok(swept)) => {
                tracing::info!(swept.objects, swept.bytes, "deleted dead objects");
                let ranges = collect::ranges_of(&self.state.read().committed, &swept.sparse);
                self.plan.extend(ranges);
            }
            Ok(Err(error)) => tracing::warn!(%error, "dead objects were not all deleted"),
            Err(_) => tracing::warn!("dead objects were not all deleted"),
        }
    }

    /// Compacts the beginning of the device if it spans many objects, for the next opening.
    fn compact_beginning(&mut self) -> Result<(), Error> {
        if self.has_written && !self.state.read().has_uncommitted() {
            self.plan =
                collect::scattered_beginning(&self.state.read().committed).into_iter().collect();
            self.compact()?;
        }
        Ok(())
    }

    /// Compacts the next ranges of the plan with an ordinary record; returns whether there were any.
    ///
    /// Nothing is staged or in flight here, so the committed state is complete except for pending pieces,
    /// which stay above it. Holes in a range become stored zeros, so that the range is one extent.
    fn compact(&mut self) -> Result<bool, Error> {
        let object = Object::record(self.slot + 1, self.instance);
        let mut moved = Extents::default();
        let mut wanted = Vec::new();
        let mut len_all = 0;
        while len_all < WINDOW_BYTES
            && let Some((start, len)) = self.plan.pop_front()
        {
            let there = self.state.read().committed.within(start, len);
            let (Some(first), Some(last)) = (there.first(), there.last()) else { continue };
            let (first, end) = (first.0, last.0 + last.1);
            for (start, len, place) in there {
                if let Place::Stored(object, at) = place {
                    let target = (len_all + start - first) as usize;
                    wanted.push(Wanted { target, len, object, at });
                }
            }
            moved.insert(first, end - first, Place::Stored(object, len_all));
            len_all += end - first;
        }
        if wanted.is_empty() {
            return Ok(false);
        }
        let mut contents = vec![0; len_all as usize];
        if let Err(error) = self.chunks.read(&wanted, &mut contents) {
            tracing::warn!(%error, "cannot compact data that is spread over many objects");
            self.plan.clear();
            return Ok(false);
        }
        put_behind_head(&mut moved, object);
        self.append(Kind::Epoch, moved, contents)?;
        Ok(true)
    }
}

/// Moves the extents to the contents of a record, which follow its head, whose length depends on the number
/// of extents.
fn put_behind_head(extents: &mut Extents<Place>, record: Object) {
    let head = Record::head_bytes(extents.len()) as u64;
    extents.redirect(|place| match place {
        Place::Stored(object, at) if *object == record => *at += head,
        Place::Stored(..) | Place::Zeros => {}
    });
}
