//! The drawn schemas: tables at one to four levels, their columns, keys and constraints.

use serde_json::{Map, Value, json};

use crate::checks::differential_writes::triggers::{Trigger, draw_triggers};

/// The most tables of a document. Some are at the same level.
const TABLES_MAX: usize = 4;
/// Drawn values are below this, so that many are equal.
const SMALL: i64 = 12;
/// Drawn keys are below this.
pub(super) const KEYS: i64 = 20;

/// The columns of a row, by their names.
pub(super) type RowValues = Map<String, Value>;

/// A drawn schema: the tables of one resource.
#[derive(Clone, Debug)]
pub(super) struct Schema {
    pub(super) seed: u64,
    /// Of the schema in PostgreSQL and of the resource.
    pub(super) name: String,
    /// The root first, then each level after the one above it, in the order of the document's members.
    pub(super) levels: Vec<Level>,
    pub(super) triggers: Vec<Trigger>,
    /// A table outside the document whose rows refer to rows of a level.
    pub(super) outside: Option<Outside>,
}

/// The table of one level.
#[derive(Clone, Debug)]
pub(super) struct Level {
    /// Also the member of the document.
    pub(super) table: String,
    pub(super) parent: Option<usize>,
    pub(super) columns: Vec<Column>,
    /// The primary key consists of the link and the own key, else of the own key only.
    pub(super) is_link_in_key: bool,
    /// `on delete …` of the foreign key to the level above.
    pub(super) on_delete: &'static str,
    /// The foreign key is `deferrable initially deferred`.
    pub(super) is_deferred: bool,
}

/// The table outside the document.
#[derive(Clone, Debug)]
pub(super) struct Outside {
    pub(super) level: usize,
    pub(super) on_delete: &'static str,
}

#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) kind: Kind,
    pub(super) default: Filling,
    pub(super) is_nullable: bool,
    pub(super) unique: Uniqueness,
}

/// What a column is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A part of the own key; the document shows it.
    Key,
    /// A part of the foreign key to the level above; the document does not show it.
    Link,
    /// The document shows it.
    Shown,
    /// Only triggers write it.
    Hidden,
}

/// A type of PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Integer,
    Bigint,
    Text,
    Varchar,
    Numeric,
    Boolean,
    Json,
    Jsonb,
    Array,
    Range,
    /// A domain over `varchar(5)`.
    ShortDomain,
    /// A domain over `integer` with a check.
    SmallDomain,
}

/// Where a column's value comes from if an insertion does not name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filling {
    Nothing,
    Constant,
    Function,
    Sequence,
    IdentityByDefault,
    IdentityAlways,
    /// `generated always as (…) stored`
    Generated,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Uniqueness {
    None,
    Immediate,
    Deferrable,
    Deferred,
    /// An exclusion constraint.
    Exclusion,
}

impl Schema {
    /// Draws the schema that belongs to `seed`.
    pub(super) fn draw(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut levels = vec![draw_level(&mut rng, 0, None, &[])];
        add_levels_below(&mut rng, &mut levels, 0, 1);
        let outside = (rng.u8(..4) == 0).then(|| Outside {
            level: rng.usize(..levels.len()),
            on_delete: rng
                .choice(["cascade", "set null", "restrict", "no action"])
                .unwrap_or("cascade"),
        });
        let triggers = draw_triggers(&mut rng, &levels);
        Self {
            seed,
            name: format!("s{seed}"),
            levels,
            triggers,
            outside,
        }
    }

    /// The levels directly below `level`.
    pub(super) fn below(&self, level: usize) -> impl Iterator<Item = usize> {
        let numbered = self.levels.iter().enumerate();
        numbered.filter_map(move |(number, of)| (of.parent == Some(level)).then_some(number))
    }

    /// A table of the schema, as SQL names it.
    pub(super) fn table(&self, level: usize) -> String {
        format!("{}.{}", self.name, self.levels[level].table)
    }

    /// All tables whose contents are compared, without the table of audit rows.
    pub(super) fn tables(&self) -> Vec<String> {
        let mut tables: Vec<String> = (0..self.levels.len()).map(|n| self.table(n)).collect();
        tables.extend(
            self.outside
                .iter()
                .map(|_| format!("{}.outside", self.name)),
        );
        tables
    }

    /// The columns that sequences fill: level and column.
    pub(super) fn drawn_columns(&self) -> impl Iterator<Item = (usize, &Column)> {
        let numbered = self.levels.iter().enumerate();
        numbered.flat_map(|(number, level)| {
            let drawn = level.columns.iter().filter(|column| column.is_drawn());
            drawn.map(move |column| (number, column))
        })
    }
}

impl Level {
    /// The columns of the primary key.
    pub(super) fn primary_key(&self) -> Vec<&Column> {
        let links = self.links().filter(|_| self.is_link_in_key);
        links.chain(self.of_role(Role::Key)).collect()
    }

    /// The columns that refer to the primary key of the level above, in its order.
    pub(super) fn links(&self) -> impl Iterator<Item = &Column> {
        self.of_role(Role::Link)
    }

    pub(super) fn of_role(&self, role: Role) -> impl Iterator<Item = &Column> {
        self.columns
            .iter()
            .filter(move |column| column.role == role)
    }

    /// The columns that a document shows.
    pub(super) fn shown(&self) -> impl Iterator<Item = &Column> {
        let columns = self.columns.iter();
        columns.filter(|column| matches!(column.role, Role::Key | Role::Shown))
    }
}

impl Column {
    fn new(name: &str, role: Role, kind: Kind) -> Self {
        Self {
            name: name.to_owned(),
            role,
            kind,
            default: Filling::Nothing,
            is_nullable: role != Role::Key,
            unique: Uniqueness::None,
        }
    }

    /// Whether a sequence fills it.
    pub(super) fn is_drawn(&self) -> bool {
        matches!(
            self.default,
            Filling::Sequence | Filling::IdentityByDefault | Filling::IdentityAlways
        )
    }

    /// A literal of a value. In a column of JSON that can't be null, null is that of JSON.
    pub(super) fn literal(&self, value: &Value) -> String {
        match (self.kind, value) {
            (Kind::Json | Kind::Jsonb, Value::Null) if !self.is_nullable => "'null'".to_owned(),
            (kind, value) => kind.literal(value),
        }
    }

    /// A value that fits the column.
    pub(super) fn draw(&self, rng: &mut fastrand::Rng) -> Value {
        if self.is_nullable && rng.u8(..8) == 0 {
            return Value::Null;
        }
        let limit = if self.role == Role::Key || self.unique != Uniqueness::None {
            KEYS
        } else {
            SMALL
        };
        self.kind.value(rng.i64(0..limit))
    }

    /// A value that does not fit the column, if there is one.
    pub(super) fn draw_invalid(&self) -> Option<Value> {
        match self.kind {
            Kind::SmallDomain => Some(json!(5_000)),
            Kind::ShortDomain | Kind::Varchar => Some(json!("too long for it")),
            Kind::Json | Kind::Jsonb => None,
            _ if !self.is_nullable => Some(Value::Null),
            _ => None,
        }
    }
}

impl Kind {
    pub(super) const ALL: [Self; 12] = [
        Self::Integer,
        Self::Bigint,
        Self::Text,
        Self::Varchar,
        Self::Numeric,
        Self::Boolean,
        Self::Json,
        Self::Jsonb,
        Self::Array,
        Self::Range,
        Self::ShortDomain,
        Self::SmallDomain,
    ];

    /// The value of this type that belongs to a number. Different numbers have different values.
    pub(super) fn value(self, number: i64) -> Value {
        match self {
            Self::Integer | Self::Bigint | Self::SmallDomain | Self::Numeric => json!(number),
            Self::Text | Self::Varchar | Self::ShortDomain => json!(format!("t{number}")),
            Self::Boolean => json!(number % 2 == 0),
            Self::Json | Self::Jsonb => match number % 3 {
                0 => json!({"n": number}),
                1 => json!([number, null]),
                _ => json!(number),
            },
            Self::Array => json!([number, null, number + 1]),
            Self::Range => json!(format!("[{},{})", 3 * number, 3 * number + 3)),
        }
    }

    /// Its name; `schema` has the domains.
    pub(super) fn type_sql(self, schema: &str) -> String {
        match self {
            Self::Varchar => "varchar(6)".to_owned(),
            Self::ShortDomain => format!("{schema}.short"),
            Self::SmallDomain => format!("{schema}.small"),
            _ => self.plain_type_sql().to_owned(),
        }
    }

    /// The type below all domains, without a length.
    pub(super) fn plain_type_sql(self) -> &'static str {
        match self {
            Self::Integer | Self::SmallDomain => "integer",
            Self::Bigint => "bigint",
            Self::Text => "text",
            Self::Varchar | Self::ShortDomain => "varchar",
            Self::Numeric => "numeric",
            Self::Boolean => "boolean",
            Self::Json => "json",
            Self::Jsonb => "jsonb",
            Self::Array => "integer[]",
            Self::Range => "int4range",
        }
    }

    /// A literal of a value of this type.
    pub(super) fn literal(self, value: &Value) -> String {
        let text = match (self, value) {
            (_, Value::Null) => return "null".to_owned(),
            (Self::Json | Self::Jsonb, value) => value.to_string(),
            (_, Value::String(text)) => text.clone(),
            (_, Value::Array(elements)) => {
                let elements: Vec<String> = elements.iter().map(Value::to_string).collect();
                format!("{{{}}}", elements.join(","))
            }
            (_, value) => value.to_string(),
        };
        format!("'{}'", text.replace('\'', "''"))
    }
}

fn add_levels_below(rng: &mut fastrand::Rng, levels: &mut Vec<Level>, parent: usize, depth: usize) {
    // Most schemas have two or three levels.
    let count = match rng.u8(..8) {
        0 => 0,
        7 => 2,
        _ => usize::from(depth < 3 || rng.bool()),
    };
    for _ in 0..count {
        if levels.len() >= TABLES_MAX || depth >= 4 {
            return;
        }
        // larder links rows by integers, not by numbers without a scale.
        for column in &mut levels[parent].columns {
            if column.kind == Kind::Numeric && column.role == Role::Key {
                column.kind = Kind::Integer;
            }
        }
        let above: Vec<Kind> = levels[parent]
            .primary_key()
            .iter()
            .map(|column| column.kind)
            .collect();
        let number = levels.len();
        levels.push(draw_level(rng, number, Some(parent), &above));
        add_levels_below(rng, levels, number, depth + 1);
    }
}

/// Draws the table of a level below one whose primary key has the types `above`.
fn draw_level(
    rng: &mut fastrand::Rng,
    number: usize,
    parent: Option<usize>,
    above: &[Kind],
) -> Level {
    let is_link_in_key = parent.is_some() && rng.u8(..3) == 0;
    let on_delete = ["cascade", "set null", "restrict", "no action"];
    let on_delete = match rng.usize(..5) {
        1 if is_link_in_key => "cascade",
        4 => "no action",
        at => on_delete[at],
    };
    let mut columns = draw_key(rng, parent.is_none());
    for (part, kind) in above.iter().enumerate() {
        columns.push(Column {
            is_nullable: !is_link_in_key && (on_delete == "set null" || rng.bool()),
            ..Column::new(&format!("p{part}"), Role::Link, *kind)
        });
    }
    columns.push(Column::new("a", Role::Shown, Kind::Integer));
    columns.push(Column::new("b", Role::Shown, Kind::Text));
    for extra in 0..rng.usize(..3) {
        columns.push(draw_column(rng, &format!("c{extra}")));
    }
    if rng.u8(..4) == 0 {
        columns.push(Column {
            default: Filling::Generated,
            ..Column::new("g", Role::Hidden, Kind::Integer)
        });
    }
    columns.push(Column::new("note", Role::Hidden, Kind::Text));
    columns.push(Column {
        is_nullable: false,
        default: Filling::Constant,
        ..Column::new("gone", Role::Hidden, Kind::Boolean)
    });
    Level {
        table: format!("l{number}"),
        parent,
        columns,
        is_link_in_key,
        on_delete,
        is_deferred: rng.u8(..5) == 0 && on_delete != "restrict",
    }
}

fn draw_key(rng: &mut fastrand::Rng, is_root: bool) -> Vec<Column> {
    let key = |name: &str, kind| Column::new(name, Role::Key, kind);
    let filled = |default| {
        vec![Column {
            default,
            ..key("k", Kind::Integer)
        }]
    };
    match rng.u8(..8) {
        0 => filled(Filling::IdentityByDefault),
        1 => filled(Filling::IdentityAlways),
        2 => filled(Filling::Sequence),
        3 => vec![key("k", Kind::Text)],
        4 => vec![key("k", Kind::Integer), key("k2", Kind::Text)],
        5 if !is_root => vec![key("k", Kind::Numeric)],
        5 => vec![key("k", Kind::Bigint)],
        _ => vec![key("k", Kind::Integer)],
    }
}

fn draw_column(rng: &mut fastrand::Rng, name: &str) -> Column {
    let kind = Kind::ALL[rng.usize(..Kind::ALL.len())];
    let unique = match (kind, rng.u8(..10)) {
        (Kind::Boolean | Kind::Json | Kind::Jsonb | Kind::Array, _) => Uniqueness::None,
        (Kind::Range, 0..=6) => Uniqueness::Exclusion,
        (_, 0 | 1) => Uniqueness::Immediate,
        (_, 2) => Uniqueness::Deferrable,
        (_, 3) => Uniqueness::Deferred,
        (Kind::Integer, 4) => Uniqueness::Exclusion,
        _ => Uniqueness::None,
    };
    let default = match rng.u8(..6) {
        // All rows would have the same value.
        0 | 1 if unique != Uniqueness::None => Filling::Nothing,
        0 => Filling::Constant,
        1 => Filling::Function,
        2 if kind == Kind::Integer && rng.bool() => Filling::Sequence,
        _ => Filling::Nothing,
    };
    Column {
        name: name.to_owned(),
        role: Role::Shown,
        kind,
        default,
        is_nullable: rng.bool(),
        unique,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_draws_the_same_schema() {
        let drawn = |seed| format!("{:?}", Schema::draw(seed));
        assert_eq!(drawn(7), drawn(7));
        assert_ne!(drawn(7), drawn(8));
    }

    #[test]
    fn schemas_of_one_to_four_levels_are_drawn() {
        let depth = |schema: &Schema| {
            let mut depths = Vec::new();
            for level in &schema.levels {
                depths.push(level.parent.map_or(1, |parent| depths[parent] + 1));
            }
            depths.into_iter().max().unwrap_or_default()
        };
        let depths: Vec<usize> = (0..200).map(|seed| depth(&Schema::draw(seed))).collect();
        assert!((1..=4).all(|wanted| depths.contains(&wanted)));
    }

    #[test]
    fn literals_are_those_of_postgresql() {
        assert_eq!(Kind::Text.literal(&json!("it's")), "'it''s'");
        assert_eq!(Kind::Array.literal(&json!([1, null])), "'{1,null}'");
        assert_eq!(Kind::Json.literal(&json!([1, null])), "'[1,null]'");
        assert_eq!(Kind::Json.literal(&Value::Null), "null");
    }
}
