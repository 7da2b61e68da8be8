//! A site, and the log of its visitors, generated from a seed.
//!
//! A page is an HTML file with images of its own. Each section has icons that all of its pages show. HTML and
//! images are in different directories, as on most sites, so files that are read together are not in one
//! directory. Files are made in random order, as over years of additions and edits. Visitors choose pages by
//! Zipf's law, which studies of web servers have found (Breslau et al., INFOCOM 1999: exponents from 0.64 to
//! 0.83). A visitor reads the page, then its images.

use std::path::Path;

use anyhow::{Context, Result};

use crate::workload::contents::Contents;
use crate::workload::random::{LogNormal, Random};
use crate::workload::tree;

#[derive(Clone, Copy, Debug)]
pub struct Extent {
    pub pages: usize,
    /// Visits to pages in a log.
    pub visits: usize,
    /// The seed of all random choices.
    pub seed: u64,
}

/// The exponent of Zipf's law.
const SKEW: f64 = 0.8;
const PAGES_PER_SECTION: usize = 50;
const IMAGES_PER_PAGE_MAX: u64 = 7;
const ICONS_PER_SECTION: usize = 3;
const FILE_BYTES_MAX: u64 = 256 << 10;

pub struct Site {
    extent: Extent,
    /// Paths from the root of the site, with sizes in bytes.
    files: Vec<(String, u64)>,
    made: Vec<usize>,
    /// The files that a visitor of each page reads, in order.
    pages: Vec<Vec<usize>>,
    /// Pages by popularity.
    ranks: Vec<usize>,
}

impl Site {
    pub fn new(extent: Extent) -> Site {
        let mut random = Random::new(extent.seed);
        let html = LogNormal::new(6e3, 10e3, FILE_BYTES_MAX);
        let image = LogNormal::new(5e3, 14e3, FILE_BYTES_MAX);
        let sections = extent.pages.div_ceil(PAGES_PER_SECTION);
        let mut files = Vec::new();
        for section in 0..sections {
            for icon in 0..ICONS_PER_SECTION {
                files.push((format!("images/s{section:02}/icon{icon}.gif"), 1024));
            }
        }
        let mut pages = Vec::with_capacity(extent.pages);
        for page in 0..extent.pages {
            let section = page % sections;
            let mut parts = vec![files.len()];
            files.push((format!("pages/s{section:02}/p{page:05}.html"), html.sample(&mut random)));
            parts.extend((0..ICONS_PER_SECTION).map(|icon| section * ICONS_PER_SECTION + icon));
            for number in 0..1 + random.below(IMAGES_PER_PAGE_MAX) {
                parts.push(files.len());
                let name = format!("images/s{section:02}/p{page:05}-{number}.jpg");
                files.push((name, image.sample(&mut random)));
            }
            pages.push(parts);
        }
        let mut shuffled = |len: usize| {
            let mut all: Vec<usize> = (0..len).collect();
            random.shuffle(&mut all);
            all
        };
        let (ranks, made) = (shuffled(extent.pages), shuffled(files.len()));
        Site { extent, files, made, pages, ranks }
    }

    pub fn file_count(&self) -> usize {
        self.files.len()
    }

    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.1).sum()
    }

    /// The directories of the site, each after its parent.
    pub fn directories(&self) -> Vec<String> {
        let mut dirs: Vec<String> = vec![String::from("images"), String::from("pages")];
        for (path, _) in &self.files {
            let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
            if !dirs.iter().any(|known| known == dir) {
                dirs.push(dir.to_owned());
            }
        }
        dirs
    }

    /// Creates the files, in existing directories.
    pub fn make(&self, root: &Path) -> Result<()> {
        let contents = Contents::new(self.extent.seed, FILE_BYTES_MAX as usize);
        for &number in &self.made {
            let (path, bytes) = &self.files[number];
            let path = root.join(path);
            let made = tree::create(&path, contents.of(number as u64, *bytes as usize));
            made.with_context(|| format!("make {}", path.display()))?;
        }
        Ok(())
    }

    /// The files that visitors read on one day, in order: each day has its own log, with the same
    /// distribution.
    pub fn log(&self, day: u64) -> Vec<&str> {
        let mut random = Random::new(self.extent.seed ^ (day + 1) << 32);
        let mut sum = 0.0;
        let until: Vec<f64> = (1..=self.ranks.len())
            .map(|rank| {
                sum += (rank as f64).powf(-SKEW);
                sum
            })
            .collect();
        (0..self.extent.visits)
            .flat_map(|_| {
                let at = random.fraction() * sum;
                let rank = until.partition_point(|end| *end <= at).min(self.ranks.len() - 1);
                &self.pages[self.ranks[rank]]
            })
            .map(|file| self.files[*file].0.as_str())
            .collect()
    }
}

/// The files of a log, each once, the most frequently read first.
pub fn by_demand<'a>(log: &[&'a str]) -> Vec<&'a str> {
    let mut reads: Vec<(&str, usize)> = Vec::new();
    let mut known = std::collections::HashMap::new();
    for path in log {
        let at = *known.entry(*path).or_insert_with(|| {
            reads.push((path, 0));
            reads.len() - 1
        });
        reads[at].1 += 1;
    }
    // Files with the same count stay in the order of the log.
    reads.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    reads.into_iter().map(|(path, _)| path).collect()
}
