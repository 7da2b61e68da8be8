//! Raising the limit, and restoring it.

use super::*;

#[test]
fn the_limit_is_restored() {
    let before = current();
    let wanted = (before + 64) * PAGE_BYTES;
    {
        let raised = RaisedLimit::to(wanted);
        let may = File::options().write(true).open(LIMIT).is_ok();
        assert_eq!(raised.bytes(), if may { wanted } else { before * PAGE_BYTES });
    }
    assert_eq!(current(), before);
}
