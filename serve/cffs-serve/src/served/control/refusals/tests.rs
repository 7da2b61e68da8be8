use super::*;

/// Regression: a second regrouping of a mounted volume printed "Invalid argument", and a failed grow only
/// referred to the log.
#[test]
fn a_refused_caller_gets_the_reason() {
    let refusals = Refusals::default();
    refusals.add("grow", "5", &Error::Unsupported(String::from("it cannot shrink")));
    refusals.add("regroup", "move tree", &Error::Invalid("a regrouping is under way"));
    let said = refusals.describe();
    assert_eq!(reason(&said, "grow", "5").as_deref(), Some("it cannot shrink"));
    let regroup = reason(&said, "regroup", "move tree");
    assert_eq!(regroup.as_deref(), Some("a regrouping is under way"));
    assert_eq!(reason(&said, "grow", "6"), None);

    let long = "1 ".repeat(3000);
    for count in 0..2 * KEPT_MAX {
        refusals.add("regroup", &long, &Error::Unsupported(count.to_string()));
    }
    let said = refusals.describe();
    assert_eq!(reason(&said, "grow", "5"), None, "only the last are kept");
    assert_eq!(reason(&said, "regroup", &long).as_deref(), Some("31"), "the last counts");
}
