//! The contract of [`BlockDevice`], held against every implementation and decorator.

use std::io::{ErrorKind, IoSlice};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;

const SIZE_BYTES: u64 = 100 * 1024 + 512;

fn image_file(directory: &tempfile::TempDir, name: &str) -> FileDevice {
    FileDevice::create(&directory.path().join(name), SIZE_BYTES).unwrap()
}

/// Every device, empty.
fn devices(directory: &tempfile::TempDir) -> Vec<(&'static str, Arc<dyn BlockDevice>)> {
    let memory = || MemoryDevice::new(SIZE_BYTES);
    vec![
        ("memory", Arc::new(memory())),
        ("file", Arc::new(image_file(directory, "plain"))),
        ("trace", Arc::new(TraceDevice::new(memory()))),
        ("fault", Arc::new(FaultDevice::new(memory(), 1))),
        ("volatile", Arc::new(VolatileDevice::new(memory().snapshot()))),
        ("crashing", Arc::new(CrashingDevice::new(memory().snapshot(), 1, 1))),
        ("stack", Arc::new(TraceDevice::new(FaultDevice::new(image_file(directory, "stack"), 1)))),
    ]
}

#[test]
fn new_devices_read_as_zeros_to_the_last_byte() {
    let directory = tempfile::tempdir().unwrap();
    for (name, device) in devices(&directory) {
        assert_eq!(device.geometry(), Geometry { size_bytes: SIZE_BYTES, sector_bytes: 4096 });
        let mut bytes = vec![0xaa; SIZE_BYTES as usize];
        device.read_at(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0), "{name}");
    }
}

#[test]
fn requests_that_leave_the_device_fail_and_touch_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for (name, device) in devices(&directory) {
        let kind = |result: io::Result<()>| result.unwrap_err().kind();
        let data = [1; 16];
        let mut buf = [7; 16];
        for offset in [SIZE_BYTES - 15, SIZE_BYTES + 1, u64::MAX - 3] {
            assert_eq!(kind(device.read_at(offset, &mut buf)), ErrorKind::InvalidInput, "{name}");
            let write = device.write_at(offset, &[IoSlice::new(&data)]);
            assert_eq!(kind(write), ErrorKind::InvalidInput, "{name}");
            assert_eq!(kind(device.discard(offset, 16)), ErrorKind::InvalidInput, "{name}");
        }
        assert_eq!(buf, [7; 16], "{name}");
        device.read_at(SIZE_BYTES - 16, &mut buf).unwrap();
        assert_eq!(buf, [0; 16], "{name}");
    }
}

#[test]
fn a_vectored_write_is_the_same_as_its_parts_in_a_row() {
    let directory = tempfile::tempdir().unwrap();
    let parts: Vec<Vec<u8>> = (0..3000).map(|part| vec![part as u8; part % 30]).collect();
    let whole = parts.concat();
    for (name, device) in devices(&directory) {
        let bufs: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        device.write_at(777, &bufs).unwrap();
        let mut read = vec![0; whole.len()];
        device.read_at(777, &mut read).unwrap();
        assert_eq!(read, whole, "{name}");
    }
}

/// A device with all the hints that there are.
struct Hinting(MemoryDevice);

impl BlockDevice for Hinting {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.0.write_at(offset, bufs)
    }
    fn barrier(&self) -> io::Result<()> {
        self.0.barrier()
    }
    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.discard(offset, len)
    }
    fn hints(&self) -> Hints {
        Hints { wants_discards: true, parallel: 16, ..Hints::default() }
    }
}

#[test]
fn hints_reach_through_decorators_and_pointers() {
    let hinting = || Hinting(MemoryDevice::new(SIZE_BYTES));
    let trace: Arc<dyn BlockDevice> = Arc::new(TraceDevice::new(hinting()));
    let all: Vec<Box<dyn BlockDevice>> = vec![
        Box::new(hinting()),
        Box::new(FaultDevice::new(trace, 1)),
        Box::new(HoldDevice::new(hinting())),
    ];
    for device in &all {
        let hints = (&device).hints();
        assert_eq!((hints.wants_discards, hints.parallel), (true, 16));
    }
    let plain = TraceDevice::new(MemoryDevice::new(SIZE_BYTES));
    assert_eq!(plain.hints(), Hints::default());
}

#[test]
fn pointers_to_devices_are_devices() {
    fn size(device: impl BlockDevice) -> u64 {
        device.geometry().size_bytes
    }
    let memory = MemoryDevice::new(4096);
    assert_eq!(size(&memory), 4096);
    let shared: Arc<dyn BlockDevice> = Arc::new(memory);
    assert_eq!(size(Arc::clone(&shared)), 4096);
    let boxed: Box<dyn BlockDevice> = Box::new(shared);
    assert_eq!(size(boxed), 4096);
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        offset: u64,
        len: usize,
        fill: u8,
    },
    /// Discards, and then writes the same range, because its contents in between are undefined.
    Discard {
        offset: u64,
        len: usize,
        fill: u8,
    },
    Barrier,
    Sync,
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..SIZE_BYTES, 0..40_000_usize, any::<u8>())
        .prop_map(|(offset, len, fill)| (offset, len.min((SIZE_BYTES - offset) as usize), fill));
    prop_oneof![
        4 => range.clone().prop_map(|(offset, len, fill)| Step::Write { offset, len, fill }),
        1 => range.prop_map(|(offset, len, fill)| Step::Discard { offset, len, fill }),
        1 => Just(Step::Barrier),
        1 => Just(Step::Sync),
    ]
}

proptest! {
    // Each case runs on every device: fewer do, but as many more as `PROPTEST_CASES` asks for.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 6))]

    #[test]
    fn every_device_is_an_array_of_bytes(steps in prop::collection::vec(step(), 1..25)) {
        let directory = tempfile::tempdir().unwrap();
        for (name, device) in devices(&directory) {
            let mut model = vec![0; SIZE_BYTES as usize];
            for step in &steps {
                match *step {
                    Step::Barrier => device.barrier().unwrap(),
                    Step::Sync => device.sync().unwrap(),
                    Step::Write { offset, len, fill } | Step::Discard { offset, len, fill } => {
                        if matches!(step, Step::Discard { .. }) {
                            device.discard(offset, len as u64).unwrap();
                        }
                        let data: Vec<u8> = (0..len).map(|at| fill ^ at as u8).collect();
                        let (head, tail) = data.split_at(len / 3);
                        let bufs = [IoSlice::new(head), IoSlice::new(tail)];
                        device.write_at(offset, &bufs).unwrap();
                        model[offset as usize..offset as usize + len].copy_from_slice(&data);
                    }
                }
            }
            let mut read = vec![1; SIZE_BYTES as usize];
            device.read_at(0, &mut read).unwrap();
            prop_assert!(read == model, "{} differs from an array of bytes", name);
        }
    }
}
