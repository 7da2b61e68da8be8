//! Two programs that write one volume, and lost answers.

use cffs::device::Failure;
use futures_util::FutureExt;
use object_store::ObjectStoreExt;

use super::*;

fn made(store: &Arc<FaultStore>) -> LogDevice {
    LogDevice::create(&at(store.clone()), GEOMETRY).expect("made")
}

#[test]
fn a_volume_that_is_claimed_is_refused() {
    let store = Arc::new(FaultStore::new());
    let first = made(&store);
    write(&first, 0, b"x");
    first.sync().expect("synced");
    let refused = LogDevice::open(&at(store.clone()), OpenOptions::default()).map(|_| ());
    assert!(
        matches!(
            refused,
            Err(Error::Claimed { term: 1, by: None, has_ended: false, is_staging: false })
        ),
        "{refused:?}"
    );
    assert!(LogDevice::open(&at(store.clone()), READ_ONLY).is_ok());
    drop(first);
    assert!(LogDevice::open(&at(store), OpenOptions::default()).is_ok());
}

/// A volume that is being made is made by the last program that begins: the first is fenced.
#[test]
fn one_of_two_programs_makes_a_volume() {
    let store = Arc::new(FaultStore::new());
    let (first, second) = (made(&store), made(&store));
    for device in [&first, &second] {
        write(device, 0, b"x");
    }
    let fenced = first.sync().expect_err("the other has claimed it").to_string();
    assert!(fenced.contains("another program took the volume over"), "{fenced}");
    second.sync().expect("synced");
    let third = LogDevice::create(&at(store.clone()), GEOMETRY).map(drop);
    assert!(matches!(third, Err(Error::Exists { .. })), "{third:?}");
    second.release().expect("not fenced");
}

/// Regression: the claim stayed when the opening failed because of the file, and had to be taken over.
#[test]
fn a_file_next_to_the_records_does_not_keep_a_volume_from_being_opened() {
    let store = Arc::new(FaultStore::new());
    make_zeros(&at(store.clone()), GEOMETRY);
    let notes = "bucket/volume/log/notes.txt".into();
    let put = store.put(&notes, b"mine".to_vec().into()).now_or_never().expect("at once");
    put.expect("put");
    for _ in 0..3 {
        drop(LogDevice::open(&at(store.clone()), OpenOptions::default()).expect("opened"));
    }
}

/// Closing a volume releases it even while the device is still referenced: a server holds it until its
/// process ends, which may be after its caller got the answer. A release that fails is an error of the close.
#[test]
fn a_closed_volume_is_released() {
    let store = Arc::new(FaultStore::new());
    let device = Arc::new(made(&store));
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let files = files_on(device.clone());
    files.create("/a").expect("created");
    files.close().expect("closed");
    let next = LogDevice::open(&at(store.clone()), OpenOptions::default()).expect("released");
    files.close().expect("as before");
    drop((files, device));
    let files = files_on(Arc::new(next));
    files.volume().sync().expect("the last to be synced");
    drop(files);

    // A close ends with the release, the map and the hint.
    let soft = OpenOptions { patience: Some(Duration::ZERO), ..OpenOptions::default() };
    let close_with = |fault: Option<usize>| {
        let device = Arc::new(LogDevice::open(&at(store.clone()), soft).expect("released"));
        let files = files_on(device.clone());
        let before = device.requests().puts;
        store.set_faults((0..16).map(|put| (Some(put) == fault).then_some(Fault::RequestLost)));
        let closed = files.close();
        store.set_faults([].into_iter());
        (
            closed,
            (device.requests().puts - before) as usize,
            files.volume().writer().health.latched(),
        )
    };
    let (closed, puts, _) = close_with(None);
    closed.expect("closed");
    let (closed, _, latched) = close_with(Some(puts - 3));
    assert!(closed.is_err(), "it is not released");
    assert_eq!(latched, None, "all else was written");
    let refused = LogDevice::open(&at(store.clone()), soft).map(drop);
    assert!(matches!(refused, Err(Error::Claimed { .. })), "{refused:?}");
    LogDevice::open(&at(store.clone()), TAKE_OVER).map(drop).expect("taken over");
}

/// The first writer was paused when the second took over. None of its later writes is acknowledged or changes
/// anything, however often it tries.
#[test]
pub fn a_writer_that_was_taken_over_writes_no_more() {
    let store = Arc::new(FaultStore::new());
    let first = made(&store);
    write(&first, 0, b"first");
    first.sync().expect("synced");
    write(&first, 0, b"later");
    let second = LogDevice::open(&at(store.clone()), TAKE_OVER).expect("taken over");
    assert_eq!(read(&second, 0, 5), b"first");
    write(&second, 0, b"other");
    for _ in 0..3 {
        let error = first.sync().expect_err("fenced").to_string();
        assert!(error.contains("another program took the volume over"), "{error}");
    }
    second.sync().expect("synced");
    write(&second, 8, b"more");
    second.sync().expect("synced");
    assert!(first.sync().is_err());
    drop((first, second));
    let device = LogDevice::open(&at(store), OpenOptions::default()).expect("released");
    assert_eq!(read(&device, 0, 12), b"other\0\0\0more");
}

/// A commit between the second program's read and its claim is part of the claimed state.
#[test]
fn writers_that_race_leave_one_history() {
    for _ in 0..20 {
        let store = Arc::new(FaultStore::new());
        let first = made(&store);
        let racing = std::thread::spawn({
            let store = store.clone();
            move || LogDevice::open(&at(store), TAKE_OVER).expect("claimed")
        });
        let mut acknowledged = 0_u64;
        for number in 1..200 {
            write(&first, 0, &u64::to_le_bytes(number));
            match first.sync() {
                Ok(()) => acknowledged = number,
                Err(_) => break,
            }
        }
        let second = racing.join().expect("no panic");
        write(&first, 0, &[0xff; 8]);
        assert!(first.sync().is_err());
        let seen: [u8; 8] = read(&second, 0, 8).try_into().expect("eight bytes");
        assert_eq!(u64::from_le_bytes(seen), acknowledged);
    }
}

/// Whatever happens to requests and answers, a sync that returns has committed, exactly once.
#[test]
fn a_sync_that_returns_has_committed_whatever_was_lost() {
    let kinds = [None, Some(Fault::AnswerLost), Some(Fault::RequestLost), Some(Fault::Conflict)];
    for seed in 0..12 {
        let mut numbers = Numbers(seed);
        let store = Arc::new(FaultStore::new());
        let device = made(&store);
        let mut expected = vec![0; 64 << 10];
        for number in 0..6_u8 {
            let offset = numbers.below(60 << 10);
            write(&device, offset, &[number + 1; 4000]);
            expected[offset as usize..offset as usize + 4000].fill(number + 1);
            let faults: Vec<_> = (0..3).map(|_| kinds[numbers.below(4) as usize]).collect();
            store.set_faults(faults.into_iter());
            device.sync().expect("synced");
            store.set_faults(std::iter::empty());
            let other = LogDevice::open(&at(store.clone()), READ_ONLY).expect("opened");
            assert!(read(&other, 0, expected.len()) == expected, "seed {seed}, {number}");
        }
    }
}

/// A request that the store will never allow is not repeated; and after a failure no other record may be put
/// into the slot, since the failed one may still arrive.
#[test]
fn a_sync_that_fails_is_the_last() {
    let store = Arc::new(FaultStore::new());
    let device = made(&store);
    write(&device, 0, b"x");
    store.set_faults([Some(Fault::Forbidden)].into_iter());
    let error = device.sync().expect_err("not allowed");
    assert_eq!(
        Failure::of(&error),
        Failure::Unreachable,
        "a right in the store is none of the caller's"
    );
    assert!(error.to_string().contains("a writer needs to get, put, list and delete"), "{error}");
    write(&device, 0, b"y");
    assert!(device.sync().is_err());
    let puts = device.requests().puts;
    assert!(device.sync().is_err());
    assert_eq!(device.requests().puts, puts);
}

/// A sync to a missing bucket does not wait; recreating the bucket does not bring the volume back.
#[test]
fn a_sync_without_a_bucket_fails() {
    let store = Arc::new(FaultStore::new());
    let device = made(&store);
    write(&device, 0, b"x");
    store.set_faults([Some(Fault::NoBucket)].into_iter());
    let error = device.sync().expect_err("no bucket").to_string();
    assert!(error.contains("does not exist; create it first"), "{error}");
}

/// A sync that cannot be distinguished from an outage fails once its patience is exceeded.
#[test]
fn a_sync_fails_when_its_patience_is_exceeded() {
    let store = Arc::new(FaultStore::new());
    make_zeros(&at(store.clone()), GEOMETRY);
    let patience = Some(Duration::from_millis(200));
    let options = OpenOptions { patience, ..OpenOptions::default() };
    let device = LogDevice::open(&at(store.clone()), options).expect("opened");
    write(&device, 0, b"x");
    store.set_faults((0..1000).map(|_| Some(Fault::RequestLost)));
    assert!(device.sync().is_err());
    assert!(device.requests().puts < 100, "{:?}", device.requests());
}

#[test]
fn a_store_without_conditional_puts_is_refused() {
    for store in [FaultStore::without_conditions(), FaultStore::with_racing_conditions()] {
        let refused = LogDevice::create(&at(Arc::new(store)), GEOMETRY).map(|_| ());
        assert!(matches!(refused, Err(Error::NoConditionalPut { created: 16, tried: 16 })));
    }
}
