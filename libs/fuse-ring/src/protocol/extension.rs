//! Extensions that newer kernels append to requests that create files: security contexts, and the group that
//! the new file inherits.

use zerocopy::FromBytes;

use super::{Malformed, wire};

/// The extensions of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions<'a> {
    /// The group of the parent directory, sent if it is one of the caller's supplementary groups
    /// ([`CREATE_SUPP_GROUP`](super::Features::CREATE_SUPP_GROUP)). Servers that check groups themselves need
    /// this, and so do those that rely on `default_permissions` for set-group-id.
    pub supplementary_group: Option<u32>,
    /// The encoded security contexts, consecutively.
    contexts: &'a [u8],
}

/// A security label for the new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecurityContext<'a> {
    /// The name of the xattr, for example `security.selinux`.
    pub name: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
}

impl<'a> Extensions<'a> {
    pub(super) fn decode(mut bytes: &'a [u8]) -> Result<Extensions<'a>, Malformed> {
        let mut extensions = Extensions::default();
        while !bytes.is_empty() {
            let (header, _) =
                wire::ExtHeader::read_from_prefix(bytes).map_err(|_| Malformed::Extensions)?;
            let size = header.size as usize;
            if size < size_of::<wire::ExtHeader>() || size > bytes.len() {
                return Err(Malformed::Extensions);
            }
            let content = &bytes[size_of::<wire::ExtHeader>()..size];
            match header.kind {
                // The type of this extension is also the number of its contexts.
                count @ ..=wire::EXT_MAX_NR_SECCTX => {
                    let mut left = content;
                    for _ in 0..count {
                        next_context(&mut left).ok_or(Malformed::Extensions)?;
                    }
                    extensions.contexts = &content[..content.len() - left.len()];
                }
                wire::EXT_GROUPS => extensions.supplementary_group = first_group(content)?,
                _ => {}
            }
            bytes = &bytes[size.next_multiple_of(8).min(bytes.len())..];
        }
        Ok(extensions)
    }

    /// The security contexts.
    pub fn security_contexts(&self) -> impl Iterator<Item = SecurityContext<'a>> + use<'a> {
        let mut left = self.contexts;
        std::iter::from_fn(move || if left.is_empty() { None } else { next_context(&mut left) })
    }
}

/// A context consists of its size, a padding word, a name with its NUL, and the value, padded to 8 bytes.
fn next_context<'a>(left: &mut &'a [u8]) -> Option<SecurityContext<'a>> {
    let (value_len, rest) = u32::read_from_prefix(left).ok()?;
    let rest = rest.get(4..)?;
    let name_len = rest.iter().position(|&byte| byte == 0)?;
    let value = rest.get(name_len + 1..)?.get(..value_len as usize)?;
    let context = SecurityContext { name: &rest[..name_len], value };
    let used = (8 + name_len + 1 + value.len()).next_multiple_of(8).min(left.len());
    *left = &left[used..];
    Some(context)
}

fn first_group(content: &[u8]) -> Result<Option<u32>, Malformed> {
    let (count, groups) = u32::read_from_prefix(content).map_err(|_| Malformed::Extensions)?;
    if count == 0 {
        return Ok(None);
    }
    let (group, _) = u32::read_from_prefix(groups).map_err(|_| Malformed::Extensions)?;
    Ok(Some(group))
}
