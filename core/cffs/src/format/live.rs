//! The layout of a volume that is open and may grow.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use super::Layout;

/// The layout of an open volume. Every clone of it shows when the volume grows; a call on it sees
/// one size from its beginning to its end.
///
/// The sizes of the volume so far are a list that only grows, so a reader needs no lock: if the volume never
/// grew, it reads one entry.
#[derive(Clone, Debug)]
pub struct LiveLayout(Arc<Version>);

#[derive(Debug)]
struct Version {
    layout: Layout,
    next: OnceLock<Box<Version>>,
}

impl LiveLayout {
    /// Sets the number of blocks, for all users of the layout. A volume does not shrink: a
    /// smaller number changes nothing.
    pub fn grow(&self, blocks: u64) {
        let mut version = &*self.0;
        while version.layout.blocks < blocks {
            let layout = version.layout.with_blocks(blocks);
            version = version.next.get_or_init(|| Box::new(Version::new(layout)));
        }
    }
}

impl Version {
    fn new(layout: Layout) -> Version {
        Version { layout, next: OnceLock::new() }
    }
}

impl From<Layout> for LiveLayout {
    fn from(layout: Layout) -> LiveLayout {
        LiveLayout(Arc::new(Version::new(layout)))
    }
}

impl Deref for LiveLayout {
    type Target = Layout;

    fn deref(&self) -> &Layout {
        let mut version = &*self.0;
        while let Some(next) = version.next.get() {
            version = next;
        }
        &version.layout
    }
}
