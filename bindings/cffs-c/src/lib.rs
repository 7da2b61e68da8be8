//! `cffs.h`: the files of an image for programs in C.
//!
//! cbindgen generates the header from this crate, including these comments. Pointers come from the caller:
//! the safety section of each function states their requirements, and the function refuses null where the
//! header does not allow it. Panics do not leave this crate.

// In the order of the header.
mod error;
mod pointers;

mod volume;

mod names;

mod attributes;

mod directory;

mod contents;

mod bulk;

pub use attributes::*;
pub use bulk::*;
pub use contents::*;
pub use directory::*;
pub use error::*;
pub use names::*;
pub use volume::*;
