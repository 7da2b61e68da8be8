//! The core against a reference: random operations on a volume in memory and on plain maps.
//!
//! `PROPTEST_CASES` sets the number of runs of each test. Runs that failed once are kept next to the test and
//! run first.

mod faults;
mod threads;

use std::sync::Arc;

use cffs::device::{BlockDevice, MemoryDevice};
use proptest::prelude::*;

use cffs_testing::model::operations::op;
use cffs_testing::model::runner::{Medium, Runner, Setup};
use cffs_testing::model::setups::{config, setup};

/// A device in memory.
struct InMemory(Arc<MemoryDevice>);

impl InMemory {
    fn new(setup: &Setup) -> InMemory {
        InMemory(Arc::new(MemoryDevice::new(setup.device_bytes)))
    }
}

impl Medium for InMemory {
    fn open(&self) -> Arc<dyn BlockDevice> {
        self.0.clone()
    }
}

proptest! {
    #![proptest_config(config(600, "tests/model/roomy.regressions"))]

    #[test]
    fn a_volume_does_what_the_reference_does(
        setup in setup(Just(64 << 20)),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        Runner::new(&setup, InMemory::new(&setup)).run(&ops);
    }
}

proptest! {
    #![proptest_config(config(100, "tests/model/full.regressions"))]

    #[test]
    fn a_volume_that_runs_full_loses_nothing(
        setup in setup(prop_oneof![Just(3u64 << 20), Just(6 << 20)]),
        ops in prop::collection::vec(op(), 50..250),
    ) {
        Runner::new(&setup, InMemory::new(&setup)).run(&ops);
    }
}
