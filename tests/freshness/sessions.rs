//! Clients whose sessions have unusual settings, or which have no rights on schema larder.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::documents::shapes::documented;
use crate::documents::{CONFIG, ROWS, SCHEMA};
use crate::freshness::testbed::FreshnessTestbed;

/// Touches roots, children and lookups of every type of key, each time with other values.
const TOUCH: &str = r#"
  update "Sales"."Orders" set title = coalesce(title, '') || '.' where "orderNo" in (1, 3);
  update "Sales"."Line" set qty = coalesce(qty, 0) + 1 where id in (1, 5);
  update "Sales".note set body = body || '.' where id in (1, 4);
  update "Sales".region set title = title || '.' where id = 2;
  update "Sales".product set title = title || '.' where price is null;
  update "Sales".account set owner = owner || '.' where no > 1;
  update "Sales".entry set sum = sum - 1 where account = -5;
  update "Sales".country set title = title || '.' where code = 'a,b';
  update "Sales".day set holiday = not coalesce(holiday, false) where day > '0001-01-01' or day < '0001-01-01 BC';
  update "Sales".event set at = at - interval '1 minute';
  update "Sales".person set visits = visits + 1 where name like '%,%';
  update "Sales".meter set label = coalesce(label, '') || '.' where zone = 'n,w';
  update "Sales".kind set f8 = coalesce(f8, 0) + 0.1, ts = '2024-03-04 05:06', bin = '\x0102' where id in (0, 1);
"#;

/// Functions that a trigger would call if it used the session's search path.
const EVIL: &str = r#"
  create schema evil;
  create table evil.change (xid xid8, path text, key text);
  create table evil.larder_old (like evil.change);
  create table evil.larder_new (like evil.change);
  create function evil.now() returns int language sql as 'select 1';
  create function evil.count(anyelement) returns int language sql as 'select 0';
  create function evil.bad(anyelement) returns text language sql as $$ select 'bad'::text $$;
  create function evil.bad(text, text) returns text language sql as $$ select 'bad'::text $$;
  create function evil.concat(anyelement) returns text language sql as $$ select 'bad'::text $$;
  create function evil.to_json(anyelement) returns json language sql as $$ select '"bad"'::json $$;
  create function evil.rtrim(text, text) returns text language sql as $$ select 'bad'::text $$;
  create function evil.replace(text, text, text) returns text language sql as $$ select 'bad'::text $$;
  create function evil.fail(bigint, int) returns bool language sql as 'select 1 / 0 = 0';
  create function evil.pg_try_advisory_xact_lock(int, int) returns bool language sql as 'select 1 / 0 = 0';
  create function evil.never(text, text) returns bool language sql as 'select false';
  create operator evil.|| (leftarg = text, rightarg = text, function = evil.bad);
  create operator evil.> (leftarg = bigint, rightarg = int, function = evil.fail);
  create operator evil.= (leftarg = text, rightarg = text, function = evil.never);
"#;

async fn raw(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(connection)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sessions_settings_hide_nothing() {
    let mut testbed = FreshnessTestbed::start().await;
    raw(&mut testbed.connect().await, EVIL).await;
    for settings in [
        "set session_replication_role = replica",
        "set session_replication_role = local",
        "set datestyle = 'SQL, DMY'; set intervalstyle = iso_8601",
        "set datestyle = 'German'; set timezone = 'Asia/Kathmandu'",
        "set datestyle = 'Postgres, MDY'; set extra_float_digits = -15; set bytea_output = 'escape'",
        "set search_path = evil, pg_catalog, larder; create temp table change (xid xid8, path text, key text)",
        "set search_path = ''; set lc_numeric = 'C'; set quote_all_identifiers = on; set row_security = off",
        "set default_transaction_isolation = serializable; set synchronous_commit = off",
        "set default_transaction_isolation = 'repeatable read'; set plan_cache_mode = force_generic_plan; set jit_above_cost = 0",
    ] {
        let mut connection = testbed.connect().await;
        raw(&mut connection, settings).await;
        raw(&mut connection, TOUCH).await;
        connection.close().await.unwrap();
        testbed.settle(settings).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_rights_on_larder_writes_and_is_seen() {
    let hardened = "alter default privileges revoke execute on functions from public;";
    let mut testbed = FreshnessTestbed::without_larder(&format!("{hardened}{SCHEMA}{ROWS}")).await;
    testbed.add(CONFIG, documented(), &[]).await;
    testbed.warm().await;
    let role = format!("writer_{}", uuid::Uuid::new_v4().simple());
    let mut connection = testbed.connect().await;
    raw(
        &mut connection,
        &format!(
            "create role {role}; grant usage on schema \"Sales\" to {role}; \
             grant select, insert, update, delete, truncate on all tables in schema \"Sales\" to {role}"
        ),
    )
    .await;
    // A grant changes what is compared in each pass, and everything is checked again.
    testbed.become_right("grants").await;
    raw(&mut connection, &format!("set role {role}; {TOUCH}")).await;
    testbed.settle("writes under set role").await;
    raw(
        &mut connection,
        &format!("reset role; set session authorization {role}; {TOUCH}"),
    )
    .await;
    testbed.settle("writes by the role").await;
    let denied = sqlx::query("select 1 from larder.change")
        .fetch_all(&mut connection)
        .await;
    assert!(
        denied
            .unwrap_err()
            .to_string()
            .contains("permission denied")
    );
    raw(&mut connection, "truncate \"Sales\".tag").await;
    testbed
        .settle_beyond("the role's truncate", &["/orders/"])
        .await;
    connection.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_and_deferred_constraints_are_seen() {
    let mut testbed = FreshnessTestbed::start().await;
    let mut connection = testbed.connect().await;
    let body = TOUCH.replace('\'', "''");
    raw(
        &mut connection,
        &format!(
            "create function touch() returns void language sql as '{body}'; \
             create function late() returns trigger language plpgsql as $$ begin \
               update \"Sales\".note set body = 'late' where line_id = new.id; \
               update \"Sales\".country set continent = new.qty::text where code = '50%'; return null; end $$; \
             create constraint trigger late after update on \"Sales\".\"Line\" deferrable initially deferred \
               for each row execute function late(); \
             create function early() returns trigger language plpgsql as $$ begin \
               new.\"Branch\" := 'moved'; return new; end $$; \
             create trigger early before update on \"Sales\".\"Orders\" for each row when (old.\"Branch\" = 'plain') \
               execute function early()"
        ),
    )
    .await;
    testbed.become_right("new triggers").await;
    raw(&mut connection, "select touch()").await;
    testbed.settle("a function").await;
    raw(
        &mut connection,
        "begin; update \"Sales\".\"Line\" set qty = 8 where id in (2, 4)",
    )
    .await;
    testbed
        .settle("an open transaction with deferred work")
        .await;
    raw(&mut connection, "commit").await;
    testbed.settle("what was deferred to the commit").await;
    raw(
        &mut connection,
        "update \"Sales\".\"Orders\" set title = 'x' where \"Branch\" = 'plain'",
    )
    .await;
    testbed
        .settle("a key changed by a trigger before the update")
        .await;
    connection.close().await.unwrap();
}
