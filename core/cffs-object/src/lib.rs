//! Volumes in object stores (decision 012).
//!
//! Offers [`LogDevice`], a [`BlockDevice`](cffs::device::BlockDevice) whose blocks are in immutable objects,
//! and [`Location`], which turns a URL into a store and the prefix of a volume. Stores are accessed through
//! the crate `object_store`; the log and the map are implemented here.
//!
//! | module | offers |
//! | --- | --- |
//! | `location` | URLs, and the clients for them |
//! | `profile` | credentials in the files of Amazon's own tools |
//! | `keys` | credentials that change while a volume is open |
//! | `answer` | explanations of a store's errors, with advice |
//! | `requests` | counts of requests by price category |
//! | `store` | blocking requests, with explained errors |
//! | `extents` | a map from ranges of the device to the sources of their bytes |
//! | `format` | one codec per object |
//! | `reader` | little-endian fields and checksums, for the codecs |
//! | `secret` | the key or passphrase of an encrypted volume, and the data key that it wraps |
//! | `vault` | sealed objects of encrypted volumes |
//! | `identity` | the object `format`: the identity of a volume, and its wrapped key |
//! | `unlock` | opens and makes identities, and gives the store the data key |
//! | `history` | the state after the last record: found from the hint on, checked slot by slot |
//! | `commit` | puts a record into its slot, even if answers are lost |
//! | `cache` | a cache of chunks on a local disk |
//! | `home` | the directory of a volume that is stored in one: whether it is still there |
//! | `chunks` | reads of objects, with a cache in memory |
//! | `succession` | the access that a writer hands over to the program that replaces it |
//! | `staging` | records that wait on a local disk |
//! | `upload` | a thread that sends staged records, in order |
//! | `local` | private directories, and making their files durable |
//! | `state` | the places of the device's bytes: in the store, in flight, or in memory |
//! | `collect` | finds dead objects, and ranges to compact |
//! | `verify` | whether all objects of a volume are in the store, and can be read |
//! | `writer` | claiming, committing, collecting |
//! | `device` | the block device |
//! | `destroy` | deletion of a volume with all of its objects |
//! | `follow` | the device while another program writes it |
//! | `versions` | kept versions, and clones of them |
//! | `volumes` | the volumes below a place |
//!
//! Invariants:
//!
//! - The writes between two syncs are committed by one conditional PUT, so all or none of them are in the
//!   volume.
//! - A slot of the log is created once. A writer that finds another's record in its slot stops writing.
//! - Objects other than the hint never change, so their cached contents never become stale.

mod answer;
mod cache;
mod chunks;
mod collect;
mod commit;
pub mod destroy;
mod device;
mod error;
mod extents;
mod follow;
mod format;
mod history;
mod home;
mod identity;
mod keys;
mod local;
mod location;
mod profile;
mod reader;
mod requests;
mod secret;
mod staging;
mod state;
mod store;
mod succession;
mod unlock;
mod upload;
mod vault;
mod verify;
pub mod versions;
pub mod volumes;
mod writer;

#[cfg(test)]
mod tests;

pub use cache::DiskCache;
pub use collect::{Collection, Swept};
pub use device::{COMMAND_PATIENCE, LogDevice};
pub use error::Error;
pub use follow::Follower;
pub use location::Location;
pub use requests::{Counter, Outage, Requests};
pub use secret::{PASSPHRASE_CHARS_MIN, Secret, WrongSecret};
pub use staging::{Backlog, Staging};
pub use succession::{Predecessor, Succession, Term};
pub use unlock::rekey;
pub use verify::Unusable;
pub use writer::OpenOptions;
