//! Results of `INIT` requests.

use super::super::{
    Features, Granted, InitRequest, Malformed, Negotiation, Opcode, Operation, Wishes, negotiate,
};
use super::{Bytes, bytes, operation};

const EVERYTHING: Features = Features::all();

fn offer(offered: Features) -> InitRequest {
    InitRequest { major: 7, minor: 45, max_readahead: 128 << 10, offered }
}

#[track_caller]
fn agreed(request: &InitRequest, wishes: &Wishes) -> Granted {
    match negotiate(request, wishes, 4096) {
        Negotiation::Agreed(granted) => granted,
        other => panic!("{other:?}"),
    }
}

fn init(flags: u32) -> Bytes {
    bytes().u32(7).u32(45).u32(1 << 17).u32(flags)
}

#[test]
fn the_second_word_of_flags_counts_only_with_init_ext() {
    let decoded = |offered: u64| {
        let offered = Features::from_bits_retain(offered);
        Operation::Init(InitRequest { major: 7, minor: 45, max_readahead: 1 << 17, offered })
    };
    let short = operation(Opcode::Init, &init(0x8)).unwrap();
    assert_eq!(short, decoded(0x8));
    let long = operation(Opcode::Init, &init(0x4000_0008).u32(0x200).bytes(&[0; 44])).unwrap();
    assert_eq!(long, decoded(0x200_4000_0008));
    let silent = operation(Opcode::Init, &init(0x8).u32(0x200).bytes(&[0; 44])).unwrap();
    assert_eq!(silent, decoded(0x8));
    let cut = operation(Opcode::Init, &bytes().u32(7).u32(45).u32(0));
    assert_eq!(cut, Err(Malformed::Truncated("INIT")));
}

#[test]
fn only_offered_features_are_accepted() {
    let granted = agreed(&offer(Features::ASYNC_READ), &Wishes::default());
    assert_eq!(granted.features, Features::ASYNC_READ);
    // Without negotiation, a request has at most 32 pages.
    assert_eq!(granted.max_write, 32 * 4096);
}

#[test]
fn locks_and_splices_are_never_accepted() {
    let wishes = Wishes { features: EVERYTHING, ..Wishes::default() };
    let granted = agreed(&offer(EVERYTHING), &wishes);
    assert!(!granted.features.intersects(Features::POSIX_LOCKS | Features::FLOCK_LOCKS));
    let splices = Features::from_bits_retain(0b111 << 7);
    assert!(!granted.features.intersects(splices));
}

#[test]
fn sizes_are_whole_pages() {
    let wishes = Wishes { max_write: 1 << 20, ..Wishes::default() };
    let granted = agreed(&offer(EVERYTHING), &wishes);
    assert_eq!((granted.max_write, granted.payload_len()), (1 << 20, 1 << 20));
    assert_eq!(granted.max_readahead, 128 << 10, "no more than the kernel's");
    let tiny = agreed(&offer(EVERYTHING), &Wishes { max_write: 1, ..wishes });
    assert_eq!(tiny.max_write, 4096);
    assert!(tiny.payload_len() > 64 << 10, "an xattr must fit");
    let huge = agreed(&offer(EVERYTHING), &Wishes { max_write: u32::MAX, ..wishes });
    assert_eq!(huge.max_write, 65535 * 4096);
}

/// Regression: a file system that elided `OPEN` and had requested `ATOMIC_O_TRUNC` kept the old
/// contents on `> file`: the truncation was in the `OPEN` that was never sent.
#[test]
fn atomic_o_trunc_is_not_negotiated_with_elided_opening() {
    let wishes = Wishes { elide_open: true, ..Wishes::default() };
    assert!(wishes.features.contains(Features::ATOMIC_O_TRUNC));
    let granted = agreed(&offer(EVERYTHING), &wishes);
    assert!(granted.elide_open && granted.features.contains(Features::NO_OPEN_SUPPORT));
    assert!(!granted.features.contains(Features::ATOMIC_O_TRUNC));
    let old = agreed(&offer(EVERYTHING - Features::NO_OPEN_SUPPORT), &wishes);
    assert!(!old.elide_open && old.features.contains(Features::ATOMIC_O_TRUNC));
}

#[test]
fn the_lower_minor_version_is_used() {
    let minor =
        |minor| negotiate(&InitRequest { minor, ..offer(EVERYTHING) }, &Wishes::default(), 4096);
    assert!(matches!(minor(60), Negotiation::Agreed(Granted { minor: 45, .. })));
    assert!(matches!(minor(31), Negotiation::Agreed(Granted { minor: 31, .. })));
    assert_eq!(minor(30), Negotiation::Unsupported);
    let major =
        |major| negotiate(&InitRequest { major, ..offer(EVERYTHING) }, &Wishes::default(), 4096);
    assert_eq!(major(8), Negotiation::Retry);
    assert_eq!(major(6), Negotiation::Unsupported);
}

#[test]
fn the_answer() {
    let wishes = Wishes { max_background: 12, congestion_threshold: 9, ..Wishes::default() };
    let granted = Granted {
        minor: 45,
        features: Features::ASYNC_READ | Features::OVER_IO_URING,
        max_write: 1 << 20,
        max_readahead: 1 << 17,
        elide_open: false,
        elide_opendir: false,
    };
    let expected = bytes().u32(7).u32(45).u32(1 << 17).u32(1).u16(12).u16(9).u32(1 << 20);
    let expected = expected.u32(1).u16(256).u16(0).u32(1 << 9).bytes(&[0; 28]);
    assert_eq!(granted.encode(&wishes, 4096)[..], expected.0);
}
