//! The SQL that creates a drawn schema, and the resource that serves it.

use std::fmt::Write;

use crate::checks::scope::differential::schema::{Access, Column, Place, Role, Schema, Table};
use crate::checks::scope::kinds::Kind;

impl Schema {
    /// The tables in an order in which each can refer to those before it.
    pub(super) fn creation_order(&self) -> Vec<usize> {
        let is_lookup = |table: &usize| matches!(self.tables[*table].place, Place::Lookup { .. });
        let (lookups, others): (Vec<usize>, Vec<usize>) =
            (0..self.tables.len()).partition(is_lookup);
        lookups.into_iter().rev().chain(others).collect()
    }

    /// The statements that create its tables and triggers.
    pub(super) fn ddl(&self) -> String {
        let name = &self.name;
        let mut sql = format!("create schema {name};\n");
        for kind in Kind::OF_KEYS {
            let of = kind.type_sql();
            // Writing to a string can't fail.
            let _infallible = writeln!(sql, "create domain {name}.of_{of} as {of};");
        }
        for table in self.creation_order() {
            sql += &self.create_table_sql(table);
        }
        for alias in &self.aliases {
            let columns: Vec<&str> = alias.columns.iter().map(|(name, _)| &**name).collect();
            let conditions = alias.index_conditions.iter().map(|one| format!("({one})"));
            let conditions: Vec<String> = conditions.collect();
            let partial = match &conditions[..] {
                [] => String::new(),
                conditions => format!(" where {}", conditions.join(" and ")),
            };
            let (table, columns) = (self.table_sql(0), columns.join(", "));
            let _infallible = writeln!(sql, "create unique index on {table} ({columns}){partial};");
        }
        if self.owner.is_some() {
            let _infallible = writeln!(
                sql,
                "create index on {} (o, {});",
                self.table_sql(0),
                names(self.tables[0].of_role(Role::Key))
            );
        }
        sql
    }

    fn create_table_sql(&self, number: usize) -> String {
        let table = &self.tables[number];
        let mut parts: Vec<String> = table
            .columns
            .iter()
            .map(|column| self.column_sql(column))
            .collect();
        parts.push(format!("primary key ({})", names(table.of_role(Role::Key))));
        if let Place::Child { parent, cascades } = table.place {
            parts.push(format!(
                "foreign key ({}) references {}{}",
                names(table.of_role(Role::Link)),
                self.table_sql(parent),
                if cascades { " on delete cascade" } else { "" }
            ));
        }
        let pointers = self.tables.iter().enumerate();
        parts.extend(pointers.filter_map(|(lookup, below)| match &below.place {
            Place::Lookup {
                of,
                column,
                has_foreign_key: true,
                ..
            } if *of == number => Some(format!(
                "foreign key ({column}) references {}",
                self.table_sql(lookup)
            )),
            _ => None,
        }));
        let name = self.table_sql(number);
        let mut sql = format!("create table {name} (\n  {}\n);\n", parts.join(",\n  "));
        if let Place::Child { .. } = table.place {
            let links = names(table.of_role(Role::Link));
            let _infallible = writeln!(sql, "create index on {name} ({links});");
        }
        if table.is_soft {
            sql += &self.soft_deletion_sql(number);
        }
        sql
    }

    fn column_sql(&self, column: &Column) -> String {
        let of = column.kind.type_sql();
        let mut sql = if column.is_domain {
            format!("{} {}.of_{of}", column.name, self.name)
        } else {
            format!("{} {of}", column.name)
        };
        if !column.is_nullable {
            sql += " not null";
        }
        if let Some(default) = column.default {
            // Writing to a string can't fail.
            let _infallible = write!(sql, " default {default}");
        }
        sql
    }

    fn soft_deletion_sql(&self, number: usize) -> String {
        let (table, name) = (&self.tables[number], self.table_sql(number));
        let is_old: Vec<String> = table
            .of_role(Role::Key)
            .map(|key| format!("{0} = old.{0}", key.name))
            .collect();
        format!(
            "create function {name}_kept() returns trigger language plpgsql as $$ begin\n  \
             update {name} set gone = true where {}; return null; end $$;\n\
             create trigger kept before delete on {name} for each row execute function {name}_kept();\n",
            is_old.join(" and ")
        )
    }

    /// The resource, as the configuration file has it.
    pub(super) fn resource(&self) -> String {
        let mut toml = String::new();
        self.add_resource(0, "resource", &mut toml);
        toml
    }

    fn add_resource(&self, number: usize, path: &str, toml: &mut String) {
        let table = &self.tables[number];
        let name = if number == 0 { &self.name } else { &table.name };
        let fields: Vec<String> = table
            .shown()
            .map(|column| format!("{0} = '{0}'", column.name))
            .collect();
        // Writing to a string can't fail.
        let mut add = |line: std::fmt::Arguments<'_>| writeln!(toml, "{line}").unwrap_or_default();
        add(format_args!(
            "[[{path}]]\nname = '{name}'\ntable = '{}'",
            self.table_sql(number)
        ));
        add(format_args!("fields = {{ {} }}", fields.join(", ")));
        if !table.conditions.is_empty() {
            add(format_args!("where = \"{}\"", table.condition_sql()));
        }
        if let Place::Lookup {
            column,
            access,
            has_foreign_key,
            ..
        } = &table.place
        {
            add(format_args!("column = '{column}'"));
            if !has_foreign_key {
                add(format_args!("references = '{}'", table.key_names()));
            }
            match access {
                Access::Nobody => {}
                Access::Owner => add(format_args!("owner = 'o'")),
                Access::Shared => add(format_args!("shared = true")),
            }
        }
        if number == 0 {
            add(format_args!(
                "read = {:?}\nwrite = {:?}\nfilters = ['a', 'b']",
                self.read, self.write
            ));
            if let Some(owner) = &self.owner {
                let (claim, roles) = (owner.claim, &owner.roles);
                add(format_args!(
                    "[resource.owner]\ncolumn = 'o'\nclaim = '{claim}'\nroles = {roles:?}"
                ));
            }
            for alias in &self.aliases {
                let columns: Vec<&str> = alias.columns.iter().map(|(name, _)| &**name).collect();
                add(format_args!(
                    "[[resource.by]]\nname = '{}'\ncolumns = {columns:?}",
                    alias.name
                ));
            }
        }
        for below in self.children(number).collect::<Vec<_>>() {
            self.add_resource(below, &format!("{path}.children"), toml);
        }
        for (below, ..) in self.lookups(number).collect::<Vec<_>>() {
            self.add_resource(below, &format!("{path}.lookups"), toml);
        }
    }
}

impl Table {
    /// SQL for the key of a row as one text, to compare rows by.
    pub(super) fn key_names(&self) -> String {
        names(self.of_role(Role::Key))
    }
}

/// Names of columns, as SQL.
pub(super) fn names<'c>(columns: impl Iterator<Item = &'c Column>) -> String {
    columns
        .map(|column| &*column.name)
        .collect::<Vec<_>>()
        .join(", ")
}
