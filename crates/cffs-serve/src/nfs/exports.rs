//! Exports, their clients, and the users that callers act as: the options of exports(5).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use nfs_wire::rpc::Credentials;

use crate::access::User;

#[cfg(test)]
mod tests;

/// The anonymous user and group (*nobody*), unless an export names others.
const NOBODY: u32 = 65534;
/// Ports below this one are for root.
const PORTS_OF_ROOT: u16 = 1024;

/// The users whose requests are carried out as the anonymous user's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Squash {
    /// No identity.
    None,
    /// Root's.
    Root,
    /// Everybody's.
    All,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix_bits: u32,
}

/// A directory that clients may mount, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The directory, from the root of the volume.
    pub path: String,
    /// Nothing may be changed.
    pub read_only: bool,
    /// The users whose requests are carried out as another user's.
    pub squash: Squash,
    /// The anonymous user.
    pub anon_uid: u32,
    /// Their group.
    pub anon_gid: u32,
    /// Clients must call from a port that only root can have.
    pub secure: bool,
    /// The addresses that may call; if there are none, only this machine.
    pub networks: Vec<Network>,
}

/// The fault in the description of an export.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadExport {
    /// It does not begin with a path.
    #[error("'{0}' does not begin with a path of the volume, such as / or /srv")]
    Path(String),
    /// An option that is not known.
    #[error(
        "'{0}' is neither an address (such as 192.0.2.0/24) nor one of ro, rw, root_squash, \
         no_root_squash, all_squash, anonuid=, anongid=, secure, insecure"
    )]
    Option(String),
    /// An option without a number where there should be one.
    #[error("'{0}' should have a number after the '='")]
    Number(String),
}

impl Default for Export {
    /// The whole volume, for this machine only, writable, otherwise with the default options of exports(5).
    fn default() -> Export {
        Export {
            path: String::from("/"),
            read_only: false,
            squash: Squash::Root,
            anon_uid: NOBODY,
            anon_gid: NOBODY,
            secure: true,
            networks: Vec::new(),
        }
    }
}

impl FromStr for Export {
    type Err = BadExport;

    /// `PATH[:OPTION[,OPTION]…]`
    fn from_str(text: &str) -> Result<Export, BadExport> {
        let (path, options) = text.split_once(':').unwrap_or((text, ""));
        if !path.starts_with('/') {
            return Err(BadExport::Path(path.to_owned()));
        }
        let trimmed = path.trim_end_matches('/');
        let path = if trimmed.is_empty() { "/" } else { trimmed };
        let mut export = Export { path: path.to_owned(), ..Export::default() };
        for option in options.split(',').filter(|option| !option.is_empty()) {
            export.apply(option)?;
        }
        Ok(export)
    }
}

impl Export {
    fn apply(&mut self, option: &str) -> Result<(), BadExport> {
        let number = |value: &str| value.parse().map_err(|_| BadExport::Number(option.to_owned()));
        match option.split_once('=') {
            Some(("anonuid", value)) => self.anon_uid = number(value)?,
            Some(("anongid", value)) => self.anon_gid = number(value)?,
            _ => match option {
                "ro" => self.read_only = true,
                "rw" => self.read_only = false,
                "root_squash" => self.squash = Squash::Root,
                "no_root_squash" => self.squash = Squash::None,
                "all_squash" => self.squash = Squash::All,
                "secure" => self.secure = true,
                "insecure" => self.secure = false,
                _ => {
                    let network = Network::parse(option);
                    self.networks
                        .push(network.ok_or_else(|| BadExport::Option(option.to_owned()))?);
                }
            },
        }
        Ok(())
    }

    /// Whether a client at this address may call.
    pub fn admits(&self, address: IpAddr, port: u16) -> bool {
        let address = address.to_canonical();
        let is_known = match &self.networks[..] {
            [] => address.is_loopback(),
            networks => networks.iter().any(|network| network.has(address)),
        };
        is_known && (!self.secure || port < PORTS_OF_ROOT)
    }

    /// The user that a caller acts as.
    pub fn act_as(&self, credentials: &Credentials) -> User {
        let anonymous = User { uid: self.anon_uid, gid: self.anon_gid, groups: Vec::new() };
        let Credentials::Sys { uid, gid, groups } = credentials else { return anonymous };
        let (uid, gid) = (*uid, *gid);
        match self.squash {
            Squash::All => anonymous,
            Squash::Root if uid == 0 => anonymous,
            Squash::Root => {
                let squashed = |gid| if gid == 0 { self.anon_gid } else { gid };
                let groups = groups.iter().map(|gid| squashed(*gid)).collect();
                User { uid, gid: squashed(gid), groups }
            }
            Squash::None => User { uid, gid, groups: groups.clone() },
        }
    }

    /// The addresses that may call, as EXPORT lists them.
    pub fn clients(&self) -> Vec<String> {
        match &self.networks[..] {
            [] => vec![String::from("localhost")],
            networks => networks.iter().map(Network::to_string).collect(),
        }
    }
}

impl std::fmt::Display for Export {
    /// As it is parsed: without what is so by default.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut options = Vec::new();
        if self.read_only {
            options.push(String::from("ro"));
        }
        match self.squash {
            Squash::None => options.push(String::from("no_root_squash")),
            Squash::Root => {}
            Squash::All => options.push(String::from("all_squash")),
        }
        for (name, id) in [("anonuid", self.anon_uid), ("anongid", self.anon_gid)] {
            if id != NOBODY {
                options.push(format!("{name}={id}"));
            }
        }
        if !self.secure {
            options.push(String::from("insecure"));
        }
        options.extend(self.networks.iter().map(Network::to_string));
        f.write_str(&self.path)?;
        if options.is_empty() { Ok(()) } else { write!(f, ":{}", options.join(",")) }
    }
}

impl Network {
    /// `ADDRESS` or `ADDRESS/BITS`
    fn parse(text: &str) -> Option<Network> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let bits_max = if address.is_ipv4() { Ipv4Addr::BITS } else { Ipv6Addr::BITS };
        let prefix_bits = bits.map_or(Some(bits_max), |bits| bits.parse().ok())?;
        (prefix_bits <= bits_max).then_some(Network { address, prefix_bits })
    }

    fn has(&self, address: IpAddr) -> bool {
        let differ = match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            _ => return false,
        };
        differ >= self.prefix_bits
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}
