//! `cffs.h`: the files of an image for programs in C.
//!
//! The header is made from what is here by cbindgen, with these comments. Pointers come from the caller: each
//! function says in its safety section what they have to be, and refuses null where the header does not allow
//! it. No panic leaves this crate.

// In the order in which the header has them.
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
