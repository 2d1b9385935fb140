//! Settings of role and database that change what an unprepared session reads, or keep it from reading at all.

use fastrand::Rng;

/// Settings of larder's role.
const OF_ROLE: [&str; 38] = [
    "default_transaction_isolation = 'repeatable read'",
    "default_transaction_isolation = 'serializable'",
    "default_transaction_read_only = on",
    "default_transaction_deferrable = on",
    "search_path = 'nowhere'",
    "search_path = 'public', 'pg_catalog'",
    "timezone = 'Asia/Kolkata'",
    "datestyle = 'German'",
    "datestyle = 'SQL, DMY'",
    "datestyle = 'Postgres, MDY'",
    "intervalstyle = 'iso_8601'",
    "intervalstyle = 'sql_standard'",
    "bytea_output = 'escape'",
    "extra_float_digits = '-3'",
    "extra_float_digits = 0",
    "xmlbinary = 'hex'",
    "xmloption = 'document'",
    "statement_timeout = '300ms'",
    "lock_timeout = '20ms'",
    "idle_in_transaction_session_timeout = '50ms'",
    "idle_session_timeout = '300ms'",
    "array_nulls = off",
    "standard_conforming_strings = off",
    "backslash_quote = off",
    "escape_string_warning = off",
    "transform_null_equals = on",
    "quote_all_identifiers = on",
    "enable_indexscan = off",
    "enable_nestloop = off",
    "plan_cache_mode = 'force_custom_plan'",
    "constraint_exclusion = off",
    "enable_partition_pruning = off",
    "work_mem = '64kB'",
    "synchronous_commit = off",
    "client_min_messages = 'debug1'",
    "check_function_bodies = off",
    "row_security = off",
    "client_encoding = 'LATIN1'",
];

/// Settings that only a superuser may set.
const OF_SUPERUSER: [&str; 3] = [
    "session_replication_role = 'replica'",
    "temp_file_limit = 0",
    "log_min_duration_statement = '-1'",
];

/// Settings of the database, which apply to users as well: their statements succeed under them.
const OF_DATABASE: [&str; 16] = [
    "default_transaction_isolation = 'repeatable read'",
    "default_transaction_isolation = 'serializable'",
    "default_transaction_read_only = on",
    "search_path = 'nowhere'",
    "timezone = 'America/St_Johns'",
    "datestyle = 'German'",
    "datestyle = 'SQL, DMY'",
    "intervalstyle = 'sql_standard'",
    "bytea_output = 'escape'",
    "extra_float_digits = '-3'",
    "array_nulls = off",
    "standard_conforming_strings = off",
    "transform_null_equals = on",
    "quote_all_identifiers = on",
    "temp_file_limit = 0",
    "enable_nestloop = off",
];

/// Settings of a user's session, under which its statements succeed.
pub(super) const OF_USERS: &str = "set default_transaction_read_only = off; set search_path = public; \
    set client_min_messages = warning; set jit = off";

/// Settings of the oracle's session, so that its text is what larder promises.
pub(super) const OF_ORACLE: &str = "set default_transaction_read_only = off; set search_path = public; \
    set default_transaction_isolation = 'read committed'; set timezone = 'UTC'; set datestyle = 'ISO, YMD'; \
    set intervalstyle = 'postgres'; set bytea_output = 'hex'; set extra_float_digits = 1; set lc_monetary = 'C'; \
    set quote_all_identifiers = off; set standard_conforming_strings = on; set array_nulls = on; \
    set transform_null_equals = off; set row_security = on; set temp_file_limit = -1; \
    set jit = off";

fn choose(rng: &mut Rng, from: &[&str], at_most: usize) -> Vec<String> {
    let mut drawn: Vec<String> = Vec::new();
    for _ in 0..rng.usize(..at_most + 1) {
        let setting = from[rng.usize(..from.len())];
        let name = setting.split(' ').next();
        if drawn.iter().all(|other| other.split(' ').next() != name) {
            drawn.push(setting.to_owned());
        }
    }
    drawn
}

pub(super) fn of_role(rng: &mut Rng, policies: bool) -> Vec<String> {
    let mut drawn = choose(rng, &OF_ROLE, 6);
    if !policies && rng.usize(..4) == 0 {
        drawn.extend(choose(rng, &OF_SUPERUSER, 2));
    }
    drawn
}

pub(super) fn of_database(rng: &mut Rng) -> Vec<String> {
    choose(rng, &OF_DATABASE, 2)
}
