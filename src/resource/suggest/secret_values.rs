//! Whether the values of a column look like secrets, whatever its name is.

/// How passwords are stored: crypt(3), PHC strings, LDAP (RFC 2307), Django, Werkzeug, Spring, phpass, Drupal, PostgreSQL.
const PASSWORD_HEADS: &[&str] = &[
    "$argon2",
    "argon2$argon2",
    "$2$",
    "$2a$",
    "$2b$",
    "$2x$",
    "$2y$",
    "$1$",
    "$5$",
    "$6$",
    "$7$",
    "$y$",
    "$gy$",
    "$apr1$",
    "$md5",
    "$sha1$",
    "$scrypt$",
    "$pbkdf2",
    "$bcrypt",
    "$P$",
    "$H$",
    "$S$",
    "bcrypt$",
    "bcrypt_sha256$",
    "md5$",
    "sha1$",
    "pbkdf2_sha1$",
    "pbkdf2_sha256$",
    "pbkdf2:sha",
    "scrypt:",
    "scrypt$",
    "SCRAM-SHA-",
    "{SHA",
    "{SSHA",
    "{MD5}",
    "{SMD5}",
    "{CRYPT}",
    "{PBKDF2",
    "{ARGON2",
    "{BCRYPT}",
    "{scrypt",
    "{noop}",
];

/// Keys in PEM (RFC 7468), and tokens and keys of services that say what they are.
const KEY_HEADS: &[&str] = &[
    "-----BEGIN ",
    "PuTTY-User-Key-File",
    "AGE-SECRET-KEY-",
    "otpauth://",
    "ghp_",
    "gho_",
    "github_pat_",
    "glpat-",
    "sk_live_",
    "xoxb-",
    "xoxp-",
    "AKIA",
];

/// Hexadecimal digits of MD5, SHA-1, SHA-224, SHA-256, SHA-384 and SHA-512.
const DIGEST_LENGTHS: [usize; 6] = [32, 40, 56, 64, 96, 128];

/// One of so many values, and at least one, has to begin as a secret.
const VALUES_PER_SECRET: usize = 10;

/// Different digits of a digest, at least. Of 32 random ones 14 differ on average, and 8 or fewer in one of ten million.
const DIGITS_MIN: usize = 9;

/// What the values of a column are that look like secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretValues {
    /// Hashes of passwords.
    Passwords,
    /// Tokens or keys.
    Keys,
    /// Digests, which may be of passwords or tokens, or keys.
    Digests,
}

impl SecretValues {
    /// The end of a sentence about the column.
    pub(super) fn why(self) -> &'static str {
        match self {
            Self::Passwords => "whose values look like hashes of passwords",
            Self::Keys => "whose values look like tokens or keys",
            Self::Digests => {
                "whose values look like digests, such as those of passwords and tokens"
            }
        }
    }

    /// What `values`, which may be cut after 129 characters, look like.
    pub fn of(values: &[&str]) -> Option<Self> {
        let values = values.iter().map(|value| value.trim());
        let values: Vec<&str> = values.filter(|value| !value.is_empty()).collect();
        let has = |is_secret: &dyn Fn(&str) -> bool| {
            let found = values.iter().filter(|value| is_secret(value)).count();
            found > 0 && found * VALUES_PER_SECRET >= values.len()
        };
        if has(&is_password) {
            Some(Self::Passwords)
        } else if has(&is_key) {
            Some(Self::Keys)
        } else if are_digests(&values) {
            Some(Self::Digests)
        } else {
            None
        }
    }
}

impl SecretValues {
    /// Finds a text in an array, JSON or hstore, as PostgreSQL writes these, that looks like a secret; else the first text.
    pub fn within(value: &str) -> &str {
        let texts = value.strip_prefix('{').unwrap_or(value).split(['"', ',']);
        let mut texts = texts.map(|text| text.trim_end_matches('}').trim());
        let first = texts.clone().find(|text| !text.is_empty());
        let secret = texts.find(|text| is_password(text) || is_key(text));
        secret.or(first).unwrap_or_default()
    }
}

fn begins_with(value: &str, heads: &[&str]) -> bool {
    heads.iter().any(|head| {
        let start = value.get(..head.len());
        // The names of schemes in braces have any case.
        start.is_some_and(|start| {
            start == *head || head.starts_with('{') && start.eq_ignore_ascii_case(head)
        })
    })
}

fn is_password(value: &str) -> bool {
    let is_of_postgresql = value.strip_prefix("md5").is_some_and(is_digest);
    is_of_postgresql || begins_with(value, PASSWORD_HEADS)
}

fn is_key(value: &str) -> bool {
    is_jwt(value) || begins_with(value, KEY_HEADS)
}

/// A header in base64url begins with `{"`, and two dots separate the parts, of which the end may be cut off.
fn is_jwt(value: &str) -> bool {
    let is_sign = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    value.len() > 20
        && value.starts_with("eyJ")
        && value.contains('.')
        && value.bytes().all(is_sign)
}

fn is_digest(value: &str) -> bool {
    let mut seen = [false; 16];
    for digit in value.chars() {
        let place = digit
            .to_digit(16)
            .and_then(|digit| usize::try_from(digit).ok());
        match place.and_then(|place| seen.get_mut(place)) {
            Some(seen) => *seen = true,
            None => return false,
        }
    }
    let differing = seen.iter().filter(|seen| **seen).count();
    DIGEST_LENGTHS.contains(&value.len())
        && differing >= DIGITS_MIN
        && value.contains(|c: char| c.is_ascii_alphabetic())
}

/// Whether all values are digests of one length, most of which differ.
fn are_digests(values: &[&str]) -> bool {
    let Some(first) = values.first() else {
        return false;
    };
    let mut distinct = values.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let is_one = |value: &&str| value.len() == first.len() && is_digest(value);
    values.iter().all(is_one) && distinct.len() * 2 > values.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MD5: &str = "5f4dcc3b5aa765d61d8327deb882cf99";
    const SHA1: &str = "5baa61e4c9b93f3f0682250b6cf8331b7ee68fd8";

    #[test]
    fn values_tell_what_they_are() {
        for value in [
            "$argon2id$v=19$m=65536,t=3,p=4$c2FsdA$aGFzaA",
            "$2b$12$R9h/cIPz0gi.URNNX3kh2OPST9/PgBkqquzi.Ss7KIUgO2t0jWMUW",
            "$6$rounds=5000$salt$hash",
            "{SSHA}DkMTwBl+a/3DQTxCYEApdUtNXGgdUac3",
            "{bcrypt}$2a$10$dXJ3SW6G7P50lGmMkkmwe",
            "pbkdf2_sha256$600000$salt$hash=",
            "SCRAM-SHA-256$4096:c2FsdA==$c3RvcmVk:c2VydmVy",
            &format!("md5{MD5}"),
        ] {
            let found = SecretValues::of(&["", value, "plain"]);
            assert_eq!(found, Some(SecretValues::Passwords), "{value}");
        }
        for value in [
            "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxIn0.c2ln",
            "-----BEGIN OPENSSH PRIVATE KEY-----",
            " -----BEGIN PRIVATE KEY-----\nMIIE",
        ] {
            let found = SecretValues::of(&[value]);
            assert_eq!(found, Some(SecretValues::Keys), "{value}");
        }
        let digests = [
            vec![MD5],
            vec![MD5, "E10ADC3949BA59ABBE56E057F20F883E"],
            vec![SHA1, ""],
        ];
        for values in digests {
            assert_eq!(SecretValues::of(&values), Some(SecretValues::Digests));
        }
    }

    #[test]
    fn texts_within_values_tell_what_they_are() {
        for value in [
            "{$2b$12$R9h/cIPz0gi.URNNX3kh2O,plain}",
            r#"{plain,"$argon2id$v=19$m=65536,t=3,p=4$c2FsdA$aGFzaA"}"#,
            r#"{"name": "x", "login": {"hash": "{SSHA}DkMTwBl+a/3DQTxCYEApdUtNXGgdUac3"}}"#,
            r#""name"=>"x", "hash"=>"$2y$10$dXJ3SW6G7P50lGmMkkmwe""#,
        ] {
            let found = SecretValues::of(&[SecretValues::within(value)]);
            assert_eq!(found, Some(SecretValues::Passwords), "{value}");
        }
        let digests = SecretValues::within("{5f4dcc3b5aa765d61d8327deb882cf99,x}");
        assert_eq!(SecretValues::of(&[digests]), Some(SecretValues::Digests));
        for value in ["", "{}", "{a,b}", r#"{"price": "$2 and $1"}"#, "[1, null]"] {
            assert_eq!(SecretValues::of(&[SecretValues::within(value)]), None);
        }
    }

    #[test]
    fn ordinary_values_are_none() {
        let other = "2026-11-29";
        let rare: Vec<&str> = [&["$2b$12$x"][..], &[other; 10]].concat();
        let repeated = [MD5; 4];
        let values: [&[&str]; 12] = [
            &[],
            &["", " "],
            &["$1,000", "$25", "{a}", "eyJ", "sha1sum", "md5"],
            // A uuid, a number, a pattern, and texts of which only some are digests.
            &["5f4dcc3b-5aa7-65d6-1d83-27deb882cf99"],
            &["00000000000000000000000000000001"],
            &["12345678901234567890123456789012"],
            &["deadbeefdeadbeefdeadbeefdeadbeef"],
            &[MD5, "none"],
            &[MD5, SHA1],
            &["5f4dcc3b5aa765d61d8327deb882cf9"],
            &repeated,
            &rare,
        ];
        for values in values {
            assert_eq!(SecretValues::of(values), None, "{values:?}");
        }
    }
}
