//! Times, sizes and shares, for people.

use std::time::Duration;

use bytesize::ByteSize;

/// A time in seconds: `12 ms`, `3.4 s`, `2h 5m`.
pub(in crate::commands) fn span(seconds: f64) -> String {
    let milliseconds = seconds * 1_000.0;
    if milliseconds < 1_000.0 {
        return format!("{:.0} ms", milliseconds.max(0.0));
    }
    if seconds < 60.0 {
        return format!("{seconds:.1} s");
    }
    let whole = Duration::try_from_secs_f64(seconds.round()).unwrap_or(Duration::MAX);
    let text = humantime::format_duration(whole).to_string();
    let parts: Vec<&str> = text.split(' ').take(2).collect();
    parts.join(" ")
}

/// A number of bytes: `2.0 KiB`.
pub(in crate::commands) fn bytes(bytes: u64) -> String {
    ByteSize::b(bytes).display().iec().to_string()
}

/// A share of a whole: `98.1 %`; nothing of nothing is `-`.
pub(super) fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        "-".to_owned()
    } else {
        format!("{:.1} %", part as f64 / whole as f64 * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_two_units_at_most() {
        for (seconds, text) in [
            (-1.0, "0 ms"),
            (0.0123, "12 ms"),
            (3.44, "3.4 s"),
            (90.0, "1m 30s"),
            (7_503.0, "2h 5m"),
            (f64::MAX, &span(1e300)),
        ] {
            assert_eq!(span(seconds), text);
        }
    }

    #[test]
    fn nothing_has_no_share() {
        assert_eq!(share(0, 0), "-");
        assert_eq!(share(1, 3), "33.3 %");
        assert_eq!(bytes(1_536), "1.5 KiB");
    }
}
