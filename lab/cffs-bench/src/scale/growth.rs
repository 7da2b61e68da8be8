//! Costs at several sizes, and their growth.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Part;

/// A kind of cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Elapsed time.
    Seconds,
    /// Time of processors, in user space and in the kernel.
    CpuSeconds,
    /// Instructions in user space.
    Instructions,
    /// Requests or system calls that read.
    Reads,
    /// Requests or system calls that wrote.
    Writes,
    MovedBytes,
    PeakBytes,
    ImageBytes,
}

impl Measure {
    /// All measures, in the order of the tables.
    pub const ALL: [Measure; 8] = [
        Measure::Seconds,
        Measure::CpuSeconds,
        Measure::Instructions,
        Measure::Reads,
        Measure::Writes,
        Measure::MovedBytes,
        Measure::PeakBytes,
        Measure::ImageBytes,
    ];

    /// The heading of its column.
    pub fn name(self) -> &'static str {
        match self {
            Measure::Seconds => "seconds",
            Measure::CpuSeconds => "CPU seconds",
            Measure::Instructions => "instructions, 10⁶",
            Measure::Reads => "reads",
            Measure::Writes => "writes",
            Measure::MovedBytes => "MiB moved",
            Measure::PeakBytes => "MiB of memory",
            Measure::ImageBytes => "MiB of the image",
        }
    }

    /// The divisor of a value in its column.
    pub fn unit(self) -> f64 {
        match self {
            Measure::Instructions => 1e6,
            Measure::MovedBytes | Measure::PeakBytes | Measure::ImageBytes => 1048576.0,
            _ => 1.0,
        }
    }

    /// The value below which constant costs hide the growth.
    fn judged_from(self) -> f64 {
        match self {
            Measure::Seconds | Measure::CpuSeconds => 0.1,
            Measure::Instructions => 1e6,
            Measure::Reads | Measure::Writes => 100.0,
            Measure::MovedBytes | Measure::PeakBytes | Measure::ImageBytes => 8.0 * 1048576.0,
        }
    }

    /// The factor by which two measurements of the same quantity may differ. Counts differ
    /// little; times depend on the load of the machine, and on caches that larger working sets
    /// miss more often.
    fn tolerance(self) -> f64 {
        match self {
            Measure::Seconds | Measure::CpuSeconds => 1.25,
            _ => 1.05,
        }
    }
}

/// The cost of one step of a part at one size.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    pub part: Part,
    pub step: String,
    /// The size: clients, names, files, or GiB.
    pub size: u64,
    /// Operations of each client, if there are clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work: Option<u64>,
    pub costs: Costs,
}

impl Sample {
    pub fn new(part: Part, step: &str, size: u64, costs: Costs) -> Sample {
        Sample { part, step: step.to_owned(), size, work: None, costs }
    }
}

/// Costs by measure; a missing one was not measured.
pub type Costs = BTreeMap<Measure, f64>;

/// How a cost grew from one size to the next.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Growth {
    /// The cost per item, relative to the previous size: 1 is linear growth.
    pub factor: f64,
    /// The bound of n log n growth, including the tolerance.
    pub bound: f64,
    pub verdict: Verdict,
}

/// Whether a cost grows within its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Not faster than n log n.
    Within,
    /// Faster than n log n.
    Faster,
    /// The cost at the smaller size is too small to judge.
    TooSmall,
}

impl Growth {
    /// The growth from `cost` at `size` to the cost and size in `next`.
    pub fn between(measure: Measure, (size, cost): (u64, f64), next: (u64, f64)) -> Growth {
        let (size, next_size) = (size as f64, next.0 as f64);
        let factor = (next.1 / cost) / (next_size / size);
        // From a size of one, log n grows by an infinite factor, so only the growth from the next size on can
        // be judged.
        let bound = next_size.ln() / size.ln() * measure.tolerance();
        let verdict = if cost < measure.judged_from() {
            Verdict::TooSmall
        } else if factor > bound {
            Verdict::Faster
        } else {
            Verdict::Within
        };
        Growth { factor, bound, verdict }
    }
}

/// A cost of a step at each size.
#[derive(Clone, Debug, Serialize)]
pub struct Curve {
    pub part: Part,
    pub step: String,
    pub measure: Measure,
    /// Sizes and costs.
    pub points: Vec<(u64, f64)>,
    /// From each size to the next.
    pub growth: Vec<Growth>,
}

impl Curve {
    /// Whether this curve is judged. Elapsed time depends on other load of the machine, and is judged only if
    /// the processor time is not known.
    pub fn is_judged(&self) -> bool {
        self.measure != Measure::Seconds || self.part == Part::Clients
    }

    /// The worst verdict over all sizes; `TooSmall` only if no size could be judged.
    pub fn verdict(&self) -> Verdict {
        let is = |verdict| self.growth.iter().any(|growth| growth.verdict == verdict);
        match () {
            () if is(Verdict::Faster) => Verdict::Faster,
            () if is(Verdict::Within) => Verdict::Within,
            () => Verdict::TooSmall,
        }
    }
}

/// The curve of each cost that was measured at two sizes or more, in the order of the samples.
pub fn curves(samples: &[Sample]) -> Vec<Curve> {
    let mut steps: Vec<(Part, &str)> = Vec::new();
    for sample in samples {
        let step = (sample.part, sample.step.as_str());
        if !steps.contains(&step) {
            steps.push(step);
        }
    }
    let mut curves = Vec::new();
    for (part, step) in steps {
        let of_it = || samples.iter().filter(|s| s.part == part && s.step == step);
        for measure in Measure::ALL {
            let points: Vec<(u64, f64)> =
                of_it().filter_map(|s| Some((s.size, *s.costs.get(&measure)?))).collect();
            let growth: Vec<Growth> =
                points.windows(2).map(|w| Growth::between(measure, w[0], w[1])).collect();
            if !growth.is_empty() {
                curves.push(Curve { part, step: step.to_owned(), measure, points, growth });
            }
        }
    }
    curves
}
