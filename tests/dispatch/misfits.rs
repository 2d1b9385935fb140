//! What does not fit the database is told with file, line and key.

use super::sink::TestSink;
use super::{Bed, SUBSCRIBERS, subscribers};

const MORE: &str = "alter table subscriber add label text, \
    add made timestamptz generated always as ('2026-01-01') stored; \
    create view shown as select * from subscriber; create table plain (due timestamptz); \
    create table secured (id int primary key, due timestamptz); alter table secured enable row level security";

/// Changes of the configuration: a text, what takes its place, and what is told.
const MISFITS: [(&str, &str, &str); 12] = [
    (
        "'subscriber'",
        "'subscribr'",
        "larder.toml:3: dispatch[0].table: ",
    ),
    (
        "'subscriber'",
        "'shown'",
        "larder.toml:3: dispatch[0].table: ",
    ),
    (
        "'subscriber'\ndue = 'notify_after'",
        "'plain'\ndue = 'due'",
        "primary key",
    ),
    (
        "'subscriber'\ndue = 'notify_after'",
        "'secured'\ndue = 'due'",
        "dispatch[0].table: public.secured has row security",
    ),
    (
        "'notify_after'",
        "'notify'",
        "larder.toml:4: dispatch[0].due: public.subscriber has no column notify",
    ),
    (
        "'notify_after'",
        "'endpoint'",
        "dispatch[0].due: column endpoint is of type text",
    ),
    (
        "'notify_after'",
        "'made'",
        "dispatch[0].due: column made is generated",
    ),
    (
        "\ninterval =",
        "\npartition = 'label'\ninterval =",
        "partition: column label may be null",
    ),
    (
        "\ninterval =",
        "\npartition = 'labl'\ninterval =",
        "dispatch[0].partition: public.subscriber has no column labl; did you mean label?",
    ),
    (
        "interval = '1day'",
        "next = 'nothing + 1'",
        "larder.toml:6: dispatch[0].next: PostgreSQL refuses the expression",
    ),
    (
        "interval = '1day'",
        "next = 'now()); drop table subscriber; --'",
        "dispatch[0].next: PostgreSQL refuses",
    ),
    (
        "[[dispatch]]",
        "feed.keys_per_statement = 100\n[[resource]]\nname = 's'\ntable = 'subscriber'\n[[dispatch]]",
        "dispatch[0].batch: must be at most feed.keys_per_statement (100)",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_exits_78() {
    let (sql, toml) = (
        format!("{SUBSCRIBERS}; {MORE}"),
        subscribers("interval = '1day'"),
    );
    let bed = Bed::new(&sql, &toml, TestSink::start().await).await;
    let file = bed.directory.path().join("larder.toml");
    let whole = std::fs::read_to_string(&file).unwrap();
    let with_file = format!("{whole}secret_file = 'nothing'\n");
    let changed = MISFITS.map(|(from, to, told)| {
        assert!(whole.contains(from), "{from}");
        (whole.replace(from, to), told)
    });
    let unreadable = (
        with_file,
        "dispatch[0].sink.secret_file: nothing can't be read",
    );
    for (toml, expected) in changed.into_iter().chain([unreadable]) {
        std::fs::write(&file, &toml).unwrap();
        let told = bed.once(78).await;
        assert!(told.contains(expected), "{expected} in {told}");
        let told = bed.run(&["check"], 78).await.1;
        assert!(told.contains(expected), "{expected} in {told}");
    }
    std::fs::write(&file, &whole).unwrap();
    let told = bed.run(&["dispatch", "subscriber"], 1).await.1;
    let unknown = "there is no dispatch \"subscriber\"; there are: subscribers";
    assert!(told.contains(unknown), "{told}");
    assert!(bed.sink.received().is_empty());
}
