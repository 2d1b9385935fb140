//! Numbers of JSON for PostgreSQL's number types, without loss of a digit.

use crate::resource::key::spelling::sign_and_digits;

/// Digits that a `numeric` without a precision holds before and after the point (PostgreSQL manual, "Numeric Types").
const DIGITS_BEFORE_MAX: i64 = 131_072;
const DIGITS_AFTER_MAX: i64 = 16_383;

/// The largest exponent that PostgreSQL reads, whatever the digits are (numeric.c refuses half of the range of an int).
const EXPONENT_MAX: i64 = 1_000_000_000;

/// The most digits of an integer that is written without an exponent.
const INTEGER_DIGITS_MAX: i64 = 1_000;

/// The parts of a number as it was written.
pub(super) struct Decimal<'t> {
    negative: bool,
    /// Before and after the point.
    digits: [&'t [u8]; 2],
    exponent: i64,
    /// The powers of ten of the first and of the last digit that is not 0; `None` for the number 0.
    ends: Option<(i64, i64)>,
}

impl<'t> Decimal<'t> {
    /// Parses a number; `None` if `text` is not one by JSON's grammar.
    pub(super) fn parse(text: &'t str) -> Option<Self> {
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, power(exponent)?),
            None => (rest, 0),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((_, "")) => return None,
            Some(parts) => parts,
            None => (mantissa, ""),
        };
        let digits = [whole.as_bytes(), fraction.as_bytes()];
        let plain = digits.iter().copied().flatten().all(u8::is_ascii_digit);
        if !plain || whole.is_empty() || (whole.len() > 1 && whole.starts_with('0')) {
            return None;
        }
        let mut decimal = Self {
            negative,
            digits,
            exponent,
            ends: None,
        };
        let other_than_zero = |digit: &u8| *digit != b'0';
        let all = || digits.iter().copied().flatten();
        if let Some(first) = all().position(other_than_zero) {
            let behind = all().rev().position(other_than_zero).unwrap_or_default();
            let top = whole.len() as i64 - 1 + exponent;
            let bottom = exponent - fraction.len() as i64;
            decimal.ends = Some((top - first as i64, bottom + behind as i64));
        }
        Some(decimal)
    }

    /// The digits that PostgreSQL writes for it as a `numeric`, which has no exponent and keeps zeros behind the point.
    pub(super) fn written_digits(&self) -> usize {
        let before = self.ends.map_or(0, |(first, _)| first).max(0) + 1;
        let [_, fraction] = self.digits;
        let after = (fraction.len() as i64 - self.exponent).max(0);
        usize::try_from(before.saturating_add(after)).unwrap_or(usize::MAX)
    }

    pub(super) fn is_zero(&self) -> bool {
        self.ends.is_none()
    }

    /// The digits of the number with its sign; `None` if it is not an integer, or too long.
    pub(super) fn integer(&self) -> Option<String> {
        let Some((first, last)) = self.ends else {
            return Some("0".to_owned());
        };
        if last < 0 || first >= INTEGER_DIGITS_MAX {
            return None;
        }
        let sign = self.negative.then_some('-');
        let digits = (0..=first).rev().map(|place| self.digit(place));
        Some(sign.into_iter().chain(digits.map(char::from)).collect())
    }

    /// Whether PostgreSQL reads it as a `numeric`. It checks this before it checks the precision.
    pub(super) fn is_numeric(&self) -> bool {
        let after = self.digits[1].len() as i64 - self.exponent;
        let before = self.ends.map_or(0, |(first, _)| first + 1);
        before <= DIGITS_BEFORE_MAX && after <= DIGITS_AFTER_MAX && self.exponent <= EXPONENT_MAX
    }

    /// Whether a `numeric(precision, scale)` can hold it, rounded as PostgreSQL does: half away from zero.
    pub(super) fn fits(&self, precision: u16, scale: i16) -> bool {
        let Some((first, _)) = self.ends.filter(|_| self.is_numeric()) else {
            return self.is_numeric();
        };
        let end = i64::from(precision) - i64::from(scale);
        if first != end - 1 {
            return first < end;
        }
        let lowest = -i64::from(scale);
        // Rounding adds a digit only if all digits are nines.
        let nines = (lowest..end).all(|place| self.digit(place) == b'9');
        !(nines && self.digit(lowest - 1) >= b'5')
    }

    /// The digit at a power of ten.
    fn digit(&self, place: i64) -> u8 {
        let [whole, fraction] = self.digits;
        let at = whole.len() as i64 - 1 + self.exponent - place;
        let digit = usize::try_from(at).ok().and_then(|at| {
            let in_fraction = at.checked_sub(whole.len());
            in_fraction.map_or_else(|| whole.get(at), |at| fraction.get(at))
        });
        digit.copied().unwrap_or(b'0')
    }
}

/// The most digits that PostgreSQL may write for the numbers with an exponent in `text`, which is of a type that has
/// numbers among other things. A range may have quotes and backslashes within a number, and numbers underscores: they are
/// skipped.
pub(super) fn digits_of_numbers_in(text: &str) -> usize {
    const NUMBER_DIGITS_MAX: usize = (DIGITS_BEFORE_MAX + DIGITS_AFTER_MAX) as usize;
    let is_skipped = |byte: &u8| matches!(byte, b'"' | b'\\' | b'_');
    let mut bytes = text.bytes().filter(|byte| !is_skipped(byte)).peekable();
    // Digits of the number before its exponent, so far.
    let (mut digits, mut mantissa) = (0_usize, 0_usize);
    while let Some(byte) = bytes.next() {
        match byte {
            b'0'..=b'9' => mantissa += 1,
            b'.' => {}
            b'e' | b'E' if mantissa > 0 => {
                bytes.next_if(|byte| matches!(byte, b'+' | b'-'));
                let mut exponent = 0_usize;
                while let Some(digit) = bytes.next_if(u8::is_ascii_digit) {
                    let digit = usize::from(digit - b'0');
                    exponent = exponent.saturating_mul(10).saturating_add(digit);
                }
                let written = mantissa.saturating_add(exponent).min(NUMBER_DIGITS_MAX);
                digits = digits.saturating_add(written);
                mantissa = 0;
            }
            _ => mantissa = 0,
        }
    }
    digits
}

/// Parses an exponent. One that is too large for every type is replaced by a smaller one that is still too large.
fn power(text: &str) -> Option<i64> {
    let (negative, digits) = sign_and_digits(text)?;
    const BEYOND: i64 = 1 << 40;
    let power = digits.parse().unwrap_or(BEYOND).min(BEYOND);
    Some(if negative { -power } else { power })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Decimal<'_> {
        Decimal::parse(text).unwrap()
    }

    #[test]
    fn grammar_is_that_of_json() {
        for text in [
            "0",
            "-0",
            "10",
            "0.10",
            "1e5",
            "1E+05",
            "-1.5e-3",
            "0e99999999999999999999",
        ] {
            assert!(Decimal::parse(text).is_some(), "{text}");
        }
        for text in [
            "", "-", "+1", "01", ".5", "1.", "1e", "1e+", "1.e1", "0x1", "1 ", "NaN", "--1",
        ] {
            assert!(Decimal::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn digits_are_counted_as_postgres_writes_them() {
        for (text, digits) in [
            ("0", 1),
            ("0e5", 1),
            ("0e-5", 6),
            ("1.50", 3),
            ("12e3", 5),
            ("1e-3", 4),
            ("-1.25e1", 3),
            ("1e131071", 131_072),
            ("0.000001e6", 1),
        ] {
            assert_eq!(decimal(text).written_digits(), digits, "{text}");
        }
        assert!(decimal("1e99999999999999").written_digits() > 1 << 39);
    }

    #[test]
    fn numbers_in_texts_are_counted_at_least_as_postgres_writes_them() {
        for (text, digits) in [
            ("[1.5,1000)", 0),
            ("[1e3,2.5E-2)", 4 + 4),
            ("{[1e+3,1e3],(5,)}", 8),
            (r#"["1""e3",1\e3)"#, 8),
            ("$.e1 ? (@ > 1_0e1_0)", 12),
            ("$[*] == 1e999999999999999999999", 147_455),
            ("1e 1e] e5", 2),
        ] {
            assert_eq!(digits_of_numbers_in(text), digits, "{text}");
        }
    }

    #[test]
    fn whole_numbers_have_one_spelling() {
        for (text, integer) in [
            ("0", "0"),
            ("-0.00", "0"),
            ("1.0", "1"),
            ("-12e2", "-1200"),
            ("1200e-2", "12"),
            ("1.25e2", "125"),
            ("0.00001e5", "1"),
            (
                "123456789012345678901234567890",
                "123456789012345678901234567890",
            ),
        ] {
            assert_eq!(decimal(text).integer().as_deref(), Some(integer), "{text}");
        }
        for text in ["1.5", "1e-1", "1e1000", "1e99999999999"] {
            assert_eq!(decimal(text).integer(), None, "{text}");
        }
    }

    /// As `select '…'::numeric(5, 2)` and so on say.
    #[test]
    fn numerics_fit_after_rounding() {
        for (text, precision, scale, fits) in [
            ("999.99", 5, 2, true),
            ("999.994", 5, 2, true),
            ("999.995", 5, 2, false),
            ("-999.995", 5, 2, false),
            ("998.999", 5, 2, true),
            ("1000", 5, 2, false),
            ("1e2", 5, 2, true),
            ("1e3", 5, 2, false),
            ("0.0000001", 5, 2, true),
            ("0e9999", 5, 2, true),
            ("1e-20000", 5, 2, false),
            ("0e99999999999", 5, 2, false),
            ("9.4", 1, 0, true),
            ("9.5", 1, 0, false),
            ("0.00994", 2, 4, true),
            ("0.00995", 2, 4, false),
            ("0.01", 2, 4, false),
            ("99499", 2, -3, true),
            ("99500", 2, -3, false),
            ("100000", 2, -3, false),
        ] {
            assert_eq!(decimal(text).fits(precision, scale), fits, "{text}");
        }
    }

    #[test]
    fn numerics_without_precision_have_limits() {
        for text in [
            "1e131071",
            "1e-16383",
            "0e131072",
            "0e1000000000",
            "1.5e131071",
        ] {
            assert!(decimal(text).is_numeric(), "{text}");
        }
        for text in [
            "1e131072",
            "1e-16384",
            "0e-16384",
            "0e99999999999",
            "1e99999999999",
            "1e-99999999999",
        ] {
            assert!(!decimal(text).is_numeric(), "{text}");
        }
    }
}
