//! Deterministic schedules, for tests of interleavings (feature `schedules`).
//!
//! The threads of a [`Schedule`] run one at a time. At each lock, each wait and each request of a test's
//! device, the seed alone determines which thread runs next. The same seed repeats the interleaving, and
//! another seed gives another one. A wait with a limit may end at any time. Other threads are not affected.
//!
//! ```text
//!             point                 released, notified, time out
//!   running ────────▶ ready   waiting ─────────────────────────▶ ready ──chosen──▶ running
//!      └───────────── lock held, condition ────▲
//! ```
//!
//! If no thread can run, the schedule fails and says what each one waits for.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::Arc;

use parking_lot::{Condvar as Turn, Mutex as State};

mod locks;
mod scope;

pub use locks::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult,
};
pub use scope::{Scope, scope};

use super::Rule;

/// A schedule with more choices than this counts as endless.
const CHOICES_MAX: u64 = 2_000_000;
/// One in this many choices ends a wait with a limit, while other threads can run.
pub(super) const TIME_OUT_PART: u64 = 16;

/// The threads of one test, and who runs.
pub struct Schedule {
    state: State<Threads>,
    broken: Option<Rule>,
}

struct Threads {
    random: Random,
    style: Style,
    threads: Vec<Thread>,
    running: usize,
    choices: u64,
    trace: u64,
    /// A thread has panicked or none can run: all end.
    is_over: bool,
    failure: Option<String>,
}

struct Thread {
    status: Status,
    turn: Arc<Turn>,
    /// By [`Style::Priorities`].
    priority: u64,
    /// A wait for a condition has ended because it was notified.
    is_notified: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Ready,
    Waiting(Wait),
    Ended,
}

/// The reason why a thread waits; locks and conditions by their address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Lock(usize),
    Condition { at: usize, is_limited: bool },
    End(usize),
}

/// How threads are chosen.
#[derive(Clone, Copy)]
enum Style {
    /// One in this many choices is for another thread.
    Switches(u64),
    /// The thread of the highest priority runs; one in this many choices lowers its priority.
    Priorities(u64),
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

thread_local! {
    static CURRENT: RefCell<Option<(Arc<Schedule>, usize)>> = const { RefCell::new(None) };
}

/// The panic that ends a thread of a failed schedule.
struct Abandoned;

/// The schedule of this thread, and the thread's number in it.
fn current() -> Option<(Arc<Schedule>, usize)> {
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

/// Lets another thread run, if that is chosen.
pub fn point() {
    if let Some((schedule, me)) = current() {
        schedule.point(me);
    }
}

/// Lets other threads run, until the end of the wait is chosen.
pub(super) fn sleep() {
    if let Some((schedule, me)) = current() {
        schedule.wait(me, Wait::Condition { at: 0, is_limited: true });
    }
}

/// Whether a rule is kept: always, but in a schedule that breaks it.
pub fn holds(rule: Rule) -> bool {
    current().is_none_or(|(schedule, _)| schedule.broken != Some(rule))
}

/// A number below `limit` that depends on the seed; 0 outside of a schedule.
pub fn random(limit: u64) -> u64 {
    current().map_or(0, |(schedule, _)| schedule.state.lock().random.below(limit))
}

/// Counts of a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// How many choices it took.
    pub choices: u64,
    /// A number that differs if the choices differ.
    pub trace: u64,
}

/// The body of a thread.
pub type Body<'a> = Box<dyn FnOnce() + Send + 'a>;

/// Runs threads to their end by the schedule of a seed, with a rule broken if one is given.
///
/// # Errors
///
/// The message of a thread's panic, or that all threads wait.
pub fn run(seed: u64, broken: Option<Rule>, bodies: Vec<Body<'_>>) -> Result<Ran, String> {
    let mut random = Random(seed);
    let style = match random.below(4) {
        0 => Style::Switches(2),
        1 => Style::Switches(30),
        2 => Style::Priorities(20),
        _ => Style::Priorities(200),
    };
    let threads = bodies.iter().map(|_| Thread::new(&mut random)).collect::<Vec<_>>();
    let running = random.below(threads.len() as u64) as usize;
    let threads = Threads {
        random,
        style,
        threads,
        running,
        choices: 0,
        trace: 0,
        is_over: false,
        failure: None,
    };
    let schedule = Arc::new(Schedule { state: State::new(threads), broken });
    std::thread::scope(|scope| {
        for (me, body) in bodies.into_iter().enumerate() {
            let schedule = schedule.clone();
            scope.spawn(move || schedule.run_thread(me, body));
        }
    });
    let state = schedule.state.lock();
    match state.failure.clone() {
        Some(failure) => Err(failure),
        None => Ok(Ran { choices: state.choices, trace: state.trace }),
    }
}

impl Thread {
    fn new(random: &mut Random) -> Thread {
        let priority = random.next() | 1 << 63;
        Thread { status: Status::Ready, turn: Arc::default(), priority, is_notified: false }
    }
}

fn text_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| String::from("a panic without a text"))
}

impl Schedule {
    fn run_thread(self: Arc<Schedule>, me: usize, body: impl FnOnce()) {
        CURRENT.set(Some((self.clone(), me)));
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            self.await_turn(me);
            body();
        }));
        CURRENT.set(None);
        let mut state = self.state.lock();
        if let Err(payload) = outcome
            && !payload.is::<Abandoned>()
        {
            state.fail(format!("thread {me}: {}", text_of(&*payload)));
        }
        state.threads[me].status = Status::Ended;
        state.wake(|wait| wait == Wait::End(me), false);
        if !state.is_over && !state.has_ended() {
            state.choose(me);
        }
    }

    fn await_turn(&self, me: usize) {
        let mut state = self.state.lock();
        let turn = state.threads[me].turn.clone();
        while state.running != me && !state.is_over {
            turn.wait(&mut state);
        }
        let is_over = state.is_over;
        drop(state);
        if is_over {
            abandon();
        }
    }

    fn point(&self, me: usize) {
        let mut state = self.state.lock();
        if !state.is_over {
            state.choose(me);
        }
        drop(state);
        self.await_turn(me);
    }

    /// Waits; whether it ended because it was notified.
    fn wait(&self, me: usize, wait: Wait) -> bool {
        let mut state = self.state.lock();
        if !state.is_over {
            state.threads[me].is_notified = false;
            state.threads[me].status = Status::Waiting(wait);
            state.choose(me);
        }
        drop(state);
        self.await_turn(me);
        self.state.lock().threads[me].is_notified
    }
}

/// Ends a thread of a schedule that has failed, unless it is ending.
fn abandon() {
    if !std::thread::panicking() {
        panic_any(Abandoned);
    }
}

impl Threads {
    fn fail(&mut self, why: String) {
        self.failure.get_or_insert(why);
        self.give_up();
    }

    /// Has all threads end.
    fn give_up(&mut self) {
        self.is_over = true;
        self.threads.iter().for_each(|thread| {
            thread.turn.notify_all();
        });
    }

    fn has_ended(&self) -> bool {
        self.threads.iter().all(|thread| thread.status == Status::Ended)
    }

    /// Makes the threads that wait for this ready; one of them if `only_one`.
    fn wake(&mut self, is_awaited: impl Fn(Wait) -> bool, only_one: bool) {
        let is_woken =
            |thread: &Thread| matches!(thread.status, Status::Waiting(wait) if is_awaited(wait));
        let mut woken: Vec<usize> =
            (0..self.threads.len()).filter(|number| is_woken(&self.threads[*number])).collect();
        if only_one && woken.len() > 1 {
            woken = vec![woken[self.random.below(woken.len() as u64) as usize]];
        }
        for number in woken {
            self.threads[number].status = Status::Ready;
            self.threads[number].is_notified = true;
        }
    }

    /// Chooses the thread that runs next; `me` runs now.
    fn choose(&mut self, me: usize) {
        self.choices += 1;
        if self.choices > CHOICES_MAX {
            return self.fail(format!("no end after {CHOICES_MAX} choices"));
        }
        let with_status = |threads: &[Thread], is: fn(Status) -> bool| -> Vec<usize> {
            (0..threads.len()).filter(|number| is(threads[*number].status)).collect()
        };
        let mut ready = with_status(&self.threads, |status| status == Status::Ready);
        let limited = with_status(&self.threads, |status| {
            matches!(status, Status::Waiting(Wait::Condition { is_limited: true, .. }))
        });
        if !limited.is_empty() && (ready.is_empty() || self.random.below(TIME_OUT_PART) == 0) {
            let over = limited[self.random.below(limited.len() as u64) as usize];
            self.threads[over].status = Status::Ready;
            ready.push(over);
        }
        if ready.is_empty() {
            let waiting: Vec<String> = (0..)
                .zip(&self.threads)
                .filter(|(_, thread)| thread.status != Status::Ended)
                .map(|(number, thread)| format!("thread {number}: {:x?}", thread.status))
                .collect();
            return self.fail(format!("all threads wait: {}", waiting.join(", ")));
        }
        let next = match self.style {
            Style::Switches(part) if ready.contains(&me) && self.random.below(part) != 0 => me,
            Style::Switches(_) => ready[self.random.below(ready.len() as u64) as usize],
            Style::Priorities(part) => {
                if self.random.below(part) == 0 {
                    self.threads[me].priority = self.random.next() >> 1;
                }
                let priority = |number: &usize| self.threads[*number].priority;
                ready.iter().copied().max_by_key(priority).unwrap_or(me)
            }
        };
        self.trace = (self.trace ^ next as u64).wrapping_mul(0x0100_0000_01b3).rotate_left(5);
        self.running = next;
        self.threads[next].turn.notify_all();
    }
}

/// Whether this thread runs by a schedule.
pub fn is_scheduled() -> bool {
    current().is_some()
}
