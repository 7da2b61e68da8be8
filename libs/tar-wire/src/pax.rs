//! The records of an extended header: `LENGTH KEY=VALUE\n`, where the length counts the whole record
//! (POSIX.1-2001, pax, "pax Extended Header"). A value is bytes, and may contain line ends.

#[cfg(test)]
mod tests;

/// A key and its value.
pub type Record = (Vec<u8>, Vec<u8>);

/// An extended header that is no valid list of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its extended header is damaged")]
pub struct Malformed;

/// A time of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Seconds since 1970, rounded down.
    pub seconds: i64,
    /// The fraction in nanoseconds.
    pub nanoseconds: u32,
}

/// Decodes an extended header.
pub fn decode(mut bytes: &[u8]) -> Result<Vec<Record>, Malformed> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let space = bytes.iter().take(20).position(|byte| *byte == b' ').ok_or(Malformed)?;
        let len: usize = digits(&bytes[..space]).ok_or(Malformed)?;
        if len > bytes.len() {
            return Err(Malformed);
        }
        let (record, rest) = bytes.split_at(len);
        let pair = record.get(space + 1..).and_then(|pair| pair.strip_suffix(b"\n"));
        let pair = pair.ok_or(Malformed)?;
        let equals = pair.iter().position(|byte| *byte == b'=').ok_or(Malformed)?;
        records.push((pair[..equals].to_vec(), pair[equals + 1..].to_vec()));
        bytes = rest;
    }
    Ok(records)
}

/// Appends a record. The key must not contain `=`.
pub fn encode(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let rest = key.len() + value.len() + " =\n".len();
    // The length includes its own digits.
    let mut len = rest + 1;
    while rest + len.to_string().len() > len {
        len += 1;
    }
    out.extend_from_slice(len.to_string().as_bytes());
    out.push(b' ');
    out.extend_from_slice(key);
    out.push(b'=');
    out.extend_from_slice(value);
    out.push(b'\n');
}

/// Decodes seconds with a fraction, such as `-0.5`.
pub fn time(value: &[u8]) -> Option<Time> {
    let text = std::str::from_utf8(value).ok()?;
    let (is_before, positive) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = positive.split_once('.').unwrap_or((positive, ""));
    let plain: Option<i128> = digits::<u64>(whole.as_bytes()).and_then(|whole| {
        let nine: String = fraction.chars().chain("000000000".chars()).take(9).collect();
        let nanoseconds = digits::<u32>(nine.as_bytes())?;
        fraction.bytes().all(|digit| digit.is_ascii_digit()).then_some(())?;
        Some(i128::from(whole) * 1_000_000_000 + i128::from(nanoseconds))
    });
    let nanoseconds = match plain {
        Some(nanoseconds) => nanoseconds,
        // Python writes small numbers like 1e-09.
        None => {
            positive.starts_with(|first: char| first.is_ascii_digit()).then_some(())?;
            let seconds: f64 = positive.parse().ok().filter(|s: &f64| *s >= 0.0 && *s < 1e18)?;
            (seconds * 1e9).round() as i128
        }
    };
    let nanoseconds = if is_before { -nanoseconds } else { nanoseconds };
    let seconds = i64::try_from(nanoseconds.div_euclid(1_000_000_000)).ok()?;
    Some(Time { seconds, nanoseconds: nanoseconds.rem_euclid(1_000_000_000) as u32 })
}

/// Encodes a time as a record's value.
pub fn time_value(time: Time) -> String {
    let nanoseconds = i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let whole = nanoseconds.unsigned_abs();
    format!("{sign}{}.{:09}", whole / 1_000_000_000, whole % 1_000_000_000)
}

/// The names and values of the extended attributes in some records.
///
/// `SCHILY.xattr.NAME` contains the plain value; GNU tar writes `%3D` for `=` and `%25` for `%` in the name.
/// `LIBARCHIVE.xattr.NAME` has the name in URL encoding and the value in base64. bsdtar writes each attribute
/// both ways, and only the second one preserves every name.
pub fn xattrs(records: &[Record]) -> Result<Vec<Record>, Malformed> {
    let below = |prefix: &'static [u8]| {
        records.iter().filter_map(move |(key, value)| Some((key.strip_prefix(prefix)?, value)))
    };
    let mut of_libarchive = below(b"LIBARCHIVE.xattr.").peekable();
    if of_libarchive.peek().is_some() {
        return of_libarchive
            .map(|(name, value)| Ok((unescaped(name, None), base64(value).ok_or(Malformed)?)))
            .collect();
    }
    let of_schily = below(b"SCHILY.xattr.");
    Ok(of_schily.map(|(name, value)| (unescaped(name, Some(b"=%")), value.clone())).collect())
}

/// The key of a record with an extended attribute.
pub fn xattr_key(name: &[u8]) -> Vec<u8> {
    let mut key = b"SCHILY.xattr.".to_vec();
    for byte in name {
        match byte {
            b'=' => key.extend_from_slice(b"%3D"),
            b'%' => key.extend_from_slice(b"%25"),
            other => key.push(*other),
        }
    }
    key
}

/// Replaces `%XX` by the byte; if `of` is given, only for these bytes.
fn unescaped(text: &[u8], of: Option<&[u8]>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let escaped = match after.get(..2) {
            Some(&[high, low]) if *first == b'%' => hex(high).zip(hex(low)),
            _ => None,
        };
        let byte = escaped.map(|(high, low)| high << 4 | low);
        match byte.filter(|byte| of.is_none_or(|of| of.contains(byte))) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

/// libarchive omits the padding and does not wrap lines.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for digit in text.iter().filter(|digit| !matches!(digit, b'=' | b'\n')) {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

/// A number consisting of digits only, without sign or blanks.
pub(crate) fn digits<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    is_number.then(|| std::str::from_utf8(text).ok()?.parse().ok())?
}
