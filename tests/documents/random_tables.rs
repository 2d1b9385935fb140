//! Documents of random tables, columns, values and shapes are PostgreSQL's own JSON, byte for byte. larder's role may read
//! the columns that they need and no other, and may not use the schema of their types.

pub(crate) mod values;

use std::fmt::Write as _;

use fastrand::Rng;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row as _};

use crate::documents::random_tables::values::{RandomColumnType, TYPES, setup};
use crate::harness::cluster::{TestCluster, TestRole};
use crate::harness::service::{TestService, execute};

const SEED: u64 = 0x2545_f491_4f6c_dd1d;
const ROUNDS: usize = 4;
const ROOTS: usize = 60;
const NAMES: [&str; 6] = [
    "plain",
    "two words",
    "quo\"te",
    "back\\slash",
    "é😀",
    "tab\tstop",
];

/// A table and what a document shows of its rows.
struct RandomTable {
    table: String,
    /// Columns `c0`, `c1` and so on, or what is generated from one, `g0`; and members' names.
    fields: Vec<(char, usize, String)>,
    columns: Vec<&'static RandomColumnType>,
    /// The columns that another one is generated from, and whether that is stored.
    generated: Vec<(usize, bool)>,
    order_by: Vec<String>,
    children: Vec<RandomTable>,
    lookups: Vec<RandomTable>,
}

impl RandomTable {
    /// A table of some columns, with others below it. Every type is in some table of a round.
    fn draw(
        rng: &mut Rng,
        types: &mut Vec<&'static RandomColumnType>,
        table: String,
        depth: usize,
    ) -> Self {
        let columns: Vec<&RandomColumnType> = (0..9)
            .map(|_| {
                types
                    .pop()
                    .unwrap_or_else(|| &TYPES[rng.usize(..TYPES.len())])
            })
            .collect();
        let virtuals = TestCluster::version() >= 18;
        let mut generated = Vec::new();
        let mut fields: Vec<(char, usize, String)> = Vec::new();
        for (number, column) in columns.iter().enumerate() {
            let name = format!("{}{number}", NAMES[rng.usize(..NAMES.len())]);
            fields.insert(rng.usize(..fields.len() + 1), ('c', number, name));
            if rng.usize(..3) == 0 {
                // What is virtual has a built-in type.
                let stored = column.is_of_user() || !virtuals || rng.usize(..2) == 0;
                generated.push((number, stored));
                fields.push(('g', number, format!("made of {number}")));
            }
        }
        let sortable = (0..columns.len()).filter(|&number| columns[number].sortable);
        let order_by = sortable
            .filter(|_| rng.usize(..3) == 0)
            .map(|number| format!("c{number}"))
            .collect();
        let mut below = |kind: &str, rng: &mut Rng| -> Vec<Self> {
            let count = if depth == 0 { 0 } else { 1 + rng.usize(..2) };
            (0..count)
                .map(|number| {
                    let table = format!("{table}_{kind}{number}");
                    Self::draw(rng, types, table, depth - 1)
                })
                .collect()
        };
        let lookups = below("lookup", rng);
        // A row that is looked up shows no children.
        let children = if table.contains("lookup") {
            Vec::new()
        } else {
            below("child", rng)
        };
        Self {
            table,
            fields,
            columns,
            generated,
            order_by,
            children,
            lookups,
        }
    }

    /// Creates the table and those below it, and fills them; `uppers` rows are above it.
    fn create(&self, rng: &mut Rng, rows: usize, uppers: usize, sql: &mut String) {
        let table = &self.table;
        write!(sql, "create table {table} (id int primary key, up int").unwrap();
        for (number, column) in self.columns.iter().enumerate() {
            write!(sql, ", c{number} {}", column.sql).unwrap();
        }
        for number in 0..self.lookups.len() {
            write!(sql, ", down{number} int").unwrap();
        }
        for (number, stored) in &self.generated {
            let (kind, of) = (
                if *stored { "stored" } else { "virtual" },
                self.columns[*number].sql,
            );
            write!(
                sql,
                ", g{number} {of} generated always as (c{number}) {kind}"
            )
            .unwrap();
        }
        writeln!(sql, ", hidden int); create index on {table} (up);").unwrap();
        for number in 0..self.lookups.len() {
            writeln!(sql, "create index on {table} (down{number});").unwrap();
        }
        write!(sql, "insert into {table} values ").unwrap();
        // In another order than that of the key.
        for row in 0..rows {
            let id = rows - row;
            let separator = if row == 0 { "" } else { ", " };
            write!(sql, "{separator}({id}, {}", 1 + rng.usize(..uppers)).unwrap();
            for column in &self.columns {
                match rng.usize(..7) {
                    0 => sql.push_str(", null"),
                    _ => write!(sql, ", {}", column.draw(rng)).unwrap(),
                }
            }
            for _ in &self.lookups {
                write!(sql, ", {}", 1 + rng.usize(..rows)).unwrap();
            }
            sql.push(')');
        }
        sql.push_str(";\n");
        for child in &self.children {
            child.create(rng, rows * 2 + 1, rows, sql);
        }
        for lookup in &self.lookups {
            // Some rows point to nothing.
            lookup.create(rng, rows / 2 + 1, 1, sql);
        }
    }

    /// Lets `role` read what documents need, and install triggers.
    fn grant(&self, role: &str, sql: &mut String) {
        let shown = self.fields.iter();
        let mut columns: Vec<String> = shown
            .map(|(kind, number, _)| format!("{kind}{number}"))
            .collect();
        columns.extend((0..self.lookups.len()).map(|number| format!("down{number}")));
        let columns = columns.join(", ");
        writeln!(
            sql,
            "grant select (id, up, {columns}), trigger on {} to {role};",
            self.table
        )
        .unwrap();
        for below in self.children.iter().chain(&self.lookups) {
            below.grant(role, sql);
        }
    }

    /// The row as PostgreSQL's own JSON.
    fn json(&self, alias: &str) -> String {
        let mut members: Vec<String> = Vec::new();
        for (kind, number, name) in &self.fields {
            let value = self.columns[*number].json(&format!("{alias}.{kind}{number}"));
            members.push(format!("{value} as \"{}\"", name.replace('"', "\"\"")));
        }
        for (number, child) in self.children.iter().enumerate() {
            let below = format!("{alias}c{number}");
            let order: Vec<String> = child
                .order_by
                .iter()
                .map(|column| format!("{below}.{column}, "))
                .collect();
            members.push(format!(
                "array_to_json(array(select {} from {} {below} where {below}.up = {alias}.id order by {}{below}.id)) \
                 as child{number}",
                child.json(&below),
                child.table,
                order.concat(),
            ));
        }
        for (number, lookup) in self.lookups.iter().enumerate() {
            let below = format!("{alias}l{number}");
            members.push(format!(
                "(select {} from {} {below} where {below}.id = {alias}.down{number}) as lookup{number}",
                lookup.json(&below),
                lookup.table,
            ));
        }
        // A subselect of its own, since only a row of one has names.
        format!(
            "(select row_to_json(r) from (select {}) r)",
            members.join(", ")
        )
    }

    /// The members in `larder.toml`, after the header of the resource, child or lookup.
    fn toml(&self, header: &str, toml: &mut String) {
        let fields: Vec<String> = self
            .fields
            .iter()
            .map(|(kind, number, name)| {
                format!("{kind}{number} = {}", serde_json::to_string(name).unwrap())
            })
            .collect();
        writeln!(
            toml,
            "table = '{}'\nfields = {{ {} }}",
            self.table,
            fields.join(", ")
        )
        .unwrap();
        for (number, child) in self.children.iter().enumerate() {
            let order = serde_json::to_string(&child.order_by).unwrap();
            write!(
                toml,
                "[[{header}.children]]\nname = 'child{number}'\nforeign_key = 'up'\n"
            )
            .unwrap();
            if !child.order_by.is_empty() {
                writeln!(toml, "order_by = {order}").unwrap();
            }
            child.toml(&format!("{header}.children"), toml);
        }
        for (number, lookup) in self.lookups.iter().enumerate() {
            write!(
                toml,
                "[[{header}.lookups]]\nname = 'lookup{number}'\ncolumn = 'down{number}'\nreferences = 'id'\n"
            )
            .unwrap();
            lookup.toml(&format!("{header}.lookups"), toml);
        }
    }
}

/// The place where the documents differ.
fn difference(found: &str, expected: &str) -> String {
    let pairs = found.bytes().zip(expected.bytes());
    let at = pairs.take_while(|(a, b)| a == b).count();
    let around = |text: &str| {
        let end = text.len().min(at + 60);
        String::from_utf8_lossy(&text.as_bytes()[at.saturating_sub(60)..end]).into_owned()
    };
    let (found, expected) = (around(found), around(expected));
    format!("  larder     …{found}\n  PostgreSQL …{expected}")
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_postgresqls_own_json() {
    let mut rng = Rng::with_seed(SEED);
    let mut sql = setup();
    let mut toml = String::new();
    let mut drawn = Vec::new();
    for round in 0..ROUNDS {
        let mut types: Vec<&RandomColumnType> = TYPES.iter().collect();
        let root = RandomTable::draw(&mut rng, &mut types, format!("t{round}"), 2);
        assert!(types.is_empty(), "{} types are in no table", types.len());
        root.create(&mut rng, ROOTS, 1, &mut sql);
        write!(
            toml,
            "[[resource]]\nname = 't{round}'\ntiers = []\nkey = 'id'\n"
        )
        .unwrap();
        root.toml("resource", &mut toml);
        drawn.push(root);
    }
    let database = TestCluster::database().await;
    let role = TestRole::create(&database.url).await;
    for root in &drawn {
        root.grant(&role.name, &mut sql);
    }
    let (_, name) = database.url.rsplit_once('/').unwrap();
    writeln!(sql, "grant create on database {name} to {};", role.name).unwrap();
    execute(&database.url, &sql).await;
    let larder = TestService::start_on(&role.url, &toml, &[]).await;
    let mut connection = PgConnection::connect(&database.url).await.unwrap();
    sqlx::raw_sql("set timezone = 'UTC'; set search_path = pg_catalog, public")
        .execute(&mut connection)
        .await
        .unwrap();
    let mut wrong = Vec::new();
    for root in &drawn {
        let select = format!(
            "select t.id, {}::text from {} t order by t.id",
            root.json("t"),
            root.table
        );
        let rows = sqlx::query(AssertSqlSafe(select))
            .fetch_all(&mut connection)
            .await
            .unwrap();
        assert_eq!(rows.len(), ROOTS);
        for row in rows {
            let (id, expected): (i32, String) = (row.get(0), row.get(1));
            let answer = larder.get(&format!("/{}/{id}", root.table)).await;
            if answer.body != expected {
                let difference = difference(&answer.body, &expected);
                wrong.push(format!(
                    "/{}/{id}: {}\n{difference}",
                    root.table, answer.status
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of seed {SEED:#x}:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(5)].join("\n")
    );
}
