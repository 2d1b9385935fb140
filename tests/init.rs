//! `larder init`: larder starts with the file that it writes, and every table is in it or named with a reason.

use std::path::Path;
use std::process::Output;

use axum::http::StatusCode;
use fastrand::Rng;
use larder::config::Config;
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;

use crate::command::configured;
use crate::database_encodings::database_of;
use crate::harness::cluster::{TestCluster, TestRole};
use crate::harness::larder_process::{LarderProcess, run, stderr, stdout};
use crate::harness::raw_http::fetch;
use crate::harness::service::execute;

const SHOP: &str = "
    create table customers (id bigserial primary key, email text not null unique, password_hash text not null);
    create table products (id bigserial primary key, name text not null);
    create table orders (id bigserial primary key, customer_id bigint not null references customers,
                         number text not null unique, deleted_at timestamptz);
    create table order_lines (id bigserial primary key, order_id bigint not null references orders on delete cascade,
                              product_id bigint not null references products, quantity int not null);
    create table shipments (id bigserial primary key, order_id bigint not null unique references orders, sent date);
    create table tags (id bigserial primary key, word text not null);
    create table order_tags (order_id bigint references orders, tag_id bigint references tags, primary key (order_id, tag_id));
    create table django_session (session_key varchar(40) primary key, session_data text, expire_date timestamptz);
    create table schema_migrations (version text primary key);
    create table heap (note text);
    create view recent as select * from orders;
    create index on orders (customer_id);
    create index on order_lines (product_id);
    create index on order_tags (tag_id);
    insert into customers values (1, 'ann@example.org', 'x');
    insert into products values (1, 'pen');
    insert into orders values (1, 1, 'A-1');
    insert into order_lines values (1, 1, 1, 2);
    insert into shipments values (1, 1, '2026-11-27');
    insert into tags values (1, 'new');
    insert into order_tags values (1, 1);
    insert into customers select i, i || '@example.org', 'x' from generate_series(2, 1500) i;
    analyze;";

/// A directory without a file, and what `larder init` says in it.
async fn init(url: &str, args: &[&str]) -> (TempDir, Output) {
    let directory = TempDir::new().unwrap();
    let output = init_in(directory.path(), url, args).await;
    (directory, output)
}

async fn init_in(directory: &Path, url: &str, args: &[&str]) -> Output {
    run(directory, Some(url), &[&["init"], args].concat()).await
}

fn file(directory: &TempDir) -> String {
    std::fs::read_to_string(directory.path().join("larder.toml")).unwrap()
}

/// The file with everything in force that it offers.
fn uncommented(text: &str) -> String {
    let line = |line: &str| {
        let offered = line.trim_start().strip_prefix('#');
        let offered = offered.filter(|rest| !rest.starts_with(' '));
        format!("{}\n", offered.unwrap_or(line))
    };
    text.lines().map(line).collect()
}

/// Starts larder in `directory` and reads a page of each of the resources.
async fn serves(directory: &TempDir, url: &str) {
    let text = file(directory);
    let config = Config::from_toml(&text, &[]).unwrap();
    let larder = LarderProcess::start(directory.path(), Some(url), &[]).await;
    larder.ready().await;
    let status = fetch(larder.admin, "GET", "/status").await;
    let status: serde_json::Value = serde_json::from_str(&status.body).unwrap();
    for resource in status["resources"].as_array().unwrap() {
        assert!(resource["unfit"].is_null(), "{resource} of {text}");
    }
    for resource in &config.resources {
        let path = format!("/{}?limit=3", resource.name.value);
        let answer = fetch(larder.listen, "GET", &path).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.body);
    }
    assert!(larder.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shop_is_served_from_the_file_that_was_written() {
    let url = TestCluster::database().await.url;
    execute(&url, SHOP).await;
    let (directory, output) = init(&url, &[]).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = file(&directory);
    assert!(!text.contains("postgres://"), "{text}");
    for part in [
        "#where = \"deleted_at is null\"",
        "write = []",
        "# Left out: column password_hash, which may hold a secret.",
        "#[[resource]]\n#name = \"django_session\"",
        "# public.heap has no primary key, and no other unique key",
        "# public.recent is a view",
        "# public.schema_migrations holds the state of a migration tool",
        "  #[[resource.lookups]]\n  #name = \"customer\"",
        "  [[resource.children]]\n  name = \"order_lines\"",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let told = stdout(&output);
    for part in [
        "/orders: public.orders, with public.order_lines, public.order_tags, public.products, public.shipments, public.tags",
        "not in force: public.django_session: ",
        "not served: public.heap has no primary key",
        "create index concurrently on \"public\".\"order_lines\" (\"order_id\");",
        "larder install --print",
        "larder.toml has 5 resources. Next, with the same DATABASE_URL: larder\n",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let larder = LarderProcess::start(directory.path(), Some(&url), &[]).await;
    larder.ready().await;
    let order = fetch(larder.listen, "GET", "/orders/1").await;
    let expected = r#"{"id":1,"customer_id":1,"number":"A-1","deleted_at":null,"order_lines":[{"id":1,"order_id":1,"product_id":1,"quantity":2,"product":{"id":1,"name":"pen"}}],"order_tags":[{"order_id":1,"tag_id":1,"tag":{"id":1,"word":"new"}}],"shipments":{"id":1,"order_id":1,"sent":"2026-11-27"}}"#;
    assert_eq!(order.body, expected);
    let customer = fetch(larder.listen, "GET", "/customers/1").await;
    assert_eq!(customer.body, r#"{"id":1,"email":"ann@example.org"}"#);
    assert!(larder.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_offered_can_be_taken() {
    let url = TestCluster::database().await.url;
    execute(&url, SHOP).await;
    let (directory, output) = init(&url, &["--writable"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = file(&directory);
    assert!(!text.contains("write = []"), "{text}");
    let needed = "# New rows can't be written: they need a value of password_hash";
    assert!(text.contains(needed), "{text}");
    let all = uncommented(&text);
    std::fs::write(directory.path().join("larder.toml"), &all).unwrap();
    let config = Config::from_toml(&all, &[]).unwrap();
    assert!(
        config
            .resources
            .iter()
            .any(|resource| !resource.by.is_empty())
    );
    serves(&directory, &url).await;
}

/// Nor does a run depend on the one before.
#[tokio::test(flavor = "multi_thread")]
async fn equal_databases_give_equal_bytes() {
    let one = TestCluster::database().await.url;
    let other = TestCluster::database().await.url;
    execute(&one, SHOP).await;
    // Other oids.
    execute(&other, "create table filler (id int); drop table filler").await;
    execute(&other, SHOP).await;
    let (first, _) = init(&one, &[]).await;
    let (second, _) = init(&one, &["--yes"]).await;
    let (third, _) = init(&other, &[]).await;
    assert_eq!(file(&first), file(&second));
    assert_eq!(file(&first), file(&third));
    let (_, printed) = init(&one, &["--output", "-"]).await;
    assert_eq!(stdout(&printed), file(&first));
    assert!(stderr(&printed).contains("/orders: public.orders"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_stays_unless_it_is_to_be_replaced() {
    let url = TestCluster::database().await.url;
    execute(&url, "create table t (id int primary key)").await;
    let directory = configured("# mine, and [[ no TOML");
    let refused = init_in(directory.path(), &url, &[]).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("larder.toml exists; --force replaces it"));
    assert_eq!(file(&directory), "# mine, and [[ no TOML");
    let replaced = init_in(directory.path(), &url, &["--force"]).await;
    assert_eq!(replaced.status.code(), Some(0), "{}", stderr(&replaced));
    assert!(file(&directory).contains("name = \"t\""));
    let named = init_in(directory.path(), &url, &["--output", "other.toml"]).await;
    assert_eq!(named.status.code(), Some(0), "{}", stderr(&named));
    let mut files: Vec<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    files.sort();
    assert_eq!(files, ["larder.toml", "other.toml"]);
}

/// A link leads to the new file, and what is no file is not replaced by one.
#[tokio::test(flavor = "multi_thread")]
async fn only_files_are_replaced() {
    let url = TestCluster::database().await.url;
    execute(&url, "create table t (id int primary key)").await;
    let directory = configured("# old");
    let link = directory.path().join("link.toml");
    std::os::unix::fs::symlink("larder.toml", &link).unwrap();
    let linked = init_in(
        directory.path(),
        &url,
        &["--force", "--output", "link.toml"],
    )
    .await;
    assert_eq!(linked.status.code(), Some(0), "{}", stderr(&linked));
    assert!(link.is_symlink() && file(&directory).contains("name = \"t\""));
    let socket = directory.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let refused = init_in(directory.path(), &url, &["--force", "--output", "socket"]).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("socket can't be written"),
        "{}",
        stderr(&refused)
    );
    assert!(!socket.metadata().unwrap().is_file());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_served_ends_with_one_error() {
    let url = TestCluster::database().await.url;
    for (sql, args, message) in [
        ("select 1", &[][..], "nothing can be served"),
        ("create table heap (n int)", &[], "nothing can be served"),
        (
            "create table item (id int primary key)",
            &["--table", "itm"],
            "there is no table itm; did you mean item?",
        ),
        (
            "select 1",
            &["--schema", "publik"],
            "schema publik has no tables; did you mean public?",
        ),
        (
            "select 1",
            &["--output", "missing/larder.toml"],
            "can't be written",
        ),
    ] {
        execute(&url, sql).await;
        let (directory, output) = init(&url, args).await;
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(stderr(&output).contains(message), "{}", stderr(&output));
        assert!(!directory.path().join("larder.toml").exists());
    }
    let output = run(Path::new("/"), None, &["init", "--output", "-"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("DATABASE_URL="),
        "{}",
        stderr(&output)
    );
}

/// Names that end a string, a comment, a statement or a path, and that are as long as PostgreSQL allows.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_names_are_names() {
    let url = TestCluster::database().await.url;
    let long = "ü".repeat(31);
    let names = [
        "select",
        "we\"\"ird",
        "\"\"q",
        "a.b",
        "two\nlines",
        "it''s",
        "back\\slash",
        "<script>alert(1)</script>",
        "\u{202e}left",
        "tab\tbed",
        "# comment",
        "[[resource]]",
        "100%",
        "..",
        &long,
        "Order",
        "order",
        "🦀",
        "a/b?c=d",
    ];
    let mut sql = String::new();
    for (number, name) in names.iter().enumerate() {
        let column = format!("c{name}").chars().take(30).collect::<String>();
        let column = if column.ends_with('"') && !column.ends_with("\"\"") {
            column + "\""
        } else {
            column
        };
        sql.push_str(&format!(
            "create table \"{name}\" (\"{name}\" int primary key, \"{column}\" text not null unique, other int);
             create table \"{number}_{}\" (id int primary key, \"{name}\" int not null references \"{name}\" on delete cascade);
             insert into \"{name}\" values (1, 'x');
             insert into \"{number}_{}\" values (1, 1);",
            "z", "z"
        ));
    }
    execute(&url, &sql).await;
    execute(&url, "create schema \"a.b\"; create table \"a.b\".\"c.\"\"d\" (id int primary key); create schema \"#\n\"; create table \"#\n\".t (id int primary key); create table \"#\n\".heap (n int)").await;
    let (directory, output) = init(&url, &[]).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = file(&directory);
    assert!(text.contains("# #\\n.heap has no primary key"), "{text}");
    assert!(Config::from_toml(&uncommented(&text), &[]).is_ok());
    serves(&directory, &url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unusual_tables_are_served_or_named() {
    let url = TestCluster::database().await.url;
    execute(
        &url,
        "create table a (id int primary key, b_id int); create table b (id int primary key, a_id int references a);
         alter table a add foreign key (b_id) references b; create index on a (b_id); create index on b (a_id);
         create table tree (id int primary key, parent_id int references tree on delete cascade); create index on tree (parent_id);
         create table part (id int, day date, note text, primary key (id, day)) partition by range (day);
         create table part_2026 partition of part for values from ('2026-01-01') to ('2027-01-01');
         create table upper (id int primary key); create table lower (extra int, primary key (id)) inherits (upper);
         create table blob (id interval primary key); create table dep (id int primary key, kind regclass);
         create table later (id int primary key deferrable initially deferred);
         create table guarded (id int primary key); alter table guarded enable row level security, force row level security;
         create table only_secret (token_id text primary key, note text);
         create table flt (id double precision primary key, n int not null unique);
         create unlogged table quick (id int primary key);
         create materialized view stored as select 1 as id;
         create table none ();
         create table of_extension (id int primary key); alter extension plpgsql add table of_extension;
         create schema ext; create table ext.t (id int primary key); alter extension plpgsql add schema ext;
         insert into part values (1, '2026-11-27'); insert into a values (1); insert into b values (1, 1); update a set b_id = 1;",
    )
    .await;
    let role = TestRole::create(&url).await;
    execute(
        &url,
        &format!(
            "grant select on all tables in schema public to {0}; revoke select on quick from {0};
             revoke select on flt from {0}; grant select (n, id) on flt to {0};
             create schema closed; create table closed.t (id int primary key); grant select on closed.t to {0}",
            role.name
        ),
    )
    .await;
    let (directory, output) = init(&role.url, &[]).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = file(&directory);
    for part in [
        "name = \"a\"",
        "name = \"b\"",
        "name = \"tree\"",
        "name = \"part\"",
        "name = \"lower\"",
        "name = \"upper\"",
        "name = \"dep\"",
        "name = \"later\"",
        "key = \"n\"",
        "# public.blob has a key with column id, which is of type interval",
        "# Not in force: larder refuses it: public.guarded has row security",
        "# Not in force: column token_id of its key may hold a secret",
        "# public.quick can't be read by larder's role, which needs: grant select on \"public\".\"quick\"",
        "# closed.t can't be read by larder's role, which needs: grant usage on schema \"closed\"\n",
        "# public.stored is a materialized view",
        "# public.none has no primary key",
        "# public.of_extension belongs to extension plpgsql",
        "# ext.t belongs to extension plpgsql",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("part_2026"), "{text}");
    // The owner may install triggers.
    serves(&directory, &url).await;
}

/// Children of each other, and what two levels of them would repeat.
#[tokio::test(flavor = "multi_thread")]
async fn the_demo_is_found() {
    let url = TestCluster::database().await.url;
    let directory = TempDir::new().unwrap();
    let seeded = run(directory.path(), Some(&url), &["seed", "--depts", "3"]).await;
    assert!(seeded.status.success(), "{}", stderr(&seeded));
    let output = init_in(directory.path(), &url, &["--table", "dept"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(file(&directory).contains("[[resource]]\nname = \"dept\"\ntable = \"public.dept\"\n"));
    serves(&directory, &url).await;
}

/// A table that others may refer to: its name and the type of its column `id`.
struct DrawnTable {
    name: String,
    key: &'static str,
}

/// Tables with keys, foreign keys, indexes, types and names at random.
fn draw_tables(rng: &mut Rng, count: usize) -> String {
    const TYPES: [&str; 9] = [
        "int",
        "text",
        "uuid",
        "date",
        "bytea",
        "numeric(9,0)",
        "timestamptz",
        "boolean",
        "jsonb",
    ];
    let mut sql = String::new();
    let mut drawn: Vec<DrawnTable> = Vec::new();
    for number in 0..count {
        let key = TYPES[rng.usize(..8)];
        let mut name = format!("t{number}");
        let mut parts = vec![format!("id {key} not null unique")];
        for column in 0..rng.usize(..4) {
            let (ty, null) = (TYPES[rng.usize(..9)], ["", " not null"][rng.usize(..2)]);
            parts.push(format!("c{column} {ty}{null}"));
        }
        let mut foreign: Vec<String> = Vec::new();
        for _ in 0..rng.usize(..4).min(number) {
            let target = &drawn[rng.usize(..number)];
            let column = format!("{}_id", target.name);
            if foreign.contains(&column) {
                continue;
            }
            // A column that is unique and may be null is refused as what a lookup references.
            let null = ["", " not null", " not null", " not null unique"][rng.usize(..4)];
            let action = ["", " on delete cascade"][rng.usize(..2)];
            let (other, ty) = (&target.name, target.key);
            parts.push(format!(
                "{column} {ty}{null} references {other} (id){action}"
            ));
            if rng.usize(..3) == 0 {
                name = format!("{other}_{number}");
            }
            foreign.push(column);
        }
        let primary = match (rng.usize(..4), foreign.as_slice()) {
            (0, [one, ..]) => format!("{one}, id"),
            (1, [one, two, ..]) => format!("{one}, {two}"),
            _ => "id".to_owned(),
        };
        parts.push(format!("primary key ({primary})"));
        sql.push_str(&format!("create table {name} ({});\n", parts.join(", ")));
        for column in foreign.iter().filter(|_| rng.usize(..2) == 0) {
            sql.push_str(&format!("create index on {name} ({column});\n"));
        }
        drawn.push(DrawnTable { name, key });
    }
    sql
}

/// All that is offered can be taken, too.
#[tokio::test(flavor = "multi_thread")]
async fn drawn_databases_are_served() {
    let mut rng = Rng::with_seed(31);
    for _ in 0..4 {
        let url = TestCluster::database().await.url;
        let sql = draw_tables(&mut rng, 25);
        execute(&url, &sql).await;
        let (directory, output) = init(&url, &["--writable"]).await;
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let text = file(&directory);
        assert!(!text.contains("# Not served"), "{sql}{text}");
        serves(&directory, &url).await;
        std::fs::write(directory.path().join("larder.toml"), uncommented(&text)).unwrap();
        serves(&directory, &url).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn statistics_decide_what_is_in_force() {
    let url = TestCluster::database().await.url;
    execute(
        &url,
        "create table box (id int primary key);
         create table kind (id int primary key);
         create table box_item (id int primary key, box_id int not null references box on delete cascade,
                                kind_id int not null references kind);
         create table box_part (box_id int references box, no int, kind_id int references kind, primary key (box_id, no))
           partition by range (no);
         create table box_part_1 partition of box_part for values from (0) to (6000);
         create table box_part_2 partition of box_part for values from (6000) to (20000);
         insert into box select generate_series(1, 12);
         insert into kind values (1), (2);
         insert into box_item select i, 1 + i % 10, 1 + i % 2 from generate_series(1, 9990) i;
         insert into box_part select 1 + i % 10, i, 1 from generate_series(1, 10010) i;
         analyze;",
    )
    .await;
    let (directory, output) = init(&url, &[]).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = file(&directory);
    for part in [
        "  [[resource.children]]\n  name = \"box_item\"",
        "    [[resource.children.lookups]]\n    name = \"kind\"",
        "  # Not in force: about 1001 rows in each document.\n  #[[resource.children]]\n  #name = \"box_part\"",
        "[[resource]]\nname = \"box_part\"",
        "  # Not in force: about 10010 rows show the same one, and a change of it would empty the resource's tiers.\n  #[[resource.lookups]]\n  #name = \"kind\"",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// PostgreSQL sends no name that is not UTF-8, and the run ended without saying whose.
#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_not_utf8_are_told_with_escapes() {
    let odd = |name: &str, columns: &str| {
        let name = format!("convert_from('{name}'::bytea, 'SQL_ASCII')");
        format!("execute 'create table \"' || {name} || '\" (id int primary key{columns})';")
    };
    let column = "\"' || convert_from('\\xe4'::bytea, 'SQL_ASCII') || '\" int";
    let sql = format!(
        "do $$ begin {} {} {} end $$",
        odd("\\xe4", ""),
        odd("\\xc3a4", ""),
        odd("odd", &format!(", {column}"))
    );
    let url = database_of("SQL_ASCII", &sql).await;
    let (directory, output) = init(&url, &[]).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = file(&directory);
    for part in [
        "table = \"public.ä\"",
        "table = \"public.word\"",
        "# public.\\344 has a name, or a column with one, that is not UTF-8",
        "# public.odd has a name, or a column with one, that is not UTF-8",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    serves(&directory, &url).await;
}

/// The column that it is computed from was left out, and this one showed it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_computed_from_a_secret_is_left_out() {
    let url = TestCluster::database().await.url;
    execute(
        &url,
        "create table account (id int primary key, passwd text, name text, copy text generated always as ('x' || passwd) stored,
                               upper text generated always as (upper(name)) stored)",
    )
    .await;
    let (directory, output) = init(&url, &[]).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = file(&directory);
    assert!(
        text.contains("# Left out: column copy, which may hold a secret"),
        "{text}"
    );
    assert!(
        !text.contains("\"copy\"") && text.contains("\"upper\""),
        "{text}"
    );
}

/// Columns whose names tell nothing were served with hashes of passwords in them. The tables were never analysed.
#[tokio::test(flavor = "multi_thread")]
async fn columns_with_values_like_secrets_are_left_out() {
    let url = TestCluster::database().await.url;
    execute(
        &url,
        "create domain raw as bytea;
         create table member (id int primary key, nick text, pass_crypt text, note_a text, note_b varchar(200), note_c bytea, note_d text,
           sha text, plain text, copy text generated always as (lower(note_a)) stored, note_e raw, kind regclass, codes text[],
           prefs jsonb, tags text[]);
         create table secrets (id int primary key, label text, value text);
         create table file (etag text primary key, parent text references file, size int);
         create schema closed; create table closed.locked (id int primary key, note text);
         insert into member values (1, 'ann', 'x', '$argon2id$v=19$m=65536$x$y', 'eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln',
           sha256('a'), '-----BEGIN PRIVATE KEY-----', '', 'a', default, sha256('b'), null, array[md5('a'), md5('b')],
           jsonb_build_object('a', '$2b$12$x'), '{a}');
         insert into member (id, nick, sha, plain) select i, 'b' || i, md5(i::text), i from generate_series(2, 9) i;
         insert into file values (md5('a'), md5('a'), 1);",
    )
    .await;
    let (directory, output) = init(&url, &[]).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = file(&directory);
    for (column, why) in [
        ("pass_crypt", "which may hold a secret"),
        ("note_a", "whose values look like hashes of passwords"),
        ("copy", "whose values look like hashes of passwords"),
        ("note_b", "whose values look like tokens or keys"),
        ("note_c", "whose values look like digests"),
        ("note_d", "whose values look like tokens or keys"),
        ("note_e", "whose values look like digests"),
        ("sha", "whose values look like digests"),
        ("codes", "whose values look like digests"),
        ("prefs", "whose values look like hashes of passwords"),
        ("value", "which may hold a secret"),
    ] {
        let told = format!("# Left out: column {column}, {why}");
        assert!(text.contains(&told), "{told}: {text}");
        assert!(!text.contains(&format!("\"{column}\"")), "{text}");
    }
    for shown in ["nick", "plain", "etag", "parent", "note", "tags", "label"] {
        assert!(text.contains(&format!("\"{shown}\"")), "{shown}: {text}");
    }
    // Column `kind` is left out for another reason.
    let told = stdout(&output);
    assert!(
        told.contains("left out: 11 columns that may hold secrets"),
        "{told}"
    );
}

/// A column that can't be read, a virtual one (18) whose expression fails, a table that is locked, and one that is slow to read.
#[tokio::test(flavor = "multi_thread")]
async fn values_are_looked_at_beside_those_that_can_not_be_read() {
    let url = TestCluster::database().await.url;
    let role = TestRole::create(&url).await;
    let is_virtual = TestCluster::version() >= 18;
    let quotient = if is_virtual {
        "(1 / (id - 1))::text"
    } else {
        "'1'"
    };
    let sql = format!(
        "create table closed (id int primary key, of_closed text, hidden text);
         create table quotient (id int primary key, of_quotient text, result text generated always as ({quotient}) {kind});
         create table locked (id int primary key, of_locked text);
         insert into closed values (1, '$2b$12$x', ''); insert into quotient values (1, '$2b$12$x');
         insert into locked values (1, '$2b$12$x');
         create table slow (id int primary key, of_slow text); insert into slow values (1, '$2b$12$x');
         alter table slow enable row level security; create policy slow on slow using (pg_sleep(3600) is not null);
         grant select (id, of_closed) on closed to {role}; grant select on quotient, locked, slow to {role};",
        kind = if is_virtual { "virtual" } else { "stored" },
        role = role.name
    );
    execute(&url, &sql).await;
    let mut locking = PgConnection::connect(&url).await.unwrap();
    let lock = "begin; lock table locked in access exclusive mode";
    sqlx::raw_sql(lock).execute(&mut locking).await.unwrap();
    let (directory, output) = init(&role.url, &[]).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = file(&directory);
    for column in ["of_closed", "of_quotient"] {
        let told =
            format!("# Left out: column {column}, whose values look like hashes of passwords");
        assert!(text.contains(&told), "{told}: {text}");
    }
    for column in ["of_locked", "of_slow"] {
        assert!(text.contains(&format!("\"{column}\"")), "{text}");
    }
    locking.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_outside_of_the_schemas_is_a_mistake() {
    let url = TestCluster::database().await.url;
    execute(
        &url,
        "create table a (id int primary key); create schema other; create table other.b (id int)",
    )
    .await;
    let (_directory, output) = init(&url, &["--schema", "other", "--table", "public.a"]).await;
    assert_eq!(output.status.code(), Some(1));
    let told = stderr(&output);
    assert!(
        told.contains("table public.a is in no schema that --schema names"),
        "{told}"
    );
}
