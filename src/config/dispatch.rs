//! `[[dispatch]]` and its sink: their keys, defaults and bounds, and what has to fit together.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use bytesize::{GIB, KIB, MIB};

use super::Config;
use super::tables::PropertyValue::{
    Column, Columns, DispatchName, Expression, Headers, OptionalName, OptionalRelation, Setting,
    Sink,
};
use super::tables::{Property, PropertyTable, unset};
use super::value::Slot;
use crate::dispatch::definition::{
    Delivery, DispatchDefinition, IntervalFrom, SinkDefinition, SinkKind,
};
use crate::dispatch::sink::signature::SigningKey;
use crate::dispatch::sink::subject::Subject;
use crate::resource::definition::{Mistake, Place};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(60 * 60);

/// The pauses that Standard Webhooks 1.0 recommends, in seconds.
const RETRY_SECONDS: [u64; 9] = [5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400];

/// The time between two deliveries of a row, and between two attempts.
const INTERVALS: RangeInclusive<Duration> = SECOND..=Duration::from_secs(10 * 365 * 24 * 60 * 60);

impl PropertyTable for DispatchDefinition {
    const HELP: &'static str = "Due rows of a table that larder dispatch sends; serve sends none.";
    const PROPERTIES: &'static [Property<Self>] = &[
        Property::<Self>::commented("name", r#""subscribers""#, |d| DispatchName(&mut d.name))
            .help("The name in commands, metrics and messages."),
        Property::<Self>::commented("table", r#""public.subscribers""#, |d| {
            OptionalRelation(&mut d.table)
        })
        .help("The table; a row is sent with all its columns."),
        Property::<Self>::commented("resource", "", |d| OptionalName(&mut d.resource)),
        Property::<Self>::commented("key", r#""id""#, |d| Columns(&mut d.key))
            .help("The columns of the key, which are unique. Absent: the primary key."),
        Property::<Self>::commented("due", r#""notify_after""#, |d| Column(&mut d.due)).help(
            "The column with the moment at which a row is due: timestamptz, or an integer of seconds since 1970; null: never.",
        ),
        Property::<Self>::commented("partition", r#"["worker_id", "timezone"]"#, |d| {
            Columns(&mut d.partition)
        })
        .help(
            "Columns that are not null: of each combination of their values, a slot, one process sends the rows at a time. \
             Absent: one slot.",
        ),
        Property::<Self>::commented("interval", r#""24h""#, |d| {
            Setting(Slot::OptionalDuration(&mut d.interval, INTERVALS))
        })
        .help(
            "A row that was delivered is due again after this time. Instead: next, an SQL expression over the row's columns, \
             or delete = true.",
        ),
        Property::<Self>::commented("next", "", |d| Expression(&mut d.next)),
        Property::<Self>::commented("delete", "", |d| Setting(Slot::Flag(&mut d.delete))),
        Property::<Self>::commented("interval_from", r#""now""#, |d| {
            Setting(Slot::IntervalFrom(&mut d.interval_from))
        })
        .help("\"due\" keeps the rhythm of the due moments; moments that were missed are skipped."),
        Property::<Self>::commented("delivery", r#""at-least-once""#, |d| {
            Setting(Slot::Delivery(&mut d.delivery))
        })
        .help(
            "\"at-least-once\": a row is rescheduled after it was sent; \"at-most-once\": before, and it is not sent again.",
        ),
        Property::<Self>::commented("batch", "8000", |d| {
            Setting(Slot::Count(&mut d.batch, 1..=100_000))
        })
        .help("The most rows that are read at a time; they are held in memory."),
        Property::<Self>::commented("connections", "4", |d| {
            Setting(Slot::Count(&mut d.connections, 1..=100))
        })
        .help("Slots that are worked on at once, with a connection each; one more looks for due rows."),
        Property::<Self>::commented("poll_interval", r#""1s""#, |d| {
            Setting(Slot::Duration(&mut d.poll_interval, Duration::from_millis(10)..=HOUR))
        })
        .help("The pause between two looks for due rows."),
        Property::<Self>::commented("takeover", r#""10s""#, |d| {
            Setting(Slot::Duration(&mut d.takeover, SECOND..=HOUR))
        })
        .help("After this time without a sign of life a process has lost its slots to others."),
        Property::<Self>::commented("rate", "0", |d| {
            Setting(Slot::Count32(&mut d.rate, 0..=10_000_000))
        })
        .help("The most rows per second of this process; 0: no limit."),
        Property::<Self>::commented(
            "retry",
            r#"["5s", "5m", "30m", "2h", "5h", "10h", "14h", "20h", "1day"]"#,
            |d| Setting(Slot::Durations(&mut d.retry, Duration::ZERO..=*INTERVALS.end())),
        )
        .help("Pauses before further attempts to send a row, ± 20 %; after the last one it is a dead letter."),
        Property::<Self>::commented("sink", "", |d| Sink(&mut d.sink)),
    ];

    fn unset(place: &Place) -> Self {
        Self {
            place: place.clone(),
            name: unset(place),
            table: None,
            resource: None,
            key: None,
            due: unset(place),
            partition: None,
            interval: None,
            next: None,
            delete: false,
            interval_from: IntervalFrom::Now,
            delivery: Delivery::AtLeastOnce,
            batch: 8_000,
            connections: 4,
            poll_interval: SECOND,
            takeover: 10 * SECOND,
            rate: 0,
            retry: RETRY_SECONDS.map(Duration::from_secs).to_vec(),
            sink: SinkDefinition::unset(place),
        }
    }
}

impl PropertyTable for SinkDefinition {
    const HELP: &'static str = "Where the rows are sent.";
    const PROPERTIES: &'static [Property<Self>] = &[
        Property::<Self>::commented("type", r#""http""#, |s| Setting(Slot::SinkKind(&mut s.kind)))
            .help("\"http\" (requests as Standard Webhooks 1.0), \"nats\" (a message of JetStream a row; needs subject), \"stdout\" (a line of \
                   JSON a row) or \"discard\"."),
        Property::<Self>::commented("url", r#""https://worker.example/hook""#, |s| {
            Setting(Slot::SinkUrl(&mut s.url))
        }),
        Property::<Self>::commented("rows", "100", |s| {
            Setting(Slot::Count(&mut s.rows, 1..=100_000))
        })
        .help("The most rows of a request."),
        Property::<Self>::commented("concurrency", "64", |s| {
            Setting(Slot::Count(&mut s.concurrency, 1..=10_000))
        })
        .help("The most requests of this process in flight."),
        Property::<Self>::commented("timeout", r#""15s""#, |s| {
            Setting(Slot::Duration(&mut s.timeout, Duration::from_millis(1)..=HOUR))
        })
        .help("The longest wait for a response."),
        Property::<Self>::commented("bytes", r#""1MiB""#, |s| {
            Setting(Slot::Bytes(&mut s.bytes, KIB..=GIB))
        })
        .help("The most bytes of a request with more than one row."),
        Property::<Self>::commented("headers", r#"{ x-tenant = "a" }"#, |s| Headers(&mut s.headers))
            .help("Headers of each request."),
        Property::<Self>::commented(
            "secret",
            // Of no known key.
            r#""whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA""#,
            |s| Setting(Slot::Secrets(&mut s.secret)),
        )
        .help(
            "Signs each request: whsec_… (HMAC) or whsk_… (ed25519); a list while secrets change. Absent: no signature.",
        ),
        Property::<Self>::commented("secret_file", "", |s| Setting(Slot::File(&mut s.secret_file))),
        Property::<Self>::commented("subject", "", |s| Setting(Slot::Text(&mut s.subject))),
        Property::<Self>::commented("credentials_file", "", |s| Setting(Slot::File(&mut s.credentials_file))),
        Property::<Self>::commented("ca_file", "", |s| Setting(Slot::File(&mut s.ca_file))),
    ];

    fn unset(place: &Place) -> Self {
        Self {
            place: place.clone(),
            kind: SinkKind::Discard,
            url: None,
            rows: 100,
            concurrency: 64,
            timeout: 15 * SECOND,
            bytes: MIB,
            headers: BTreeMap::new(),
            secret: Vec::new(),
            secret_file: None,
            subject: None,
            credentials_file: None,
            ca_file: None,
        }
    }
}

/// Finds properties of a dispatch that are each valid but do not fit together.
pub(super) fn check(config: &Config) -> Vec<Mistake> {
    let found = config.dispatches.iter().map(|dispatch| {
        let mut mistakes = Vec::new();
        check_rows(dispatch, config, &mut mistakes);
        check_sink(dispatch, &mut mistakes);
        mistakes
    });
    found.flatten().collect()
}

fn check_rows(dispatch: &DispatchDefinition, config: &Config, mistakes: &mut Vec<Mistake>) {
    let mut refuse = |key: &str, message: &str| mistakes.push(dispatch.mistake(key, message));
    match (&dispatch.table, &dispatch.resource) {
        (None, None) => refuse("table", "`table` or `resource` is missing"),
        (Some(_), Some(_)) => refuse(
            "resource",
            "can't be set beside `table`: a row is one or the other",
        ),
        _ => {}
    }
    if let Some(name) = &dispatch.resource {
        let mut resources = config.resources.iter();
        if !resources.any(|resource| resource.name.value == name.value) {
            refuse("resource", "there is no [[resource]] of this name");
        }
        if dispatch.key.is_some() {
            refuse("key", "can't be set beside `resource`, which has a key");
        }
    }
    let ways = [
        dispatch.interval.is_some(),
        dispatch.next.is_some(),
        dispatch.delete,
    ];
    if ways.iter().filter(|is_set| **is_set).count() != 1 {
        let message = "exactly one of `interval`, `next` and `delete = true` says what becomes of a row that was delivered";
        refuse("interval", message);
    }
    if dispatch.interval_from == IntervalFrom::Due && dispatch.interval.is_none() {
        refuse("interval_from", "has no effect without `interval`");
    }
}

fn check_sink(dispatch: &DispatchDefinition, mistakes: &mut Vec<Mistake>) {
    let sink = &dispatch.sink;
    let mut refuse = |key: &str, message: String| {
        mistakes.push(dispatch.mistake(&format!("sink.{key}"), message));
    };
    let (http, nats) = (sink.kind == SinkKind::Http, sink.kind == SinkKind::Nats);
    match &sink.url {
        None if http || nats => refuse("url", "`url` is missing: the sink needs it".to_owned()),
        Some(url) if (http || nats) && http != url.expose().starts_with("http") => {
            refuse("url", "must begin with http:// or https:// for \"http\", with nats:// or tls:// for \"nats\"".to_owned());
        }
        _ => {}
    }
    let (of_http, of_nats) = ("type = \"http\"", "type = \"nats\"");
    for (key, is_set, has_effect, of) in [
        ("url", sink.url.is_some(), http || nats, of_http),
        ("headers", !sink.headers.is_empty(), http, of_http),
        ("secret", !sink.secret.is_empty(), http, of_http),
        ("secret_file", sink.secret_file.is_some(), http, of_http),
        ("subject", sink.subject.is_some(), nats, of_nats),
        (
            "credentials_file",
            sink.credentials_file.is_some(),
            nats,
            of_nats,
        ),
        ("ca_file", sink.ca_file.is_some(), nats, of_nats),
    ] {
        if is_set && !has_effect {
            refuse(key, format!("has no effect without {of}"));
        }
    }
    if nats {
        match sink.subject.as_deref().map(Subject::parse) {
            None => refuse(
                "subject",
                "`subject` is missing: messages need one".to_owned(),
            ),
            Some(Err(error)) => refuse("subject", error.to_owned()),
            Some(Ok(_)) => {}
        }
    }
    if !sink.secret.is_empty() && sink.secret_file.is_some() {
        refuse("secret_file", "can't be set beside `secret`".to_owned());
    }
    for secret in &sink.secret {
        if let Err(error) = SigningKey::parse(secret.expose()) {
            refuse("secret", error.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::testing::only;
    use crate::config::{Config, dump};

    const WHOLE: &str = "[[dispatch]]\nname = 'd'\ntable = 't'\ndue = 'due'\ninterval = '1h'\n[dispatch.sink]\n\
         type = 'discard'\n";

    #[test]
    fn a_dispatch_needs_no_resource() {
        for url in [&[][..], &[("database.url", "postgres://db/x")]] {
            let config = Config::from_toml(WHOLE, url).unwrap();
            assert!(config.resources.is_empty());
            let dispatch = &config.dispatches[0];
            assert_eq!((dispatch.batch, dispatch.retry.len()), (8_000, 9));
            let again = Config::from_toml(&dump(&config), &[]).unwrap();
            assert_eq!(dump(&again), dump(&config));
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let with = |from: &str, to: &str| WHOLE.replace(from, to);
        for (text, beginning) in [
            (
                with("name = 'd'\n", ""),
                "1: dispatch[0].name: `name` is missing",
            ),
            (
                with("table = 't'\n", ""),
                "1: dispatch[0].table: `table` or `resource`",
            ),
            (
                with("table", "resource"),
                "3: dispatch[0].resource: there is no [[resource]]",
            ),
            (
                with("due = 'due'\n", ""),
                "1: dispatch[0].due: `due` is missing",
            ),
            (
                with("interval = '1h'\n", ""),
                "1: dispatch[0].interval: exactly one of",
            ),
            (
                with("interval", "delete = true\ninterval"),
                "1: dispatch[0].interval: exactly one of",
            ),
        ] {
            only(&text, beginning);
        }
    }

    #[test]
    fn values_and_sinks_are_checked() {
        let with = |from: &str, to: &str| WHOLE.replace(from, to);
        let http = |more: &str| {
            with(
                "type = 'discard'",
                &format!("type = 'http'\nurl = 'http://h/'\n{more}"),
            )
        };
        for (text, beginning) in [
            (
                with("interval", "batch = 0\ninterval"),
                "5: dispatch[0].batch: must be between",
            ),
            (
                with("interval", "retry = ['x']\ninterval"),
                "5: dispatch[0].retry: expected",
            ),
            (
                with("interval", "delivery = 'once'\ninterval"),
                "5: dispatch[0].delivery: expected",
            ),
            (
                with("'discard'", "'mail'"),
                "7: dispatch[0].sink.type: expected",
            ),
            (
                with("'discard'", "'http'"),
                "6: dispatch[0].sink.url: `url` is missing",
            ),
            (
                with("type = 'discard'\n", ""),
                "6: dispatch[0].sink.type: `type` is missing",
            ),
            (
                with("[dispatch.sink]\ntype = 'discard'\n", ""),
                "1: dispatch[0].sink: `sink` is missing",
            ),
            (http("secret = 'x'"), "6: dispatch[0].sink.secret: "),
            (
                http("headers = { \"a b\" = 'c' }"),
                "9: dispatch[0].sink.headers.\"a b\": ",
            ),
            (
                http("rowz = 1"),
                "9: dispatch[0].sink.rowz: unknown key; did you mean `rows`?",
            ),
            (
                with("'discard'", "'discard'\nheaders = { a = 'b' }"),
                "6: dispatch[0].sink.headers: has no effect",
            ),
        ] {
            only(&text, beginning);
        }
        only(&format!("{WHOLE}{WHOLE}"), "9: dispatch[1].name: duplicate");
    }

    #[test]
    fn secrets_are_not_shown() {
        let sink = "type = 'http'\nurl = 'https://u:s3cret@h/'\nheaders = { authorization = 's3cret' }\n\
             secret = ['whsec_czNjcmV0czNjcmV0czNjcmV0czNjcmV0', 'whsec_czNjcmV0czNjcmV0czNjcmV0czNjcmV1']";
        let config = Config::from_toml(&WHOLE.replace("type = 'discard'", sink), &[]).unwrap();
        assert_eq!(config.dispatches[0].sink.secret.len(), 2);
        let dump = dump(&config);
        assert!(
            !dump.contains("s3cret") && !dump.contains("czNjcm"),
            "{dump}"
        );
        assert!(!format!("{config:?}").contains("s3cret"));
    }
}
