//! The matrix: every operation on a volume in use, on every kind of volume, with crashes.
//!
//! Features that work separately may not work together: trim was correct, and so was the journal, but trim on
//! a volume with a journal was not. So the matrix has every combination. Each cell runs pairs of calls with
//! the operation after each of them, and tries the crashes.

use super::case::{FULL, GROWN, HOLES, Medium, ROOMY, Tried};
use super::explorer::{Explorer, KINDS, Workload, number};
use super::ops;

/// Sizes of volumes, and shapes of their free space.
const SHAPES: [(&str, u64); 4] =
    [("usual", ROOMY), ("grown", ROOMY | GROWN), ("holes", ROOMY | HOLES), ("full", ROOMY | FULL)];

/// Runs all cells for volumes with their journals at these places, each with the bits of its kinds, until the
/// requested number of states is tried, by default once. Prints a table of the states.
pub fn explore<M: Medium>(explorer: &Explorer<M>, places: &[(&str, u64)]) {
    let wanted = number("CFFS_CRASH_STATES").unwrap_or(1);
    let volumes: Vec<(String, u64)> = places
        .iter()
        .flat_map(|(place, bits)| {
            SHAPES.map(|(shape, more)| (format!("{place}, {shape}"), bits | more))
        })
        .collect();
    let cells: Vec<(usize, usize)> = (0..volumes.len())
        .flat_map(|volume| (0..ops::MAINTENANCE.len()).map(move |op| (volume, op)))
        .collect();
    let mut tried = vec![Tried::default(); cells.len()];
    let mut round = explorer.seed.saturating_sub(1);
    while tried.iter().map(|tried| tried.states).sum::<u64>() < wanted {
        let workloads: Vec<Workload> = (0..)
            .zip(&cells)
            .map(|(at, (volume, op))| {
                let nth = round * cells.len() as u64 + at;
                let pair = Workload::nth_pair(nth, explorer.all.len() as u64);
                pair.of_kinds_from(volumes[*volume].1).with_maintenance(*op)
            })
            .collect();
        let results = explorer.run_each(&workloads);
        for ((result, sum), (volume, op)) in results.into_iter().zip(&mut tried).zip(&cells) {
            match result {
                Ok(states) => sum.add(states),
                Err(failure) => {
                    let (operation, volume) = (ops::MAINTENANCE[*op].0, &volumes[*volume].0);
                    panic!("{operation} on a volume with {volume}: {failure}");
                }
            }
        }
        round += 1;
    }
    print(&volumes, &tried);
    // Each cell has a crash in each of its calls.
    assert!(tried.iter().all(|tried| tried.states > KINDS), "a cell without crashes");
}

/// Prints the number of states of each cell.
fn print(volumes: &[(String, u64)], tried: &[Tried]) {
    let head: String = ops::MAINTENANCE.iter().map(|(name, _)| format!("{name:>12}")).collect();
    println!("{:28}{head}", "states after a crash");
    for ((volume, _), cells) in volumes.iter().zip(tried.chunks(ops::MAINTENANCE.len())) {
        let cells: String = cells.iter().map(|cell| format!("{:>12}", cell.states)).collect();
        println!("{volume:28}{cells}");
    }
}
