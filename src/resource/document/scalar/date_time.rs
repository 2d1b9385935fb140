//! Writes dates and timestamps: as RFC 3339 in UTC for the years 1 to 9999, as PostgreSQL does for other years.

use crate::resource::calendar::{MICROSECONDS_PER_DAY, date_from_days};
use crate::resource::document::scalar::number::write_integer;

const INFINITY: &[u8] = b"\"infinity\"";
const NEGATIVE_INFINITY: &[u8] = b"\"-infinity\"";

/// `days` since 2000-01-01.
pub(super) fn write_date(days: i32, out: &mut Vec<u8>) {
    match days {
        i32::MAX => out.extend_from_slice(INFINITY),
        i32::MIN => out.extend_from_slice(NEGATIVE_INFINITY),
        days => {
            out.push(b'"');
            let before_christ = write_day(i64::from(days), out);
            out.extend_from_slice(if before_christ { b" BC\"" } else { b"\"" });
        }
    }
}

/// `microseconds` since 2000-01-01 00:00:00.
pub(super) fn write_timestamp(microseconds: i64, out: &mut Vec<u8>) {
    match microseconds {
        i64::MAX => return out.extend_from_slice(INFINITY),
        i64::MIN => return out.extend_from_slice(NEGATIVE_INFINITY),
        _ => {}
    }
    out.push(b'"');
    write_instant(microseconds, out);
    out.push(b'"');
}

/// A finite timestamp as text, without quotes. PostgreSQL reads it as a `timestamp` and as a `timestamptz`.
pub(in crate::resource) fn timestamp_text(microseconds: i64) -> String {
    let mut text = Vec::with_capacity(32);
    write_instant(microseconds, &mut text);
    // It is ASCII.
    String::from_utf8(text).unwrap_or_default()
}

fn write_instant(microseconds: i64, out: &mut Vec<u8>) {
    let before_christ = write_day(microseconds.div_euclid(MICROSECONDS_PER_DAY), out);
    let time = microseconds.rem_euclid(MICROSECONDS_PER_DAY);
    let (seconds, fraction) = (time / 1_000_000, time % 1_000_000);
    for (separator, number) in [
        (b'T', seconds / 3600),
        (b':', seconds / 60 % 60),
        (b':', seconds % 60),
    ] {
        out.push(separator);
        write_two(number, out);
    }
    if fraction > 0 {
        out.push(b'.');
        let mut rest = fraction;
        let mut power = 100_000;
        while rest > 0 {
            out.push(digit(rest / power));
            rest %= power;
            power /= 10;
        }
    }
    out.extend_from_slice(b"+00:00");
    if before_christ {
        out.extend_from_slice(b" BC");
    }
}

/// Writes `YYYY-MM-DD`; returns whether the date is before Christ.
fn write_day(days: i64, out: &mut Vec<u8>) -> bool {
    let (year, month, day) = date_from_days(days);
    // There is no year 0: the one before 1 is 1 BC.
    let before_christ = year <= 0;
    let year = if before_christ { 1 - year } else { year };
    if year < 10_000 {
        write_two(year / 100, out);
        write_two(year % 100, out);
    } else {
        write_integer(year, out);
    }
    for number in [month, day] {
        out.push(b'-');
        write_two(number, out);
    }
    before_christ
}

fn write_two(number: i64, out: &mut Vec<u8>) {
    out.push(digit(number / 10));
    out.push(digit(number % 10));
}

/// `number` is below 10.
fn digit(number: i64) -> u8 {
    b'0' + number as u8
}
