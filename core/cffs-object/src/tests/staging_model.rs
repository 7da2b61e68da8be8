//! A model of staging (decision 014). Tries every interleaving of a few steps: a program whose syncs are
//! staged in a directory, which may stop at any moment and restart; another program that takes the volume
//! over without that directory; requests that arrive late; and files whose removal was not durable. Without
//! any one of the rules, the model finds a violation.
//!
//! Every epoch overwrites the one block of the device, as in `model.rs`.

use std::collections::HashSet;

const SLOTS: usize = 6;

#[derive(Clone, Copy)]
struct Rules {
    /// A sync returns when its record is in the directory.
    syncs_wait_for_the_disk: bool,
    /// A file is removed only when its record is in the store.
    files_outlast_requests: bool,
    /// Records are sent one after another.
    records_go_in_order: bool,
    /// A map is written only when all records are in the store.
    maps_wait: bool,
    /// A release is sent only when all other records are in the store.
    releases_wait: bool,
    /// Waiting records are sent before the volume is claimed again.
    the_rest_goes_first: bool,
    /// An empty slot before the end of the log means that its record was sent, and then collected.
    past_and_empty_was_sent: bool,
    /// A record whose slot another program has taken is rejected, with all records after it.
    rejected_with_all_after: bool,
}

const ALL: Rules = Rules {
    syncs_wait_for_the_disk: true,
    files_outlast_requests: true,
    records_go_in_order: true,
    maps_wait: true,
    releases_wait: true,
    the_rest_goes_first: true,
    past_and_empty_was_sent: true,
    rejected_with_all_after: true,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Kind {
    Claim,
    Epoch,
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Record {
    id: u8,
    kind: Kind,
    slot: u8,
    /// The writer of the record in the previous slot.
    after: u8,
}

type History = Vec<Record>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// It is not running.
    Down,
    /// It sends the staged records, having read this history.
    Sending(History),
    /// The next step claims the next slot.
    Claiming(History),
    /// It is the writer, and has committed this history, some of which may be staged.
    Writing(History),
    /// It found another program's record, and acknowledges nothing more.
    Fenced,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    log: [Option<Record>; SLOTS],
    map: History,
    /// Sent records that may still arrive.
    sent: Vec<Record>,
    /// The staging directory, in order.
    files: Vec<Record>,
    /// Removed files whose removal may not be durable.
    removed: Vec<Record>,
    acknowledged: Vec<Record>,
    stager: Step,
    other: Step,
    has_claimed_elsewhere: bool,
    is_rejected: bool,
    ids: u8,
    epochs_left: [u8; 2],
    crashes_left: u8,
}

fn live(history: &[Record]) -> Option<Record> {
    history.iter().rev().find(|record| record.kind == Kind::Epoch).copied()
}

impl World {
    /// A volume that was released.
    fn new() -> World {
        let claim = Record { id: 1, kind: Kind::Claim, slot: 1, after: 0 };
        let mut log = [None; SLOTS];
        log[0] = Some(claim);
        World {
            log,
            map: vec![claim],
            sent: Vec::new(),
            files: Vec::new(),
            removed: Vec::new(),
            acknowledged: Vec::new(),
            stager: Step::Down,
            other: Step::Down,
            has_claimed_elsewhere: false,
            is_rejected: false,
            ids: 1,
            epochs_left: [2, 1],
            crashes_left: 2,
        }
    }

    /// The history of the map and the log; `None` if it has a gap.
    fn read(&self) -> Option<History> {
        let mut history = self.map.clone();
        for slot in history.len()..SLOTS {
            match self.log[slot] {
                Some(record) if history.last().is_some_and(|last| last.id == record.after) => {
                    history.push(record);
                }
                Some(_) => return None,
                None => return self.log[slot..].iter().all(Option::is_none).then_some(history),
            }
        }
        Some(history)
    }

    fn next_record(&self, history: &History, kind: Kind) -> Record {
        let after = history.last().map_or(0, |last| last.id);
        Record { id: self.ids + 1, kind, slot: history.len() as u8 + 1, after }
    }

    /// Creates a record in its slot; returns whether it is there.
    fn create(&mut self, record: Record) -> bool {
        let is_there = *self.log[usize::from(record.slot) - 1].get_or_insert(record) == record;
        if is_there {
            self.send(record);
        }
        is_there
    }

    /// Sends a record, which arrives at any later time, or never.
    fn send(&mut self, record: Record) {
        self.ids = self.ids.max(record.id);
        if !self.sent.contains(&record) {
            self.sent.push(record);
            self.sent.sort_unstable();
        }
    }

    fn next(&self, rules: Rules) -> Vec<World> {
        let mut all = Vec::new();
        for record in &self.sent {
            let mut world = self.clone();
            if world.log[usize::from(record.slot) - 1].is_none() {
                world.create(*record);
                all.push(world);
            }
        }
        self.stop(&mut all);
        self.stage(rules, &mut all);
        self.act(false, rules, &mut all);
        self.act(true, rules, &mut all);
        all
    }

    /// The program with the directory stops; a removed file may reappear.
    fn stop(&self, all: &mut Vec<World>) {
        if self.stager == Step::Down || self.crashes_left == 0 {
            return;
        }
        let mut world = World { stager: Step::Down, removed: Vec::new(), ..self.clone() };
        world.crashes_left -= 1;
        for record in &self.removed {
            let mut back = world.clone();
            back.files.insert(0, *record);
            back.files.sort_unstable();
            all.push(back);
        }
        all.push(world);
    }

    /// The steps of the program with the directory: opening, staging syncs, and sending them.
    fn stage(&self, rules: Rules, all: &mut Vec<World>) {
        let mut then = |change: &mut dyn FnMut(&mut World)| {
            let mut world = self.clone();
            change(&mut world);
            all.push(world);
        };
        match &self.stager {
            Step::Down => then(&mut |world| {
                if let Some(history) = world.read() {
                    world.stager = match rules.the_rest_goes_first {
                        true => Step::Sending(history),
                        false => Step::Claiming(history),
                    };
                }
            }),
            Step::Sending(history) => then(&mut |world| world.send_rest(history.clone(), rules)),
            Step::Writing(history) => {
                if self.epochs_left[0] > 0 && history.len() < SLOTS - 1 {
                    then(&mut |world| {
                        let record = world.next_record(history, Kind::Epoch);
                        world.epochs_left[0] -= 1;
                        world.ids = record.id;
                        world.acknowledged.push(record);
                        if rules.syncs_wait_for_the_disk {
                            world.files.push(record);
                        }
                        world.stager = Step::Writing([&history[..], &[record]].concat());
                    });
                }
                let may_go = if rules.records_go_in_order { 1 } else { self.files.len() };
                for index in 0..may_go.min(self.files.len()) {
                    let record = self.files[index];
                    then(&mut |world| {
                        world.send(record);
                        if !rules.files_outlast_requests {
                            world.remove(index);
                        }
                    });
                    then(&mut |world| match world.create(record) {
                        true => world.remove(index),
                        false => {
                            world.reject(rules);
                            world.stager = Step::Fenced;
                        }
                    });
                }
            }
            _ => {}
        }
    }

    fn remove(&mut self, index: usize) {
        let record = self.files.remove(index);
        self.removed.push(record);
    }

    fn reject(&mut self, rules: Rules) {
        self.is_rejected = true;
        match rules.rejected_with_all_after {
            true => self.files.clear(),
            false => drop(self.files.remove(0)),
        }
        self.removed.clear();
    }

    /// Handles the first staged file at an opening.
    fn send_rest(&mut self, mut history: History, rules: Rules) {
        let Some(record) = self.files.first().copied() else {
            self.stager = Step::Claiming(history);
            return;
        };
        let slot = usize::from(record.slot);
        let is_next =
            slot == history.len() + 1 && history.last().is_some_and(|last| last.id == record.after);
        let is_there = if slot <= history.len() {
            match self.log[slot - 1] {
                Some(there) => there == record,
                None => rules.past_and_empty_was_sent,
            }
        } else if is_next || !rules.rejected_with_all_after {
            self.create(record)
        } else {
            false
        };
        if !is_there {
            self.reject(rules);
            // This opening fails.
            self.stager = Step::Down;
            return;
        }
        self.remove(0);
        if slot > history.len() {
            history.push(record);
        }
        self.stager = Step::Sending(history);
    }

    /// The steps of both programs: claim, write maps and collect, and release; the other program also
    /// commits.
    fn act(&self, is_other: bool, rules: Rules, all: &mut Vec<World>) {
        let mut then = |change: &mut dyn FnMut(&mut World) -> Step| {
            let mut world = self.clone();
            let step = change(&mut world);
            *if is_other { &mut world.other } else { &mut world.stager } = step;
            all.push(world);
        };
        match if is_other { &self.other } else { &self.stager } {
            Step::Down if is_other && !self.has_claimed_elsewhere => {
                then(&mut |world| world.read().map_or(Step::Down, Step::Claiming));
            }
            // It does not take the volume over while the other program writes.
            Step::Claiming(history) if is_other || !matches!(self.other, Step::Writing(_)) => {
                then(&mut |world| {
                    let claim = world.next_record(history, Kind::Claim);
                    if history.len() >= SLOTS - 1 || !world.create(claim) {
                        return Step::Down;
                    }
                    world.has_claimed_elsewhere |= is_other;
                    match world.log[history.len() + 1..].iter().any(Option::is_some) {
                        true => Step::Down,
                        false => Step::Writing([&history[..], &[claim]].concat()),
                    }
                });
            }
            Step::Writing(history) => {
                if is_other && self.epochs_left[1] > 0 && history.len() < SLOTS {
                    then(&mut |world| {
                        world.epochs_left[1] -= 1;
                        let record = world.next_record(history, Kind::Epoch);
                        match world.create(record) {
                            true => Step::Writing([&history[..], &[record]].concat()),
                            false => Step::Fenced,
                        }
                    });
                }
                let is_sent = is_other || self.files.is_empty();
                if (is_sent || !rules.maps_wait) && self.map != *history {
                    then(&mut |world| {
                        world.collect(history);
                        Step::Writing(history.clone())
                    });
                }
                if (is_sent || !rules.releases_wait) && history.len() < SLOTS {
                    then(&mut |world| {
                        let record = world.next_record(history, Kind::Release);
                        match world.create(record) {
                            true => Step::Down,
                            false => Step::Fenced,
                        }
                    });
                }
            }
            _ => {}
        }
    }

    /// Writes a map, unless a later slot has one, and deletes dead objects.
    fn collect(&mut self, history: &History) {
        if history.len() > self.map.len() {
            self.map.clone_from(history);
        }
        for slot in 0..history.len() - 1 {
            if self.log[slot]
                .is_some_and(|record| record.kind == Kind::Epoch && live(history) != Some(record))
            {
                self.log[slot] = None;
            }
        }
    }

    /// Checks this world; names the rule that it breaks.
    fn check(&self) -> Result<(), &'static str> {
        let now = self.read().ok_or("the history has a gap")?;
        if live(&now).is_some_and(|record| self.log[usize::from(record.slot) - 1] != Some(record)) {
            return Err("the volume cannot be read");
        }
        if self.is_rejected && !self.has_claimed_elsewhere {
            return Err("syncs are rejected though the volume was not taken over");
        }
        let mut is_overtaken = false;
        for record in &self.acknowledged {
            let place = now.get(usize::from(record.slot) - 1);
            let is_there = place == Some(record);
            if is_there && is_overtaken {
                return Err("a sync is there after one that is not");
            }
            is_overtaken |= !is_there && place.is_some();
            let is_kept = is_there || self.files.contains(record);
            if !is_kept && !self.has_claimed_elsewhere {
                return Err("an acknowledged change is lost");
            }
        }
        match &self.stager {
            Step::Writing(history) if !self.has_claimed_elsewhere => {
                let has_all = self.acknowledged.iter().all(|record| history.contains(record));
                has_all.then_some(()).ok_or("a program goes on without an acknowledged change")
            }
            _ => Ok(()),
        }
    }
}

/// Visits every reachable world; returns their number.
fn explore(rules: Rules) -> Result<usize, String> {
    let first = World::new();
    let mut seen = HashSet::from([first.clone()]);
    let mut open = vec![first];
    while let Some(world) = open.pop() {
        world.check().map_err(|why| format!("{why}: {world:?}"))?;
        for next in world.next(rules) {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn every_interleaving_keeps_acknowledged_syncs() {
    let worlds = explore(ALL).expect("right");
    println!("{worlds} worlds");
    assert!(worlds > 10_000, "{worlds} worlds are too few to show anything");
}

#[test]
fn each_rule_of_staging_is_needed() {
    let mutants = [
        ("syncs return before", Rules { syncs_wait_for_the_disk: false, ..ALL }),
        ("files are removed before", Rules { files_outlast_requests: false, ..ALL }),
        ("records go in any order", Rules { records_go_in_order: false, ..ALL }),
        ("maps do not wait", Rules { maps_wait: false, ..ALL }),
        ("releases do not wait", Rules { releases_wait: false, ..ALL }),
        ("the claim comes first", Rules { the_rest_goes_first: false, ..ALL }),
        ("past and empty is rejected", Rules { past_and_empty_was_sent: false, ..ALL }),
        ("what follows is sent", Rules { rejected_with_all_after: false, ..ALL }),
    ];
    for (name, rules) in mutants {
        let found = explore(rules).expect_err(name);
        println!("{name}: {found}");
    }
}
