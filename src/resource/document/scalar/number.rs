//! Writes integers, and `numeric` with all of its digits.

use crate::resource::document::RenderError;

/// The decimal digits in one digit of a numeric, whose base is 10,000 (PostgreSQL's numeric.c, `DEC_DIGITS`).
const DIGITS: i32 = 4;

const NEGATIVE: u16 = 0x4000;
const NAN: u16 = 0xc000;
const INFINITY: u16 = 0xd000;
const NEGATIVE_INFINITY: u16 = 0xf000;

pub(super) fn write_integer(value: impl itoa::Integer, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Writes a numeric that `numeric_send` sent, as `get_str_from_var` writes it (both in numeric.c). NaN and the
/// infinities, which JSON's numbers lack, are written as strings.
pub(super) fn write_numeric(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), RenderError> {
    let malformed = RenderError::Malformed("the length of a numeric is wrong");
    let (header, digits) = bytes.split_first_chunk::<8>().ok_or(malformed.clone())?;
    let [count, weight, sign, scale] =
        [0, 2, 4, 6].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
    let (digits, rest) = digits.as_chunks::<2>();
    if digits.len() != usize::from(count) || !rest.is_empty() {
        return Err(malformed);
    }
    match sign {
        0 => {}
        NEGATIVE => out.push(b'-'),
        NAN => out.extend_from_slice(b"\"NaN\""),
        INFINITY => out.extend_from_slice(b"\"Infinity\""),
        NEGATIVE_INFINITY => out.extend_from_slice(b"\"-Infinity\""),
        _ => return Err(RenderError::Malformed("the sign of a numeric is unknown")),
    }
    if sign & NAN == NAN {
        return Ok(());
    }
    // The digit at place 0 counts ten thousand to the power of the weight. Digits that were not sent are 0.
    let digit = |place: i32| {
        let sent = usize::try_from(place).ok();
        match sent.and_then(|place| digits.get(place)) {
            Some(&digit) => u16::from_be_bytes(digit),
            None => 0,
        }
    };
    let weight = i32::from(weight.cast_signed());
    if weight < 0 {
        out.push(b'0');
    } else {
        write_integer(digit(0), out);
    }
    for place in 1..=weight {
        out.extend_from_slice(&four(digit(place)));
    }
    if scale > 0 {
        out.push(b'.');
    }
    let mut left = usize::from(scale);
    let mut place = weight + 1;
    while left > 0 {
        let shown = left.min(DIGITS as usize);
        out.extend_from_slice(&four(digit(place))[..shown]);
        left -= shown;
        place += 1;
    }
    Ok(())
}

fn four(digit: u16) -> [u8; DIGITS as usize] {
    // The remainder fits a byte.
    [1000, 100, 10, 1].map(|power| b'0' + (digit / power % 10) as u8)
}
