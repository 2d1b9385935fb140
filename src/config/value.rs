//! One setting's value: its text read into the configuration, and the configuration shown as TOML again.
//!
//! A [`Slot`] is a typed way into [`Config`](super::Config) with its bounds. Files, environment and flags all
//! pass through [`Slot::put`], so that they can't disagree about what is valid.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::HeaderValue;
use bytesize::ByteSize;
use ipnet::IpNet;
use toml::de::DeValue;

use jsonwebtoken::Algorithm;

use super::url;
use crate::auth::config::{MASK, SameSite, Secret};
use crate::check::Ignored;
use crate::dispatch::definition::{Delivery, IntervalFrom, SinkKind};
use crate::feed::OnLoss;
use crate::http::middleware::access_log::AccessLogFormat;
use crate::unseen::is_unseen;

const INSTALL: [(&str, bool); 2] = [("auto", true), ("manual", false)];
const ACCESS_LOG: [(&str, Option<AccessLogFormat>); 3] = [
    ("off", None),
    ("json", Some(AccessLogFormat::Json)),
    ("combined", Some(AccessLogFormat::Combined)),
];
const ON_LOSS: [(&str, OnLoss); 2] = [
    ("bypass", OnLoss::Bypass),
    ("serve-stale", OnLoss::ServeStale),
];
const DELIVERY: [(&str, Delivery); 2] = [
    ("at-least-once", Delivery::AtLeastOnce),
    ("at-most-once", Delivery::AtMostOnce),
];
const INTERVAL_FROM: [(&str, IntervalFrom); 2] =
    [("now", IntervalFrom::Now), ("due", IntervalFrom::Due)];
const SINK: [(&str, SinkKind); 4] = [
    ("http", SinkKind::Http),
    ("nats", SinkKind::Nats),
    ("stdout", SinkKind::Stdout),
    ("discard", SinkKind::Discard),
];
const SAME_SITE: [(&str, SameSite); 2] = [("strict", SameSite::Strict), ("none", SameSite::None)];
/// Longer texts are cut where a message repeats them.
const ECHO_CHARS_MAX: usize = 60;

/// Where a setting's value goes, and what it may be.
pub(super) enum Slot<'a> {
    /// An IP address and a port.
    Address(&'a mut SocketAddr),
    /// A path, relative to the working directory.
    Path(&'a mut PathBuf),
    /// The path of a file, where there is one.
    File(&'a mut Option<PathBuf>),
    /// Networks, separated by commas where they are one text.
    Networks(&'a mut Vec<IpNet>),
    /// The value of a header.
    Header(&'a mut Option<HeaderValue>),
    /// A PostgreSQL URL.
    Url(&'a mut Option<String>),
    /// `auto` or `manual`.
    Install(&'a mut bool),
    /// `off`, `json` or `combined`.
    AccessLog(&'a mut Option<AccessLogFormat>),
    /// `bypass` or `serve-stale`.
    OnLoss(&'a mut OnLoss),
    /// `strict` or `none`.
    SameSite(&'a mut SameSite),
    /// `true` or `false`.
    Flag(&'a mut bool),
    /// A human duration.
    Duration(&'a mut Duration, RangeInclusive<Duration>),
    /// A human size in bytes.
    Bytes(&'a mut u64, RangeInclusive<u64>),
    /// A whole number.
    Count(&'a mut usize, RangeInclusive<usize>),
    /// A whole number that the database stores as an integer.
    Count32(&'a mut u32, RangeInclusive<u32>),
    /// A part of a whole, from 0 to 1.
    Share(&'a mut f64),
    /// Texts of one kind, in a list or between commas.
    List(&'a mut Vec<String>, &'static ListOf),
    /// Any text but the empty one.
    Text(&'a mut Option<String>),
    /// A text that nothing shows.
    Secret(&'a mut Option<Secret>),
    /// Where public keys are fetched.
    JwksUrl(&'a mut Option<Secret>),
    /// Algorithms of signatures, in a list or between commas.
    Algorithms(&'a mut Vec<Algorithm>),
    /// A human duration, where there is one.
    OptionalDuration(&'a mut Option<Duration>, RangeInclusive<Duration>),
    /// Human durations, in a list or between commas.
    Durations(&'a mut Vec<Duration>, RangeInclusive<Duration>),
    /// Texts that nothing shows, one alone or in a list.
    Secrets(&'a mut Vec<Secret>),
    /// `at-least-once` or `at-most-once`.
    Delivery(&'a mut Delivery),
    /// `now` or `due`.
    IntervalFrom(&'a mut IntervalFrom),
    /// `http`, `nats`, `stdout` or `discard`.
    SinkKind(&'a mut SinkKind),
    /// Where requests are sent.
    SinkUrl(&'a mut Option<Secret>),
}

/// What a list is of.
pub(super) struct ListOf {
    expected: &'static str,
    /// Whether a text is one of them.
    takes: fn(&str) -> bool,
}

/// Origins as browsers send them, or all of them.
pub(super) const ORIGINS: ListOf = ListOf {
    expected: "a list of origins such as [\"https://app.example\"], without path and default port, or [\"*\"]",
    takes: |text| text == "*" || is_origin(text),
};

/// Names of hosts, without ports.
pub(super) const HOSTS: ListOf = ListOf {
    expected: "a list of host names such as [\"larder.internal\"], without ports",
    takes: |text| {
        let of_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        // A dot alone would be the empty name, which a request may have.
        !text.is_empty() && text != "." && text.chars().all(of_name)
    },
};

/// Findings of `larder check`.
pub(super) const FINDINGS: ListOf = ListOf {
    expected: "a list such as [\"unused-index\", \"rights:public.dept\"], with ids that larder check --list prints",
    takes: |text| Ignored::parse(text).is_ok(),
};

/// Names of methods or headers (RFC 9110, section 5.6.2).
pub(super) const TOKENS: ListOf = ListOf {
    expected: "a list of names such as [\"content-type\"]",
    takes: |text| {
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        !text.is_empty() && text.chars().all(token)
    },
};

/// Whether a browser sends `text` as an `Origin`: scheme, host and port as the URL standard serializes them.
fn is_origin(text: &str) -> bool {
    let Some((scheme, authority)) = text.split_once("://") else {
        return false;
    };
    let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let default_port = match scheme {
        "http" => 80,
        "https" => 443,
        // Of an extension of the browser, whose host is its name.
        _ => {
            let of_scheme = |c: char| lower(c) || "+-.".contains(c);
            let of_name = |c: char| lower(c) || "-._".contains(c);
            return !scheme.is_empty()
                && scheme.chars().all(of_scheme)
                && !authority.is_empty()
                && authority.chars().all(of_name);
        }
    };
    let after_address = authority.find(']').map_or(0, |end| end + 1);
    let port_at = authority[after_address..].find(':');
    let (host, port) = match port_at {
        Some(at) => {
            let (host, port) = authority.split_at(after_address + at);
            (host, Some(&port[1..]))
        }
        None => (authority, None),
    };
    let is_port = |port: &str| {
        let number: Option<u16> = port.parse().ok();
        number.is_some_and(|number| {
            number != 0 && number != default_port && number.to_string() == port
        })
    };
    is_host(host) && port.is_none_or(is_port)
}

/// Whether `text` is a host in the only spelling that browsers send.
fn is_host(text: &str) -> bool {
    if let Some(address) = text.strip_prefix('[') {
        let address = address.strip_suffix(']').unwrap_or_default();
        let parsed: Option<Ipv6Addr> = address.parse().ok();
        return parsed.is_some_and(|parsed| parsed.to_string() == address);
    }
    let of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._".contains(c);
    let last = text.trim_end_matches('.').rsplit('.').next();
    // Browsers read a host whose last part is a number as an IPv4 address.
    let is_number = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    !text.is_empty()
        && text.chars().all(of_name)
        && (!last.is_some_and(is_number) || text.parse::<Ipv4Addr>().is_ok())
}

/// Networks, or addresses alone, between commas.
fn networks(text: &str) -> Option<Vec<IpNet>> {
    let network = |part: &str| {
        let alone = || part.parse::<IpAddr>().ok().map(IpNet::from);
        part.parse().ok().or_else(alone)
    };
    members(text).map(network).collect()
}

/// Why a value is refused; the text is for the user.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ValueError {
    /// A TOML value of another type.
    #[error("expected {expected}, found {found}")]
    Type {
        expected: &'static str,
        found: String,
    },
    /// A text that does not read as a value of the type.
    #[error("expected {expected}, found {}", echo(.found))]
    Text {
        expected: &'static str,
        found: String,
    },
    /// A negative number.
    #[error("can't be negative: expected {expected}")]
    Negative { expected: &'static str },
    /// Readable, but too small or too large.
    #[error("must be between {least} and {most}, found {}", echo(.found))]
    Bounds {
        least: String,
        most: String,
        found: String,
    },
    /// A URL that is refused; the message repeats nothing of it.
    #[error(transparent)]
    Url(#[from] url::UrlError),
}

impl Slot<'_> {
    /// Reads `text`, which is what the environment, a flag or [`Slot::text_of`] gives.
    pub(super) fn put(self, text: &str) -> Result<(), ValueError> {
        let expected = self.expected();
        let malformed = || ValueError::Text {
            expected,
            found: text.to_owned(),
        };
        match self {
            Slot::Duration(..)
            | Slot::OptionalDuration(..)
            | Slot::Bytes(..)
            | Slot::Count(..)
            | Slot::Count32(..)
            | Slot::Share(_)
                if text.starts_with('-') =>
            {
                return Err(ValueError::Negative { expected });
            }
            Slot::Address(at) => *at = text.parse().map_err(|_| malformed())?,
            Slot::Path(_) | Slot::File(_) | Slot::Header(_) | Slot::Text(_) | Slot::Secret(_)
                if text.is_empty() =>
            {
                return Err(malformed());
            }
            Slot::Networks(at) => *at = networks(text).ok_or_else(malformed)?,
            Slot::File(path) => *path = Some(PathBuf::from(text)),
            Slot::Header(at) => *at = Some(text.parse().map_err(|_| malformed())?),
            Slot::Path(path) => *path = PathBuf::from(text),
            Slot::Url(at) => {
                url::check(text)?;
                *at = Some(text.to_owned());
            }
            Slot::Flag(flag) => *flag = text.parse().map_err(|_| malformed())?,
            Slot::Duration(at, bounds) => *at = duration(text, &bounds).ok_or_else(malformed)??,
            Slot::OptionalDuration(at, bounds) => {
                *at = Some(duration(text, &bounds).ok_or_else(malformed)??);
            }
            Slot::Bytes(at, bounds) => {
                let ByteSize(read) = text.parse().map_err(|_| malformed())?;
                *at = bounded(read, &bounds, text, show_bytes)?;
            }
            Slot::Count(at, bounds) => {
                let read = text.parse().map_err(|_| malformed())?;
                *at = bounded(read, &bounds, text, |count| count.to_string())?;
            }
            Slot::Count32(at, bounds) => {
                let read = text.parse().map_err(|_| malformed())?;
                *at = bounded(read, &bounds, text, |count| count.to_string())?;
            }
            Slot::Share(at) => {
                let read = text.parse().map_err(|_| malformed())?;
                *at = bounded(read, &(0.0..=1.0), text, |share| share.to_string())?;
            }
            Slot::Text(at) => *at = Some(text.to_owned()),
            Slot::Secret(at) => *at = Some(Secret::new(text)),
            Slot::JwksUrl(at) => {
                url::check_protected(text)?;
                *at = Some(Secret::new(text));
            }
            Slot::SinkUrl(at) => {
                url::check_sink(text)?;
                *at = Some(Secret::new(text));
            }
            Slot::Durations(at, bounds) => {
                let read =
                    members(text).map(|text| duration(text, &bounds).ok_or_else(malformed)?);
                *at = read.collect::<Result<_, _>>()?;
            }
            listed_or_word => listed_or_word.put_members(text).ok_or_else(malformed)?,
        }
        Ok(())
    }

    /// As [`Slot::put`], for one of some words or a list; `None` if `text` is something else.
    fn put_members(self, text: &str) -> Option<()> {
        match self {
            Slot::Install(install) => *install = word(&INSTALL, text)?,
            Slot::AccessLog(format) => *format = word(&ACCESS_LOG, text)?,
            Slot::OnLoss(on_loss) => *on_loss = word(&ON_LOSS, text)?,
            Slot::SameSite(at) => *at = word(&SAME_SITE, text)?,
            Slot::Delivery(at) => *at = word(&DELIVERY, text)?,
            Slot::IntervalFrom(at) => *at = word(&INTERVAL_FROM, text)?,
            Slot::SinkKind(at) => *at = word(&SINK, text)?,
            Slot::List(at, of) => {
                let texts = members(text).map(|text| (of.takes)(text).then(|| text.to_owned()));
                *at = texts.collect::<Option<_>>()?;
            }
            Slot::Algorithms(at) => {
                let names = members(text).map(str::parse);
                *at = names.collect::<Result<_, _>>().ok()?;
            }
            Slot::Secrets(at) => *at = members(text).map(Secret::new).collect(),
            // The others are put one by one.
            _ => return None,
        }
        Some(())
    }

    /// The text of a TOML value, if its type is one that this slot takes.
    pub(super) fn text_of<'v>(&self, value: &'v DeValue<'_>) -> Result<Cow<'v, str>, ValueError> {
        let is_number = matches!(self, Slot::Count(..) | Slot::Count32(..) | Slot::Share(_));
        let takes_integer = is_number || matches!(self, Slot::Bytes(..));
        let takes_string = !is_number && !matches!(self, Slot::Flag(_));
        match value {
            DeValue::Array(items)
                if matches!(
                    self,
                    Slot::List(..)
                        | Slot::Algorithms(_)
                        | Slot::Networks(_)
                        | Slot::Durations(..)
                        | Slot::Secrets(_)
                ) =>
            {
                let texts = items.iter().map(|item| item.get_ref().as_str());
                let texts: Option<Vec<&str>> = texts.collect();
                // They are joined by commas, and an empty text is an empty list.
                let fits = |text: &&str| !text.is_empty() && !text.contains(',');
                let texts = texts.filter(|texts| texts.iter().all(fits));
                let texts = texts.map(|texts| Cow::Owned(texts.join(",")));
                texts.ok_or_else(|| ValueError::Type {
                    expected: self.expected(),
                    found: describe(value),
                })
            }
            DeValue::String(text) if takes_string => Ok(Cow::Borrowed(text)),
            _ if matches!(self, Slot::Secret(_) | Slot::Secrets(_)) => Err(ValueError::Type {
                expected: self.expected(),
                found: "something else (not shown)".to_owned(),
            }),
            DeValue::Integer(integer) if takes_integer => Ok(Cow::Owned(
                i128::from_str_radix(integer.as_str(), integer.radix())
                    .map_or_else(|_| integer.to_string(), |number| number.to_string()),
            )),
            DeValue::Float(number) if matches!(self, Slot::Share(_)) => {
                Ok(Cow::Borrowed(number.as_str()))
            }
            DeValue::Boolean(flag) if matches!(self, Slot::Flag(_)) => {
                Ok(Cow::Borrowed(if *flag { "true" } else { "false" }))
            }
            other => Err(ValueError::Type {
                expected: self.expected(),
                found: describe(other),
            }),
        }
    }

    /// The value as TOML, passwords masked; `None` where nothing is set.
    pub(super) fn show(&self) -> Option<String> {
        Some(match self {
            Slot::Address(at) => toml_string(&at.to_string()),
            Slot::Path(path) => toml_string(&path.to_string_lossy()),
            Slot::Networks(networks) => toml_list(networks.iter().map(ToString::to_string)),
            Slot::File(path) => toml_string(&path.as_ref()?.to_string_lossy()),
            Slot::Header(at) => toml_string(&String::from_utf8_lossy(at.as_ref()?.as_bytes())),
            Slot::Url(at) => toml_string(&url::masked_url(at.as_ref()?)),
            Slot::Install(install) => toml_string(word_of(&INSTALL, install)),
            Slot::AccessLog(format) => toml_string(word_of(&ACCESS_LOG, format)),
            Slot::OnLoss(on_loss) => toml_string(word_of(&ON_LOSS, on_loss)),
            Slot::SameSite(same_site) => toml_string(word_of(&SAME_SITE, same_site)),
            Slot::Flag(flag) => flag.to_string(),
            Slot::Duration(at, _) => toml_string(&show_duration(at)),
            Slot::Bytes(at, _) => toml_string(&show_bytes(at)),
            Slot::Count(at, _) => at.to_string(),
            Slot::Count32(at, _) => at.to_string(),
            Slot::Share(at) => at.to_string(),
            Slot::List(texts, _) => toml_list(texts.iter().map(String::as_str)),
            Slot::Text(text) => toml_string(text.as_ref()?),
            Slot::Secret(secret) => toml_string(secret.as_ref().map(|_| MASK)?),
            Slot::JwksUrl(at) => toml_string(&url::masked_url(at.as_ref()?.expose())),
            Slot::OptionalDuration(at, _) => toml_string(&show_duration(at.as_ref()?)),
            Slot::Durations(at, _) => toml_list(at.iter().map(show_duration)),
            Slot::Secrets(at) if at.is_empty() => return None,
            Slot::Secrets(at) => toml_list(at.iter().map(|_| MASK)),
            Slot::Delivery(at) => toml_string(word_of(&DELIVERY, at)),
            Slot::IntervalFrom(at) => toml_string(word_of(&INTERVAL_FROM, at)),
            Slot::SinkKind(at) => toml_string(word_of(&SINK, at)),
            Slot::SinkUrl(at) => toml_string(&url::masked_url(at.as_ref()?.expose())),
            Slot::Algorithms(algorithms) if algorithms.is_empty() => return None,
            Slot::Algorithms(algorithms) => {
                toml_list(algorithms.iter().map(|algorithm| format!("{algorithm:?}")))
            }
        })
    }

    /// The bounds for the reader of the example file.
    pub(super) fn bounds(&self) -> Option<String> {
        match self {
            Slot::Duration(_, bounds) => Some(between(bounds, show_duration)),
            Slot::Bytes(_, bounds) => Some(between(bounds, show_bytes)),
            Slot::Count(_, bounds) => Some(between(bounds, ToString::to_string)),
            Slot::Count32(_, bounds) => Some(between(bounds, ToString::to_string)),
            Slot::Share(_) => Some("0 to 1".to_owned()),
            _ => None,
        }
    }

    fn expected(&self) -> &'static str {
        match self {
            Slot::Address(_) => "an IP address and a port such as \"127.0.0.1:8080\"",
            Slot::Path(_) | Slot::File(_) => "a path",
            Slot::Networks(_) => "addresses or networks such as [\"10.0.0.0/8\", \"fd00::/8\"]",
            Slot::Header(_) => "the value of a header",
            Slot::Text(_) | Slot::Secret(_) => "a string",
            Slot::Secrets(_) => "a string, or a list of strings",
            Slot::Durations(..) => "a list of durations such as [\"5s\", \"5m\"]",
            Slot::Delivery(_) => "\"at-least-once\" or \"at-most-once\"",
            Slot::IntervalFrom(_) => "\"now\" or \"due\"",
            Slot::SinkKind(_) => "\"http\", \"nats\", \"stdout\" or \"discard\"",
            Slot::SinkUrl(_) => "a URL such as \"https://worker.example/hook\"",
            Slot::JwksUrl(_) => "a URL such as \"https://login.example/.well-known/jwks.json\"",
            Slot::Algorithms(_) => "a list of algorithms such as [\"RS256\", \"ES256\"]",
            Slot::Url(_) => "a URL such as \"postgres://app@db.example/app\"",
            Slot::Install(_) => "\"auto\" or \"manual\"",
            Slot::AccessLog(_) => "\"off\", \"json\" or \"combined\"",
            Slot::OnLoss(_) => "\"bypass\" or \"serve-stale\"",
            Slot::SameSite(_) => "\"strict\" or \"none\"",
            Slot::Flag(_) => "true or false",
            Slot::Duration(..) | Slot::OptionalDuration(..) => {
                "a duration with its unit such as \"50ms\" or \"30s\""
            }
            Slot::Bytes(..) => "a size such as \"256MiB\"",
            Slot::Count(..) | Slot::Count32(..) => "a whole number",
            Slot::Share(_) => "a number such as 0.001",
            Slot::List(_, of) => of.expected,
        }
    }
}

/// A duration within `bounds`; `None` if `text` is none.
fn duration(text: &str, bounds: &RangeInclusive<Duration>) -> Option<Result<Duration, ValueError>> {
    let read = humantime::parse_duration(text).ok()?;
    Some(bounded(read, bounds, text, show_duration))
}

/// The parts of a text between its commas; none of an empty text.
fn members(text: &str) -> impl Iterator<Item = &str> {
    let members = text.split(',').map(str::trim);
    members.filter(|_| !text.is_empty())
}

/// What a TOML value is, for a message.
pub(super) fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the string {}", echo(text)),
        DeValue::Integer(number) => format!("the integer {number}"),
        DeValue::Float(number) => format!("the float {number}"),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// A text for a message: shortened, escaped, and left out if it could contain a secret.
pub(super) fn echo(text: &str) -> String {
    if text.contains("://") || text.contains("password") {
        return "a string that looks like a URL (not shown)".to_owned();
    }
    match text.char_indices().nth(ECHO_CHARS_MAX) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// A TOML list of basic strings.
pub(crate) fn toml_list(texts: impl IntoIterator<Item: AsRef<str>>) -> String {
    let quoted = texts.into_iter().map(|text| toml_string(text.as_ref()));
    format!("[{}]", quoted.collect::<Vec<_>>().join(", "))
}

/// A TOML basic string.
pub(crate) fn toml_string(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if is_unseen(c) => match u32::from(c) {
                code @ ..=0xffff => quoted.push_str(&format!("\\u{code:04X}")),
                code => quoted.push_str(&format!("\\U{code:08X}")),
            },
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

fn word<T: Copy>(words: &[(&str, T)], text: &str) -> Option<T> {
    words
        .iter()
        .find(|(word, _)| *word == text)
        .map(|(_, value)| *value)
}

fn word_of<T: PartialEq>(words: &[(&'static str, T)], value: &T) -> &'static str {
    words
        .iter()
        .find(|(_, other)| other == value)
        .map_or("", |(word, _)| word)
}

fn bounded<T: PartialOrd>(
    value: T,
    bounds: &RangeInclusive<T>,
    text: &str,
    show: impl Fn(&T) -> String,
) -> Result<T, ValueError> {
    if bounds.contains(&value) {
        return Ok(value);
    }
    Err(ValueError::Bounds {
        least: show(bounds.start()),
        most: show(bounds.end()),
        found: text.to_owned(),
    })
}

fn between<T>(bounds: &RangeInclusive<T>, show: impl Fn(&T) -> String) -> String {
    format!("{} to {}", show(bounds.start()), show(bounds.end()))
}

fn show_duration(duration: &Duration) -> String {
    humantime::format_duration(*duration).to_string()
}

/// The largest unit that leaves a whole number, so that nothing is rounded.
fn show_bytes(bytes: &u64) -> String {
    let units = [
        ("PiB", bytesize::PIB),
        ("TiB", bytesize::TIB),
        ("GiB", bytesize::GIB),
        ("MiB", bytesize::MIB),
        ("KiB", bytesize::KIB),
    ];
    units
        .iter()
        .find(|(_, unit)| *bytes > 0 && bytes.is_multiple_of(*unit))
        .map_or_else(
            || format!("{bytes}B"),
            |(name, unit)| format!("{}{name}", bytes / unit),
        )
}

#[cfg(test)]
mod tests;
