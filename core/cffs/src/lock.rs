//! Locks with an order.
//!
//! A thread takes locks in the order of [`Rank`] (the table in ARCHITECTURE has what each protects). In
//! builds with debug assertions each thread keeps a list of the locks that it holds, and taking a lock out of
//! order fails an assertion, even if no other thread holds it. Otherwise the locks are those of
//! `parking_lot`.
//!
//! A lock may be tried out of order, since trying does not wait.
//!
//! With the feature `schedules` the locks, the conditions and the threads of the core go through
//! `schedule`, which makes each interleaving repeatable. [`Rule`] says which rules of the table a test can
//! break.

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

#[cfg(not(feature = "schedules"))]
use parking_lot as raw;
#[cfg(not(feature = "schedules"))]
pub use std::thread::scope;

#[cfg(feature = "schedules")]
use schedule as raw;
#[cfg(feature = "schedules")]
pub use schedule::scope;

pub use rules::Rule;

/// The number of threads among which work can be divided: one in a schedule, which repeats only the threads
/// that it knows.
pub fn processors() -> usize {
    #[cfg(feature = "schedules")]
    if schedule::is_scheduled() {
        return 1;
    }
    crate::processors::available()
}

/// Whether this time has passed since a moment; in a schedule, the seed decides.
pub fn has_passed(time: Duration, since: Instant) -> bool {
    #[cfg(feature = "schedules")]
    if schedule::is_scheduled() {
        return schedule::random(schedule::TIME_OUT_PART) == 0;
    }
    since.elapsed() >= time
}

/// Waits for this time; in a schedule, ends after any number of choices.
pub fn sleep(time: Duration) {
    #[cfg(feature = "schedules")]
    if schedule::is_scheduled() {
        return schedule::sleep();
    }
    std::thread::sleep(time);
}

mod rules;
#[cfg(feature = "schedules")]
pub mod schedule;

/// The order in which locks are taken, from top to bottom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Appends to a file in several pieces.
    Appends,
    /// One mark or quota is set or removed at a time.
    Marks,
    /// The walk of compactions for changes that find no space.
    Compaction,
    /// How far epochs have come: held while one is written.
    Epochs,
    /// Changes hold it for reading, the start of an epoch for writing.
    Gate,
    /// Directories, and the system area: a directory before those in it. Several at once.
    Directories,
    /// Files that are no directories. Several at once.
    Files,
    /// The external inode table.
    External,
    /// The inode locator table.
    Locator,
    /// Numbers of inodes.
    Numbers,
    /// A segment of the buffer cache, while it is read from the device.
    Segment,
    /// Free space. A bitmap may be read from the device under it.
    Allocator,
    /// The journal, while it is written or drained.
    Journal,
    /// How often blocks of a segment were replaced by a write.
    Version,
    /// Locks that are held for a moment. Under them, only locks of the next rank are taken.
    Leaf,
    /// The reason why the volume refuses changes, which callers that wait for an epoch examine.
    Latch,
}

#[cfg(debug_assertions)]
mod order {
    use std::cell::RefCell;

    use super::Rank;

    thread_local! {
        static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    /// The rank of a lock.
    pub struct Note(Rank);

    /// A lock that this thread holds until this is dropped.
    pub struct Held(Rank);

    impl Note {
        pub fn new(rank: Rank) -> Note {
            Note(rank)
        }

        /// Fails unless the lock may be waited for now.
        pub fn check(&self) {
            let rank = self.0;
            HELD.with_borrow(|held| {
                let several = matches!(rank, Rank::Directories | Rank::Files);
                let may = |last: &Rank| *last < rank || *last == rank && several;
                let in_order = held.iter().all(may);
                assert!(in_order, "a lock of rank {rank:?} is waited for with {held:?} held");
            });
        }

        pub fn hold(&self) -> Held {
            HELD.with_borrow_mut(|held| held.push(self.0));
            Held(self.0)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            // A lock may be held by a thread that ends.
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                if let Some(at) = held.iter().rposition(|rank| *rank == self.0) {
                    held.remove(at);
                }
            });
        }
    }
}

#[cfg(not(debug_assertions))]
mod order {
    use super::Rank;

    pub struct Note;
    pub struct Held;

    impl Note {
        #[inline(always)]
        pub fn new(_: Rank) -> Note {
            Note
        }

        #[inline(always)]
        pub fn check(&self) {}

        #[inline(always)]
        pub fn hold(&self) -> Held {
            Held
        }
    }
}

use order::{Held, Note};

/// The guard of a lock, and the record that this thread holds it.
pub struct Guard<G> {
    guard: G,
    _held: Held,
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// The guard of a [`Mutex`].
pub type MutexGuard<'a, T> = Guard<raw::MutexGuard<'a, T>>;
/// A reader's guard of an [`RwLock`].
pub type ReadGuard<'a, T> = Guard<raw::RwLockReadGuard<'a, T>>;
/// A writer's guard of an [`RwLock`].
pub type WriteGuard<'a, T> = Guard<raw::RwLockWriteGuard<'a, T>>;

#[cfg(feature = "schedules")]
impl<T> WriteGuard<'_, T> {
    /// Releases the lock for a moment, to break a rule.
    pub fn bump(&mut self) {
        self.guard.bump();
    }
}

/// A lock for one thread at a time.
pub struct Mutex<T> {
    lock: raw::Mutex<T>,
    rank: Note,
}

impl<T> Mutex<T> {
    /// A lock of this rank.
    pub fn new(rank: Rank, value: T) -> Mutex<T> {
        Mutex { lock: raw::Mutex::new(value), rank: Note::new(rank) }
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.rank.check();
        Guard { guard: self.lock.lock(), _held: self.rank.hold() }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        Some(Guard { guard: self.lock.try_lock()?, _held: self.rank.hold() })
    }
}

/// A lock for one writer or many readers.
pub struct RwLock<T> {
    lock: raw::RwLock<T>,
    rank: Note,
}

impl<T> RwLock<T> {
    /// A lock of this rank.
    pub fn new(rank: Rank, value: T) -> RwLock<T> {
        RwLock { lock: raw::RwLock::new(value), rank: Note::new(rank) }
    }

    /// Waits until no thread writes.
    #[inline]
    pub fn read(&self) -> ReadGuard<'_, T> {
        self.rank.check();
        Guard { guard: self.lock.read(), _held: self.rank.hold() }
    }

    /// Waits until no other thread reads or writes.
    #[inline]
    pub fn write(&self) -> WriteGuard<'_, T> {
        self.rank.check();
        Guard { guard: self.lock.write(), _held: self.rank.hold() }
    }

    /// Reads if no thread writes.
    #[inline]
    pub fn try_read(&self) -> Option<ReadGuard<'_, T>> {
        Some(Guard { guard: self.lock.try_read()?, _held: self.rank.hold() })
    }

    /// Writes if no other thread reads or writes.
    #[inline]
    pub fn try_write(&self) -> Option<WriteGuard<'_, T>> {
        Some(Guard { guard: self.lock.try_write()?, _held: self.rank.hold() })
    }

    /// Whether a thread writes.
    pub fn is_locked_exclusive(&self) -> bool {
        self.lock.is_locked_exclusive()
    }

    /// The value that the lock protects, without locking: no other thread has access to it.
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
}

/// A condition that threads wait for, under the lock of the data that it concerns.
#[derive(Default)]
pub struct Condvar(raw::Condvar);

impl Condvar {
    /// Waits until it is notified.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.0.wait(&mut guard.guard);
    }

    /// Waits until it is notified, or until this moment; false in the latter case.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, until: Instant) -> bool {
        !self.0.wait_until(&mut guard.guard, until).timed_out()
    }

    /// Waits until it is notified, at most for this time; false after it.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> bool {
        !self.0.wait_for(&mut guard.guard, timeout).timed_out()
    }

    /// Wakes one thread that waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests;
