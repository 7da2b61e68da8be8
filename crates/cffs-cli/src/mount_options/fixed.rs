//! The options that a server keeps as long as it runs, which a remount cannot change.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use cffs::vfs::types::{ErrorsPolicy, StableLog};
use cffs_serve::fuse::TransportChoice;

use super::MountOptions;
use crate::size;

/// The name under which [`MountOptions::fixed`] has an option, if it is one of those.
pub(super) fn name_of(option: &str) -> Option<&'static str> {
    Some(match option {
        "sync" | "dirsync" | "async" => "sync",
        "discard" | "nodiscard" => "discard",
        "allow_other" | "noallow_other" => "allow_other",
        "cache" => "cache",
        "dirty" => "dirty",
        "commit" => "commit",
        "stall" => "stall",
        "soft" => "soft",
        "follow" => "follow",
        "cache-dir" => "cache-dir",
        "staging" => "staging",
        "takeover" => "takeover",
        "clean" => "clean",
        "clean_share" => "clean_share",
        "errors" => "errors",
        "stable" => "stable",
        "log-device" => "log-device",
        "regroup" => "regroup",
        "log" => "log",
        "transport" => "transport",
        "fuseblk" => "fuseblk",
        _ => return None,
    })
}

impl MountOptions {
    /// Each option that stays as it is while the volume is mounted, as it would be written, under its
    /// name.
    pub fn fixed(&self) -> BTreeMap<String, String> {
        let open = &self.open;
        let switch = |is_on, on: &str, off: &str| String::from(if is_on { on } else { off });
        let seconds = |name: &str, time: Duration| match time {
            Duration::MAX => format!("{name}=never"),
            time => format!("{name}={}", time.as_secs_f64()),
        };
        let errors = match open.errors {
            ErrorsPolicy::Default => "errors=default",
            ErrorsPolicy::Continue => "errors=continue",
            ErrorsPolicy::RemountReadOnly => "errors=remount-ro",
        };
        let stable = match open.stable {
            StableLog::On => "stable=on",
            StableLog::Off => "stable=off",
            StableLog::None => "stable=none",
        };
        let log_device = match &self.log_device {
            Some(path) => format!("log-device={}", absolute(path)),
            None => String::from("log-device=auto"),
        };
        let cache_dir = match &self.cache_dir {
            Some((path, bytes)) => format!("cache-dir={}={}", absolute(path), size::exact(*bytes)),
            None => String::from("no cache-dir"),
        };
        let staging = match &self.staging {
            Some(path) => format!("staging={}", absolute(path)),
            None => String::from("no staging"),
        };
        let transport = match self.transport {
            TransportChoice::Auto => "transport=auto",
            TransportChoice::Uring => "transport=rings",
            TransportChoice::Dev => "transport=dev",
        };
        let log = match &self.log {
            Some(path) => format!("log={}", absolute(path)),
            None => String::from("log=system"),
        };
        let all = [
            ("sync", switch(open.sync, "sync", "async")),
            ("discard", switch(open.discard, "discard", "nodiscard")),
            ("allow_other", switch(self.allow_other, "allow_other", "noallow_other")),
            ("cache", format!("cache={}", size::exact(open.cache_bytes))),
            ("dirty", format!("dirty={}", size::exact(open.dirty_bytes_max))),
            ("commit", seconds("commit", open.epoch_interval)),
            ("stall", seconds("stall", self.stall)),
            (
                "soft",
                self.soft.map_or_else(|| String::from("soft=never"), |time| seconds("soft", time)),
            ),
            (
                "follow",
                self.follow
                    .map_or_else(|| String::from("follow=never"), |time| seconds("follow", time)),
            ),
            ("cache-dir", cache_dir),
            ("staging", staging),
            ("takeover", switch(open.take_over, "takeover", "no takeover")),
            ("clean", seconds("clean", open.clean_after)),
            ("clean_share", format!("clean_share={}", open.clean_share_percent)),
            ("errors", String::from(errors)),
            ("stable", String::from(stable)),
            ("log-device", log_device),
            ("regroup", seconds("regroup", self.regroup_after.unwrap_or(Duration::MAX))),
            ("log", log),
            ("transport", String::from(transport)),
            ("fuseblk", switch(self.block_device, "fuseblk=auto", "fuseblk=no")),
        ];
        all.into_iter().map(|(name, text)| (String::from(name), text)).collect()
    }

    /// Those of them that were asked for.
    pub fn fixed_and_asked(&self) -> impl Iterator<Item = (String, String)> {
        self.fixed().into_iter().filter(|(name, _)| self.asked.contains(name.as_str()))
    }
}

/// The server leaves the directory in which it was started.
fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).to_string_lossy().into_owned()
}
