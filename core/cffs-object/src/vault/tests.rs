use proptest::prelude::*;

use super::*;
use crate::format::{CHUNK_BYTES, REQUEST_BYTES};

const OWNER: Owner = [7; 16];
const LOG_1: (&str, Instance) = ("log/1", Instance::Known(9));

fn vault() -> Vault {
    Vault::new(Zeroizing::new([3; KEY_BYTES]), OWNER)
}

/// Bytes in which each position can be told from its neighbours.
fn text(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ (at / 251) as u8).collect()
}

/// The answer of a store to a request for a range of an object.
fn answer(sealed: &[u8], range: &Range<u64>) -> Vec<u8> {
    let sealed_range = sealed_range(range, Instance::Known(9));
    let end = sealed_range.end.min(sealed.len() as u64);
    sealed[sealed_range.start.min(end) as usize..end as usize].to_vec()
}

fn lengths() -> impl Strategy<Value = usize> {
    let borders = [0, 1, 16 << 10, 64 << 10, 128 << 10, 192 << 10, 256 << 10];
    (proptest::sample::select(borders.to_vec()), 0..5usize)
        .prop_map(|(border, more)| (border + more).saturating_sub(2))
}

proptest! {
    #[test]
    fn each_range_of_a_sealed_object_opens_to_its_bytes(
        len in lengths(), from in 0..300_000usize, count in 1..300_000usize,
    ) {
        let (vault, plain) = (vault(), text(len));
        let sealed = vault.seal("log/1", Instance::Known(9), &plain);
        prop_assert_eq!(sealed.len() as u64, sealed_len(len as u64, Instance::Known(9)));
        let wanted = from as u64..(from + count) as u64;
        let opened = vault.open(&OWNER, LOG_1, &wanted, &answer(&sealed, &wanted)).unwrap();
        let end = (from + count).min(len);
        prop_assert_eq!(&opened[..], &plain[from.min(end)..end]);
    }

    #[test]
    fn the_sealed_length_tells_the_plain_one(len in 0..2_000_000u64) {
        for instance in [Instance::Named, Instance::Leading] {
            prop_assert_eq!(plain_len(sealed_len(len, instance), instance), Some(len));
        }
    }
}

#[test]
fn no_object_has_a_frame_without_contents() {
    for len in [1, 28, (16 << 10) + 28 + 1, (16 << 10) + 28 + 28, (64 << 10) + 56 + 5] {
        assert_eq!(plain_len(len, Instance::Named), None, "{len}");
        assert_eq!(plain_len(len + 4, Instance::Leading), None, "{len}");
    }
}

#[test]
fn chunks_and_requests_begin_at_frames() {
    for unit in [FIRST_BYTES, CHUNK_BYTES, REQUEST_BYTES] {
        for number in 1..5 {
            let at = unit * number;
            if unit != FIRST_BYTES || number == 1 {
                assert_eq!(start(frame_of(at)), at);
            }
        }
    }
}

#[test]
fn a_frame_opens_only_in_its_place() {
    let vault = vault();
    let plain = text(200_000);
    let all = 0..plain.len() as u64;
    let sealed = vault.seal("log/1", Instance::Known(9), &plain);
    assert_eq!(vault.open(&OWNER, LOG_1, &all, &sealed).unwrap(), plain);

    assert!(
        vault.open(&OWNER, ("log/2", Instance::Known(9)), &all, &sealed).is_err(),
        "another name"
    );
    assert!(vault.open(&[8; 16], LOG_1, &all, &sealed).is_err(), "another volume");
    let other = Vault::new(Zeroizing::new([4; KEY_BYTES]), OWNER);
    assert!(other.open(&OWNER, LOG_1, &all, &sealed).is_err(), "another key");

    let as_10 = ("log/1", Instance::Known(10));
    assert!(vault.open(&OWNER, as_10, &all, &sealed).is_err(), "another instance");
    let later = (FRAME_BYTES..2 * FRAME_BYTES, answer(&sealed, &(FRAME_BYTES..2 * FRAME_BYTES)));
    assert!(
        vault.open(&OWNER, as_10, &later.0, &later.1).is_err(),
        "another instance, without its number"
    );
    let leading = vault.open(&OWNER, ("log/1", Instance::Leading), &all, &sealed);
    assert_eq!(leading.unwrap(), plain);

    let frame = (FRAME_BYTES + ADDED_BYTES) as usize;
    let second = (INSTANCE_BYTES + FIRST_BYTES + ADDED_BYTES) as usize;
    let third = (INSTANCE_BYTES + FRAME_BYTES + 2 * ADDED_BYTES) as usize;
    let mut swapped = sealed.clone();
    swapped[third..third + 2 * frame].rotate_left(frame);
    assert!(vault.open(&OWNER, LOG_1, &all, &swapped).is_err(), "frames in another order");
    let without = [&sealed[..second], &sealed[third..]].concat();
    assert!(vault.open(&OWNER, LOG_1, &all, &without).is_err(), "a frame is missing");
    for cut in [1, 27, second - 1, second + 20, sealed.len() - 1] {
        assert!(vault.open(&OWNER, LOG_1, &all, &sealed[..cut]).is_err(), "cut at {cut}");
    }
    let at_border = vault.open(&OWNER, LOG_1, &all, &sealed[..third]).unwrap();
    assert_eq!(
        at_border.len(),
        FRAME_BYTES as usize,
        "a cut at a border shows as a shorter object"
    );
}

#[test]
fn each_flipped_bit_is_found() {
    let vault = vault();
    let plain = text(300);
    let sealed = vault.seal("head", Instance::Leading, &plain);
    for at in 0..sealed.len() {
        let mut damaged = sealed.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(
            vault.open(&OWNER, ("head", Instance::Leading), &(0..300), &damaged).is_err(),
            "byte {at}"
        );
    }
}

#[test]
fn the_same_contents_are_sealed_differently_each_time() {
    let vault = vault();
    let plain = text(100);
    assert_ne!(
        vault.seal("head", Instance::Leading, &plain),
        vault.seal("head", Instance::Leading, &plain)
    );
}
