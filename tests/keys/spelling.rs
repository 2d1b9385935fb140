//! Two generated values of a type have the same canonical text if and only if PostgreSQL calls them equal, and larder and the
//! trigger write the same text, whatever the settings of the session are.

use std::borrow::Cow;
use std::net::{Ipv4Addr, Ipv6Addr};

use fastrand::Rng;
use larder::resource::catalogue::TableName;
use larder::resource::key::{KeyColumn, KeyShape, KeyType};
use larder::resource::link::{KeyMapping, Link};
use larder::resource::sql_type::SqlType;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row as _};

use crate::harness::cluster::TestCluster;

const VALUES: usize = 4_000;

/// Settings that change what PostgreSQL writes and reads.
const HOSTILE: [&str; 3] = [
    "set timezone = 'Asia/Kathmandu'; set datestyle = 'German, DMY'; set bytea_output = 'escape'; \
     set intervalstyle = 'sql_standard'; set extra_float_digits = -15; set search_path = ''",
    "set timezone = '<far>-99:59'; set datestyle = 'SQL, MDY'; set bytea_output = 'hex'; \
     set standard_conforming_strings = off; set escape_string_warning = off",
    "set timezone = 'Africa/Monrovia'; set datestyle = 'Postgres, YMD'; set bytea_output = 'escape'; set search_path = ''",
];

/// How values of a type are drawn.
struct Drawn {
    key_type: KeyType,
    type_sql: &'static str,
    /// SQL for the value that is drawn as the text `t`.
    value: &'static str,
    /// SQL for a spelling of the value `v` as clients have it; `t` is the drawn text.
    spelling: &'static str,
    texts: Vec<String>,
}

/// The canonical text that larder gives to a spelling.
fn canonical(shape: &KeyShape, spelling: &str) -> Option<String> {
    let encoded: String = spelling
        .bytes()
        .map(|byte| format!("%{byte:02x}"))
        .collect();
    shape.canonical(&encoded).ok().map(Cow::into_owned)
}

async fn oid_of(connection: &mut PgConnection, name: &str) -> u32 {
    let oid: i64 = sqlx::query_scalar("select $1::regtype::oid::int8")
        .bind(name)
        .fetch_one(connection)
        .await
        .unwrap();
    u32::try_from(oid).unwrap()
}

async fn run(connection: &mut PgConnection, sql: String) {
    let run = sqlx::raw_sql(AssertSqlSafe(sql.clone()));
    let run = run.execute(connection).await;
    run.unwrap_or_else(|error| panic!("{error}: {sql}"));
}

/// Stores the drawn values, and checks their texts under all settings.
async fn prove(drawn: Drawn) {
    let url = TestCluster::database().await.url;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let setup = "create type public.mood as enum ('so, so', '100%', '%2C', 'a''b', 'é', '\"', '\\', 'infinity', ' '); \
                 create domain public.small as %type%; create table public.item (n serial, t text, v public.small)";
    run(&mut connection, setup.replace("%type%", drawn.type_sql)).await;
    let insert = format!(
        "insert into public.item (t, v) select t, {} from unnest($1::text[]) t",
        drawn.value
    );
    sqlx::query(AssertSqlSafe(insert))
        .bind(&drawn.texts)
        .execute(&mut connection)
        .await
        .unwrap();
    let type_oid = oid_of(&mut connection, "public.small").await;
    let (shape, link) = shape_and_link(&drawn, type_oid);
    let mut first: Option<Vec<(String, i64)>> = None;
    for settings in HOSTILE {
        let mut session = PgConnection::connect(&url).await.unwrap();
        run(&mut session, settings.to_owned()).await;
        let logged = logged(&mut session, &drawn, &link, &shape).await;
        let known = first.get_or_insert_with(|| logged.clone());
        assert_eq!(*known, logged, "{} under {settings}", drawn.type_sql);
    }
    let mut texts = first.unwrap();
    texts.sort_unstable();
    texts.dedup();
    for pair in texts.windows(2) {
        assert_ne!(pair[0].0, pair[1].0, "{}: {pair:?}", drawn.type_sql);
    }
    let mut classes: Vec<i64> = texts.iter().map(|(_, class)| *class).collect();
    classes.sort_unstable();
    classes.dedup();
    assert_eq!(classes.len(), texts.len(), "{}", drawn.type_sql);
}

fn shape_and_link(drawn: &Drawn, type_oid: u32) -> (KeyShape, Link) {
    let column = KeyColumn {
        name: "v".into(),
        key_type: drawn.key_type,
        sql_type: SqlType::Named(drawn.type_sql.into()),
        type_text: drawn.type_sql.into(),
        type_oid,
        collation: 0,
    };
    let shape = KeyShape {
        columns: vec![column.clone()],
        fields: Vec::new(),
    };
    let link = Link {
        table: TableName {
            oid: 1,
            schema: "public".into(),
            name: "item".into(),
        },
        columns: vec![column],
        mapping: KeyMapping::Direct,
    };
    (shape, link)
}

/// For each row the text that a trigger logs, and the number of its value: equal values have the same. Checks that larder
/// writes the same text.
async fn logged(
    session: &mut PgConnection,
    drawn: &Drawn,
    link: &Link,
    shape: &KeyShape,
) -> Vec<(String, i64)> {
    let sql = format!(
        "select {key}, dense_rank() over (order by r.v), {spelling} from (select n, t, v from public.item) r order by n",
        key = link.key_sql("r"),
        spelling = drawn.spelling,
    );
    let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(session).await;
    let rows = rows.unwrap().into_iter().map(|row| {
        let (key, spelling): (String, String) = (row.get(0), row.get(2));
        let canonical = canonical(shape, &spelling);
        assert_eq!(
            canonical.as_ref(),
            Some(&key),
            "{}: {spelling}",
            drawn.type_sql
        );
        (key, row.get(1))
    });
    rows.collect()
}

fn moments(key_type: KeyType, type_sql: &'static str) -> Drawn {
    let mut rng = Rng::with_seed(0x9e37_79b9);
    let mut texts: Vec<String> = ["infinity", "-infinity", "0", "-1", "1"]
        .map(str::to_owned)
        .into();
    // PostgreSQL's first and last microsecond, counted from 2000.
    texts.extend(["-211813488000000000", "9223371331199999999"].map(str::to_owned));
    while texts.len() < VALUES {
        let bits = rng.u64(..);
        let below = match rng.usize(..4) {
            0 => bits >> 1,
            1 => bits >> 8,
            2 => bits >> 20,
            // Whole seconds.
            _ => (bits >> 30) * 1_000_000,
        };
        let microseconds = below.min(9_223_371_331_199_999_999).cast_signed();
        let sign = if rng.usize(..2) == 0 { 1 } else { -1 };
        let microseconds = (sign * microseconds).max(-211_813_488_000_000_000);
        texts.push(microseconds.to_string());
        if rng.usize(..8) == 0 {
            texts.push(microseconds.to_string());
        }
    }
    Drawn {
        key_type,
        type_sql,
        value: match type_sql {
            "timestamp" => MOMENT,
            _ => INSTANT,
        },
        // With the offset of the session; that of 99 hours is none of RFC 3339.
        spelling: match type_sql {
            "timestamp" => "to_json(r.v) #>> '{}'",
            _ => {
                "case when r.t !~ 'inf' \
                   and (abs(extract(timezone from r.v)) >= 86400 or abs(extract(epoch from r.v)) > 200000000000) \
                 then replace(concat(to_json(r.v at time zone 'UTC') #>> '{}', 'Z'), ' BCZ', 'Z BC') \
                 else to_json(r.v) #>> '{}' end"
            }
        },
        texts,
    }
}

const MOMENT: &str = "case when t ~ 'inf' then t::timestamp else make_timestamp(2000, 1, 1, 0, 0, 0) \
    + make_interval(days => (t::int8 / 86400000000)::int4) \
    + make_interval(secs => (t::int8 % 86400000000)::float8 / 1000000) end";
const INSTANT: &str = "case when t ~ 'inf' then t::timestamptz else (make_timestamp(2000, 1, 1, 0, 0, 0) \
    + make_interval(days => (t::int8 / 86400000000)::int4) \
    + make_interval(secs => (t::int8 % 86400000000)::float8 / 1000000)) at time zone 'UTC' end";

fn addresses(rng: &mut Rng) -> Vec<String> {
    let mut texts = Vec::new();
    while texts.len() < VALUES {
        let address = if rng.usize(..3) == 0 {
            Ipv4Addr::from_bits(rng.u32(..) & (u32::MAX << rng.usize(..32))).to_string()
        } else {
            let mut words = [0; 8];
            for word in &mut words {
                *word = [0, 0, 0, 1, 0xffff, rng.u16(..)][rng.usize(..6)];
            }
            match rng.usize(..4) {
                0 => words.map(|word| format!("{word:04X}")).join(":"),
                1 => words.map(|word| format!("{word:x}")).join(":"),
                _ => Ipv6Addr::from(words).to_string(),
            }
        };
        let bits = if address.contains(':') { 128 } else { 32 };
        texts.push(match rng.usize(..3) {
            0 => address,
            1 => format!("{address}/{bits}"),
            _ => format!("{address}/{}", rng.usize(..bits + 1)),
        });
    }
    texts
}

fn plain(key_type: KeyType, type_sql: &'static str, texts: Vec<String>) -> Drawn {
    let value = match type_sql {
        "bytea" => "decode(t, 'hex')",
        "inet" => "t::inet",
        "macaddr" => "t::macaddr",
        "bool" => "t::bool",
        _ => "t::public.mood",
    };
    Drawn {
        key_type,
        type_sql,
        value,
        spelling: "r.t",
        texts,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn moments_are_equal_if_and_only_if_their_texts_are() {
    prove(moments(KeyType::Timestamp { precision: 6 }, "timestamp")).await;
    prove(moments(
        KeyType::TimestampTz { precision: 6 },
        "timestamptz",
    ))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_are_equal_if_and_only_if_their_texts_are() {
    let mut rng = Rng::with_seed(0x51ab_1e5d);
    let drawn = addresses(&mut rng);
    prove(plain(KeyType::Inet, "inet", drawn.clone())).await;
    prove(Drawn {
        value: "network(t::inet)",
        spelling: "case when n % 2 = 0 then host(r.v) || '/' || masklen(r.v) else upper(r.v::text) end",
        ..plain(KeyType::Cidr, "cidr", drawn)
    })
    .await;
    let draw = |_| {
        let text: Vec<String> = (0..6)
            .map(|_| format!("{:02x}", [0, 0xff, rng.u8(..)][rng.usize(..3)]))
            .collect();
        match rng.usize(..3) {
            0 => text.join("-"),
            1 => text.join(":").to_uppercase(),
            _ => text.join(":"),
        }
    };
    let drawn = (0..VALUES).map(draw).collect();
    prove(plain(KeyType::MacAddr, "macaddr", drawn)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_labels_and_booleans_are_equal_if_and_only_if_their_texts_are() {
    let mut rng = Rng::with_seed(0xb17e_5eed);
    let draw = |_| {
        let bytes = 0..rng.usize(..7);
        let byte = bytes.map(|_| [0, b'\\', b'x', b'0', rng.u8(..)][rng.usize(..5)]);
        let text: String = byte.map(|byte| format!("{byte:02x}")).collect();
        match rng.usize(..3) {
            0 => text.to_uppercase(),
            _ => text,
        }
    };
    let drawn = (0..VALUES).map(draw).collect();
    prove(plain(KeyType::Bytea, "bytea", drawn)).await;
    let labels = [
        "so, so", "100%", "%2C", "a'b", "é", "\"", "\\", "infinity", " ", " ",
    ];
    let labels = labels.map(str::to_owned).into();
    prove(plain(KeyType::Enum, "public.mood", labels)).await;
    let booleans = ["true", "false", "true"].map(str::to_owned).into();
    prove(plain(KeyType::Boolean, "bool", booleans)).await;
}
