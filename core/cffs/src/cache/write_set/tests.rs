use super::WriteSet;
use crate::trace::{Causes, OpId, OpKind};
use crate::units::BlockNo;

/// Ends of several files share a block, each with its own causes.
#[test]
fn a_block_belongs_to_all_who_changed_what_is_in_it() {
    let mut writes = WriteSet::default();
    for process in [1, 2, 1, 3] {
        let mut causes = Causes::default();
        causes.note(Some(OpId::new(OpKind::Write, process, u64::from(process))));
        writes.note_causes(BlockNo(7), &causes);
    }
    let processes: Vec<u32> = writes.causes[&BlockNo(7)].iter().map(OpId::process).collect();
    assert_eq!(processes, [1, 2, 3]);
}
