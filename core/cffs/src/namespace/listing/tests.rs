use super::*;

fn position(sector: u32, slot: u16, end: u32) -> Position {
    Position { sector, slot, end }
}

#[test]
fn a_cookie_decodes_to_its_position() {
    for (sector, slot, end) in [
        (0, 1, 1),
        (0, 254, 2),
        (2047, 254, 2048),
        (7, 3, 3 << 10),
        ((1 << 16) - 1, 254, 1 << 16),
        (7, 3, 1 << 18),
        (7, u16::MAX, 1 << 18),
        (u32::MAX - 1, u16::MAX, u32::MAX),
    ] {
        let position = position(sector, slot, end);
        assert_eq!(Position::from_cookie(position.cookie()), position);
    }
}

/// Programs of 32 bits could not list a directory of more than one sector: its cookies were above 2^31.
#[test]
fn cookies_of_a_million_files_fit_programs_of_32_bits() {
    for (sector, slot, end) in [(0, 1, 1), (2047, 254, 2048), (0, 1, 2049), (65_535, 254, 65_536)] {
        assert!(position(sector, slot, end).cookie() < LAST, "{sector} {slot} {end}");
    }
    let largest = position(u32::MAX - 1, u16::MAX, u32::MAX).cookie();
    assert!(largest < i64::MAX as u64 - 2, "they are signed, and front ends add 2");
}

#[test]
fn cookies_of_one_reading_rise() {
    for end in [2048, 2049, 1 << 16, 1 << 20] {
        let places = [(0, 1), (0, 2), (0, 254), (1, 1), (end / 2, 7), (end - 1, 1), (end - 1, 2)];
        let cookies = places.map(|(sector, slot)| position(sector, slot, end).cookie());
        assert!(cookies.is_sorted_by(|a, b| a < b), "{end}: {cookies:x?}");
    }
}

/// The end of a reading is rounded up at most, and by the same in each of its cookies.
#[test]
fn an_end_stays_the_same_from_cookie_to_cookie() {
    for end in [1, 2048, 2049, 3000, 65_536, 65_537, 1 << 24, u32::MAX] {
        let first = Position::from_cookie(position(0, 1, end).cookie());
        assert!(first.end >= end && first.end - end < 1 << 18, "{end}: {first:?}");
        assert_eq!(Position::from_cookie(first.cookie()), first);
    }
}

/// Cookies come back from callers, who may have made them up.
#[test]
fn any_number_is_a_position() {
    for cookie in [1, u64::MAX, i64::MAX as u64, 1 << 30, LAST, LAST + 1, 1 << 48, 1 << 62] {
        let position = Position::from_cookie(cookie);
        assert!(position.end > 0, "{cookie:x}");
    }
}
