//! The matrix: every operation on a volume in use, on every kind of volume, with crashes.
//!
//! Features that work separately may not work together: trim was correct, and so was the journal, but trim on
//! a volume with a journal was not. So the matrix has every combination of an operation, a place of the
//! journal and a shape of the free space. Each cell runs pairs of calls with the operation after each of
//! them, and tries the crashes.
//!
//! Volumes with compressed contents are a sample, because they would double the time: for each operation and
//! place of the journal, one of the shapes. The seed determines which one, so that four seeds in a row try
//! all shapes, and each seed tries each pair of an operation and a shape.

use super::case::{COMPRESSED, FULL, GROWN, HOLES, Medium, ROOMY, SHARED, Tried};
use super::explorer::{Explorer, KINDS, Workload, number};
use super::ops;

/// Sizes of volumes, and shapes of their free space.
const SHAPES: [(&str, u64); 4] =
    [("usual", ROOMY), ("grown", ROOMY | GROWN), ("holes", ROOMY | HOLES), ("full", ROOMY | FULL)];

/// The volumes of a row of the matrix.
struct Row {
    name: String,
    /// Bits of the kinds, without the shape.
    bits: u64,
    shape: Shape,
}

enum Shape {
    Always(u64),
    /// One of the shapes after another, beginning with this one.
    Sample(usize),
}

impl Row {
    /// The rows of a place of the journal, the `nth` of all places.
    fn of_place(nth: usize, place: &str, bits: u64) -> Vec<Row> {
        let plain = SHAPES.iter().map(|(shape, more)| Row {
            name: format!("{place}, {shape}"),
            bits,
            shape: Shape::Always(*more),
        });
        let compressed = Row {
            name: format!("{place}, compressed"),
            bits: bits | COMPRESSED | SHARED,
            shape: Shape::Sample(nth),
        };
        plain.chain([compressed]).collect()
    }

    /// The first kind of the volumes on which an operation is tried.
    fn kinds_from(&self, op: usize, round: u64) -> u64 {
        match self.shape {
            Shape::Always(shape) => self.bits | shape,
            Shape::Sample(first) => {
                self.bits | SHAPES[(first + op + round as usize) % SHAPES.len()].1
            }
        }
    }
}

/// Runs all cells for volumes with their journals at these places, each with the bits of its kinds, until the
/// requested number of states is tried, by default once. Prints a table of the states.
pub fn explore<M: Medium>(explorer: &Explorer<M>, places: &[(&str, u64)]) {
    let wanted = number("CFFS_CRASH_STATES").unwrap_or(1);
    let rows: Vec<Row> = (0..)
        .zip(places)
        .flat_map(|(nth, (place, bits))| Row::of_place(nth, place, *bits))
        .collect();
    let cells: Vec<(usize, usize)> = (0..rows.len())
        .flat_map(|row| (0..ops::MAINTENANCE.len()).map(move |op| (row, op)))
        .collect();
    let mut tried = vec![Tried::default(); cells.len()];
    let mut round = explorer.seed.saturating_sub(1);
    while tried.iter().map(|tried| tried.states).sum::<u64>() < wanted {
        let workloads: Vec<Workload> = (0..)
            .zip(&cells)
            .map(|(at, (row, op))| {
                let nth = round * cells.len() as u64 + at;
                let pair = Workload::nth_pair(nth, explorer.all.len() as u64);
                pair.of_kinds_from(rows[*row].kinds_from(*op, round)).with_maintenance(*op)
            })
            .collect();
        let results = explorer.run_each(&workloads);
        for ((result, sum), (row, op)) in results.into_iter().zip(&mut tried).zip(&cells) {
            match result {
                Ok(states) => sum.add(states),
                Err(failure) => {
                    let (operation, row) = (ops::MAINTENANCE[*op].0, &rows[*row].name);
                    panic!("{operation} on a volume with {row}: {failure}");
                }
            }
        }
        round += 1;
    }
    print(&rows, &tried);
    // Each cell has a crash in each of its calls.
    assert!(tried.iter().all(|tried| tried.states > KINDS), "a cell without crashes");
}

/// Prints the number of states of each cell.
fn print(rows: &[Row], tried: &[Tried]) {
    let head: String = ops::MAINTENANCE.iter().map(|(name, _)| format!("{name:>12}")).collect();
    println!("{:33}{head}", "states after a crash");
    for (row, cells) in rows.iter().zip(tried.chunks(ops::MAINTENANCE.len())) {
        let cells: String = cells.iter().map(|cell| format!("{:>12}", cell.states)).collect();
        println!("{:33}{cells}", row.name);
    }
    let states: u64 = tried.iter().map(|tried| tried.states).sum();
    println!("{states} states in {} cells", tried.len());
}
