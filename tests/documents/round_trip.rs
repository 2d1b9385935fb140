//! Round trips: the document of a `GET`, sent back as a body, stores the same rows, for columns of every type.

use std::borrow::Cow;
use std::fmt::Write as _;

use fastrand::Rng;
use larder::config::Config;
use larder::resource::body::{Scratch, WriteMode, merge_patch, rows_of};
use larder::resource::resolve::resolve;
use larder::resource::value::ValueType;
use larder::resource::writable::{ColumnInput, Rows, Writable};
use larder::source::catalogue::read_catalogue;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::documents::random_tables::values::{TYPES, setup};
use crate::harness::cluster::TestCluster;
use crate::harness::service::{TestService, execute};

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const ROOTS: usize = 60;

const CONFIG: &str = "[[resource]]\nname = 'roots'\ntable = 'roots'\ntiers = []\n\
                      [[resource.children]]\nname = 'leaves'\ntable = 'leaves'\n";

/// Both tables have a column of every type.
fn tables(rng: &mut Rng) -> String {
    let mut sql = setup();
    for (table, link, rows) in [
        ("roots", "", ROOTS),
        ("leaves", ", up int references roots", 2 * ROOTS),
    ] {
        write!(sql, "create table {table} (id int primary key{link}").unwrap();
        for (number, column) in TYPES.iter().enumerate() {
            write!(sql, ", c{number} {}", column.sql).unwrap();
        }
        writeln!(
            sql,
            ");\ncreate table copied_{table} (like {table} including all);"
        )
        .unwrap();
        for id in 1..=rows {
            write!(sql, "insert into {table} values ({id}").unwrap();
            if !link.is_empty() {
                write!(sql, ", {}", 1 + rng.usize(..ROOTS)).unwrap();
            }
            for column in &TYPES {
                match rng.usize(..7) {
                    0 => sql.push_str(", null"),
                    _ => write!(sql, ", {}", column.draw(rng)).unwrap(),
                }
            }
            sql.push_str(");\n");
        }
    }
    sql
}

/// What the resource of `toml` is written to.
async fn writable(
    connection: &mut PgConnection,
    url: &str,
    toml: &str,
) -> Result<Writable, String> {
    let config = Config::from_toml(toml, &[("database.url", url)]).unwrap();
    let mut names = Vec::new();
    for definition in &config.resources {
        names.push(definition.table.value.clone());
        let children = &definition.row.children;
        names.extend(children.iter().map(|child| child.table.value.clone()));
    }
    let catalogue = read_catalogue(connection, &names).await.unwrap();
    let mut resources = resolve(&config.resources, &catalogue).unwrap();
    resources.remove(0).writable
}

/// The statements that put `rows` into the copies of their tables.
fn inserts(writable: &Writable, rows: &Rows) -> String {
    let mut sql = String::new();
    for (level, rows) in writable.levels.iter().zip(&rows.levels) {
        let names: Vec<&str> = level.columns.iter().map(|column| &*column.column).collect();
        for row in 0..rows.count() {
            let values = rows.columns.iter().map(|column| match &column[row] {
                ColumnInput::Text(text) => format!("'{}'", text.replace('\'', "''")),
                ColumnInput::Null => "null".to_owned(),
                ColumnInput::Absent => "default".to_owned(),
            });
            let values: Vec<String> = values.collect();
            let table = &level.table.name;
            let (names, values) = (names.join(", "), values.join(", "));
            writeln!(
                sql,
                "insert into copied_{table} ({names}) values ({values});"
            )
            .unwrap();
        }
    }
    sql
}

#[tokio::test(flavor = "multi_thread")]
async fn every_document_is_a_body_of_the_same_rows() {
    let database = TestCluster::database().await;
    execute(&database.url, &tables(&mut Rng::with_seed(SEED))).await;
    let larder = TestService::start_on(&database.url, CONFIG, &[]).await;
    let mut connection = PgConnection::connect(&larder.url).await.unwrap();
    let writable = writable(&mut connection, &larder.url, CONFIG)
        .await
        .unwrap();
    let (mut rows, mut scratch) = (Rows::of(&writable), Scratch::default());
    for id in 1..=ROOTS {
        let document = larder.get(&format!("/roots/{id}")).await.body;
        let key = [Cow::Owned(id.to_string())];
        let mode = WriteMode::Replace(&key);
        let merged = merge_patch(
            &writable,
            document.as_bytes(),
            b"{}",
            &mut scratch,
            &mut Vec::new(),
        )
        .unwrap();
        let json = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).unwrap();
        assert!(json(&merged) == json(document.as_bytes()), "{document}");
        let read = rows_of(
            &writable,
            document.as_bytes(),
            mode,
            None,
            &mut scratch,
            &mut rows,
        );
        assert_eq!(read, Ok(()), "{document}");
    }
    assert_eq!(rows.levels[1].count(), 2 * ROOTS);
    let copy = format!("set timezone = 'UTC'; {}", inserts(&writable, &rows));
    sqlx::raw_sql(AssertSqlSafe(copy))
        .execute(&mut connection)
        .await
        .unwrap();
    for table in ["roots", "leaves"] {
        for (number, column) in TYPES.iter().enumerate() {
            // Documents show neither JSON's null apart from SQL's, nor blanks around JSON, nor where the numbering of
            // an array begins.
            let text =
                |row: &str| format!("coalesce(btrim(to_json({row}.c{number})::text), 'null')");
            let (original, copied) = (text("o"), text("c"));
            let count = format!(
                "select count(*) from {table} o join copied_{table} c using (id) where {original} = {copied}"
            );
            let same: i64 = sqlx::query_scalar(AssertSqlSafe(count))
                .fetch_one(&mut connection)
                .await
                .unwrap();
            let rows = if table == "roots" { ROOTS } else { 2 * ROOTS };
            assert_eq!(same, rows as i64, "{table}.c{number}, {}", column.sql);
        }
    }
}

const TYPED: &str = r#"
    create type mood as enum ('glad', 'sad');
    create domain seven as varchar(7) not null;
    create domain sure as seven default 'x';
    create type pair as (a numeric(5, 2)[], m mood);
    create schema "S";
    create table "S"."T" (
      id int generated always as identity primary key, s serial, plain char(3)[], must sure, pairs pair[],
      half integer generated always as (s / 2) stored, day date default current_date);
    create table child (t int references "S"."T", label text, primary key (t, label));
    create table loose (t int references "S"."T", label text);"#;

/// A resource of the table above with a child.
fn typed(child: &str, more: &str) -> String {
    format!(
        "[[resource]]\nname = 't'\ntable = 'S.T'\n\
         [[resource.children]]\nname = 'c'\ntable = '{child}'\n{more}"
    )
}

/// Name, values, whether it may be null, and the default of each column.
fn expected() -> [(&'static str, ValueType, bool, bool); 7] {
    let array = |element| ValueType::Array(Box::new(element));
    let digits = Some((5, 2));
    let mood = ValueType::Enum(vec!["glad".into(), "sad".into()]);
    let pair = vec![
        ("a".into(), array(ValueType::Numeric { digits })),
        ("m".into(), mood),
    ];
    let three = ValueType::Char { length: Some(3) };
    let seven = ValueType::Text { max: Some(7) };
    [
        ("id", ValueType::Integer, false, true),
        ("s", ValueType::Integer, false, true),
        ("plain", array(three), true, false),
        ("must", seven, false, true),
        ("pairs", array(ValueType::Composite(pair)), true, false),
        ("half", ValueType::Integer, true, false),
        ("day", ValueType::Date, true, true),
    ]
}

#[tokio::test]
async fn columns_say_what_they_take() {
    let database = TestCluster::database().await;
    execute(&database.url, TYPED).await;
    let mut connection = PgConnection::connect(&database.url).await.unwrap();
    let found = writable(&mut connection, &database.url, &typed("child", "")).await;
    let found = found.unwrap();
    let (root, child) = (&found.levels[0], &found.levels[1]);
    assert_eq!(root.columns.len(), expected().len());
    for (column, (name, value, nullable, default)) in root.columns.iter().zip(expected()) {
        assert_eq!((&*column.column, &column.value), (name, &value));
        assert_eq!(
            (column.nullable, column.has_default),
            (nullable, default),
            "{name}"
        );
        assert_eq!(column.generated, name == "half");
        assert_eq!(column.identity_always, name == "id");
    }
    assert_eq!((&*child.link, &*child.key), (&[(0, 0)][..], &[0, 1][..]));
    let sequences = root.columns.iter().flat_map(|column| &column.sequences);
    // That of an identity column needs no privilege.
    assert_eq!(sequences.collect::<Vec<_>>(), ["\"S\".\"T_s_seq\""]);
}

#[tokio::test]
async fn children_without_a_shown_key_cannot_be_written() {
    let database = TestCluster::database().await;
    execute(&database.url, TYPED).await;
    let mut connection = PgConnection::connect(&database.url).await.unwrap();
    for (toml, reason) in [
        (
            typed("loose", "order_by = 'label'"),
            "the table of the rows of c has no primary key",
        ),
        (
            typed("child", "fields = { t = 't' }"),
            "the rows of c do not show their whole primary key",
        ),
    ] {
        let why = writable(&mut connection, &database.url, &toml).await;
        let why = why.unwrap_err();
        assert!(why.contains(reason), "{why}");
    }
}
