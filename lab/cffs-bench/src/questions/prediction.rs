//! Whether numbers of requests predict how long a phase takes.

use anyhow::Result;

use super::{Plan, Table};
use crate::disk::profile::Spec;
use crate::disk::{Counters, Profile};
use crate::library::LibraryPlan;
use crate::report::table::figure;
use crate::workload::Phase;

/// A figure of a phase that should be proportional to its time.
type Predictor = (&'static str, fn(&Counters, &Cost) -> f64);

const PREDICTORS: [Predictor; 5] = [
    ("requests", |device, _| device.requests() as f64),
    ("bytes", |device, _| bytes(device)),
    ("requests and bytes", |device, cost| {
        device.requests() as f64 * cost.access + bytes(device) * cost.byte
    }),
    ("seeks and bytes", |device, cost| {
        device.seeks as f64 * cost.access + bytes(device) * cost.byte
    }),
    ("lengths of seeks, and bytes", |device, cost| {
        let turns = device.seeks as f64 * cost.half_turn;
        device.seek_ns as f64 / 1e9 + turns + bytes(device) * cost.byte
    }),
];

fn bytes(device: &Counters) -> f64 {
    (device.read_bytes + device.write_bytes) as f64
}

/// Seconds that a disk takes, by its data sheet.
struct Cost {
    /// An average seek and half a turn.
    access: f64,
    half_turn: f64,
    /// A byte that is streamed.
    byte: f64,
}

impl Cost {
    fn of(profile: Profile) -> Cost {
        let Spec::Disk(disk) = profile.spec() else { unreachable!("{profile:?} has an arm") };
        let half_turn = 30.0 / disk.rpm;
        let access = disk.seek_average_ms / 1e3 + half_turn;
        Cost { access, half_turn, byte: 1.0 / disk.geometry(None).streaming_rate() }
    }
}

/// The phases of the library benchmark, on all variants, and the errors of predictions of their times.
pub fn of_times(plan: &Plan) -> Result<Vec<Table>> {
    let header = ["disk", "predicted from", "phases", "typical error", "90%", "largest"];
    let mut table = Table::new(header, 2);
    let disks = [Profile::St31200, Profile::AtlasIi, Profile::Hdd7200];
    for &profile in &disks[..plan.pick(3, 1) as usize] {
        let library = LibraryPlan {
            files: plan.pick(10_000, 500),
            large_bytes: plan.pick(64, 8) << 20,
            ..plan.library(profile, 512 << 20)
        };
        let phases: Vec<Phase> = library.run()?.cells.into_values().flatten().collect();
        let cost = Cost::of(profile);
        for (name, predictor) in PREDICTORS {
            let errors = errors(phases.iter().map(|phase| {
                let device = phase.device.unwrap_or_default();
                (phase.seconds, predictor(&device, &cost))
            }));
            let part = |part: f64| {
                let at = ((errors.len() - 1) as f64 * part).round() as usize;
                format!("{} times", figure(errors[at]))
            };
            table.row([
                profile.name(),
                name.to_owned(),
                errors.len().to_string(),
                part(0.5),
                part(0.9),
                part(1.0),
            ]);
        }
    }
    Ok(vec![table.grouped()])
}

/// The factors, ascending, by which times differ from predictions. All predictions are multiplied by one
/// number first, so that as many times are longer as are shorter.
fn errors(of: impl Iterator<Item = (f64, f64)>) -> Vec<f64> {
    let mut ratios: Vec<f64> = of.map(|(time, predicted)| (time / predicted).ln()).collect();
    ratios.sort_by(f64::total_cmp);
    let middle = ratios[ratios.len() / 2];
    let mut errors: Vec<f64> = ratios.iter().map(|ratio| (ratio - middle).abs().exp()).collect();
    errors.sort_by(f64::total_cmp);
    errors
}
