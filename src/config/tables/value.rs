//! One property's value: TOML read into the definition, and the definition shown as TOML again.

use std::collections::BTreeMap;

use axum::http::{HeaderName, HeaderValue};
use toml::de::DeValue;

use crate::auth::config::{MASK, Secret};
use crate::auth::passwords;
use crate::config::names::{self, UniqueNames};
use crate::config::tables::{PropertyTable, read, read_table};
use crate::config::text::{TomlReader, TomlValue, bare_or_quoted, dotted};
use crate::config::value::{Slot, describe, echo, toml_list, toml_string};
use crate::dispatch::definition::SinkDefinition;
use crate::resource::definition::{
    AliasDefinition, ChildDefinition, FieldDefinition, Located, LookupDefinition, OwnerDefinition,
    Tiers,
};
use crate::resource::page::PARAMETERS;

/// Hexadecimal digits of a SHA-256.
const HASH_DIGITS: usize = 64;

/// Where a property's value goes, and what it may be.
pub(in crate::config) enum PropertyValue<'a> {
    /// The segment of a path, which no other resource has.
    ResourceName(&'a mut Located<String>),
    /// The name of a child or a lookup: a field of the row above.
    FieldName(&'a mut Located<String>),
    /// The segment of a path, which no other alias of the resource has.
    AliasName(&'a mut Located<String>),
    /// The name of a user or a key.
    PrincipalName(&'a mut String),
    /// A table; whether it exists is for the catalogue to say.
    Relation(&'a mut Located<String>),
    /// A column.
    Column(&'a mut Located<String>),
    /// The same, not required.
    OptionalColumn(&'a mut Option<Located<String>>),
    /// A column, or a list of columns.
    Columns(&'a mut Option<Located<Vec<String>>>),
    /// The same, required.
    JoinColumns(&'a mut Located<Vec<String>>),
    /// An SQL condition; whether it fits the table is for PostgreSQL to say.
    Condition(&'a mut Option<Located<String>>),
    /// `memory`, `disk`, both or none.
    TierList(&'a mut Tiers),
    /// `as-larder`.
    RowSecurity(&'a mut bool),
    /// Fields to filter by; whether they exist is for the catalogue to say.
    Filters(&'a mut Vec<Located<String>>),
    /// The value of a header.
    HeaderValue(&'a mut Option<Located<String>>),
    /// The roles that may do something.
    Roles(&'a mut Option<Located<Vec<String>>>),
    /// The roles that a user or a key has.
    PrincipalRoles(&'a mut Vec<String>),
    /// The name of a claim.
    Claim(&'a mut Located<String>),
    /// `{ claim = "value" }`: what a user or a key has.
    Claims(&'a mut BTreeMap<String, String>),
    /// `true` or `false`.
    Flag(&'a mut Located<bool>),
    /// What `larder hash-password` prints.
    Password(&'a mut Secret),
    /// The SHA-256 of a key.
    KeyHash(&'a mut [u8; HASH_DIGITS / 2]),
    /// `{ column = "name" }`, or a list of columns that keep their names.
    Fields(&'a mut Option<Vec<FieldDefinition>>),
    /// A table of its own.
    Owner(&'a mut Option<OwnerDefinition>),
    /// Tables of their own.
    Aliases(&'a mut Vec<AliasDefinition>),
    /// Tables of their own.
    Children(&'a mut Vec<ChildDefinition>),
    /// Tables of their own.
    Lookups(&'a mut Vec<LookupDefinition>),
    /// The name of a dispatch, which no other has.
    DispatchName(&'a mut Located<String>),
    /// A value that a setting may have, too.
    Setting(Slot<'a>),
    /// A table, not required.
    OptionalRelation(&'a mut Option<Located<String>>),
    /// The name of a resource; whether there is one is checked once all are read.
    OptionalName(&'a mut Option<Located<String>>),
    /// An SQL expression; whether it fits the table is for PostgreSQL to say.
    Expression(&'a mut Option<Located<String>>),
    /// `{ name = "value" }`: headers, whose values are not shown.
    Headers(&'a mut BTreeMap<String, Secret>),
    /// A table of its own.
    Sink(&'a mut SinkDefinition),
}

impl PropertyValue<'_> {
    /// Whether a table without the property is a mistake.
    pub(super) fn is_required(&self) -> bool {
        matches!(
            self,
            Self::ResourceName(_)
                | Self::FieldName(_)
                | Self::AliasName(_)
                | Self::DispatchName(_)
                | Self::PrincipalName(_)
                | Self::Relation(_)
                | Self::Column(_)
                | Self::Claim(_)
                | Self::JoinColumns(_)
                | Self::Password(_)
                | Self::KeyHash(_)
                | Self::Sink(_)
                | Self::Setting(Slot::SinkKind(_))
        )
    }

    /// Reads what the file has.
    pub(super) fn read(self, mut input: Input<'_, '_>) {
        match self {
            Self::ResourceName(at) => put(at, input.resource_name()),
            Self::FieldName(at) => put(at, input.field_name()),
            Self::AliasName(at) => put(at, input.segment("alias")),
            Self::DispatchName(at) => put(at, input.segment("dispatch")),
            Self::PrincipalName(at) => put(at, input.principal_name()),
            Self::Column(at) => put(at, input.column()),
            Self::OptionalColumn(at) => *at = input.column(),
            Self::Claim(at) => put(at, input.claim()),
            Self::Claims(at) => *at = input.claims(),
            Self::Flag(at) => put(at, input.flag()),
            Self::Relation(at) => put(at, input.relation()),
            Self::Columns(at) => *at = input.columns(),
            Self::JoinColumns(at) => put(at, input.columns()),
            Self::Condition(at) => *at = input.condition(),
            Self::TierList(at) => *at = input.tiers(),
            Self::RowSecurity(at) => *at = input.row_security(),
            Self::Filters(at) => *at = input.filters(),
            Self::HeaderValue(at) => *at = input.header_value(),
            Self::Roles(at) => *at = input.roles(),
            Self::PrincipalRoles(at) => put(at, input.roles().map(|roles| roles.value)),
            Self::Password(at) => put(at, input.password()),
            Self::KeyHash(at) => put(at, input.key_hash()),
            Self::Fields(at) => *at = input.fields(),
            Self::Owner(at) => *at = input.table(),
            Self::Aliases(at) => *at = input.aliases(),
            Self::Children(at) => *at = input.tables(),
            Self::Lookups(at) => *at = input.tables(),
            Self::Setting(slot) => input.setting(slot),
            Self::OptionalRelation(at) => *at = input.relation(),
            Self::OptionalName(at) => *at = input.string(),
            Self::Expression(at) => *at = input.expression(),
            Self::Headers(at) => *at = input.headers(),
            Self::Sink(at) => put(at, input.table()),
        }
    }

    /// The value as TOML, secrets and hashes masked; `None` if it is not set, or has tables of its own.
    pub(in crate::config) fn show(&self) -> Option<String> {
        Some(match self {
            Self::ResourceName(at)
            | Self::FieldName(at)
            | Self::AliasName(at)
            | Self::DispatchName(at)
            | Self::Relation(at)
            | Self::Column(at)
            | Self::Claim(at) => toml_string(&at.value),
            Self::OptionalColumn(at)
            | Self::OptionalRelation(at)
            | Self::OptionalName(at)
            | Self::Expression(at) => toml_string(&at.as_ref()?.value),
            Self::Setting(slot) => slot.show()?,
            Self::Headers(at) if at.is_empty() => return None,
            Self::Headers(at) => {
                let mask = MASK.to_owned();
                inline_table(at.keys().map(|name| (name, &mask)))
            }
            Self::Flag(at) => at.value.to_string(),
            Self::Claims(at) if at.is_empty() => return None,
            Self::Claims(at) => inline_table(at.iter()),
            Self::PrincipalName(at) => toml_string(at),
            Self::Columns(at) => column_or_columns(&at.as_ref()?.value),
            Self::JoinColumns(at) => column_or_columns(&at.value),
            Self::Condition(at) => toml_string(&at.as_ref()?.value),
            Self::TierList(at) => {
                let tiers = [(at.memory, "memory"), (at.disk, "disk")];
                toml_list(tiers.iter().filter(|(used, _)| *used).map(|(_, tier)| tier))
            }
            Self::RowSecurity(at) => at.then(|| toml_string("as-larder"))?,
            Self::Filters(at) if at.is_empty() => return None,
            Self::Filters(at) => toml_list(at.iter().map(|name| &name.value)),
            Self::HeaderValue(at) => toml_string(&at.as_ref()?.value),
            Self::Roles(at) => toml_list(&at.as_ref()?.value),
            Self::PrincipalRoles(at) => toml_list(at.iter()),
            // A hash lets its reader try passwords.
            Self::Password(_) | Self::KeyHash(_) => toml_string(MASK),
            Self::Fields(at) => {
                let fields = at.as_ref()?.iter();
                inline_table(fields.map(|field| (&field.column.value, &field.name.value)))
            }
            Self::Owner(_)
            | Self::Aliases(_)
            | Self::Children(_)
            | Self::Lookups(_)
            | Self::Sink(_) => {
                return None;
            }
        })
    }
}

fn put<T>(at: &mut T, read: Option<T>) {
    if let Some(value) = read {
        *at = value;
    }
}

/// A value of the file, which is at the dotted key `path`.
pub(super) struct Input<'r, 't> {
    pub(super) value: &'r TomlValue<'r>,
    pub(super) path: &'r str,
    /// The names beside the table that has the value.
    pub(super) names: &'r mut UniqueNames,
    /// The names of its fields, children and lookups.
    pub(super) names_within: &'r mut UniqueNames,
    pub(super) reader: &'r mut TomlReader<'t>,
}

impl Input<'_, '_> {
    fn refuse(&mut self, message: impl Into<String>) {
        self.reader
            .refuse(self.value.span().start, self.path, message);
    }

    fn string(&mut self) -> Option<Located<String>> {
        self.reader.string(self.value, self.path)
    }

    fn strings(&mut self, expected: &str) -> Option<Located<Vec<Located<String>>>> {
        self.reader.strings(self.value, self.path, expected)
    }

    /// A string that no message repeats.
    fn secret(&mut self) -> Option<Located<String>> {
        if self.value.get_ref().is_str() {
            return self.string();
        }
        self.refuse("expected a string, found something else (not shown)");
        None
    }

    fn resource_name(&mut self) -> Option<Located<String>> {
        let name = self.string()?;
        names::check_segment(&name, "resource's name", self.reader);
        names::check_reserved(&name, self.reader);
        self.names.claim(&name, "resource", self.reader);
        Some(name)
    }

    /// The name of something that is a `what`.
    fn segment(&mut self, what: &str) -> Option<Located<String>> {
        let name = self.string()?;
        names::check_segment(&name, "name", self.reader);
        self.names.claim(&name, what, self.reader);
        Some(name)
    }

    fn field_name(&mut self) -> Option<Located<String>> {
        let name = self.string()?;
        claim_field(&name, self.names, self.reader);
        Some(name)
    }

    /// HTTP Basic ends the name at a colon.
    fn principal_name(&mut self) -> Option<String> {
        let name = self.string()?;
        let is_unusable = |c: char| c == ':' || c.is_control();
        if name.value.is_empty() || name.value.contains(is_unusable) {
            self.refuse(
                "expected a name without colons and control characters, and not an empty one",
            );
        }
        self.names.claim(&name, "principal", self.reader);
        Some(name.value)
    }

    fn relation(&mut self) -> Option<Located<String>> {
        let relation = self.string()?;
        if relation.value.trim().is_empty() || relation.value.contains('\0') {
            self.refuse("expected a table such as \"public.dept\"");
        }
        Some(relation)
    }

    fn column(&mut self) -> Option<Located<String>> {
        let column = self.string()?;
        names::check_identifier(&column, "column", self.reader);
        Some(column)
    }

    fn condition(&mut self) -> Option<Located<String>> {
        let condition = self.string()?;
        if condition.value.trim().is_empty() || condition.value.contains('\0') {
            self.refuse("expected an SQL condition such as \"deleted_at is null\"");
        }
        Some(condition)
    }

    fn expression(&mut self) -> Option<Located<String>> {
        let expression = self.string()?;
        if expression.value.trim().is_empty() || expression.value.contains('\0') {
            self.refuse("expected an SQL expression such as \"now() + retry_after\"");
        }
        Some(expression)
    }

    fn setting(&mut self, slot: Slot<'_>) {
        let text = slot.text_of(self.value.get_ref());
        if let Err(error) = text.and_then(|text| slot.put(&text)) {
            self.refuse(error.to_string());
        }
    }

    fn headers(&mut self) -> BTreeMap<String, Secret> {
        let mut headers = BTreeMap::new();
        let DeValue::Table(entries) = self.value.get_ref() else {
            self.refuse("expected { name = \"value\" }, found something else (not shown)");
            return headers;
        };
        for (key, value) in entries {
            let (name, path) = (key.get_ref(), dotted(self.path, key.get_ref()));
            let text = value.get_ref().as_str();
            let is_sent = text.is_some_and(|text| {
                HeaderName::from_bytes(name.as_bytes()).is_ok()
                    && HeaderValue::from_str(text).is_ok()
            });
            match text.filter(|_| is_sent) {
                Some(text) => {
                    headers.insert(name.to_string(), Secret::new(text));
                }
                None => {
                    let message =
                        "expected the name of a header and its value, a string (not shown)";
                    self.reader.refuse(key.span().start, path, message);
                }
            }
        }
        headers
    }

    fn columns(&mut self) -> Option<Located<Vec<String>>> {
        let Located { value, place } = match self.value.get_ref() {
            DeValue::String(_) => {
                let column = self.string()?;
                let place = column.place.clone();
                let value = vec![column];
                Located { value, place }
            }
            DeValue::Array(items) if items.is_empty() => {
                self.refuse("the list is empty: name a column or leave it out");
                return None;
            }
            _ => self.strings("a column or a list of columns")?,
        };
        for column in &value {
            names::check_identifier(column, "column", self.reader);
        }
        let value = value.into_iter().map(|column| column.value).collect();
        Some(Located { value, place })
    }

    /// The empty list is a resource that is always asked of PostgreSQL.
    fn tiers(&mut self) -> Tiers {
        let mut tiers = Tiers {
            memory: false,
            disk: false,
        };
        let named = self.strings("a list such as [\"memory\", \"disk\"]");
        for tier in named.iter().flat_map(|named| &named.value) {
            match tier.value.as_str() {
                "memory" => tiers.memory = true,
                "disk" => tiers.disk = true,
                other => {
                    let message = format!("expected \"memory\" or \"disk\", found {}", echo(other));
                    self.reader.refuse_at(&tier.place, message);
                }
            }
        }
        tiers
    }

    fn row_security(&mut self) -> bool {
        let is_accepted = self.value.get_ref().as_str() == Some("as-larder");
        if !is_accepted {
            self.refuse(format!(
                "expected \"as-larder\" (everyone sees the rows that larder's role sees), found {}",
                describe(self.value.get_ref())
            ));
        }
        is_accepted
    }

    fn filters(&mut self) -> Vec<Located<String>> {
        let filters = self.strings("a list of fields such as [\"deptLocation\"]");
        let filters = filters.map_or_else(Vec::new, |filters| filters.value);
        for name in &filters {
            if PARAMETERS.contains(&name.value.as_str()) {
                let message = format!("`{}` is a parameter of every list", name.value);
                self.reader.refuse_at(&name.place, message);
            }
        }
        filters
    }

    fn header_value(&mut self) -> Option<Located<String>> {
        let value = self.string()?;
        let text = value.value.as_str();
        let is_visible = |c: char| c == ' ' || c.is_ascii_graphic();
        if text.is_empty() || text.trim() != text || !text.chars().all(is_visible) {
            self.refuse("expected visible ASCII characters, with spaces only between them");
        }
        Some(value)
    }

    /// In a token roles may be separated by spaces, so none contains one.
    fn roles(&mut self) -> Option<Located<Vec<String>>> {
        let Located { value, place } = self.strings("a list such as [\"staff\"]")?;
        let (usable, others): (Vec<_>, Vec<_>) = value
            .into_iter()
            .partition(|role| !role.value.is_empty() && !role.value.contains(char::is_whitespace));
        for role in others {
            let message = "expected a role without white space";
            self.reader.refuse_at(&role.place, message);
        }
        let value = usable.into_iter().map(|role| role.value).collect();
        Some(Located { value, place })
    }

    fn password(&mut self) -> Option<Secret> {
        let password = self.secret()?;
        if !passwords::is_hash(&password.value) {
            self.refuse("expected what `larder hash-password` prints ($argon2id$...)");
        }
        Some(Secret::new(&password.value))
    }

    fn key_hash(&mut self) -> Option<[u8; HASH_DIGITS / 2]> {
        let digits = self.secret()?;
        let hash = sha256(&digits.value);
        match hash {
            Some(hash) => self.names.claim_hash(hash, &digits.place, self.reader),
            None => self.refuse("expected the key's SHA-256 in 64 hexadecimal digits"),
        }
        hash
    }

    fn fields(&mut self) -> Option<Vec<FieldDefinition>> {
        let entries = match self.value.get_ref() {
            DeValue::Table(entries) if !entries.is_empty() => entries,
            DeValue::Array(columns) if !columns.is_empty() => return self.columns_as_fields(),
            DeValue::Table(_) | DeValue::Array(_) => {
                let message =
                    "names no column: leave it out to show every column under its own name";
                self.refuse(message);
                return None;
            }
            other => {
                let found = describe(other);
                self.refuse(format!(
                    "expected {{ column = \"name\" }} or a list of columns, found {found}"
                ));
                return None;
            }
        };
        let mut fields = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let path = dotted(self.path, key.get_ref());
            let column = Located {
                value: key.get_ref().to_string(),
                place: self.reader.text.place(key.span().start, path.as_str()),
            };
            names::check_identifier(&column, "column", self.reader);
            if let Some(name) = self.reader.string(value, &path) {
                claim_field(&name, self.names_within, self.reader);
                fields.push(FieldDefinition { column, name });
            }
        }
        Some(fields)
    }

    /// The columns of a list, each under its own name.
    fn columns_as_fields(&mut self) -> Option<Vec<FieldDefinition>> {
        let columns = self.strings("a list of columns")?;
        for column in &columns.value {
            claim_field(column, self.names_within, self.reader);
        }
        let fields = columns.value.into_iter().map(|column| FieldDefinition {
            name: column.clone(),
            column,
        });
        Some(fields.collect())
    }

    /// The name of a claim, or a dotted path.
    fn claim(&mut self) -> Option<Located<String>> {
        let claim = self.string()?;
        if claim.value.is_empty() {
            self.refuse("the claim's name is empty");
        }
        Some(claim)
    }

    fn claims(&mut self) -> BTreeMap<String, String> {
        let mut claims = BTreeMap::new();
        let DeValue::Table(entries) = self.value.get_ref() else {
            let found = describe(self.value.get_ref());
            self.refuse(format!("expected {{ claim = \"value\" }}, found {found}"));
            return claims;
        };
        for (key, value) in entries {
            let path = dotted(self.path, key.get_ref());
            if let Some(text) = self.reader.string(value, &path) {
                claims.insert(key.get_ref().to_string(), text.value);
            }
        }
        claims
    }

    fn flag(&mut self) -> Option<Located<bool>> {
        let value = self.value.get_ref().as_bool();
        if value.is_none() {
            let found = describe(self.value.get_ref());
            self.refuse(format!("expected true or false, found {found}"));
        }
        let place = self.reader.text.place(self.value.span().start, self.path);
        Some(Located {
            value: value?,
            place,
        })
    }

    fn aliases(&mut self) -> Vec<AliasDefinition> {
        let names = &mut UniqueNames::default();
        read(Some(self.value), self.path, names, self.reader)
    }

    fn table<T: PropertyTable>(&mut self) -> Option<T> {
        let path = self.path.to_owned();
        read_table(self.value, path, self.names_within, self.reader)
    }

    fn tables<T: PropertyTable>(&mut self) -> Vec<T> {
        read(Some(self.value), self.path, self.names_within, self.reader)
    }
}

/// Fields, children and lookups are members of one JSON object, so their names differ.
fn claim_field(name: &Located<String>, names: &mut UniqueNames, reader: &mut TomlReader<'_>) {
    if names::check_identifier(name, "field name", reader) {
        names.claim(name, "field", reader);
    }
}

/// `{ key = "value" }`
fn inline_table<'a>(entries: impl Iterator<Item = (&'a String, &'a String)>) -> String {
    let entries =
        entries.map(|(key, value)| format!("{} = {}", bare_or_quoted(key), toml_string(value)));
    format!("{{ {} }}", entries.collect::<Vec<_>>().join(", "))
}

fn column_or_columns(columns: &[String]) -> String {
    match columns {
        [column] => toml_string(column),
        columns => toml_list(columns),
    }
}

fn sha256(text: &str) -> Option<[u8; HASH_DIGITS / 2]> {
    let mut hash = [0; HASH_DIGITS / 2];
    if text.len() != HASH_DIGITS || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(hash)
}
