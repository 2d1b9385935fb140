//! What a history begins with: families of tables, resources on them, and hostile settings.

use std::fmt::Write as _;

use fastrand::Rng;

use crate::harness::cluster::TestCluster;
use crate::histories::hostile_settings;

/// Keys and parts are below it.
pub(super) const UNIVERSE: usize = 60;

/// The bound of a partition for the values from `from` to before `to`.
pub(super) fn bound(list: bool, from: usize, to: usize) -> String {
    if list {
        let values: Vec<String> = (from..to).map(|value| value.to_string()).collect();
        return format!("in ({})", values.join(", "));
    }
    format!("from ({from}) to ({to})")
}

/// What can be left out of a plan, as kinds of steps can be: followed tables that belong to others that are not
/// followed, settings of role and database, and so on.
pub(super) const TRAITS: [&str; 6] = [ANCESTORS, HOSTILE, LOGIN, POLICIES, POOLER, SUBSCRIPTIONS];
const ANCESTORS: &str = "ancestors";
const HOSTILE: &str = "hostile settings";
const LOGIN: &str = "login trigger";
const POLICIES: &str = "policies";
const POOLER: &str = "pooler";
const SUBSCRIPTIONS: &str = "subscriptions";

fn is_in(without: &[String], name: &str) -> bool {
    without.iter().any(|other| other == name)
}

/// Of PostgreSQL 18: a key that is no index of btree.
const OVERLAPS: &str =
    ", during int4range not null default '[1,3)', unique (id, part, during without overlaps)";

/// Logs each login, as in the manual's chapter on event triggers; PostgreSQL 17 or newer.
pub(super) const ON_LOGIN: &str = "create table who_came (at timestamptz, who name);
    create function note_login() returns event_trigger language plpgsql security definer
      as 'begin insert into public.who_came values (now(), session_user); end';
    create event trigger note_login on login execute function note_login();
";

/// How the tables of a family are related.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Form {
    Plain,
    /// By ranges or lists of `part`; the key is `id, part` in every member.
    Partitioned,
    /// The same, but only leaves have a key, which is `id`.
    KeyedLeaves,
    /// By ranges of `id`, which is the key of every member.
    PartitionedByKey,
    Inherited,
}

/// Tables with the same columns: `r0` is the topmost, its partitions or heirs are `r1`, `r2` and so on.
#[derive(Debug)]
pub(super) struct TableFamily {
    pub(super) prefix: char,
    pub(super) form: Form,
    pub(super) id_type: &'static str,
    /// After `id` and `part`.
    pub(super) columns: Vec<(&'static str, String)>,
    /// Name and whether it is a leaf, ancestors first.
    pub(super) members: Vec<(String, bool)>,
    /// What is below is followed by way of the top alone.
    only_top: bool,
    /// Columns and constraints that steps do not name, each after a comma.
    beside: &'static str,
    pub(super) sql: String,
}

/// Columns whose text depends on settings, with values.
pub(super) const VALUES: [(&str, &[&str]); 13] = [
    ("int", &["'7'", "'-1'", "null"]),
    ("numeric", &["'1.50'", "'NaN'", "null"]),
    ("float8", &["'0.30000000000000004'", "'1e300'", "'-0'"]),
    ("real", &["'0.1'", "'1e30'", "null"]),
    (
        "timestamptz",
        &["'2024-06-01 00:00:00+05:30'", "'infinity'", "null"],
    ),
    ("timestamp", &["'2024-02-29 12:30:00.0123'", "'-infinity'"]),
    ("date", &["'2024-02-03'", "'0044-03-15 BC'", "null"]),
    ("interval", &["'1 year -2 days 03:04:05.6'", "'-1 s'"]),
    ("bytea", &["'\\x00ff41'", "''", "null"]),
    ("money", &["'12.34'", "'-5'", "null"]),
    ("text[]", &["array['a', null, 'null', '']", "'{}'"]),
    ("jsonb", &["'{\"a\": [1.500, null]}'", "'null'"]),
    ("kinds.mood", &["'calm'", "'wild'", "null"]),
];

const ID_TYPES: [&str; 13] = [
    "int",
    "bigint",
    "smallint",
    "text",
    "varchar(40)",
    "numeric(10,0)",
    "uuid",
    "date",
    "timestamp(3)",
    "timestamptz",
    "inet",
    "cidr",
    "macaddr",
];

/// The text of the key of number `n`, as PostgreSQL writes it in the time zone UTC.
pub(super) fn id_text(id_type: &str, n: usize) -> String {
    match id_type {
        "timestamp(3)" => format!("2000-01-01 {:02}:{:02}:00.5", n / 60, n % 60),
        "timestamptz" => format!("0044-03-15 {:02}:{:02}:00+00 BC", n / 60, n % 60),
        "inet" => format!("2001:db8::{:x}/64", n + 1),
        "cidr" => format!("10.{}.{}.0/24", n / 256, n % 256),
        "macaddr" => format!("08:00:2b:01:{:02x}:{:02x}", n / 256, n % 256),
        "text" | "varchar(40)" => format!("k{n}"),
        "uuid" => format!("00000000-0000-4000-8000-{n:012}"),
        "date" => format!("2000-{:02}-{:02}", 1 + n / 28, 1 + n % 28),
        _ => n.to_string(),
    }
}

impl TableFamily {
    fn draw(
        rng: &mut Rng,
        prefix: char,
        columns: Vec<(&'static str, String)>,
        without: &[String],
    ) -> Self {
        let form = match (rng.usize(..8), prefix) {
            (0, _) => Form::Plain,
            (1 | 2, _) => Form::Inherited,
            (3 | 4, _) | (7, 'l') => Form::PartitionedByKey,
            (5, 'r' | 'c') => Form::Partitioned,
            (5, _) => Form::Plain,
            (6, _) if !is_in(without, ANCESTORS) => Form::KeyedLeaves,
            _ => Form::Partitioned,
        };
        let id_type = match (prefix, form) {
            ('r', Form::PartitionedByKey) => ID_TYPES[rng.usize(..2)],
            ('r', _) => ID_TYPES[rng.usize(..ID_TYPES.len())],
            _ => "int",
        };
        let has_newest = TestCluster::version() >= 18;
        let mut family = Self {
            prefix,
            form,
            id_type,
            columns,
            members: Vec::new(),
            only_top: is_in(without, ANCESTORS),
            beside: match rng.usize(..8) {
                0 => ", made int generated always as (part * 2) stored",
                1 if has_newest => ", made int generated always as (part * 2) virtual",
                2 if has_newest => ", check (part < 0) not enforced",
                // Its operator class is that of inet.
                3 if has_newest && id_type != "cidr" => OVERLAPS,
                _ => "",
            },
            sql: String::new(),
        };
        let depth = 1 + rng.usize(..3);
        family.top();
        match form {
            Form::Plain => {}
            Form::Inherited => family.heirs(rng, depth),
            _ => family.parts(rng, &format!("{prefix}0"), false, depth, (0, UNIVERSE)),
        }
        family
    }

    /// The columns that identify a row of a member.
    pub(super) fn key(&self) -> &'static [&'static str] {
        match self.form {
            Form::Partitioned => &["id", "part"],
            _ => &["id"],
        }
    }

    /// The column that decides the partition.
    pub(super) fn partition_column(&self) -> &'static str {
        match self.form {
            Form::PartitionedByKey => "id",
            _ => "part",
        }
    }

    pub(super) fn is_partitioned(&self) -> bool {
        !matches!(self.form, Form::Plain | Form::Inherited)
    }

    fn add(&mut self, leaf: bool) -> String {
        let name = format!("{}{}", self.prefix, self.members.len());
        self.members.push((name.clone(), leaf));
        name
    }

    fn top(&mut self) {
        let name = self.add(!self.is_partitioned());
        let mut sql = format!(
            "create table {name} (id {} not null, part int not null, label text",
            self.id_type
        );
        for (column, of_type) in &self.columns {
            write!(sql, ", {column} {of_type}").unwrap();
        }
        sql.push_str(self.beside);
        if self.form != Form::KeyedLeaves {
            write!(sql, ", primary key ({})", self.key().join(", ")).unwrap();
        }
        sql.push(')');
        if self.is_partitioned() {
            write!(sql, " partition by range ({})", self.partition_column()).unwrap();
        }
        self.sql = sql + ";\n";
    }

    /// Heirs, up to `depth` levels of them, some with two parents.
    fn heirs(&mut self, rng: &mut Rng, depth: usize) {
        for level in 0..depth {
            let count = 1 + rng.usize(..2);
            let uppers = self.members.len();
            for _ in 0..count {
                let mut parents = self.members[if level == 0 {
                    0
                } else {
                    1 + rng.usize(..uppers - 1)
                }]
                .0
                .clone();
                let other = &self.members[rng.usize(..uppers)].0;
                if level > 0 && *other != parents && !other.ends_with('0') && rng.usize(..4) == 0 {
                    parents = format!("{parents}, {other}");
                }
                let name = self.add(true);
                writeln!(
                    self.sql,
                    "create table {name} (extra{name} int default 5, primary key (id)) inherits ({parents});"
                )
                .unwrap();
            }
        }
    }

    /// Partitions of `upper` for the values of `span`, `depth` levels of them at most.
    fn parts(
        &mut self,
        rng: &mut Rng,
        upper: &str,
        list: bool,
        depth: usize,
        span: (usize, usize),
    ) {
        let by = self.partition_column();
        let (low, high) = span;
        let pieces = 2 + rng.usize(..2);
        // Some values have no partition yet.
        let covered = high - rng.usize(..2) * ((high - low) / 5);
        let width = (covered - low).div_ceil(pieces);
        for piece in 0..pieces {
            let (from, to) = (
                low + piece * width,
                (low + (piece + 1) * width).min(covered),
            );
            if from >= to {
                continue;
            }
            let deeper = depth > 1 && to - from >= 6 && rng.usize(..3) > 0;
            let name = self.add(!deeper);
            let bound = bound(list, from, to);
            write!(
                self.sql,
                "create table {name} partition of {upper} for values {bound}"
            )
            .unwrap();
            if deeper {
                let list = rng.usize(..2) == 0;
                let strategy = if list { "list" } else { "range" };
                writeln!(self.sql, " partition by {strategy} ({by});").unwrap();
                self.parts(rng, &name, list, depth - 1, (from, to));
            } else if self.form == Form::KeyedLeaves {
                writeln!(self.sql, "; alter table {name} add primary key (id);").unwrap();
            } else {
                self.sql.push_str(";\n");
            }
        }
    }

    /// A member that can be a resource's table, a child's or a lookup's.
    fn followed(&self, rng: &mut Rng) -> String {
        if self.only_top {
            return self.members[0].0.clone();
        }
        let keyed: Vec<&str> = self
            .members
            .iter()
            .filter(|(_, leaf)| *leaf || self.form != Form::KeyedLeaves)
            .map(|(name, _)| name.as_str())
            .collect();
        keyed[rng.usize(..keyed.len())].to_owned()
    }
}

/// A resource of `larder.toml`.
#[derive(Debug)]
pub(super) struct PlannedResource {
    pub(super) name: &'static str,
    pub(super) table: String,
    pub(super) key: Vec<&'static str>,
    /// Every column if absent.
    pub(super) fields: Option<Vec<&'static str>>,
    pub(super) lookup: Option<String>,
    pub(super) child: Option<PlannedChild>,
}

/// The children of a resource's rows.
#[derive(Debug)]
pub(super) struct PlannedChild {
    pub(super) table: String,
    pub(super) foreign_key: Vec<&'static str>,
    /// By the primary key if absent.
    pub(super) order_by: Option<Vec<&'static str>>,
    pub(super) lookup: Option<String>,
}

/// What is drawn before the first step.
#[derive(Debug)]
pub(super) struct Plan {
    /// Roots, children, lookups.
    pub(super) families: [TableFamily; 3],
    pub(super) resources: Vec<PlannedResource>,
    pub(super) sql: String,
    pub(super) toml: String,
    /// Settings of larder, as flags would give them.
    pub(super) overrides: Vec<(&'static str, &'static str)>,
    /// larder's role is no superuser, and subject to policies.
    pub(super) policies: bool,
    /// A subscription fills some table.
    pub(super) subscribed: bool,
    /// There is a trigger that writes when a session begins.
    pub(super) has_login_trigger: bool,
    /// Settings of larder's role and of the database.
    pub(super) of_role: Vec<String>,
    pub(super) of_database: Vec<String>,
}

impl Plan {
    pub(super) fn draw(rng: &mut Rng, without: &[String]) -> Self {
        let value = |rng: &mut Rng| ("v", VALUES[rng.usize(..VALUES.len())].0.to_owned());
        let mut columns = vec![("ref", "int".to_owned()), value(rng)];
        let roots = TableFamily::draw(rng, 'r', columns.clone(), without);
        columns.push(("up", roots.id_type.to_owned()));
        if roots.form == Form::Partitioned {
            columns.push(("up_part", "int".to_owned()));
        }
        let children = TableFamily::draw(rng, 'c', columns, without);
        let column = value(rng);
        let lookups = TableFamily::draw(rng, 'l', vec![column], without);
        let policies = rng.usize(..4) == 0 && !is_in(without, POLICIES);
        let mut resources = Vec::new();
        for name in ["a", "b"] {
            if name == "a" || rng.usize(..3) == 0 {
                let families = [&roots, &children, &lookups];
                resources.push(PlannedResource::draw(rng, name, families));
            }
        }
        let tiers = ["'memory', 'disk'", "'memory', 'disk'", "'memory'", "'disk'"][rng.usize(..4)];
        let toml: Vec<String> = resources
            .iter()
            .map(|resource| resource.toml(tiers, policies))
            .collect();
        let mut sql = create_families(rng, [&roots, &children, &lookups]);
        for resource in &resources {
            resource.links(rng, &children, &mut sql);
        }
        let mut overrides = vec![("disk.linger", "10ms")];
        match rng.usize(..4) {
            0 => overrides.push(("feed.keys_per_statement", "2")),
            1 => overrides.push(("feed.keys_per_statement", "10")),
            _ => {}
        }
        if rng.usize(..5) == 0 && !is_in(without, POOLER) {
            overrides.push(("database.pooler", "true"));
        }
        let mut of_role = hostile_settings::of_role(rng, policies);
        let mut of_database = hostile_settings::of_database(rng);
        let subscribed = !policies && rng.usize(..5) == 0 && !is_in(without, SUBSCRIPTIONS);
        if subscribed {
            // What replication applies may be read-only by default, but no trigger can write then.
            of_database.retain(|setting| !setting.contains("read_only"));
        }
        if is_in(without, HOSTILE) {
            (of_role, of_database) = (Vec::new(), Vec::new());
        }
        // Nobody could log in if what the trigger does were refused.
        let mut settings = of_role.iter().chain(&of_database);
        let has_login_trigger = TestCluster::version() >= 17
            && rng.usize(..4) == 0
            && !is_in(without, LOGIN)
            && !settings.any(|setting| setting.contains("read_only"));
        Self {
            resources,
            sql,
            toml: toml.concat(),
            overrides,
            policies,
            subscribed,
            has_login_trigger,
            of_role,
            of_database,
            families: [roots, children, lookups],
        }
    }

    pub(super) fn family(&self, prefix: char) -> Option<&TableFamily> {
        self.families.iter().find(|family| family.prefix == prefix)
    }
}

/// SQL that creates the tables of the families, with views of them.
fn create_families(rng: &mut Rng, families: [&TableFamily; 3]) -> String {
    let mut sql =
        String::from("create schema kinds; create type kinds.mood as enum ('calm', 'wild');\n");
    if families
        .iter()
        .any(|family| family.beside.contains(OVERLAPS))
    {
        sql.push_str("create extension btree_gist;\n");
    }
    for family in families {
        sql.push_str(&family.sql);
        let top = &family.members[0].0;
        let other = &family.members[rng.usize(..family.members.len())].0;
        for of in [top, other] {
            let view =
                format!("create or replace view {of}_v as select id, part, label from {of};");
            writeln!(sql, "{view}").unwrap();
        }
    }
    sql
}

impl PlannedResource {
    fn draw(
        rng: &mut Rng,
        name: &'static str,
        [roots, children, lookups]: [&TableFamily; 3],
    ) -> Self {
        let key = roots.key().to_vec();
        let fields = (rng.usize(..4) == 0).then(|| {
            let mut fields = vec!["label", "id", "ref"];
            fields.truncate(1 + rng.usize(..3));
            fields
        });
        // What is looked up has one column as its key.
        let lookup = |rng: &mut Rng| {
            (lookups.key().len() == 1 && rng.usize(..2) == 0).then(|| lookups.followed(rng))
        };
        let child = (rng.usize(..3) > 0).then(|| PlannedChild {
            table: children.followed(rng),
            foreign_key: ["up", "up_part"][..key.len()].to_vec(),
            order_by: (rng.usize(..2) == 0).then(|| vec!["label", "id"]),
            lookup: lookup(rng),
        });
        Self {
            name,
            table: roots.followed(rng),
            key,
            fields,
            lookup: lookup(rng),
            child,
        }
    }

    fn toml(&self, tiers: &str, policies: bool) -> String {
        let mut toml = format!(
            "[[resource]]\nname = '{}'\ntable = 'public.{}'\nkey = {:?}\ntiers = [{tiers}]\n",
            self.name, self.table, self.key
        );
        if policies {
            toml.push_str("row_security = 'as-larder'\n");
        }
        if let Some(fields) = &self.fields {
            let fields: Vec<String> = fields
                .iter()
                .map(|name| format!("{name} = 'm_{name}'"))
                .collect();
            writeln!(toml, "fields = {{ {} }}", fields.join(", ")).unwrap();
        }
        if let Some(child) = &self.child {
            write!(
                toml,
                "[[resource.children]]\nname = 'below'\ntable = '{}'\nforeign_key = {:?}\n",
                child.table, child.foreign_key
            )
            .unwrap();
            if let Some(order_by) = &child.order_by {
                writeln!(toml, "order_by = {order_by:?}").unwrap();
            }
            if let Some(table) = &child.lookup {
                write!(
                    toml,
                    "[[resource.children.lookups]]\nname = 'seen'\ntable = '{table}'\ncolumn = 'ref'\nreferences = 'id'\n"
                )
                .unwrap();
            }
        }
        if let Some(table) = &self.lookup {
            write!(
                toml,
                "[[resource.lookups]]\nname = 'seen'\ntable = '{table}'\ncolumn = 'ref'\nreferences = 'id'\n"
            )
            .unwrap();
        }
        toml
    }

    /// Indexes by which passes join, and sometimes a foreign key.
    fn links(&self, rng: &mut Rng, children: &TableFamily, sql: &mut String) {
        writeln!(sql, "create index on {} (ref);", self.table).unwrap();
        let Some(child) = &self.child else {
            return;
        };
        let columns = child.foreign_key.join(", ");
        writeln!(sql, "create index on {} ({columns});", child.table).unwrap();
        if children.form == Form::Plain && rng.usize(..2) == 0 {
            let is_enforced = TestCluster::version() < 18 || rng.usize(..2) != 0;
            let enforced = if is_enforced { "" } else { " not enforced" };
            writeln!(
                sql,
                "alter table {} add foreign key ({columns}) references {} ({}) on update cascade on delete cascade{enforced};",
                child.table,
                self.table,
                self.key.join(", ")
            )
            .unwrap();
        }
    }
}
