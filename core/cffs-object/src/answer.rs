//! Explains error responses of stores: what happened, where, and what to do about it.
//!
//! The client passes on the text of a response. S3 and its relatives, Google and Azure answer with XML that
//! has a code and a message, and only the code says what the status means: a 404 may be about an object, a
//! bucket or, on some servers, an access key.

use std::error::Error as _;

use object_store::Error as StoreError;
use object_store::client::{HttpError, HttpErrorKind};

use crate::keys::Keys;

/// The destination of requests, as messages name it.
#[derive(Clone, Debug)]
pub struct Place {
    /// The volume, as the user names it.
    pub url: String,
    /// The bucket, container or directory.
    pub bucket: String,
    /// The server, if it was configured.
    pub endpoint: Option<String>,
    /// The source of the keys.
    pub keys: Keys,
}

/// Codes for keys or tokens that are unknown or have expired.
const OF_KEYS: [&str; 8] = [
    "AuthFailure",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "NoSuchUser",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
    "XAdminUserNotFound",
];
/// Error codes for a missing bucket.
const OF_BUCKETS: [&str; 2] = ["NoSuchBucket", "ContainerNotFound"];
/// Codes for requests that are signed for another region than the bucket's.
const OF_REGIONS: [&str; 3] =
    ["AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"];
/// Hosts that provide keys to programs on cloud machines and in containers.
const OF_METADATA: [&str; 3] = ["169.254.169.254", "169.254.170.2", "metadata.google.internal"];

/// Whether the store rejects the keys: they are unknown or have expired.
pub fn is_about_keys(error: &StoreError) -> bool {
    matches!(error, StoreError::Unauthenticated { .. }) || has_code(error, &OF_KEYS)
}

/// Whether the answer means that the bucket does not exist.
pub fn lacks_bucket(error: &StoreError) -> bool {
    match error {
        StoreError::NotFound { .. } => {
            let text = error.to_string();
            OF_BUCKETS.iter().any(|code| text.contains(code))
                || text.contains("specified bucket does not exist")
        }
        _ => false,
    }
}

/// Whether the answer means that the object does not exist. A server that is not a store may answer 404 with
/// a page.
pub fn lacks_object(error: &StoreError) -> bool {
    let StoreError::NotFound { .. } = error else { return false };
    let text = error.to_string();
    match part(&text, "Code") {
        Some(code) => ["NoSuchKey", "BlobNotFound", "ResourceNotFound"].contains(&code.as_str()),
        None => !lacks_bucket(error) && !text.to_ascii_lowercase().contains("<html"),
    }
}

/// Whether the object ends before the requested range, or is empty.
pub fn is_beyond_end(error: &StoreError) -> bool {
    let is_of_range = |text: &str| {
        text.contains("Wanted range starting at") || text.contains("416 Range Not Satisfiable")
    };
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    std::iter::from_fn(|| {
        let this = cause?;
        cause = this.source();
        Some(this.to_string())
    })
    .any(|text| is_of_range(&text))
}

/// Whether the store is full, so that retrying does not help.
pub fn is_full(error: &StoreError) -> bool {
    let text = error.to_string();
    let signs = ["507 Insufficient Storage", "<Code>QuotaExceeded<", "<Code>XMinioStorageFull<"];
    signs.iter().any(|sign| text.contains(sign))
}

fn has_code(error: &StoreError, codes: &[&str]) -> bool {
    part(&error.to_string(), "Code").is_some_and(|code| codes.contains(&code.as_str()))
}

/// An object in messages: its path, if the store is a directory.
pub fn shown(object: &str, place: &Place) -> String {
    match place.url.starts_with("file://") {
        true => format!("{}/{object}", place.bucket.trim_end_matches('/')),
        false => object.to_owned(),
    }
}

/// The cause of a failure of the client for directories, without its name of the operation: the path is that
/// of the object, or of a temporary file next to it.
fn cause_in_directory(error: &StoreError) -> Option<String> {
    let StoreError::Generic { store: "LocalFileSystem", source } = error else { return None };
    let mut cause: &(dyn std::error::Error + 'static) = &**source;
    while let Some(source) = cause.source() {
        cause = source;
    }
    Some(cause.to_string())
}

/// Explains an error, or the lack of an answer, in one line, with advice.
pub fn explain(error: &StoreError, place: &Place) -> String {
    if let Some(cause) = cause_in_directory(error) {
        return cause;
    }
    let text = error.to_string();
    let code = part(&text, "Code").unwrap_or_default();
    let said = match part(&text, "Message") {
        Some(message) => format!("the store answers {code}: {}", message.trim_end_matches('.')),
        None if code.is_empty() => in_short(&text),
        None => format!("the store answers {code}"),
    };
    let code = code.as_str();
    if let Some(unreachable) = unreachable(error, &text, place) {
        return unreachable;
    }
    let advice = match error {
        _ if code == "RequestTimeTooSkewed" => "set the clock of this machine".into(),
        _ if is_full(error) => "free space in the store, or raise its quota".into(),
        _ if is_about_keys(error) => unknown_keys(code, place),
        _ if OF_REGIONS.contains(&code) || text.contains("incorrectly configured region") => {
            String::from("set AWS_REGION to the region of the bucket")
        }
        StoreError::PermissionDenied { .. } => String::from(
            "these credentials lack a permission: a writer needs to get, put, list and delete, a reader to \
             get and list",
        ),
        StoreError::NotImplemented { .. } | StoreError::NotSupported { .. } => String::from(
            "the store does not support a request that volumes need (a conditional PUT, with If-None-Match)",
        ),
        StoreError::NotFound { .. } if code.is_empty() && !lacks_object(error) => {
            format!("check that {} is an object store", server(&text, place))
        }
        _ => return said,
    };
    format!("{said}; {advice}")
}

/// Explains why no answer arrived, or that no keys were found.
fn unreachable(error: &StoreError, text: &str, place: &Place) -> Option<String> {
    let asked = url_of(text).unwrap_or_default();
    if OF_METADATA.iter().any(|host| asked.contains(host)) {
        return Some(format!(
            "no credentials were found, and this machine has no service that provides them; {}",
            where_keys_are(place)
        ));
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = error.source();
    let mut is_unreachable = false;
    let mut why = String::new();
    while let Some(error) = cause {
        let kind = error.downcast_ref::<HttpError>().map(HttpError::kind);
        is_unreachable |= matches!(
            kind,
            Some(
                HttpErrorKind::Connect
                    | HttpErrorKind::Request
                    | HttpErrorKind::Timeout
                    | HttpErrorKind::Interrupted
            )
        );
        why = error.to_string();
        cause = error.source();
    }
    let advice = match &place.endpoint {
        Some(_) => "check AWS_ENDPOINT_URL, that the store runs, and the network",
        None => "check the network",
    };
    is_unreachable.then(|| format!("{} cannot be reached ({why}); {advice}", server(text, place)))
}

/// Advice about keys that the store rejects.
fn unknown_keys(code: &str, place: &Place) -> String {
    match (&place.keys, code) {
        (Keys::Environment, "ExpiredToken") => String::from(
            "the credentials in the environment of this program have expired: run it again with new ones, or \
             use a profile in ~/.aws, which is read again when it changes",
        ),
        (Keys::Renewed(_), "ExpiredToken") => String::from(
            "these credentials have expired: renew them in ~/.aws, and they are read again",
        ),
        _ => format!("the store does not know these credentials: {}", where_keys_are(place)),
    }
}

fn where_keys_are(place: &Place) -> &'static str {
    match place.url.split_once("://") {
        Some(("gs", _)) => "check GOOGLE_APPLICATION_CREDENTIALS",
        Some(("az", _)) => "check AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY",
        _ => "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile in ~/.aws",
    }
}

/// The server of the request.
fn server(text: &str, place: &Place) -> String {
    let asked = url_of(text).and_then(|url| {
        let (scheme, rest) = url.split_once("://")?;
        Some(format!("{scheme}://{}", rest.split('/').next()?))
    });
    let server = place.endpoint.clone().or(asked);
    server.map_or_else(|| String::from("the store"), |server| format!("the store at {server}"))
}

/// The URL in the client's text of an error: "Error performing GET URL in 2s, …".
fn url_of(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("Error performing ")?;
    rest.split(' ').nth(1).filter(|url| url.contains("://"))
}

/// The client's text without its retry count and without an HTML page.
fn in_short(text: &str) -> String {
    let short = text.split_once(" - Server returned").map_or(text, |(_, rest)| rest);
    let short = short.trim_start_matches(" non-2xx status code: ");
    let line = short.split(['\n', '<']).next().unwrap_or_default().trim_end_matches([' ', ':']);
    match line.len() < text.len() {
        true => format!("the store answers {line}"),
        false => text.to_owned(),
    }
}

/// The text of the first element with that name.
fn part(text: &str, tag: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<{tag}>"))?;
    let (inner, _) = rest.split_once(&format!("</{tag}>"))?;
    Some(unescaped(inner))
}

/// Replaces XML entities.
fn unescaped(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        out.push_str(before);
        let entity = after.split_once(';').filter(|(name, _)| name.len() <= 8);
        let character = entity.and_then(|(name, _)| match name {
            "lt" => Some('<'),
            "gt" => Some('>'),
            "amp" => Some('&'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            _ => {
                let number = name.strip_prefix('#')?;
                let code = match number.strip_prefix(['x', 'X']) {
                    Some(digits) => u32::from_str_radix(digits, 16),
                    None => number.parse(),
                };
                code.ok().and_then(char::from_u32)
            }
        });
        match (entity, character) {
            (Some((_, after)), Some(character)) => {
                out.push(character);
                rest = after;
            }
            _ => {
                out.push('&');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests;
