//! The time in which a certificate is valid, which rustls does not tell a server of its own certificate.

use std::time::SystemTime;

/// The tags of DER (X.690) that lead to the time.
const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
/// `[0]`, the version of a certificate.
const VERSION: u8 = 0xa0;

/// From when until when a certificate is valid (RFC 5280, section 4.1.2.5), as `YYYYMMDDHHMMSS` in UTC, so that texts
/// compare as the times do.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) not_before: String,
    pub(super) not_after: String,
}

impl Validity {
    /// Reads it from a certificate in DER; `None` if that is malformed.
    pub(super) fn of(certificate: &[u8]) -> Option<Self> {
        let (certificate, _) = element(certificate, SEQUENCE)?;
        let (mut fields, _) = element(certificate, SEQUENCE)?;
        if fields.first() == Some(&VERSION) {
            fields = element(fields, VERSION)?.1;
        }
        // Serial number, signature algorithm and issuer come first.
        for tag in [INTEGER, SEQUENCE, SEQUENCE] {
            fields = element(fields, tag)?.1;
        }
        let (times, _) = element(fields, SEQUENCE)?;
        let (not_before, rest) = time(times)?;
        let (not_after, _) = time(rest)?;
        Some(Self {
            not_before,
            not_after,
        })
    }

    /// The last second in which the certificate is valid.
    pub(super) fn expires_at(&self) -> Option<SystemTime> {
        let [date, clock] = parts(&self.not_after);
        let at = format!("{}T{}Z", date.join("-"), clock.join(":"));
        humantime::parse_rfc3339(&at).ok()
    }

    /// Whether it does not include `now`, and why.
    pub(super) fn excludes(&self, now: SystemTime) -> Option<String> {
        let now = humantime::format_rfc3339_seconds(now).to_string();
        let now: String = now.chars().filter(char::is_ascii_digit).collect();
        if self.not_after < now {
            Some(format!("it expired at {}", shown(&self.not_after)))
        } else if now < self.not_before {
            Some(format!(
                "it is not valid before {}",
                shown(&self.not_before)
            ))
        } else {
            None
        }
    }
}

/// The content of the first element of `der`, which must have this `tag`, and what follows it.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&first, rest) = der.split_first()?;
    let (&length, rest) = rest.split_first()?;
    let (length, rest) = if length < 0x80 {
        (usize::from(length), rest)
    } else {
        let (digits, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
        let digits = digits.iter().skip_while(|&&digit| digit == 0);
        let length = digits.clone().count() <= 4;
        let value = digits.fold(0_u64, |value, &digit| value << 8 | u64::from(digit));
        (usize::try_from(value).ok().filter(|_| length)?, rest)
    };
    (first == tag).then(|| rest.split_at_checked(length))?
}

/// The time at the beginning of `der`, and what follows it.
fn time(der: &[u8]) -> Option<(String, &[u8])> {
    let (text, rest) = element(der, *der.first()?)?;
    let text = str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let century = match (der.first(), text.get(..2)?) {
        (Some(&UTC_TIME), year) if year >= "50" => "19",
        (Some(&UTC_TIME), _) => "20",
        (Some(&GENERALIZED_TIME), _) => "",
        _ => return None,
    };
    let time = format!("{century}{text}");
    (time.len() == 14 && time.bytes().all(|byte| byte.is_ascii_digit())).then_some((time, rest))
}

/// Year, month and day, and hours, minutes and seconds of `YYYYMMDDHHMMSS`.
fn parts(time: &str) -> [[&str; 3]; 2] {
    let part = |(from, to): (usize, usize)| time.get(from..to).unwrap_or_default();
    [[(0, 4), (4, 6), (6, 8)], [(8, 10), (10, 12), (12, 14)]].map(|places| places.map(part))
}

/// `YYYYMMDDHHMMSS` with separators.
fn shown(time: &str) -> String {
    let [date, clock] = parts(time);
    format!("{} {} UTC", date.join("-"), clock.join(":"))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn certificate(from: i32, until: i32) -> Vec<u8> {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_before = date_time_ymd(from, 1, 2);
        params.not_after = date_time_ymd(until, 12, 31);
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn validity_is_read_in_both_forms_of_time() {
        for (from, until) in [(1975, 2049), (2000, 2050), (2051, 4096)] {
            let validity = Validity::of(&certificate(from, until)).unwrap();
            assert_eq!(validity.not_before, format!("{from}0102000000"));
            assert_eq!(validity.not_after, format!("{until}1231000000"));
        }
        let validity = Validity::of(&certificate(2020, 2030)).unwrap();
        let expiry = UNIX_EPOCH + Duration::from_secs(1_924_905_600);
        assert_eq!(validity.expires_at(), Some(expiry));
        // 2024-10-04, 2030-12-31 and 2010-09-09.
        let at = |seconds| validity.excludes(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(1_728_000_000), None);
        assert_eq!(
            at(1_925_000_000).unwrap(),
            "it expired at 2030-12-31 00:00:00 UTC"
        );
        assert_eq!(
            at(1_284_000_000).unwrap(),
            "it is not valid before 2020-01-02 00:00:00 UTC"
        );
    }

    #[test]
    fn malformed_certificates_have_no_validity() {
        let whole = certificate(2020, 2030);
        for end in 0..whole.len() {
            Validity::of(&whole[..end]);
            let mut changed = whole.clone();
            changed[end] ^= 0xff;
            Validity::of(&changed);
        }
        assert_eq!(Validity::of(&[]), None);
        assert_eq!(
            Validity::of(&[SEQUENCE, 0x88, 255, 255, 255, 255, 255, 255, 255, 255]),
            None
        );
    }
}
