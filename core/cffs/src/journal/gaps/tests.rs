use super::*;

/// Records on a disk that turns once in 8 ms, streams a block in 25 µs, and gets the next record so long
/// after the last. Returns the gap that is in use, and the mean of the last records in µs.
fn run(gaps: &mut Gaps, records: u32, pause_us: u64) -> (u32, u64) {
    const TURN_US: u64 = 8_000;
    let took = |blocks: u32| (u64::from(blocks) * 25 + TURN_US - 100 - pause_us) % TURN_US + 175;
    let mut sum = 0;
    for record in 0..records {
        let us = took(gaps.next());
        sum += if record >= records / 2 { us } else { 0 };
        gaps.took(Duration::from_micros(us));
    }
    (gaps.next(), sum / u64::from(records - records / 2))
}

#[test]
fn the_gap_that_meets_the_head_is_found_and_followed() {
    let mut gaps = Gaps::new(128);
    let (gap, us) = run(&mut gaps, 200, 50);
    assert_eq!(gap, 8);
    assert!(us < 400, "{us}");
    // The caller takes longer now.
    let (gap, us) = run(&mut gaps, 200, 1_000);
    assert_eq!(gap, 64);
    assert!(us < 1_000, "{us}");
    // And is quick again: a shorter gap is tried again in time.
    let (gap, us) = run(&mut gaps, 20_000, 50);
    assert_eq!(gap, 8);
    assert!(us < 400, "{us}");
}

#[test]
fn a_quick_device_has_no_gaps() {
    let mut gaps = Gaps::new(128);
    for _ in 0..10_000 {
        assert_eq!(gaps.next(), 0);
        gaps.took(Duration::from_micros(300));
    }
}

#[test]
fn a_device_on_which_they_gain_nothing_has_none() {
    let mut gaps = Gaps::new(128);
    let mut with_gaps = 0;
    for _ in 0..10_000 {
        with_gaps += u32::from(gaps.next() > 0);
        gaps.took(Duration::from_millis(4));
    }
    assert!(with_gaps < 200, "{with_gaps}");
    assert_eq!(gaps.next(), 0);
}

#[test]
fn a_short_journal_has_short_gaps_or_none() {
    let blocks = |max| Gaps::new(max).candidates.iter().map(|c| c.blocks).collect::<Vec<_>>();
    assert_eq!(blocks(128), [0, 4, 8, 16, 32, 64, 128]);
    assert_eq!(blocks(2), [0, 1, 2]);
    assert_eq!(blocks(0), [0]);
}
