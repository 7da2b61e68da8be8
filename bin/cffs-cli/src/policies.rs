//! The policies of a volume, by the names that options have for them.

use cffs::format::superblock::{ErrorsPolicy, Policy};
use clap::ValueEnum;

/// How a mount reacts to damage.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Errors {
    /// The built-in default, which is to continue.
    Default,
    /// The call that found the damage fails, and all others continue.
    Continue,
    /// The volume refuses changes from then on.
    RemountRo,
}

impl Errors {
    /// The policy as encoded in the superblock.
    pub fn policy(self) -> ErrorsPolicy {
        match self {
            Errors::Default => ErrorsPolicy::Default,
            Errors::Continue => ErrorsPolicy::Continue,
            Errors::RemountRo => ErrorsPolicy::RemountReadOnly,
        }
    }
}

/// How files find their neighbours.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum PolicyName {
    /// Files of one directory are stored together.
    Directory,
    /// Files with the same hint are stored together.
    Hint,
    /// Conventional allocation: each file is placed and read separately.
    None,
    /// Like none, but scattered as on an old volume, for comparison.
    Scattered,
    /// Files of one owner are stored together.
    Owner,
    /// Files that were created in the same minute are stored together.
    Time,
    /// Files that one process created are stored together.
    Process,
    /// Files that were last read in the same minute are stored together when they are written or regrouped.
    /// Programs that do not know this policy refuse the volume.
    Access,
}

impl PolicyName {
    /// The policy as encoded in the superblock.
    pub fn policy(self) -> Policy {
        match self {
            PolicyName::Directory => Policy::Directory,
            PolicyName::Hint => Policy::Hint,
            PolicyName::None => Policy::None,
            PolicyName::Scattered => Policy::Scattered,
            PolicyName::Owner => Policy::Owner,
            PolicyName::Time => Policy::Time,
            PolicyName::Process => Policy::Process,
            PolicyName::Access => Policy::Access,
        }
    }
}
