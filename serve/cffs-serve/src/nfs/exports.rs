//! Exports, their clients, and the users that callers are mapped to: the options of exports(5).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use nfs_wire::rpc::Credentials;

use crate::access::User;

#[cfg(test)]
mod tests;

/// The default anonymous user and group, 65534 on Linux.
const NOBODY: u32 = 65534;
/// Ports below this one are reserved for root.
const PORTS_OF_ROOT: u16 = 1024;

/// The users that are mapped to the anonymous user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Squash {
    /// No user.
    None,
    Root,
    All,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix_bits: u32,
}

/// An exported directory with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The path of the directory in the volume.
    pub path: String,
    /// Whether changes are refused.
    pub read_only: bool,
    /// The users that are mapped to the anonymous user.
    pub squash: Squash,
    /// The anonymous user.
    pub anon_uid: u32,
    /// The anonymous group.
    pub anon_gid: u32,
    /// Whether clients must use a port reserved for root.
    pub secure: bool,
    /// The addresses from which clients may call; if empty, only from this machine.
    pub networks: Vec<Network>,
}

/// The error in the description of an export.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadExport {
    /// It does not begin with a path.
    #[error("'{0}' does not begin with a path of the volume, such as / or /srv")]
    Path(String),
    /// An unknown option.
    #[error(
        "'{0}' is neither an address (such as 192.0.2.0/24) nor one of ro, rw, root_squash, \
         no_root_squash, all_squash, anonuid=, anongid=, secure, insecure"
    )]
    Option(String),
    /// An option that lacks its number.
    #[error("'{0}' should have a number after the '='")]
    Number(String),
}

impl Default for Export {
    /// The whole volume, writable, for this machine only; otherwise with the defaults of exports(5).
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
        let number = |value: &str| {
            let number = value.parse().ok().filter(|number| *number != u32::MAX);
            number.ok_or_else(|| BadExport::Number(option.to_owned()))
        };
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
        self.hindrance(address, port).is_none()
    }

    /// Why a client at this address may not call, and the option that admits it.
    pub fn hindrance(&self, address: IpAddr, port: u16) -> Option<&'static str> {
        let address = address.to_canonical();
        let is_known = match &self.networks[..] {
            [] => address.is_loopback(),
            networks => networks.iter().any(|network| network.has(address)),
        };
        if !is_known {
            return Some("the options of this --export do not name its address");
        }
        let is_unknown_user = self.secure && port >= PORTS_OF_ROOT;
        is_unknown_user.then_some(
            "it calls from a port above 1023, which this --export admits only with the option insecure",
        )
    }

    /// The user that a caller is mapped to.
    pub fn act_as(&self, credentials: &Credentials) -> User {
        let anonymous = User::new(self.anon_uid, self.anon_gid, Vec::new());
        let Credentials::Sys { uid, gid, groups } = credentials else { return anonymous };
        let (uid, gid) = (*uid, *gid);
        match self.squash {
            // This number belongs to no user: for chown(2), it means to keep the owner.
            _ if [uid, gid].contains(&u32::MAX) => anonymous,
            Squash::All => anonymous,
            Squash::Root if uid == 0 => anonymous,
            Squash::Root => {
                let squashed = |gid| if gid == 0 { self.anon_gid } else { gid };
                let groups = groups.iter().map(|gid| squashed(*gid)).collect();
                User::new(uid, squashed(gid), groups)
            }
            Squash::None => User::new(uid, gid, groups.clone()),
        }
    }

    /// The addresses from which clients may call, for the EXPORT procedure.
    pub fn clients(&self) -> Vec<String> {
        match &self.networks[..] {
            [] => vec![String::from("localhost")],
            networks => networks.iter().map(Network::to_string).collect(),
        }
    }
}

impl std::fmt::Display for Export {
    /// The form that is parsed, without defaults.
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
