//! The canonical texts of network addresses: those that PostgreSQL writes for `inet`, `cidr` and `macaddr`.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The canonical text of an `inet`: an address, and the length of its prefix unless that is the whole address.
pub(super) fn inet(text: &str) -> Result<Cow<'_, str>, String> {
    let Some((address, length)) = parse(text) else {
        return Err("is not an IP address, with or without the length of a prefix".into());
    };
    let whole = bits(address);
    Ok(spelled(
        text,
        match length {
            length if length == whole => written(address),
            length => format!("{}/{length}", written(address)),
        },
    ))
}

/// The canonical text of a `cidr`: a network's address and the length of its prefix.
pub(super) fn cidr(text: &str) -> Result<Cow<'_, str>, String> {
    match parse(text) {
        Some((address, length)) if is_network(address, length) => {
            Ok(spelled(text, format!("{}/{length}", written(address))))
        }
        Some(_) => Err("is not a network: it has bits to the right of its prefix".into()),
        None => Err("is not a network as ADDRESS/LENGTH".into()),
    }
}

/// The canonical text of a `macaddr`: six pairs of hexadecimal digits in lower case, with `:` between them.
pub(super) fn macaddr(text: &str) -> Result<Cow<'_, str>, String> {
    let is_separated = |separator: char| {
        let mut pairs = text.split(separator);
        let six = pairs.by_ref().take(6);
        let are_pairs =
            six.filter(|pair| pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit()));
        are_pairs.count() == 6 && pairs.next().is_none()
    };
    if is_separated(':') || is_separated('-') {
        Ok(spelled(text, text.to_ascii_lowercase().replace('-', ":")))
    } else {
        Err("is not a MAC address of the form 01:23:45:67:89:ab".into())
    }
}

/// An address and the length of its prefix.
fn parse(text: &str) -> Option<(IpAddr, u8)> {
    let Some((address, length)) = text.split_once('/') else {
        let address: IpAddr = text.parse().ok()?;
        return Some((address, bits(address)));
    };
    let address = address.parse().ok()?;
    let is_plain = length == "0" || !length.starts_with(['0', '+']);
    let length = length.parse().ok().filter(|_| is_plain)?;
    (length <= bits(address)).then_some((address, length))
}

/// The number of bits of an address.
fn bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// Whether all bits after the prefix are 0.
fn is_network(address: IpAddr, length: u8) -> bool {
    let zeros = match address {
        IpAddr::V4(address) => address.to_bits().trailing_zeros(),
        IpAddr::V6(address) => address.to_bits().trailing_zeros(),
    };
    u32::from(length) + zeros >= u32::from(bits(address))
}

/// An address as PostgreSQL writes it (inet_net_ntop.c). It differs from Rust in one form: an address of IPv6 that begins
/// with 96 zeros ends like one of IPv4, unless the next 16 bits are 0, too.
fn written(address: IpAddr) -> String {
    match address {
        IpAddr::V6(address) if is_compatible(address) => {
            // The upper bits are 0.
            let low = Ipv4Addr::from_bits(address.to_bits() as u32);
            format!("::{low}")
        }
        address => address.to_string(),
    }
}

fn is_compatible(address: Ipv6Addr) -> bool {
    matches!(address.segments(), [0, 0, 0, 0, 0, 0, high, _] if high != 0)
}

/// `canonical`, borrowed if `text` has this form already.
fn spelled(text: &str, canonical: String) -> Cow<'_, str> {
    if text == canonical {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(canonical)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Canonical = for<'t> fn(&'t str) -> Result<Cow<'t, str>, String>;

    #[track_caller]
    fn check(canonical: Canonical, accepted: &[(&str, &str)], refused: &[&str]) {
        for (text, expected) in accepted {
            assert_eq!(canonical(text).as_deref(), Ok(*expected), "{text}");
            let again = canonical(expected);
            assert!(matches!(again, Ok(Cow::Borrowed(_))), "{expected}");
        }
        for text in refused {
            assert!(canonical(text).is_err(), "{text}");
        }
    }

    #[test]
    fn addresses_have_one_spelling() {
        check(
            inet,
            &[
                ("192.168.0.1", "192.168.0.1"),
                ("192.168.0.1/32", "192.168.0.1"),
                ("192.168.0.1/24", "192.168.0.1/24"),
                ("0.0.0.0/0", "0.0.0.0/0"),
                ("2001:DB8:0:0:0:0:0:1", "2001:db8::1"),
                ("::1/128", "::1"),
                ("::1/64", "::1/64"),
                ("::ffff:1.2.3.4", "::ffff:1.2.3.4"),
                ("::102:304", "::1.2.3.4"),
                ("::1:0", "::0.1.0.0"),
                ("::", "::"),
                ("::ffff", "::ffff"),
                ("1:0:0:2:0:0:0:3", "1:0:0:2::3"),
                ("1:0:2:3:4:5:6:7", "1:0:2:3:4:5:6:7"),
            ],
            &[
                "",
                "192.168.0",
                "192.168.0.01",
                "192.168.0.1/33",
                "192.168.0.1/024",
                "192.168.0.1/+2",
                "192.168.0.1/",
                "::1/129",
                "fe80::1%eth0",
                " ::1",
            ],
        );
    }

    #[test]
    fn networks_have_no_bits_after_their_prefix() {
        check(
            cidr,
            &[
                ("10.0.0.0/8", "10.0.0.0/8"),
                ("10.0.0.1", "10.0.0.1/32"),
                ("0.0.0.0/0", "0.0.0.0/0"),
                ("::/0", "::/0"),
                ("2001:DB8::/32", "2001:db8::/32"),
                ("::1", "::1/128"),
            ],
            &["10.0.0.1/8", "10/8", "2001:db8::1/64", "128.0.0.0/0", ""],
        );
    }

    #[test]
    fn hardware_addresses_are_in_lower_case() {
        check(
            macaddr,
            &[
                ("08:00:2B:01:02:03", "08:00:2b:01:02:03"),
                ("08-00-2b-01-02-03", "08:00:2b:01:02:03"),
            ],
            &[
                "08:00:2b:01:02",
                "08:00:2b:01:02:03:04",
                "08:00:2b:01:02:0",
                "08:00-2b:01:02:03",
                "08002b010203",
                "08:00:2b:01:02:+3",
                "",
            ],
        );
    }
}
