//! A writer that is replaced by the next program: no other one can claim the volume in between.

use super::*;
use crate::{Backlog, Predecessor, Secret, Staging, Succession, Term, versions};

const SUCCEEDS: OpenOptions = OpenOptions { take_over: false, ..TAKE_OVER };

/// Opens the volume as the next program: with the encoded bytes, as they pass through its memory.
fn succeed(store: &Arc<FaultStore>, handed: &[u8]) -> Result<LogDevice, Error> {
    let last = Succession::decode(handed).expect("encoded by this program");
    let location = Location::new("test", store.clone(), "bucket/volume")
        .with_secret(last.secret().map(Arc::new));
    LogDevice::open(&location, OpenOptions { succeeds: Some(last.predecessor), ..SUCCEEDS })
}

/// A volume with a block of sevens that its writer has handed over.
fn handed_over() -> (Arc<FaultStore>, LogDevice, Vec<u8>) {
    let store = Arc::new(FaultStore::new());
    let device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
    write(&device, 0, &[7; 4096]);
    device.sync().expect("synced");
    assert!(device.succession().is_none(), "it is the writer");
    device.control().check_handover().expect("nothing prevents it");
    device.control().hand_over().expect("handed over");
    let handed = device.succession().expect("handed over").encode().to_vec();
    (store, device, handed)
}

#[test]
pub fn others_are_refused_until_the_next_program_opens_the_volume() {
    let (store, device, handed) = handed_over();
    let refused = LogDevice::open(&at(store.clone()), OpenOptions::default()).err();
    assert!(matches!(refused, Some(Error::Claimed { .. })), "{refused:?}");
    write(&device, 0, &[8; 4096]);
    device.sync().expect_err("it is no longer the writer");
    let next = succeed(&store, &handed).expect("opened");
    assert_eq!(read(&next, 0, 4096), [7; 4096]);
    write(&next, 0, &[9; 4096]);
    next.sync().expect("synced");
    drop(device);
    let refused = succeed(&store, &handed).err();
    assert!(matches!(refused, Some(Error::Fenced { .. })), "only once: {refused:?}");
    next.release().expect("released");
    let device = LogDevice::open(&at(store), OpenOptions::default()).expect("released");
    assert_eq!(read(&device, 0, 4096), [9; 4096]);
}

#[test]
fn the_term_of_another_volume_or_writer_is_refused() {
    let (store, device, _) = handed_over();
    let last = device.succession().expect("handed over").predecessor;
    let Predecessor::Writer(term) = last else { panic!("it was the writer") };
    for wrong in [Term { slot: term.slot + 1, ..term }, Term { uuid: [3; 16], ..term }] {
        for take_over in [false, true] {
            let succeeds = Some(Predecessor::Writer(wrong));
            let options = OpenOptions { succeeds, take_over, ..SUCCEEDS };
            let refused = LogDevice::open(&at(store.clone()), options).err();
            assert!(matches!(refused, Some(Error::Fenced { .. })), "{wrong:?}: {refused:?}");
        }
    }
}

#[test]
fn a_volume_that_was_taken_over_meanwhile_stays_with_its_new_writer() {
    let (store, _, handed) = handed_over();
    let other = LogDevice::open(&at(store.clone()), TAKE_OVER).expect("taken over");
    let is_refused = || {
        let refused = succeed(&store, &handed).err();
        assert!(matches!(refused, Some(Error::Fenced { .. })), "{refused:?}");
    };
    is_refused();
    write(&other, 0, &[8; 4096]);
    other.sync().expect("it is still the writer");
    other.release().expect("released");
    // Regression: the volume was claimed, although it differed from the one that the kernel had cached.
    is_refused();
}

/// An outage that begins during a restart must not end the mount.
#[test]
fn the_next_program_waits_for_the_end_of_an_outage() {
    let (store, _, handed) = handed_over();
    let last = Succession::decode(&handed).expect("encoded");
    store.fail_gets(Some(Fault::RequestLost));
    std::thread::scope(|scope| {
        let options = OpenOptions { succeeds: Some(last.predecessor), patience: None, ..SUCCEEDS };
        let location = at(store.clone());
        let opening = scope.spawn(move || LogDevice::open(&location, options));
        while store.failed_gets() < 3 && !opening.is_finished() {
            std::thread::yield_now();
        }
        store.fail_gets(None);
        let next = opening.join().expect("no panic").expect("opened after the outage");
        assert_eq!(read(&next, 0, 4096), [7; 4096]);
    });
    store.fail_gets(Some(Fault::RequestLost));
    let refused = succeed(&store, &handed).err().expect("its patience has ended");
    assert!(!refused.is_final(), "{refused}");
}

/// The secret of a volume may be replaced while a program has the volume open.
#[test]
fn a_data_key_opens_the_volume_whichever_secret_wraps_it() {
    encrypted::with_secret(|| {
        let (store, _, handed) = handed_over();
        let words = Secret::new(b"other words".to_vec()).expect("a passphrase");
        crate::rekey(&at(store.clone()), &words).expect("rekeyed");
        let mut wrong = handed.clone();
        *wrong.last_mut().expect("the key is the end") ^= 1;
        let refused = succeed(&store, &wrong).err();
        assert!(matches!(refused, Some(Error::Damaged { .. })), "{refused:?}");
        let next = succeed(&store, &handed).expect("opened");
        assert_eq!(read(&next, 0, 4096), [7; 4096]);
        versions::create(&located(store.clone(), "bucket/volume@v"))
            .expect_err("the old secret opens nothing");
    });
}

/// The store is an attacker: it may replace an encrypted volume by another one.
#[test]
fn an_unencrypted_volume_is_not_opened_with_a_data_key() {
    let handed = encrypted::with_secret(|| handed_over().2);
    let (store, device, _) = handed_over();
    let mut last = Succession::decode(&handed).expect("encoded");
    last.predecessor = device.succession().expect("handed over").predecessor;
    let refused = succeed(&store, &last.encode()).err();
    assert!(matches!(refused, Some(Error::NotEncrypted { .. })), "{refused:?}");
}

#[test]
fn staged_records_are_sent_before_a_handover() {
    let scratch = tempfile::tempdir().expect("made");
    let directory = Arc::new(Staging::open(&scratch.path().join("staging")).expect("opened"));
    let store = Arc::new(FaultStore::new());
    make_zeros(&at(store.clone()), GEOMETRY);
    let location = at(store.clone()).with_staging(directory.clone());
    let device = LogDevice::open(&location, OpenOptions::default()).expect("opened");
    // The claim is in slot 4.
    store.lose_puts(&crate::format::record_name(5), 3);
    for number in 1..9 {
        write(&device, 0, &[number; 4096]);
        device.sync().expect("staged");
    }
    assert_ne!(directory.backlog(), Backlog::default(), "the store is slower");
    device.control().hand_over().expect("handed over");
    assert_eq!(directory.backlog(), Backlog::default());
    let succeeds = Some(device.succession().expect("handed over").predecessor);
    // Regression: another mount could lock the directory while the program was replaced.
    let lock = directory.lock().try_clone_to_owned().expect("duplicated");
    let path = scratch.path().join("staging");
    drop((device, location, directory));
    assert!(Staging::open(&path).is_err(), "it stays locked");
    let directory = Arc::new(Staging::open_with(&path, Some(lock)).expect("opened"));
    let location = at(store).with_staging(directory);
    let next = LogDevice::open(&location, OpenOptions { succeeds, ..SUCCEEDS });
    assert_eq!(read(&next.expect("opened"), 0, 4096), [8; 4096]);
}

#[test]
fn a_device_names_what_prevents_a_handover() {
    let (store, device, handed) = handed_over();
    drop(device);
    let obstacle = |device: &LogDevice| device.control().check_handover().err();
    let reader = LogDevice::open(&at(store.clone()), READ_ONLY).expect("opened");
    let why = obstacle(&reader).expect("the next program may see another state");
    assert!(why.contains("read-only"), "{why}");
    let succeeds = Some(Succession::decode(&handed).expect("encoded").predecessor);
    let options = OpenOptions { succeeds, patience: None, ..SUCCEEDS };
    let next = LogDevice::open(&at(store.clone()), options).expect("opened");
    versions::create(&at_version(&store)).expect("made");
    let version = LogDevice::open(&at_version(&store), READ_ONLY).expect("opened");
    assert_eq!(obstacle(&version), None);
    let last = version.succession().expect("it has read").predecessor;
    assert_eq!(last, Predecessor::Reader);

    // After the first record, the claims of both programs are in slots 1 and 3.
    store.lose_puts(&crate::format::record_name(4), u64::MAX);
    write(&next, 0, &[8; 4096]);
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| next.sync());
        while obstacle(&next).is_none() && !syncing.is_finished() {
            std::thread::yield_now();
        }
        let why = obstacle(&next).expect("an outage");
        assert!(why.contains("does not answer"), "{why}");
        store.lose_puts("", 0);
        let _ = syncing.join().expect("no panic");
    });
}

fn at_version(store: &Arc<FaultStore>) -> Location {
    located(store.clone(), "bucket/volume@v")
}

#[test]
fn damaged_bytes_are_no_succession() {
    let (_, _, handed) = encrypted::with_secret(handed_over);
    for len in 0..handed.len() {
        assert!(Succession::decode(&handed[..len]).is_err(), "{len} bytes");
    }
    assert!(Succession::decode(&[&handed[..], b"x"].concat()).is_err());
}

/// Regression: an outage that the server had not noticed yet was found after the mount had been suspended.
#[test]
fn a_store_that_accepts_nothing_prevents_a_handover() {
    let store = Arc::new(FaultStore::new());
    let device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
    write(&device, 0, &[7; 4096]);
    device.sync().expect("synced");
    store.set_faults([Some(Fault::Forbidden)].into_iter());
    device.control().check_handover().expect_err("forbidden");
    device.control().check_handover().expect("allowed again");
}

/// Regression: a version that was removed, or a store that did not answer, ended the mount of the version.
#[test]
fn a_version_is_handed_over_only_while_it_can_be_opened() {
    let store = Arc::new(FaultStore::new());
    make_zeros(&at(store.clone()), GEOMETRY);
    versions::create(&at_version(&store)).expect("made");
    let version = LogDevice::open(&at_version(&store), READ_ONLY).expect("opened");
    store.fail_gets(Some(Fault::RequestLost));
    version.control().check_handover().expect_err("no answer");
    std::thread::scope(|scope| {
        let succeeds = Some(version.succession().expect("it has read").predecessor);
        let (location, options) = (at_version(&store), OpenOptions { succeeds, ..READ_ONLY });
        let opening = scope.spawn(move || LogDevice::open(&location, options));
        while store.failed_gets() < 4 && !opening.is_finished() {
            std::thread::yield_now();
        }
        store.fail_gets(None);
        opening.join().expect("no panic").expect("opened after the outage");
    });
    version.control().check_handover().expect("it is there");
    versions::remove(&at_version(&store)).expect("removed");
    let why = version.control().check_handover().expect_err("it was removed");
    assert!(why.contains("no version"), "{why}");
}

/// Regression: if the claim was made and the listing after it failed, the next attempt took the claim for
/// that of another program.
#[test]
fn failing_listings_are_repeated() {
    for first in 0..4 {
        let (store, _, handed) = handed_over();
        let last = Succession::decode(&handed).expect("encoded");
        store.fail_listings(first, 3);
        let succeeds = Some(last.predecessor);
        let options = OpenOptions { succeeds, patience: None, ..SUCCEEDS };
        let next = LogDevice::open(&at(store.clone()), options).expect("opened");
        assert_eq!(read(&next, 0, 4096), [7; 4096]);
        println!("{} listings of 3 did not fail after {first}", store.left_failing());
    }
}

/// Regression: a directory that was moved away during a handover ended the mount.
#[test]
fn the_next_program_waits_for_the_directory_of_the_volume() {
    let scratch = tempfile::tempdir().expect("made");
    let [here, away] = ["volume", "away"].map(|name| scratch.path().join(name));
    let location = Location::parse(&format!("file://{}", here.display())).expect("a URL");
    let device = LogDevice::create(&location, GEOMETRY).expect("made");
    write(&device, 0, &[7; 4096]);
    device.sync().expect("synced");
    device.control().hand_over().expect("handed over");
    let succeeds = Some(device.succession().expect("handed over").predecessor);
    drop(device);
    std::fs::rename(&here, &away).expect("moved");
    std::thread::scope(|scope| {
        let options = OpenOptions { succeeds, patience: None, ..SUCCEEDS };
        let other = location.clone();
        let opening = scope.spawn(move || LogDevice::open(&other, options));
        while location.counter().outage().is_none() && !opening.is_finished() {
            std::thread::yield_now();
        }
        std::fs::rename(&away, &here).expect("moved back");
        opening.join().expect("no panic").expect("opened");
    });
}
