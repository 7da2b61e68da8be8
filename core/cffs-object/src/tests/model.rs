//! A model of the protocol, which tries every interleaving of a few steps: a writer that commits, writes maps
//! and deletes dead objects; a second writer that takes the volume over, does the same, and may in turn be
//! taken over by the first, which assumes it dead; a program that keeps a version; and requests that arrive
//! again, arbitrarily late. Without any one of the protocol's rules, the model finds a violation.
//!
//! Every epoch overwrites the one block of the device. So in a version only its last epoch is live, and the
//! earlier ones are dead.

use std::collections::HashSet;

const SLOTS: usize = 5;

/// The rules, each of which may be left out.
#[derive(Clone, Copy)]
struct Rules {
    /// Claims are never deleted.
    claims_stay: bool,
    /// A claim counts only if no record follows it.
    claims_are_verified: bool,
    /// A kept version counts only if there is no newer map.
    snapshots_are_verified: bool,
    /// Snapshots are listed after the map was written.
    snapshots_come_after_the_map: bool,
    /// Nothing at or after the map's slot is deleted.
    deletes_stop_at_the_map: bool,
    /// An inconsistent history is read again, from the newest map.
    gaps_are_noticed: bool,
}

const ALL: Rules = Rules {
    claims_stay: true,
    claims_are_verified: true,
    snapshots_are_verified: true,
    snapshots_come_after_the_map: true,
    deletes_stop_at_the_map: true,
    gaps_are_noticed: true,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Record {
    by: u8,
    is_claim: bool,
    slot: u8,
    /// The writer of the record that its maker had read in the previous slot.
    after: u8,
}

/// The records that a program has read, from slot 1 on.
type History = Vec<Record>;

fn live(history: &[Record]) -> Option<Record> {
    history.iter().rev().find(|record| !record.is_claim).copied()
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// Nothing has been read yet.
    Start,
    /// A map was read.
    Mapped(History),
    /// The next step claims the next slot.
    Claiming(History),
    /// The last record is its own claim, possibly in a slot that was collected.
    Verifying(History),
    /// It is the writer of the volume.
    Writing(History),
    /// The same, with the records found in snapshots before a map is written.
    Looked(History, Vec<Record>),
    /// The same after a map was written, with the records found in snapshots, if they were listed.
    Collecting(History, Option<Vec<Record>>, u8),
    /// It has stopped writing.
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Keeping {
    Start,
    Read(History),
    Put(History),
    Confirmed(History),
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    log: [Option<Record>; SLOTS],
    maps: Vec<History>,
    snapshot: Option<History>,
    /// All record-creating requests ever sent, which may arrive again.
    sent: Vec<Record>,
    acknowledged: [Option<Record>; SLOTS],
    writers: [Step; 2],
    epochs_left: [u8; 2],
    keeper: Keeping,
    /// Whether two records were acknowledged in one slot.
    is_split: bool,
}

impl World {
    /// A writer that has claimed the volume, with the numbers of epochs for it and the second one, and
    /// optionally a program that keeps a version.
    fn new(epochs: [u8; 2], keeps: bool) -> World {
        let claim = Record { by: 0, is_claim: true, slot: 1, after: 9 };
        let mut log = [None; SLOTS];
        log[0] = Some(claim);
        World {
            log,
            maps: Vec::new(),
            snapshot: None,
            sent: vec![claim],
            acknowledged: [None; SLOTS],
            writers: [
                Step::Writing(vec![claim]),
                if epochs[1] > 0 { Step::Start } else { Step::Done },
            ],
            epochs_left: epochs,
            keeper: if keeps { Keeping::Start } else { Keeping::Done },
            is_split: false,
        }
    }

    /// The history continued by the records that a LIST and GETs show; `None` if they are inconsistent.
    fn read_on(&self, mut history: History, rules: Rules) -> Option<History> {
        let first = history.len();
        for slot in first..SLOTS {
            let Some(record) = self.log[slot] else {
                let is_gap = self.log[slot..].iter().any(Option::is_some);
                return (!is_gap || !rules.gaps_are_noticed).then_some(history);
            };
            if history.last().is_some_and(|last| last.by != record.after) {
                return (!rules.gaps_are_noticed).then_some(history);
            }
            history.push(record);
        }
        Some(history)
    }

    fn newest_map(&self) -> History {
        self.maps.iter().max_by_key(|map| map.len()).cloned().unwrap_or_default()
    }

    fn send(&mut self, record: Record) -> bool {
        if !self.sent.contains(&record) {
            self.sent.push(record);
            self.sent.sort_unstable();
        }
        let place = &mut self.log[usize::from(record.slot) - 1];
        *place.get_or_insert(record) == record
    }

    /// Every possible next world.
    fn next(&self, rules: Rules) -> Vec<World> {
        let mut all = Vec::new();
        for record in &self.sent {
            let mut world = self.clone();
            if world.log[usize::from(record.slot) - 1].is_none() {
                world.send(*record);
                all.push(world);
            }
        }
        for by in [0, 1] {
            self.write(by, rules, &mut all);
        }
        self.keep(rules, &mut all);
        all
    }

    fn write(&self, by: u8, rules: Rules, all: &mut Vec<World>) {
        let me = usize::from(by);
        let mut then = |change: &mut dyn FnMut(&mut World) -> Step| {
            let mut world = self.clone();
            world.writers[me] = change(&mut world);
            all.push(world);
        };
        let next_record = |history: &History, is_claim| Record {
            by,
            is_claim,
            slot: history.len() as u8 + 1,
            after: history.last().map_or(9, |last| last.by),
        };
        match &self.writers[me] {
            Step::Start => {
                // The hint may name any map.
                for map in self.maps.iter().cloned().chain([self.newest_map()]) {
                    then(&mut |_| Step::Mapped(map.clone()));
                }
            }
            Step::Mapped(map) => then(&mut |world| {
                let newest = world.newest_map();
                let read = world.read_on(map.clone(), rules);
                match read.or_else(|| world.read_on(newest, rules)) {
                    Some(history) if history.len() < SLOTS => Step::Claiming(history),
                    _ => Step::Start,
                }
            }),
            Step::Claiming(history) => then(&mut |world| {
                let claim = next_record(history, true);
                let mut history = history.clone();
                if world.send(claim) {
                    history.push(claim);
                    return match rules.claims_are_verified {
                        true => Step::Verifying(history),
                        false => Step::Writing(history),
                    };
                }
                match world.log[history.len()] {
                    Some(record) if history.last().is_none_or(|last| last.by == record.after) => {
                        history.push(record);
                        match history.len() < SLOTS {
                            true => Step::Claiming(history),
                            false => Step::Done,
                        }
                    }
                    _ => Step::Start,
                }
            }),
            Step::Verifying(history) => {
                then(&mut |world| match world.log[history.len()..].iter().any(Option::is_some) {
                    true => Step::Start,
                    false => Step::Writing(history.clone()),
                })
            }
            Step::Writing(history) => {
                if self.epochs_left[me] > 0 && history.len() < SLOTS {
                    then(&mut |world| {
                        let record = next_record(history, false);
                        if !world.send(record) {
                            return Step::Done;
                        }
                        let slot = history.len();
                        world.epochs_left[me] -= 1;
                        world.is_split |=
                            world.acknowledged[slot].is_some_and(|other| other != record);
                        world.acknowledged[slot] = Some(record);
                        Step::Writing([&history[..], &[record]].concat())
                    });
                }
                if self.maps.contains(history) {
                    return;
                }
                then(&mut |world| match rules.snapshots_come_after_the_map {
                    true => world.put_map(history, None),
                    false => Step::Looked(history.clone(), world.kept()),
                });
            }
            Step::Looked(history, kept) => {
                then(&mut |world| world.put_map(history, Some(kept.clone())));
            }
            Step::Collecting(map, None, _) => {
                then(&mut |world| Step::Collecting(map.clone(), Some(world.kept()), 0));
            }
            Step::Collecting(map, Some(kept), from) => then(&mut |world| {
                let end = if rules.deletes_stop_at_the_map { map.len() - 1 } else { SLOTS };
                let is_dead = |record: Record| {
                    (!rules.claims_stay || !record.is_claim)
                        && live(map) != Some(record)
                        && !kept.contains(&record)
                };
                let mut slots = usize::from(*from)..end;
                match slots.find(|slot| world.log[*slot].is_some_and(is_dead)) {
                    Some(slot) => {
                        world.log[slot] = None;
                        Step::Collecting(map.clone(), Some(kept.clone()), slot as u8 + 1)
                    }
                    None => Step::Writing(map.clone()),
                }
            }),
            Step::Done => {}
        }
    }

    fn put_map(&mut self, history: &History, kept: Option<Vec<Record>>) -> Step {
        self.maps.push(history.clone());
        self.maps.sort_unstable();
        Step::Collecting(history.clone(), kept, 0)
    }

    fn kept(&self) -> Vec<Record> {
        self.snapshot.iter().filter_map(|history| live(history)).collect()
    }

    fn keep(&self, rules: Rules, all: &mut Vec<World>) {
        let mut world = self.clone();
        world.keeper = match &self.keeper {
            Keeping::Start => match self.read_on(self.newest_map(), rules) {
                Some(history) if live(&history).is_some() => Keeping::Read(history),
                _ => return,
            },
            Keeping::Read(history) => {
                world.snapshot = Some(history.clone());
                Keeping::Put(history.clone())
            }
            Keeping::Put(history) => {
                let is_late = self.maps.iter().any(|map| map.len() > history.len());
                match is_late && rules.snapshots_are_verified {
                    true => {
                        world.snapshot = None;
                        Keeping::Done
                    }
                    false => Keeping::Confirmed(history.clone()),
                }
            }
            Keeping::Confirmed(_) | Keeping::Done => return,
        };
        all.push(world);
    }

    /// Checks this world; names the rule that it breaks.
    fn check(&self, rules: Rules) -> Result<(), &'static str> {
        if self.is_split {
            return Err("two records of one slot were acknowledged");
        }
        let now = self.read_on(self.newest_map(), ALL).ok_or("the history has a gap")?;
        for (slot, record) in self.acknowledged.iter().enumerate() {
            if record.is_some() && now.get(slot) != record.as_ref() {
                return Err("an acknowledged change is not in the history");
            }
        }
        let is_there = |history: &[Record]| {
            live(history)
                .is_none_or(|record| self.log[usize::from(record.slot) - 1] == Some(record))
        };
        if !is_there(&now) {
            return Err("the volume cannot be read");
        }
        for map in &self.maps {
            // An old hint yields the same version, or a detectable error.
            if self.read_on(map.clone(), rules).is_some_and(|history| history != now) {
                return Err("an old map leads elsewhere");
            }
        }
        match &self.keeper {
            Keeping::Confirmed(history) if !is_there(history) => Err("a version cannot be read"),
            _ => Ok(()),
        }
    }
}

/// Visits every reachable world: of two writers, and of a writer and a program that keeps a version. Returns
/// their number.
fn explore(rules: Rules) -> Result<usize, String> {
    let mut count = 0;
    for first in [World::new([3, 1], false), World::new([3, 0], true)] {
        let mut seen = HashSet::from([first.clone()]);
        let mut open = vec![first];
        while let Some(world) = open.pop() {
            world.check(rules).map_err(|why| format!("{why}: {world:?}"))?;
            for next in world.next(rules) {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        count += seen.len();
    }
    Ok(count)
}

#[test]
fn every_interleaving_keeps_what_was_acknowledged() {
    let worlds = explore(ALL).expect("right");
    println!("{worlds} worlds");
    assert!(worlds > 10_000, "{worlds} worlds are too few to show anything");
}

#[test]
fn each_rule_is_needed() {
    let mutants = [
        ("claims are deleted", Rules { claims_stay: false, ..ALL }),
        ("claims are not verified", Rules { claims_are_verified: false, ..ALL }),
        ("snapshots are not verified", Rules { snapshots_are_verified: false, ..ALL }),
        ("snapshots are old", Rules { snapshots_come_after_the_map: false, ..ALL }),
        ("deletes go beyond the map", Rules { deletes_stop_at_the_map: false, ..ALL }),
        ("gaps are passed over", Rules { gaps_are_noticed: false, ..ALL }),
    ];
    for (name, rules) in mutants {
        let found = explore(rules).expect_err(name);
        println!("{name}: {found}");
    }
}
