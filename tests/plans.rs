//! What the plans of larder's statements tell about missing indexes, against a real PostgreSQL.

mod cost;
mod near_misses;
mod queries;
mod statements;

use std::sync::Arc;

use larder::check::{Finding, Severity};
use larder::config::Config;
use larder::resource::Resource;
use larder::resource::definition::RowDefinition;
use larder::resource::resolve::resolve;
use larder::source::catalogue::conditions::read_conditions;
use larder::source::catalogue::read_catalogue;
use larder::source::plans::{PlanOptions, PlanReport, check_plans};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::harness::cluster::TestCluster;
use crate::harness::service::execute;

/// Orders with customers above and items below; each column that a link needs lacks its index.
const SHOP: &str = "\
create table customer (id int primary key, name text not null, region text collate \"C\");
create table product (id int primary key, name text not null);
create table orders (id int primary key, customer_id int references customer, status text collate \"C\");
create table item (id int primary key, order_id int not null references orders, product_id int references product);";

const ORDERS: &str = "\
[[resource]]
name = 'orders'
table = 'orders'
filters = ['status']
[[resource.children]]
name = 'items'
table = 'item'
[[resource.children.lookups]]
name = 'product'
table = 'product'
column = 'product_id'
[[resource.lookups]]
name = 'customer'
table = 'customer'
column = 'customer_id'
";

fn collect_tables(row: &RowDefinition, names: &mut Vec<String>) {
    for child in &row.children {
        names.push(child.table.value.clone());
        collect_tables(&child.row, names);
    }
    for lookup in &row.lookups {
        names.push(lookup.table.value.clone());
        collect_tables(&lookup.row, names);
    }
}

async fn resources(connection: &mut PgConnection, toml: &str) -> Vec<Arc<Resource>> {
    if toml.is_empty() {
        return Vec::new();
    }
    let definitions = Config::from_toml(toml, &[]).unwrap().resources;
    let mut names = Vec::new();
    let mut conditions = Vec::new();
    for definition in &definitions {
        names.push(definition.table.value.clone());
        collect_tables(&definition.row, &mut names);
        conditions.extend(definition.row.conditions(&definition.table.value));
    }
    let mut catalogue = read_catalogue(connection, &names).await.unwrap();
    read_conditions(connection, conditions, &mut catalogue)
        .await
        .unwrap();
    let resources = resolve(&definitions, &catalogue).unwrap();
    resources.into_iter().map(Arc::new).collect()
}

async fn report(url: &str, toml: &str) -> PlanReport {
    report_with(url, toml, &PlanOptions::default()).await
}

/// Checks the plans of `toml` as the command does.
async fn report_with(url: &str, toml: &str, options: &PlanOptions) -> PlanReport {
    let mut connection = PgConnection::connect(url).await.unwrap();
    // As on larder's connections: to compile the statements that read the catalogue takes most of a second.
    sqlx::raw_sql("set jit = off")
        .execute(&mut connection)
        .await
        .unwrap();
    let resources = resources(&mut connection, toml).await;
    let mut transaction = connection
        .begin_with("begin isolation level repeatable read, read only")
        .await
        .unwrap();
    let report = check_plans(&mut transaction, &resources, options)
        .await
        .unwrap();
    transaction.rollback().await.unwrap();
    connection.close().await.unwrap();
    report
}

/// What is found, each as `rule object: SQL`.
async fn found(url: &str, toml: &str) -> Vec<String> {
    let report = report(url, toml).await;
    assert_eq!(report.unchecked, []);
    report.findings.iter().map(described).collect()
}

fn described(finding: &Finding) -> String {
    let sql: Vec<&str> = finding
        .remedies
        .iter()
        .map(|remedy| remedy.sql.as_str())
        .collect();
    format!("{} {}: {}", finding.rule, finding.object, sql.join(" "))
}

async fn apply(url: &str, toml: &str) {
    apply_all(url, &report(url, toml).await.findings).await;
}

/// Runs the SQL of all findings, each statement alone, as `psql` does.
async fn apply_all(url: &str, findings: &[Finding]) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    for finding in findings {
        for remedy in &finding.remedies {
            sqlx::raw_sql(AssertSqlSafe(remedy.sql.as_str()))
                .execute(&mut connection)
                .await
                .unwrap();
        }
    }
    connection.close().await.unwrap();
}

/// Exactly `expected` is found in a database made by `sql`, and nothing is once its SQL was applied.
async fn assert_mended(sql: &str, toml: &str, expected: &[&str]) {
    let url = TestCluster::database().await.url;
    execute(&url, sql).await;
    assert_eq!(found(&url, toml).await, expected, "{sql}");
    apply(&url, toml).await;
    assert_eq!(found(&url, toml).await, [""; 0], "{sql}");
}

/// They were taken for rows of larder's own.
#[tokio::test]
async fn rows_of_users_in_schema_larder_need_an_index() {
    assert_mended(
        "create table par (id int primary key); create schema larder; create table larder.ref (p int references par);",
        "[[resource]]\nname = 'p'\ntable = 'par'\n",
        &["foreign-key larder.ref: create index concurrently \"ref_p_idx\" on \"larder\".\"ref\" (\"p\");"],
    )
    .await;
}

/// The version of PostgreSQL, such as 150004.
pub(crate) async fn version(url: &str) -> i32 {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let version = "select current_setting('server_version_num')::int";
    let version = sqlx::query_scalar(version).fetch_one(&mut connection);
    let version = version.await.unwrap();
    connection.close().await.unwrap();
    version
}

/// PostgreSQL 18 refused the index on the column itself, and the one on the expression did not count.
#[tokio::test]
async fn a_filter_on_a_virtual_column_asks_for_an_index_on_its_expression() {
    if version(&TestCluster::database().await.url).await < 180_000 {
        return;
    }
    assert_mended(
        "create table t (id int primary key, a int, b int generated always as (coalesce(a, 1) * 2));
         insert into t (id, a) select g, g % 100 from generate_series(1, 5000) g; analyze",
        "[[resource]]\nname = 't'\ntable = 't'\nfilters = ['b']\n",
        &[
            "missing-index public.t: create index concurrently \"t_b_id_idx\" on \"public\".\"t\" (((COALESCE(a, 1) * 2)), \"id\");",
        ],
    )
    .await;
}

/// PostgreSQL compares by the collation of the column. The advised index had that of the expression and never served, and each
/// check advised one more.
#[tokio::test]
async fn an_index_on_a_virtual_column_has_the_collation_of_the_column() {
    if version(&TestCluster::database().await.url).await < 180_000 {
        return;
    }
    assert_mended(
        "create table t (id int primary key, c text collate \"C\", d text, v text generated always as (upper(c)) virtual,
           w text collate \"C\" generated always as (upper(d)) virtual, x text collate \"C\" generated always as (c || 'x') virtual,
           y text collate \"C\" generated always as (upper(c)) virtual);
         insert into t (id, c, d) select g, 'c' || g, 'd' || g from generate_series(1, 5000) g; analyze",
        "[[resource]]\nname = 't'\ntable = 't'\nfilters = ['v', 'w', 'x', 'y']\n",
        &[
            "missing-index public.t: create index concurrently \"t_v_id_idx\" on \"public\".\"t\" ((upper(c)) collate \"default\", \"id\");",
            "missing-index public.t: create index concurrently \"t_w_id_idx\" on \"public\".\"t\" ((upper(d)) collate \"C\", \"id\");",
            "missing-index public.t: create index concurrently \"t_x_id_idx\" on \"public\".\"t\" (((c || 'x'::text)), \"id\");",
            "missing-index public.t: create index concurrently \"t_y_id_idx\" on \"public\".\"t\" ((upper(c)), \"id\");",
        ],
    )
    .await;
}

/// A temporal foreign key was left out, since no B-tree serves its period. One that is not enforced searches for nothing.
#[tokio::test]
async fn rows_that_refer_to_periods_need_an_index_on_the_other_columns() {
    if version(&TestCluster::database().await.url).await < 180_000 {
        return;
    }
    assert_mended(
        "create extension btree_gist;
         create table rate (id int, at daterange, n int primary key, unique (id, at without overlaps));
         create table stay (rate_id int, during daterange, foreign key (rate_id, period during) references rate (id, period at));
         create table trust (n int references rate not enforced)",
        "[[resource]]\nname = 'rates'\ntable = 'rate'\n",
        &[
            "foreign-key public.stay: create index concurrently \"stay_rate_id_idx\" on \"public\".\"stay\" (\"rate_id\");",
        ],
    )
    .await;
}

#[tokio::test]
async fn missing_indexes_of_documents_lists_and_passes_are_found() {
    assert_mended(
        SHOP,
        ORDERS,
        &[
            "missing-index public.item: create index concurrently \"item_order_id_idx\" on \"public\".\"item\" (\"order_id\");",
            "missing-index public.item: create index concurrently \"item_product_id_idx\" on \"public\".\"item\" (\"product_id\");",
            "missing-index public.orders: create index concurrently \"orders_customer_id_idx\" on \"public\".\"orders\" (\"customer_id\");",
            "missing-index public.orders: create index concurrently \"orders_status_id_idx\" on \"public\".\"orders\" (\"status\", \"id\");",
        ],
    )
    .await;
}

/// A table of few rows that was analysed must not hide what it will lack when it has many.
#[tokio::test]
async fn the_number_of_rows_changes_nothing() {
    for rows in [0, 1, 3, 3000] {
        let url = TestCluster::database().await.url;
        execute(&url, SHOP).await;
        let fill = format!(
            "insert into customer select n, 'c' || n, 'r' || n % 5 from generate_series(1, {rows}) n;
             insert into product select n, 'p' || n from generate_series(1, {rows}) n;
             insert into orders select n, n, 's' || n % 3 from generate_series(1, {rows}) n;
             insert into item select n, n, n from generate_series(1, {rows}) n; analyze"
        );
        execute(&url, &fill).await;
        assert_eq!(found(&url, ORDERS).await.len(), 4, "{rows}");
        apply(&url, ORDERS).await;
        execute(&url, "analyze").await;
        assert_eq!(found(&url, ORDERS).await, [""; 0], "{rows}");
    }
}

#[tokio::test]
async fn partitions_get_indexes_that_are_attached() {
    let sql = "\
        create table account (id int primary key);
        create table entry (account_id int references account, year int, no int, primary key (year, no)) \
          partition by range (year);
        create table entry_1 partition of entry for values from (0) to (10);
        create table entry_2 partition of entry for values from (10) to (20) partition by range (no);
        create table entry_2_idx partition of entry_2 for values from (0) to (10);
        create table entry_1_account_id_idx (x int);";
    let toml = "[[resource]]\nname = 'a'\ntable = 'account'\n[[resource.children]]\nname = 'e'\ntable = 'entry'\n";
    let expected = "missing-index public.entry: \
        create index \"entry_account_id_idx\" on only \"public\".\"entry\" (\"account_id\"); \
        create index concurrently \"entry_1_account_id_idx1\" on \"public\".\"entry_1\" (\"account_id\"); \
        alter index \"public\".\"entry_account_id_idx\" attach partition \"public\".\"entry_1_account_id_idx1\"; \
        create index \"entry_2_account_id_idx\" on only \"public\".\"entry_2\" (\"account_id\"); \
        create index concurrently \"entry_2_idx_account_id_idx\" on \"public\".\"entry_2_idx\" (\"account_id\"); \
        alter index \"public\".\"entry_2_account_id_idx\" attach partition \"public\".\"entry_2_idx_account_id_idx\"; \
        alter index \"public\".\"entry_account_id_idx\" attach partition \"public\".\"entry_2_account_id_idx\";";
    assert_mended(sql, toml, &[expected]).await;
    let one = "create index on entry_1 (account_id);";
    let expected = "missing-index public.entry: \
        create index concurrently \"entry_2_idx_account_id_idx\" on \"public\".\"entry_2_idx\" (\"account_id\");";
    assert_mended(&format!("{sql}{one}"), toml, &[expected]).await;
}

/// Names are cut to 63 bytes, so the indexes of two tables and of two columns would be named alike.
#[tokio::test]
async fn new_indexes_have_names_of_their_own() {
    let long = "a".repeat(60);
    let sql = format!(
        "create table account (id int primary key);
        create table {long}_1 (account_id int references account, account_no int references account, year int, \
          primary key (year)) partition by range (year);
        create table {long}_11 partition of {long}_1 for values from (0) to (10);
        create table {long}_12 partition of {long}_1 for values from (10) to (20);
        create table {long}_2 (account_id int references account);"
    );
    let toml = "[[resource]]\nname = 'a'\ntable = 'account'\n";
    let url = TestCluster::database().await.url;
    execute(&url, &sql).await;
    assert_eq!(found(&url, toml).await.len(), 3);
    apply(&url, toml).await;
    assert_eq!(found(&url, toml).await, [""; 0]);
}

/// A page of all documents needs an index in the order of the key.
#[tokio::test]
async fn pages_need_an_index_in_the_order_of_the_key() {
    let sql = "create table item (a int, b int, primary key (a, b)) partition by range (a);
        create table item_1 partition of item for values from (0) to (10);";
    let toml = |key: &str| format!("[[resource]]\nname = 'i'\ntable = 'item'\nkey = [{key}]\n");
    assert_mended(sql, &toml("'a', 'b'"), &[]).await;
    let expected = "missing-index public.item: \
        create index \"item_b_a_idx\" on only \"public\".\"item\" (\"b\", \"a\"); \
        create index concurrently \"item_1_b_a_idx\" on \"public\".\"item_1\" (\"b\", \"a\"); \
        alter index \"public\".\"item_b_a_idx\" attach partition \"public\".\"item_1_b_a_idx\";";
    assert_mended(sql, &toml("'b', 'a'"), &[expected]).await;
}

/// An index on the column does not find rows whose column is compared as another type.
#[tokio::test]
async fn foreign_keys_compare_values_of_their_types() {
    let sql = "
        create domain natural_number as int not null; create domain number as natural_number;
        create table account (id number primary key, no numeric unique, name text unique, code varchar(9) unique);
        create type mood as enum ('good'); create table moods (id int primary key, mood mood unique, tags int[] unique);
        create table entry (account_id number references account (id), account_no int references account (no), \
          name varchar references account (name), code text references account (code), big bigint references account (id), \
          exact numeric references account (no), mood mood references moods (mood), tags int[] references moods (tags));";
    let columns = ["account_id", "big", "code", "exact", "name", "mood", "tags"];
    let toml =
        "[[resource]]\nname = 'a'\ntable = 'account'\n[[resource]]\nname = 'm'\ntable = 'moods'\n";
    let url = TestCluster::database().await.url;
    execute(&url, sql).await;
    let mut indexes = found(&url, toml).await;
    indexes.sort();
    let mut expected = columns.map(|column| {
        format!(
            "foreign-key public.entry: create index concurrently \"entry_{column}_idx\" on \"public\".\"entry\" (\"{column}\");"
        )
    });
    expected.sort();
    assert_eq!(indexes, expected);
    apply(&url, toml).await;
    assert_eq!(found(&url, toml).await, [""; 0]);
}

/// PostgreSQL compares the children's column as a number of another type, which no index on it serves.
#[tokio::test]
async fn no_index_is_advised_that_can_not_be_used() {
    let sql = "create table big (id numeric(10, 0) primary key);
        create table bigref (id int primary key, big_id int references big);";
    let toml = "[[resource]]\nname = 'b'\ntable = 'big'\n[[resource.children]]\nname = 'r'\ntable = 'bigref'\n";
    for index in ["", "create index on bigref (big_id);"] {
        assert_mended(&format!("{sql}{index}"), toml, &[]).await;
    }
}

/// A foreign key may reference a partition of a table.
#[tokio::test]
async fn rows_that_refer_to_a_partition_need_an_index() {
    let sql = "create table par (id int primary key) partition by list (id);
        create table par_0 partition of par for values in (0);
        create table whole (p int references par); create table leaf (p int references par_0);";
    let toml = "[[resource]]\nname = 'p'\ntable = 'par'\n";
    let expected = ["leaf", "whole"].map(|name| {
        format!("foreign-key public.{name}: create index concurrently \"{name}_p_idx\" on \"public\".\"{name}\" (\"p\");")
    });
    assert_mended(sql, toml, &expected.each_ref().map(String::as_str)).await;
}

/// PostgreSQL 18 need not read the whole of an index that begins with another column.
#[tokio::test]
async fn what_an_index_of_other_columns_costs_depends_on_the_version() {
    let url = TestCluster::database().await.url;
    execute(
        &url,
        "create table t (id int primary key, a int, b int); create index on t (a, b);
         insert into t select g, g % 2, g from generate_series(1, 5000) g; analyze t",
    )
    .await;
    let toml = "[[resource]]\nname = 't'\ntable = 't'\nfilters = ['b']\n";
    let findings = report(&url, toml).await.findings;
    let reasons: Vec<&str> = findings.iter().map(|finding| &*finding.reason).collect();
    let told =
        "the whole of it, or from PostgreSQL 18 on a part for each value of its first column";
    assert!(
        matches!(&*reasons, [reason] if reason.contains(told)),
        "{findings:?}"
    );
}

#[tokio::test]
async fn pages_need_the_key_behind_the_filter() {
    let toml = "[[resource]]\nname = 'o'\ntable = 'orders'\nfilters = ['status']\n";
    let table = "create table orders (id int primary key, status text collate \"C\");";
    let create = "create index concurrently \"orders_status_id_idx\" on \"public\".\"orders\" (\"status\", \"id\");";
    for (index, expected) in [
        (
            "create index old on orders (status)",
            format!(
                "column-order public.orders: {create} drop index concurrently \"public\".\"old\";"
            ),
        ),
        (
            "create index old on orders (status); cluster orders using old",
            format!("column-order public.orders: {create}"),
        ),
        (
            "create unique index old on orders (status, (id % 10))",
            format!("column-order public.orders: {create}"),
        ),
        (
            "create index old on orders (id, status)",
            format!("column-order public.orders: {create}"),
        ),
        (
            "create index old on orders using hash (status)",
            format!(
                "hash-range public.orders: {create} drop index concurrently \"public\".\"old\";"
            ),
        ),
        (
            "create index old on orders using brin (status)",
            format!("missing-index public.orders: {create}"),
        ),
    ] {
        assert_mended(&format!("{table}{index}"), toml, &[&expected]).await;
    }
}

#[tokio::test]
async fn rows_that_refer_to_deleted_ones_need_an_index() {
    let sql = format!("{SHOP}create table note (order_id int references orders, text text);");
    let url = TestCluster::database().await.url;
    execute(&url, &sql).await;
    execute(
        &url,
        "create index on item (order_id); create index on item (product_id); \
         create index on orders (customer_id); create index on orders (status, id)",
    )
    .await;
    let findings = report(&url, ORDERS).await.findings;
    let [finding] = findings.as_slice() else {
        panic!("{findings:?}");
    };
    assert_eq!(
        described(finding),
        "foreign-key public.note: create index concurrently \"note_order_id_idx\" on \"public\".\"note\" (\"order_id\");"
    );
    assert_eq!(finding.severity, Severity::Warning);
    // Neither larder nor any other client deletes customers.
    execute(
        &url,
        "drop table note; create table note (customer_id int references customer)",
    )
    .await;
    let findings = report(&url, ORDERS).await.findings;
    assert_eq!(findings[0].severity, Severity::Info);
    apply(&url, ORDERS).await;
    assert_eq!(found(&url, ORDERS).await, [""; 0]);
}
