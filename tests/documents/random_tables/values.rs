//! Values of every type that larder renders itself, and of some that it leaves to PostgreSQL.

use std::fmt::Write as _;

use fastrand::Rng;

/// A column's type and the values that are drawn for it.
pub(crate) struct RandomColumnType {
    pub(crate) sql: &'static str,
    /// The extremes, as SQL.
    extremes: &'static [&'static str],
    /// What else may come.
    random: ValueGenerator,
    pub(crate) sortable: bool,
}

/// A way to draw a value.
#[derive(Clone, Copy)]
enum ValueGenerator {
    Extreme,
    /// An integer of so many bits, sign and all.
    Integer(u32),
    Digits,
    Text,
    Uuid,
    /// Days around 2000-01-01, from the first to the last that there is.
    Day,
    Microsecond,
    Bytes,
}

use ValueGenerator::{Bytes, Day, Digits, Extreme, Integer, Microsecond, Text, Uuid};

/// Domains and types that the test creates.
pub(crate) fn setup() -> String {
    "create schema kinds; set search_path = kinds; \
     create domain d_int as int; create domain d_dint as d_int check (value <> 2000000000); \
     create domain d_text as text; create domain d_char as char(4); create domain d_ts as timestamp; \
     create domain d_num as numeric(12, 3); create domain d_jsonb as jsonb; create domain d_bytea as bytea; \
     create domain d_ints as int[]; \
     create type mood as enum ('fine', 'so \"so\"', ''); create domain d_mood as mood; \
     create type pair as (\"a b\" int, at timestamp, t text); set search_path = public; "
        .to_owned()
}

const TEXTS: &[&str] = &[
    "''",
    "' '",
    "E'\\x01\\x02\\x03\\x04\\x05\\x06\\x07\\b\\t\\n\\x0b\\f\\r\\x0e\\x0f\\x10\\x1f\\x7f'",
    "E'\"\\\\\\\"/'",
    "E'\\\\'",
    "E'\\u0080\\u2028\\u2029\\uffff\\U0001F600\\U0010FFFF'",
    "'null'",
    "repeat(E'a\"\\n', 700)",
];
const DAYS: &[&str] = &[
    "'infinity'",
    "'-infinity'",
    "'4714-11-24 BC'",
    "'0001-12-31 BC'",
    "'0001-01-01'",
    "'0005-02-29 BC'",
    "'9999-12-31'",
    "'10000-01-01'",
    "'5874897-12-31'",
    "'1999-12-31'",
    "'2000-02-29'",
    "'1900-03-01'",
];
const MOMENTS: &[&str] = &[
    "'infinity'",
    "'-infinity'",
    "'4714-11-24 00:00:00 BC'",
    "'0001-12-31 23:59:59.999999 BC'",
    "'0001-01-01 00:00:00'",
    "'294276-12-31 23:59:59.999999'",
    "'10000-01-01 00:00:00.5'",
    "'1999-12-31 23:59:59.999999'",
    "'2000-01-01 00:00:00.000001'",
    "'2000-01-01 00:00:00.1'",
    "'2024-02-29 12:30:00.012300'",
];
const NUMBERS: &[&str] = &[
    "'NaN'",
    "'Infinity'",
    "'-Infinity'",
    "0",
    "0.000",
    "-0.00",
    "10000",
    "9999.9999",
    "0.0001",
    "-0.00001000",
    "1e-20",
    "-1e25",
    "'1e131071'",
    "'1e-16383'",
    "100000000.00000001",
];

/// Of these a round has every one.
pub(crate) static TYPES: [RandomColumnType; 43] = [
    of("smallint", &["'-32768'", "32767", "0"], Integer(16)),
    of("int", &["'-2147483648'", "2147483647", "0"], Integer(32)),
    of(
        "bigint",
        &["'-9223372036854775808'", "9223372036854775807", "0"],
        Integer(64),
    ),
    of("numeric", NUMBERS, Digits),
    of("numeric(20, 5)", &["'NaN'", "0", "-0.000001"], Integer(40)),
    of("numeric(9, 0)", &["0", "-10000", "100000000"], Integer(28)),
    of("bool", &["true", "false"], Extreme),
    of("text", TEXTS, Text),
    of("varchar", TEXTS, Text),
    of("varchar(2000)", &["''"], Text),
    of("char(5)", &["''", "'a'", "'abcde'", "'  é'"], Extreme),
    of("char", &["''", "'x'"], Extreme),
    of("name", &["''", "'a name'", "E'q\"\\n'"], Extreme),
    of("uuid", &["'ffffffff-ffff-ffff-ffff-ffffffffffff'"], Uuid),
    of("date", DAYS, Day),
    of("timestamp", MOMENTS, Microsecond),
    of(
        "timestamptz",
        &[
            "'infinity'",
            "'-infinity'",
            "'0044-03-15 12:00:00+05:30 BC'",
            "'2024-06-01 00:00:00-13:59:59'",
        ],
        Microsecond,
    ),
    of("timestamp(0)", MOMENTS_WITHOUT_LAST, Microsecond),
    unsorted(
        "json",
        &[
            "'null'",
            "'{\"a\" : [1,  2.50]}'",
            "'\"\\u0041\"'",
            "' [ ] '",
            "'1e400'",
        ],
        Extreme,
    ),
    unsorted(
        "jsonb",
        &[
            "'null'",
            "'{\"b\": 1, \"a\": {\"c\": [1.500, \"\\u00e9\"]}}'",
            "'[]'",
            "'\"\"'",
        ],
        Extreme,
    ),
    of("kinds.d_int", &["'-2147483648'", "0"], Integer(32)),
    of("kinds.d_dint", &["0"], Integer(32)),
    of("kinds.d_text", TEXTS, Text),
    of("kinds.d_char", &["''", "'ab'"], Extreme),
    of("kinds.d_ts", MOMENTS, Microsecond),
    of("kinds.d_num", &["0", "-0.001", "'NaN'"], Integer(24)),
    unsorted("kinds.d_jsonb", &["'{\"a\": null}'", "'3.00'"], Extreme),
    // What follows is PostgreSQL's to render.
    unsorted("kinds.d_bytea", &["''", "'\\x00ff'"], Bytes),
    unsorted("kinds.d_ints", &["'{}'", "'{1,NULL,-3}'"], Extreme),
    unsorted("bytea", &["''", "'\\x00'", "'\\xfffe'"], Bytes),
    unsorted(
        "real",
        &["'NaN'", "'-Infinity'", "'-0'", "0.1", "1e30"],
        Integer(30),
    ),
    unsorted(
        "float8",
        &["'NaN'", "'Infinity'", "'-0'", "0.1", "1e300", "1e-7"],
        Integer(60),
    ),
    unsorted("interval", &["'1 year -2 days 03:04:05.6'", "'0'"], Extreme),
    unsorted(
        "int[]",
        &["'{}'", "'{{1,2},{3,NULL}}'", "'[0:1]={7,8}'"],
        Extreme,
    ),
    unsorted("text[]", &["'{\"a\\\"b\",NULL,\"\"}'"], Extreme),
    unsorted(
        "timestamp[]",
        &["'{infinity,2024-01-02 03:04:05.6,NULL}'", "'{}'"],
        Extreme,
    ),
    unsorted(
        "bytea[]",
        &["array['\\x00ff', null, '']::bytea[]", "'{}'"],
        Extreme,
    ),
    unsorted("kinds.mood", &["'fine'", "'so \"so\"'", "''"], Extreme),
    unsorted("kinds.d_mood", &["'so \"so\"'"], Extreme),
    unsorted(
        "kinds.pair",
        &[
            "row(1, '2024-01-02 03:04:05.6', E'\"\\n')::kinds.pair",
            "row(null, null, null)::kinds.pair",
        ],
        Extreme,
    ),
    unsorted("int4range", &["'[1,5)'", "'empty'"], Extreme),
    unsorted("inet", &["'10.0.0.1'", "'::1/64'"], Extreme),
    unsorted("timetz", &["'12:34:56.7+05:30'"], Extreme),
];

/// A second more would be beyond what a timestamp holds.
const MOMENTS_WITHOUT_LAST: &[&str] = &["'infinity'", "'1999-12-31 23:59:59.6'"];

const fn of(
    sql: &'static str,
    extremes: &'static [&'static str],
    random: ValueGenerator,
) -> RandomColumnType {
    RandomColumnType {
        sql,
        extremes,
        random,
        sortable: true,
    }
}

const fn unsorted(
    sql: &'static str,
    extremes: &'static [&'static str],
    random: ValueGenerator,
) -> RandomColumnType {
    RandomColumnType {
        sql,
        extremes,
        random,
        sortable: false,
    }
}

impl RandomColumnType {
    /// Whether the test creates it.
    pub(crate) fn is_of_user(&self) -> bool {
        self.sql.starts_with("kinds.")
    }

    /// SQL of a value.
    pub(crate) fn draw(&self, rng: &mut Rng) -> String {
        if rng.usize(..2) == 0 {
            return self.extremes[rng.usize(..self.extremes.len())].to_owned();
        }
        match self.random {
            Extreme => self.extremes[rng.usize(..self.extremes.len())].to_owned(),
            Integer(bits) => {
                // As many short as long ones.
                let kept = 1 + u32::try_from(rng.usize(..bits as usize)).unwrap();
                let number = rng.u64(..).cast_signed() >> (64 - kept);
                format!("'{number}'")
            }
            Digits => {
                let mut digits = |count: usize| -> String {
                    (0..count)
                        .map(|_| char::from(b'0' + rng.usize(..10) as u8 * rng.usize(..2) as u8))
                        .collect()
                };
                let (whole, fraction) = (digits(12), digits(9));
                let length = rng.usize(..9);
                format!("-{whole}.{}", &fraction[..length])
            }
            Text => {
                let mut text = String::from("E'");
                for _ in 0..rng.usize(..40) {
                    let character = match rng.usize(..4) {
                        0 => 1 + rng.usize(..0x7f),
                        1 => 0x80 + rng.usize(..0x700),
                        2 => 0x1_0000 + rng.usize(..0x1000),
                        _ => 0x20 + rng.usize(..0x5f),
                    };
                    write!(text, "\\U{character:08x}").unwrap();
                }
                text + "'"
            }
            Uuid => format!("'{:016x}{:016x}'", rng.u64(..), rng.u64(..)),
            Day => format!(
                "date '2000-01-01' + ({})",
                rng.usize(..5_000_000) as i64 - 2_400_000
            ),
            Microsecond => {
                // Two hundred thousand years forth, six thousand back; some at whole seconds.
                let second = rng.usize(..200_000_000) as i64 * 32_000 - 200_000_000_000;
                let fraction = rng.usize(..1_000_000) * rng.usize(..2);
                let second = if rng.usize(..2) == 0 {
                    second
                } else {
                    second / 5_000
                };
                // PostgreSQL 14 reads no more than 2^31 seconds.
                let (hour, second) = (second / 3_600, second % 3_600);
                format!(
                    "timestamp '2000-01-01' + interval '{hour} hours {second} seconds {fraction} microseconds'"
                )
            }
            Bytes => {
                let bytes: String = (0..rng.usize(..90))
                    .map(|_| format!("{:02x}", rng.usize(..256)))
                    .collect();
                format!("'\\x{bytes}'")
            }
        }
    }

    /// SQL of what `row_to_json` must be given for the JSON that larder promises of the column.
    pub(crate) fn json(&self, column: &str) -> String {
        match self.sql {
            "timestamp" | "timestamp(0)" | "kinds.d_ts" => format!("{column} at time zone 'UTC'"),
            "timestamp[]" => format!("{column}::timestamptz[]"),
            "kinds.pair" => format!(
                "case when {column} is distinct from null then (select p from (select ({column}).\"a b\", \
                 ({column}).at at time zone 'UTC' as at, ({column}).t) p) end"
            ),
            "bytea" | "kinds.d_bytea" => {
                format!("translate(encode({column}, 'base64'), E'\\n', '')")
            }
            "bytea[]" => format!(
                "(select array_to_json(coalesce(array_agg(translate(encode(v, 'base64'), E'\\n', '') order by n), '{{}}')) \
                 from unnest({column}) with ordinality u(v, n) where {column} is not null having {column} is not null)"
            ),
            _ => column.to_owned(),
        }
    }
}
