use super::*;

#[test]
fn delayed_reads_do_not_count() {
    let (turn, seek) = (8.0, 11.0);
    let waits = || (0..70).map(|read| turn * f64::from(read * 37 % 70) / 69.0);
    let undisturbed = middle(waits().map(|wait| seek + wait), turn);
    assert!((undisturbed - seek).abs() < 0.1, "{undisturbed}");
    for (every, late) in [(7, 3.0), (5, 9.0), (70, 1.0), (4, 0.7)] {
        let times = waits().enumerate().map(|(number, wait)| {
            seek + wait + if number % every == every - 1 { late } else { 0.0 }
        });
        let found = middle(times, turn);
        assert!((found / seek - 1.0).abs() < 0.03, "{found}, one of {every} late by {late}");
    }
}
