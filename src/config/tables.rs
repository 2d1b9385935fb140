//! The tables that are no sections: the one place that knows what `[[resource]]`, its owner, aliases, children and
//! lookups, `[[auth.user]]` and `[[auth.key]]` contain. `config/dispatch.rs` has `[[dispatch]]`.
//!
//! Reading the file, suggestions for unknown keys, `config --example` and `config --dump` all walk
//! [`PropertyTable::PROPERTIES`].

mod value;

use std::collections::BTreeMap;

use self::value::Input;
pub(super) use self::value::PropertyValue;
use self::value::PropertyValue::{
    AliasName, Aliases, Children, Claim, Claims, Column, Columns, Condition, FieldName, Fields,
    Filters, Flag, HeaderValue, JoinColumns, KeyHash, Lookups, OptionalColumn, Owner, Password,
    PrincipalName, PrincipalRoles, Relation, ResourceName, Roles, RowSecurity, TierList,
};
use super::names::UniqueNames;
use super::text::{TomlReader, TomlValue};
use crate::auth::config::{KeyDefinition, Secret, UserDefinition};
use crate::resource::definition::{
    AliasDefinition, ChildDefinition, Located, LookupDefinition, OwnerDefinition, Place,
    ResourceDefinition, RowDefinition,
};

/// The arrays of tables in section `[auth]`.
pub(super) const PRINCIPALS: [&str; 2] = ["auth.user", "auth.key"];

/// A table whose keys are properties.
pub(super) trait PropertyTable: Sized + 'static {
    /// What the example file says about it.
    const HELP: &'static str;
    /// What it may contain, in the order of the example file.
    const PROPERTIES: &'static [Property<Self>];

    /// What the properties are read into; a required one that is missing is located at `place`.
    fn unset(place: &Place) -> Self;
}

/// A key of a table, and what its value is.
pub(super) struct Property<T> {
    pub(super) key: &'static str,
    /// For the reader of the example file; empty if the key says enough.
    pub(super) help: &'static str,
    /// The value in the example file as TOML; empty for an array of tables.
    pub(super) example: &'static str,
    /// Whether the example file sets it, as the demo does, or shows it behind a `#`.
    pub(super) is_set: bool,
    /// The way into the definition, with the type.
    pub(super) value: PropertyOf<T>,
}

type PropertyOf<T> = fn(&mut T) -> PropertyValue<'_>;

impl<T> Property<T> {
    const fn set(key: &'static str, example: &'static str, value: PropertyOf<T>) -> Self {
        Self {
            key,
            help: "",
            example,
            is_set: true,
            value,
        }
    }

    pub(super) const fn commented(
        key: &'static str,
        example: &'static str,
        value: PropertyOf<T>,
    ) -> Self {
        Self {
            is_set: false,
            ..Self::set(key, example, value)
        }
    }

    pub(super) const fn help(self, help: &'static str) -> Self {
        Self { help, ..self }
    }
}

/// Reads the array of tables at the dotted key `path`; empty if it is absent.
///
/// The names of the tables are claimed in `names`. A value that can't be used is left unset, and the reader has the
/// mistake.
pub(super) fn read<T: PropertyTable>(
    array: Option<&TomlValue<'_>>,
    path: &str,
    names: &mut UniqueNames,
    reader: &mut TomlReader<'_>,
) -> Vec<T> {
    let items = reader.list(array, path).iter().enumerate();
    let read = items
        .filter_map(|(index, item)| read_table(item, format!("{path}[{index}]"), names, reader));
    read.collect()
}

/// Reads the table at the dotted key `path`, as [`read`] does.
fn read_table<T: PropertyTable>(
    item: &TomlValue<'_>,
    path: String,
    names: &mut UniqueNames,
    reader: &mut TomlReader<'_>,
) -> Option<T> {
    let known: Vec<&str> = T::PROPERTIES.iter().map(|property| property.key).collect();
    let table = reader.table(item, path, &known)?;
    let mut definition = T::unset(&reader.text.place(table.at, table.path.as_str()));
    let mut names_within = UniqueNames::default();
    for property in T::PROPERTIES {
        let value = (property.value)(&mut definition);
        let path = table.path_of(property.key);
        match table.entries.get(property.key) {
            Some(toml) => value.read(Input {
                value: toml,
                path: &path,
                names,
                names_within: &mut names_within,
                reader,
            }),
            None if value.is_required() => {
                let message = format!("`{}` is missing", property.key);
                reader.refuse(table.at, path, message);
            }
            None => {}
        }
    }
    Some(definition)
}

impl PropertyTable for ResourceDefinition {
    const HELP: &'static str = "One resource: the JSON documents under /depts/KEY.";
    const PROPERTIES: &'static [Property<Self>] = &[
        Property::<Self>::set("name", r#""depts""#, |r| ResourceName(&mut r.name))
            .help("The path segment."),
        Property::<Self>::set("table", r#""public.dept""#, |r| Relation(&mut r.table))
            .help("The root table; a document is one of its rows."),
        Property::<Self>::set("key", r#""deptno""#, |r| Columns(&mut r.key)).help(
            "The columns of the key, which are unique in the table: one, or a list such as [\"no\", \
             \"shop\"] for /orders/7,NO.\nAbsent: the primary key.",
        ),
        Property::<Self>::commented("where", r#""deleted_at is null""#, |r| {
            Condition(&mut r.row.condition)
        })
        .help(
            "An SQL condition on the table's own columns, with PostgreSQL's immutable functions and operators: rows for \
             which it is not\ntrue do not exist for larder. Children and lookups may have one, too.",
        ),
        Property::<Self>::commented("tiers", r#"["memory", "disk"]"#, |r| TierList(&mut r.tiers))
            .help("The tiers in use. []: every request reads PostgreSQL."),
        Property::<Self>::commented("row_security", r#""as-larder""#, |r| {
            RowSecurity(&mut r.row_security_as_larder)
        })
        .help(
            "A table with row security is refused, unless every client may see the rows that larder's \
             role sees.",
        ),
        Property::<Self>::commented("filters", r#"["deptLocation"]"#, |r| {
            Filters(&mut r.filters)
        })
        .help(
            "Fields that lists can be filtered by, as in /depts?deptLocation=eq.BOSTON; each column \
             should have an index.",
        ),
        Property::<Self>::commented("cache_control", r#""public, max-age=1""#, |r| {
            HeaderValue(&mut r.cache_control)
        })
        .help("Value of Cache-Control. Absent: \"no-cache\", so that caches revalidate each time."),
        Property::<Self>::commented("surrogate_key", r#""dept-{key} depts""#, |r| {
            HeaderValue(&mut r.surrogate_key)
        })
        .help(
            "Value of Surrogate-Key, by which shared caches purge; {key} is replaced by the \
             document's key. Absent: none.",
        ),
        Property::<Self>::commented("strict_reads", "true", |r| Flag(&mut r.strict_reads)).help(
            "Reads with Cache-Control: no-cache or max-age=0 reflect all that had committed when they arrived. \
             false: they are\nlike others, for browsers that reload.",
        ),
        Property::<Self>::commented("read", r#"["anonymous"]"#, |r| Roles(&mut r.read)).help(
            "The roles that may read (GET), and those that may write (POST, PUT, PATCH, DELETE); \
             \"anonymous\" needs no credentials.\nAbsent: every authenticated client. []: no client.",
        ),
        Property::<Self>::commented("write", r#"["staff"]"#, |r| Roles(&mut r.write)),
        Property::<Self>::set(
            "fields",
            r#"{ deptno = "deptNumber", dname = "deptName", loc = "deptLocation" }"#,
            |r| Fields(&mut r.row.fields),
        )
        .help(
            "Column = name in the document, in the document's order; or a list of columns that keep \
             their names, such as [\"deptno\", \"loc\"].\nAbsent: every column under its own name.",
        ),
        Property::<Self>::commented("owner", "", |r| Owner(&mut r.owner)),
        Property::<Self>::commented("by", "", |r| Aliases(&mut r.by)),
        Property::<Self>::set("children", "", |r| Children(&mut r.row.children)),
        Property::<Self>::set("lookups", "", |r| Lookups(&mut r.row.lookups)),
    ];

    fn unset(place: &Place) -> Self {
        Self::new(unset(place), unset(place), unset_row())
    }
}

impl PropertyTable for OwnerDefinition {
    const HELP: &'static str = "The owner of a document: clients without a role that is unrestricted read, list and \
         write only their own documents;\nthose of others do not exist for them.";
    const PROPERTIES: &'static [Property<Self>] = &[
        Property::<Self>::commented("column", r#""manager""#, |o| Column(&mut o.column)).help(
            "The root table's column that holds the owner, shown or not; together with the key it \
             should have an index.",
        ),
        Property::<Self>::commented("claim", r#""sub""#, |o| Claim(&mut o.claim)).help(
            "The claim of a client that equals the owner: of a token (its name, or a dotted path), \
             else one of the claims of the\nuser or the key.",
        ),
        Property::<Self>::commented("roles", r#"["staff"]"#, |o| Roles(&mut o.roles)).help(
            "Those roles of read and write that are restricted. A client that has none of the roles of \
             read or write is restricted, too.",
        ),
    ];

    fn unset(place: &Place) -> Self {
        Self {
            column: unset(place),
            claim: unset(place),
            roles: None,
        }
    }
}

impl PropertyTable for AliasDefinition {
    const HELP: &'static str = "Another key of the same documents: GET /depts/by/name/SALES";
    const PROPERTIES: &'static [Property<Self>] = &[
        Property::<Self>::commented("name", r#""name""#, |a| AliasName(&mut a.name))
            .help("The path segment after by."),
        Property::<Self>::commented("columns", r#"["dname"]"#, |a| JoinColumns(&mut a.columns))
            .help("The root table's columns that hold it: not null, with a unique index on exactly these."),
    ];

    fn unset(place: &Place) -> Self {
        Self {
            name: unset(place),
            columns: unset(place),
        }
    }
}

impl PropertyTable for ChildDefinition {
    const HELP: &'static str =
        "An array of objects: the rows that point to this row. Children nest to any depth.";
    const PROPERTIES: &'static [Property<Self>] = &[
        Property::<Self>::set("name", r#""emps""#, |c| FieldName(&mut c.name)),
        Property::<Self>::set("table", r#""public.emp""#, |c| Relation(&mut c.table)),
        Property::<Self>::set("foreign_key", r#""deptno""#, |c| {
            Columns(&mut c.foreign_key)
        })
        .help(
            "The child's column, or list of columns, that holds the parent's key. \
             Absent: the one foreign key there is.",
        ),
        Property::<Self>::set("order_by", r#"["empno"]"#, |c| Columns(&mut c.order_by))
            .help("The order within the array. Absent: the child's primary key."),
        Property::<Self>::commented("where", r#""comm is null""#, |c| {
            Condition(&mut c.row.condition)
        })
        .help("Only rows for which this is true."),
        Property::<Self>::set(
            "fields",
            "{ empno = \"empNo\", ename = \"empName\", job = \"job\", mgr = \"mgr\", \
             hiredate = \"hiredate\", sal = \"sal\", comm = \"comm\", deptno = \"deptNumber\" }",
            |c| Fields(&mut c.row.fields),
        ),
        Property::<Self>::set("children", "", |c| Children(&mut c.row.children)),
        Property::<Self>::set("lookups", "", |c| Lookups(&mut c.row.lookups)),
    ];

    fn unset(place: &Place) -> Self {
        Self {
            name: unset(place),
            table: unset(place),
            foreign_key: None,
            order_by: None,
            row: unset_row(),
        }
    }
}

/// A lookup is one row, so it has no children.
impl PropertyTable for LookupDefinition {
    const HELP: &'static str =
        "One object or null: the row that this row points to. Lookups nest, but have no children.";
    const PROPERTIES: &'static [Property<Self>] = &[
        Property::<Self>::commented("name", r#""site""#, |l| FieldName(&mut l.name)),
        Property::<Self>::commented("table", r#""public.site""#, |l| Relation(&mut l.table)),
        Property::<Self>::commented("column", r#""site_id""#, |l| JoinColumns(&mut l.column)).help(
            "The column, or list of columns, of the table above that points to the looked-up row.",
        ),
        Property::<Self>::commented("references", r#""site_id""#, |l| {
            Columns(&mut l.references)
        })
        .help(
            "The looked-up table's column, or list of columns, that holds the same: unique and not null. Absent: what the foreign key\n\
             references.",
        ),
        Property::<Self>::commented("where", r#""city <> ''""#, |l| {
            Condition(&mut l.row.condition)
        })
        .help("Only a row for which this is true, else null."),
        Property::<Self>::commented("owner", r#""manager""#, |l| OptionalColumn(&mut l.owner)).help(
            "The looked-up table's column that holds the owner: clients that are restricted to their \
             own documents may point to rows\nof their own only. Absent: to none, unless the rows are shared.",
        ),
        Property::<Self>::commented("shared", "false", |l| Flag(&mut l.shared))
            .help("Such clients may point to every row."),
        Property::<Self>::commented(
            "fields",
            r#"{ site_id = "siteNumber", city = "city" }"#,
            |l| Fields(&mut l.row.fields),
        ),
        Property::<Self>::commented("lookups", "", |l| Lookups(&mut l.row.lookups)),
    ];

    fn unset(place: &Place) -> Self {
        Self {
            name: unset(place),
            table: unset(place),
            column: unset(place),
            references: None,
            owner: None,
            shared: unset(place),
            row: unset_row(),
        }
    }
}

impl PropertyTable for UserDefinition {
    const HELP: &'static str = "A user with name and password (HTTP Basic, POST /signin).";
    const PROPERTIES: &'static [Property<Self>] = &[
        Property::<Self>::commented("name", r#""anna""#, |u| PrincipalName(&mut u.name)),
        Property::<Self>::commented(
            "password",
            // Of no known password: the hash is all zeros.
            "\"$argon2id$v=19$m=19456,t=2,p=1$c29tZSBzYWx0IGZvciBh\
             $AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\"",
            |u| Password(&mut u.password),
        )
        .help("What `larder hash-password` prints."),
        Property::<Self>::commented("roles", r#"["staff"]"#, |u| PrincipalRoles(&mut u.roles)),
        Property::<Self>::commented("claims", r#"{ sub = "17" }"#, |u| Claims(&mut u.claims))
            .help("The claims that owners of documents are compared with."),
    ];

    fn unset(_: &Place) -> Self {
        Self {
            name: String::new(),
            password: Secret::new(""),
            roles: Vec::new(),
            claims: BTreeMap::new(),
        }
    }
}

impl PropertyTable for KeyDefinition {
    const HELP: &'static str = "The API key of a program, sent as Authorization: Bearer KEY or X-API-Key: KEY. It must \
             be random, since its hash is\na fast one: openssl rand -hex 32";
    const PROPERTIES: &'static [Property<Self>] = &[
        Property::<Self>::commented("name", r#""reporting""#, |k| PrincipalName(&mut k.name)),
        Property::<Self>::commented(
            "hash",
            // Of no known key.
            r#""0000000000000000000000000000000000000000000000000000000000000000""#,
            |k| KeyHash(&mut k.hash),
        )
        .help("The key's SHA-256: printf %s KEY | sha256sum"),
        Property::<Self>::commented("roles", r#"["reports"]"#, |k| PrincipalRoles(&mut k.roles)),
        Property::<Self>::commented("claims", r#"{ sub = "17" }"#, |k| Claims(&mut k.claims)),
    ];

    fn unset(_: &Place) -> Self {
        Self {
            name: String::new(),
            hash: [0; 32],
            roles: Vec::new(),
            claims: BTreeMap::new(),
        }
    }
}

pub(super) fn unset<T: Default>(place: &Place) -> Located<T> {
    Located {
        value: T::default(),
        place: place.clone(),
    }
}

fn unset_row() -> RowDefinition {
    RowDefinition {
        condition: None,
        fields: None,
        children: Vec::new(),
        lookups: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
