//! Sizes with units: `4G`, `512M`, `64k`, `1.5T`.

#[cfg(test)]
mod tests;

const UNITS: [(char, u32); 6] = [('k', 10), ('M', 20), ('G', 30), ('T', 40), ('P', 50), ('E', 60)];

/// Parses a number of bytes: a number, optionally with a fraction, and a unit that is a power of
/// 1024.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("'{text}' is not a size; write it in bytes, or with a unit: 64k, 512M, 4G, 1T");
    let digits_len = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits_len);
    let unit = unit.strip_suffix("iB").or(unit.strip_suffix('B')).unwrap_or(unit);
    let shift = match unit.chars().next() {
        None => 0,
        Some(letter) if unit.len() == 1 => {
            let same = |(known, _): &&(char, u32)| known.eq_ignore_ascii_case(&letter);
            UNITS.iter().find(same).ok_or_else(wrong)?.1
        }
        Some(_) => return Err(wrong()),
    };
    let too_large = || format!("'{text}' is more than 16 EiB");
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(too_large);
    }
    let fraction: f64 = number.parse().map_err(|_| wrong())?;
    let bytes = fraction * (1u64 << shift) as f64;
    if bytes >= u64::MAX as f64 { Err(too_large()) } else { Ok(bytes as u64) }
}

/// Like [`parse`], but 0 for `none`.
pub fn parse_or_none(text: &str) -> Result<u64, String> {
    match text {
        "none" => Ok(0),
        size => match parse(size)? {
            0 => Err(String::from("give a size or 'none'")),
            bytes => Ok(bytes),
        },
    }
}

/// Like [`parse`], for sizes that are stored in 32 bits.
pub fn parse_u32(text: &str) -> Result<u32, String> {
    let bytes = parse(text)?;
    u32::try_from(bytes).map_err(|_| format!("'{text}' is too large here"))
}

/// A size in the syntax of [`parse`], without loss.
pub fn exact(bytes: u64) -> String {
    let divides = |(_, shift): &&(char, u32)| bytes != 0 && bytes.trailing_zeros() >= *shift;
    match UNITS.iter().rev().find(divides) {
        Some((letter, shift)) => format!("{}{}", bytes >> shift, letter.to_ascii_uppercase()),
        None => bytes.to_string(),
    }
}

/// A number of bytes with about three digits and a unit.
pub fn show(bytes: u64) -> String {
    let Some((letter, shift)) = UNITS.iter().rev().find(|(_, shift)| bytes >> shift != 0) else {
        return format!("{bytes} B");
    };
    let mut value = bytes as f64 / (1u64 << shift) as f64;
    let (mut letter, mut larger) = (letter, UNITS.iter().skip_while(|unit| unit.1 <= *shift));
    // 1024 KiB, after rounding.
    if value >= 1023.5
        && let Some((next, _)) = larger.next()
    {
        (letter, value) = (next, 1.0);
    }
    let decimals = match value {
        v if v >= 100.0 || v.fract() == 0.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    let letter = letter.to_ascii_uppercase();
    format!("{value:.decimals$} {letter}iB")
}

/// A part of a volume, at most half: a size, or a percentage of the whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Portion {
    Bytes(u64),
    Percent(f64),
}

impl Portion {
    /// Parses a percentage such as `5%`, or a size as [`parse`] does.
    pub fn parse(text: &str) -> Result<Portion, String> {
        let Some(number) = text.strip_suffix('%') else {
            return parse(text).map(Portion::Bytes);
        };
        match number.parse() {
            Ok(percent) if (0.0..=50.0).contains(&percent) => Ok(Portion::Percent(percent)),
            _ => Err(format!("'{text}' is not a percentage from 0% to 50%")),
        }
    }

    /// The portion in bytes of a volume of `total_bytes`.
    pub fn of(self, total_bytes: u64) -> u64 {
        match self {
            Portion::Bytes(bytes) => bytes,
            Portion::Percent(percent) => (total_bytes as f64 * percent / 100.0) as u64,
        }
    }
}
