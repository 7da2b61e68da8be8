use super::*;

#[test]
fn a_cookie_leads_back_to_its_position() {
    for (sector, slot, end) in
        [(0, 1, 1), (0, u16::MAX, 2), (7, 3, 7 + TO_COME_MAX), (u32::MAX - 1, 9, u32::MAX)]
    {
        let position = Position { sector, slot, end: Some(end) };
        assert_eq!(Position::from_cookie(cookie(SectorIndex(sector), slot, end)), position);
    }
}

#[test]
fn a_reader_far_from_the_end_asks_for_it_again() {
    let far = cookie(SectorIndex(0), 1, TO_COME_MAX + 1);
    assert_eq!(Position::from_cookie(far), Position { sector: 0, slot: 1, end: None });
    assert_eq!(Position::from_cookie(0), Position { sector: 0, slot: 0, end: None });
    let largest = cookie(SectorIndex(u32::MAX - 1), u16::MAX, u32::MAX);
    assert!(far < i64::MAX as u64 - 2 && largest < i64::MAX as u64 - 2);
}

/// Cookies come back from callers, who may have made them up.
#[test]
fn any_number_is_a_position() {
    for cookie in [u64::MAX, i64::MAX as u64, 1 << 48, 0x7ffd_ffff_ffff_ffff] {
        let position = Position::from_cookie(cookie);
        assert!(position.end.is_none_or(|end| end >= position.sector));
    }
}
