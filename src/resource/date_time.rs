//! Parses dates and times as PostgreSQL does under `TimeZone = 'UTC'`.

use crate::resource::calendar::{MICROSECONDS_PER_DAY, days_from_date};

/// The last year of a `date` (PostgreSQL manual, "Date/Time Types").
const YEAR_MAX: i64 = 5_874_897;

/// 4714-11-24 BC, PostgreSQL's first date, in days since 2000-01-01 (`DATETIME_MIN_JULIAN`).
const DAY_MIN: i64 = -2_451_545;

/// The most hours of an offset: in RFC 3339, and in a `timetz`, which stores the offset (`MAX_TZDISP_HOUR`).
const RFC_HOURS_MAX: i64 = 23;
const ZONE_HOURS_MAX: i64 = 15;

/// 294277-01-01, the first microsecond that is too late for a `timestamp` (`END_TIMESTAMP`).
const MICROSECOND_END: i64 = 9_223_371_331_200_000_000;

/// Whether `text` is a date, or infinite.
pub(super) fn is_date(text: &str) -> bool {
    is_infinite(text) || parse_date(text).is_some()
}

/// Whether `text` is PostgreSQL's date or timestamp before or after all others.
pub(super) fn is_infinite(text: &str) -> bool {
    matches!(text, "infinity" | "-infinity")
}

/// Days since 2000-01-01 of `YYYY-MM-DD`. Years after 9999 have more digits; dates before the common era end with `
/// BC`. `None` if there is no such date, or if PostgreSQL's `date` can't store it.
fn parse_date(text: &str) -> Option<i64> {
    let (text, before_christ) = without_era(text);
    let mut parts = text.split('-');
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    let padded = year.len() == 4 || (year.len() > 4 && !year.starts_with('0'));
    if parts.next().is_some() || !padded || month.len() != 2 || day.len() != 2 {
        return None;
    }
    let (year, month, day) = (
        parse_digits(year)?,
        parse_digits(month)?,
        parse_digits(day)?,
    );
    // There is no year 0: the one before 1 is 1 BC.
    let astronomical = if before_christ { 1 - year } else { year };
    if !(1..=YEAR_MAX).contains(&year) {
        return None;
    }
    days_from_date(astronomical, month, day).filter(|days| *days >= DAY_MIN)
}

/// Microseconds since 2000-01-01 00:00:00 UTC of an RFC 3339 text. Years are as in a date; ` BC` is at the end. The
/// offset may be missing if `local`; the time is in UTC then. Fractions of a microsecond are rounded.
pub(super) fn parse_timestamp(text: &str, local: bool) -> Option<i64> {
    let (text, before_christ) = without_era(text);
    let (date, rest) = text.split_at_checked(text.find(['T', 't', ' '])?)?;
    let days = if before_christ {
        parse_date(&format!("{date} BC"))?
    } else {
        parse_date(date)?
    };
    let rest = rest.get(1..)?;
    let offset_at = rest.find(['Z', 'z', '+', '-']).unwrap_or(rest.len());
    let (clock, offset) = rest.split_at_checked(offset_at)?;
    let offset = match offset {
        "" if local => 0,
        offset => offset_seconds(offset, RFC_HOURS_MAX)?,
    };
    // The sum may be nearly 6 million years, which 64 bits of microseconds can't hold.
    let microseconds = i128::from(days) * i128::from(MICROSECONDS_PER_DAY)
        + i128::from(time_of_day(clock)? - offset * 1_000_000);
    let microseconds = i64::try_from(microseconds).ok()?;
    (DAY_MIN * MICROSECONDS_PER_DAY..MICROSECOND_END)
        .contains(&microseconds)
        .then_some(microseconds)
}

/// Whether `text` is a time of day, which may be `24:00:00`; with an offset if `zone`, else without.
pub(super) fn is_time(text: &str, zone: bool) -> bool {
    let (clock, offset) = match text.find(['Z', 'z', '+', '-']) {
        Some(at) if zone => text.split_at(at),
        None if !zone => (text, "+00:00"),
        _ => return false,
    };
    let is_end = match clock.strip_prefix("24:00:00") {
        Some("") => true,
        Some(rest) => rest.strip_prefix('.').is_some_and(|fraction| {
            !fraction.is_empty() && fraction.bytes().all(|byte| byte == b'0')
        }),
        None => false,
    };
    let is_within =
        time_of_day(clock).is_some_and(|microseconds| microseconds <= MICROSECONDS_PER_DAY);
    (is_end || is_within) && offset_seconds(offset, ZONE_HOURS_MAX).is_some()
}

fn without_era(text: &str) -> (&str, bool) {
    match text.strip_suffix(" BC") {
        Some(text) => (text, true),
        None => (text, false),
    }
}

/// Microseconds since midnight of `HH:MM:SS[.fraction]`. As in PostgreSQL, second 60 is the first of the next minute.
fn time_of_day(text: &str) -> Option<i64> {
    let (whole, fraction) = match text.split_once('.') {
        Some((_, "")) => return None,
        Some((whole, fraction)) => (whole, fraction),
        None => (text, ""),
    };
    let (hour, minute, second) = match whole.as_bytes() {
        [_, _, b':', _, _, b':', _, _] => {
            let two = |at: usize| whole.get(at..at + 2).and_then(parse_digits);
            (two(0)?, two(3)?, two(6)?)
        }
        _ => return None,
    };
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut microseconds = 0;
    let mut power = 100_000;
    for (place, byte) in fraction.bytes().enumerate() {
        let digit = i64::from(byte.checked_sub(b'0').filter(|digit| *digit < 10)?);
        microseconds += digit * power;
        power /= 10;
        if place == 6 && digit > 4 {
            microseconds += 1;
        }
    }
    Some(((hour * 60 + minute) * 60 + second) * 1_000_000 + microseconds)
}

/// Seconds east of UTC of `Z` or `±HH:MM[:SS]`.
fn offset_seconds(text: &str, hours_max: i64) -> Option<i64> {
    let (sign, rest) = match text.as_bytes().first()? {
        b'Z' | b'z' => return (text.len() == 1).then_some(0),
        b'+' => (1, &text[1..]),
        b'-' => (-1, &text[1..]),
        _ => return None,
    };
    let mut parts = rest.split(':').map(|part| match part.len() {
        2 => parse_digits(part),
        _ => None,
    });
    // PostgreSQL writes an offset of whole hours without minutes.
    let hours = parts.next()??;
    let minutes = parts.next().unwrap_or(Some(0))?;
    let seconds = parts.next().unwrap_or(Some(0))?;
    if parts.next().is_some() || hours > hours_max || minutes > 59 || seconds > 59 {
        return None;
    }
    Some(sign * ((hours * 60 + minutes) * 60 + seconds))
}

/// The number that `text` consists of; `None` if it has another character than a digit.
fn parse_digits(text: &str) -> Option<i64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_as_postgresql_counts_them() {
        // select date '…' - date '2000-01-01'
        for (text, days) in [
            ("2000-01-01", 0),
            ("1999-12-31", -1),
            ("2024-02-29", 8825),
            ("0001-01-01", -730_119),
            ("0001-12-31 BC", -730_120),
            ("0005-02-29 BC", -731_887),
            ("4714-11-24 BC", DAY_MIN),
            ("5874897-12-31", 2_145_031_948),
        ] {
            assert_eq!(parse_date(text), Some(days), "{text}");
        }
        for text in [
            "4714-11-23 BC",
            "5874898-01-01",
            "0000-01-01",
            "2023-02-29",
            "02023-01-01",
            "2023-1-1",
            "2023-+1-01",
            "2023-01-01-01",
            "99999999999999999999-01-01",
            "",
            "é",
        ] {
            assert_eq!(parse_date(text), None, "{text}");
        }
    }

    #[test]
    fn instants_keep_their_offset() {
        let second = 1_000_000;
        for (text, microseconds) in [
            ("2000-01-01T00:00:00Z", 0),
            ("2000-01-01t01:30:00+01:30", 0),
            ("1999-12-31 18:59:60.000001-05", second / second),
            ("2000-01-01T23:59:00+23:59", 0),
            ("2000-01-01T00:00:00.1234567Z", 123_457),
            ("2000-01-01T00:00:00.9999999Z", second),
            (
                "4714-11-24T00:00:00+00:00 BC",
                DAY_MIN * MICROSECONDS_PER_DAY,
            ),
            ("294276-12-31T23:59:59.999999+00:00", MICROSECOND_END - 1),
        ] {
            assert_eq!(parse_timestamp(text, false), Some(microseconds), "{text}");
        }
        assert_eq!(parse_timestamp("2000-01-01T00:00:01", true), Some(second));
        for text in [
            "2000-01-01T00:00:01",
            "2000-01-01",
            "2000-01-01T24:00:00Z",
            "2000-01-01T00:00Z",
            "2000-01-01T00:00:00.Z",
            "2000-01-01T00:00:00+24:00",
            "2000-01-01T00:00:00+1:00",
            "4714-11-24T00:00:00+00:01 BC",
            "294276-12-31T23:59:59.9999999Z",
            "5874897-01-01T00:00:00Z",
            "T",
            "",
            "2000-01-01é00:00:00Z",
        ] {
            assert_eq!(parse_timestamp(text, false), None, "{text}");
        }
    }

    #[test]
    fn times_have_a_zone_or_none() {
        for text in [
            "00:00:00",
            "23:59:59.5",
            "24:00:00",
            "24:00:00.000",
            "23:59:60",
        ] {
            assert!(is_time(text, false), "{text}");
            assert!(is_time(&format!("{text}-13:59:59"), true), "{text}");
            assert!(!is_time(text, true), "{text}");
        }
        for text in [
            "23:59:60.5",
            "24:00:01",
            "24:00:000",
            "24:00:00.",
            "24:00:00..0",
            "25:00:00",
            "1:00:00",
            "12:00",
            "12:00:00 AM",
            "+",
            "",
        ] {
            assert!(!is_time(text, false), "{text}");
        }
    }
}
