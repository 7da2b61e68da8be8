//! Compares the core's random operations on a volume in a store with its reference: requests fail, and the
//! next opening must find the volume as it was closed.
//!
//! `PROPTEST_CASES` sets the number of runs.

use cffs_testing::model::operations::op;
use cffs_testing::model::runner::{Medium, Runner, Setup};
use cffs_testing::model::setups::{config, setup};
use proptest::prelude::*;

use super::*;

/// The number of PUTs that may fail: more than a run has.
const PUTS: usize = 400;

/// A volume in a store.
struct InStore {
    location: Location,
    /// The bytes kept in memory until a sync.
    pending_bytes_max: u64,
}

impl InStore {
    fn new(setup: &Setup, pending_bytes_max: u64, faults: Vec<Option<Fault>>) -> InStore {
        let store = Arc::new(FaultStore::new());
        let location = at(store.clone());
        let geometry = Geometry { size_bytes: setup.device_bytes, sector_bytes: 4096 };
        make_zeros(&location, geometry);
        store.set_faults(faults.into_iter());
        InStore { location, pending_bytes_max }
    }
}

impl Medium for InStore {
    fn open(&self) -> Arc<dyn BlockDevice> {
        let device = LogDevice::open(&self.location, OpenOptions::default()).expect("released");
        device.keep_at_most(self.pending_bytes_max);
        Arc::new(device)
    }
}

/// One PUT in twenty meets a fault, and is repeated.
fn faults() -> impl Strategy<Value = Vec<Option<Fault>>> {
    let fault = prop_oneof![
        Just(Fault::AnswerLost),
        Just(Fault::RequestLost),
        Just(Fault::Conflict),
        Just(Fault::SentTwice),
        Just(Fault::Slow),
    ];
    prop::collection::vec(prop::option::weighted(0.05, fault), PUTS)
}

proptest! {
    #![proptest_config(config(40, "src/tests/core_model.regressions"))]

    #[test]
    fn a_volume_in_a_store_does_what_the_reference_does(
        setup in setup(prop_oneof![Just(64u64 << 20), Just(6 << 20)]),
        pending_bytes_max in prop_oneof![Just(16u64 << 10), Just(8 << 20)],
        is_encrypted in any::<bool>(),
        faults in faults(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let run = || Runner::new(&setup, InStore::new(&setup, pending_bytes_max, faults)).run(&ops);
        if is_encrypted { encrypted::with_secret(run) } else { run() }
    }
}
