//! Tests of the sample that decides whether contents are compressed.

use super::{SAMPLE_PAGE_BYTES, SAMPLE_PAGES, sample};
use crate::format::cluster::Compressor;

const PAGE_BYTES: usize = 4096;

/// Bytes that look random, another sequence for each seed.
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let step = |_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..PAGE_BYTES).map(step).collect()
}

fn is_compressed(pages: &[Vec<u8>]) -> bool {
    let pages: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
    let sample = sample(&pages).expect("enough pages");
    assert_eq!(sample.len(), SAMPLE_PAGES * SAMPLE_PAGE_BYTES);
    Compressor::new(1).expect("memory").shortens(&sample)
}

#[test]
fn contents_are_compressed_if_a_part_of_the_sample_becomes_shorter() {
    let text = || b"fn main() { println!(\"text\"); }\n".repeat(PAGE_BYTES / 32);
    let mut pages: Vec<Vec<u8>> = (0..16).map(noise).collect();
    assert!(!is_compressed(&pages));
    for at in [0, 4, 8, 12] {
        let kept = std::mem::replace(&mut pages[at], text());
        assert!(is_compressed(&pages), "text in page {at}");
        pages[at] = kept;
    }
}

#[test]
fn few_pages_are_compressed_without_a_sample() {
    let page = noise(1);
    let pages = vec![&page[..]; SAMPLE_PAGES];
    assert!(sample(&pages).is_some());
    assert_eq!(sample(&pages[1..]), None);
}
