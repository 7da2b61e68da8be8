use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use proptest::prelude::*;

use super::{Map, Pages};
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

#[test]
fn a_file_of_one_page_takes_no_tree() {
    let mut pages = Pages::default();
    change(&mut pages, 1);
    assert!(matches!(pages.pages, Map::One(Some(_))));
    pages.insert(FileBlock(4), Arc::new(Block::zeroed(4096)));
    assert!(matches!(&pages.pages, Map::Many(tree) if tree.len() == 2));
}

proptest! {
    /// Against a map of what is dirty, across the change from one page to many.
    #[test]
    fn one_and_many_answer_alike(steps in prop::collection::vec((0u64..4, 0u8..7), 1..40)) {
        let (mut pages, mut dirty) = (Pages::default(), BTreeMap::new());
        let block = |at: u64| Arc::new(Block::new(&[at as u8; 16]));
        for (at, what) in steps {
            let position = FileBlock(at);
            match what {
                0 => {
                    pages.insert(position, block(at));
                    dirty.insert(position, true);
                }
                1 => {
                    let loaded = pages.get_or_load(position, || Ok::<_, Infallible>(block(at)));
                    let made_dirty = loaded.is_ok_and(|(_, made_dirty)| made_dirty);
                    prop_assert_eq!(made_dirty, dirty.insert(position, true) != Some(true));
                }
                2 => {
                    let failed = pages.get_or_load(position, || Err(())).is_err();
                    prop_assert_eq!(failed, !dirty.contains_key(&position));
                    dirty.entry(position).and_modify(|is_dirty| *is_dirty = true);
                }
                3 => {
                    let taken = pages.start_write(position, EpochNo(1));
                    prop_assert_eq!(taken.map(|page| page[0]), dirty.get(&position).map(|_| at as u8));
                    dirty.entry(position).and_modify(|is_dirty| *is_dirty = false);
                }
                4 => {
                    pages.finish_write(position, EpochNo(1));
                    if dirty.get(&position) == Some(&false) {
                        dirty.remove(&position);
                    }
                }
                5 => {
                    let gone = dirty.split_off(&position);
                    let were_dirty = gone.values().filter(|is_dirty| **is_dirty).count();
                    prop_assert_eq!(pages.remove_range(position..FileBlock::END), were_dirty);
                }
                _ => {
                    let made_dirty = pages.get_mut(position).map(|(_, made_dirty)| made_dirty);
                    prop_assert_eq!(made_dirty, dirty.get(&position).map(|is_dirty| !is_dirty));
                    dirty.entry(position).and_modify(|is_dirty| *is_dirty = true);
                }
            }
            let all: Vec<FileBlock> =
                dirty.iter().filter(|(_, is_dirty)| **is_dirty).map(|(at, _)| *at).collect();
            prop_assert_eq!(pages.dirty_count(), all.len());
            prop_assert_eq!(pages.dirty_in(FileBlock::ALL).collect::<Vec<_>>(), all);
            prop_assert_eq!(pages.is_empty(), dirty.is_empty());
            let next = dirty.range(position..).next().map(|(at, _)| *at);
            prop_assert_eq!(pages.next_at(position), next);
        }
    }
}
