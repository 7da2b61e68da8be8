use std::sync::Arc;

use super::Pages;
use crate::cache::Block;
use crate::trace::{self, OpId, OpKind};
use crate::units::{EpochNo, FileBlock};

const AT: FileBlock = FileBlock(3);

/// Changes the page as an operation of a process.
fn change(pages: &mut Pages, process: u32) {
    let _op = trace::read_ahead_for(Some(OpId::new(OpKind::Write, process, process.into())));
    if pages.get_mut(AT).is_none() {
        pages.insert(AT, Arc::new(Block::new(&[0; 4096])));
    }
}

fn processes(pages: &Pages) -> Vec<u32> {
    pages.causes(AT).expect("a page").iter().map(OpId::process).collect()
}

#[test]
fn a_page_belongs_to_all_who_changed_it_since_an_epoch_took_it() {
    let mut pages = Pages::default();
    change(&mut pages, 1);
    change(&mut pages, 2);
    assert_eq!(processes(&pages), [1, 2]);
    pages.start_write(AT, EpochNo(5)).expect("a page");
    // While the epoch writes it.
    change(&mut pages, 3);
    assert_eq!(processes(&pages), [3]);
    pages.finish_write(AT, EpochNo(5));
    assert_eq!(processes(&pages), [3], "it is dirty again");
}
