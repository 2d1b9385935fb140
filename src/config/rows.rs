//! Rows of documents: what roots, children and lookups share, and how they nest.

use toml::de::DeValue;

use super::columns::{columns, relation};
use super::names::{Names, identifier};
use super::text::{Reader, Table, Value};
use super::value::found;
use crate::resource::definition::{
    ChildDefinition, FieldDefinition, Located, LookupDefinition, RowDefinition,
};

/// What `[[resource.children]]` may hold.
pub(super) const CHILD_KEYS: [&str; 7] = [
    "name",
    "table",
    "foreign_key",
    "order_by",
    "fields",
    "children",
    "lookups",
];
/// What `[[resource.lookups]]` may hold.
pub(super) const LOOKUP_KEYS: [&str; 5] = ["name", "table", "column", "fields", "lookups"];

/// The part that roots, children and lookups share.
pub(super) fn row(table: &Table<'_, '_>, reader: &mut Reader<'_>) -> RowDefinition {
    let mut names = Names::default();
    RowDefinition {
        fields: fields(table, &mut names, reader),
        children: children(table, &mut names, reader),
        lookups: lookups(table, &mut names, reader),
    }
}

fn fields(
    table: &Table<'_, '_>,
    names: &mut Names,
    reader: &mut Reader<'_>,
) -> Option<Vec<FieldDefinition>> {
    let value = table.get("fields")?;
    let path = table.path_of("fields");
    let DeValue::Table(entries) = value.get_ref() else {
        let message = format!(
            "expected {{ column = \"name\" }}, found {}",
            found(value.get_ref())
        );
        reader.refuse(value.span().start, path, message);
        return None;
    };
    if entries.is_empty() {
        let message = "names no column: leave it out to show every column under its own name";
        reader.refuse(value.span().start, path, message);
        return None;
    }
    let mut fields = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        let path = super::text::dotted(&path, key.get_ref());
        let place = reader.text.place(key.span().start, path.clone());
        let column = Located {
            value: key.get_ref().to_string(),
            place,
        };
        identifier(&column.value, &column.place, "column", reader);
        if let Some(name) = field_name(value, path, names, reader) {
            fields.push(FieldDefinition { column, name });
        }
    }
    Some(fields)
}

fn children(
    table: &Table<'_, '_>,
    names: &mut Names,
    reader: &mut Reader<'_>,
) -> Vec<ChildDefinition> {
    let path = table.path_of("children");
    let items = reader.list(table.get("children"), &path).iter().enumerate();
    items
        .filter_map(|(index, item)| {
            let table = reader.table(item, format!("{path}[{index}]"), &CHILD_KEYS)?;
            let name = row_name(&table, names, reader);
            let relation = relation(&table, reader);
            let foreign_key = columns(&table, "foreign_key", reader);
            let order_by = columns(&table, "order_by", reader);
            let row = row(&table, reader);
            Some(ChildDefinition {
                name: name?,
                table: relation?,
                foreign_key,
                order_by,
                row,
            })
        })
        .collect()
}

fn lookups(
    table: &Table<'_, '_>,
    names: &mut Names,
    reader: &mut Reader<'_>,
) -> Vec<LookupDefinition> {
    let path = table.path_of("lookups");
    let items = reader.list(table.get("lookups"), &path).iter().enumerate();
    items
        .filter_map(|(index, item)| {
            let table = reader.table(item, format!("{path}[{index}]"), &LOOKUP_KEYS)?;
            let name = row_name(&table, names, reader);
            let relation = relation(&table, reader);
            let column = columns(&table, "column", reader);
            if table.get("column").is_none() {
                reader.refuse(table.at, table.path_of("column"), "`column` is missing");
            }
            let fields = row_of_lookup(&table, reader);
            Some(LookupDefinition {
                name: name?,
                table: relation?,
                column: column?,
                row: fields,
            })
        })
        .collect()
}

/// A lookup is one row: it points on, but nothing is gathered below it.
fn row_of_lookup(table: &Table<'_, '_>, reader: &mut Reader<'_>) -> RowDefinition {
    let mut names = Names::default();
    RowDefinition {
        fields: fields(table, &mut names, reader),
        children: Vec::new(),
        lookups: lookups(table, &mut names, reader),
    }
}

/// The name of a child or a lookup: a field of the row above.
fn row_name(
    table: &Table<'_, '_>,
    names: &mut Names,
    reader: &mut Reader<'_>,
) -> Option<Located<String>> {
    match table.get("name") {
        Some(value) => field_name(value, table.path_of("name"), names, reader),
        None => reader.required(table, "name"),
    }
}

fn field_name(
    value: &Value<'_>,
    path: String,
    names: &mut Names,
    reader: &mut Reader<'_>,
) -> Option<Located<String>> {
    let name = reader.string(value, path)?;
    if identifier(&name.value, &name.place, "field name", reader) {
        names.claim(&name, "field", reader);
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, testing};
    use crate::resource::definition::ResourceDefinition;

    const ROOT: &str = "[[resource]]\nname = 'n'\ntable = 't'\n";

    /// The lines below the root begin with 4.
    #[track_caller]
    fn only(below: &str, beginning: &str) {
        testing::only(&format!("{ROOT}{below}"), beginning);
    }

    fn root(below: &str) -> ResourceDefinition {
        Config::from_toml(&format!("{ROOT}{below}"), &[])
            .unwrap()
            .resources
            .remove(0)
    }

    #[test]
    fn the_order_of_the_file_stays() {
        let row = root("fields = { z = 'c', a = 'b', m = 'a' }\n\
             [[resource.children]]\nname = 'y'\ntable = 't'\n[[resource.lookups]]\nname = 'x'\ntable = 't'\ncolumn = 'q'\n\
             [[resource.children]]\nname = 'w'\ntable = 't'").row;
        let fields = row.fields.unwrap();
        let pairs: Vec<(&str, &str)> = fields
            .iter()
            .map(|f| (&*f.column.value, &*f.name.value))
            .collect();
        assert_eq!(pairs, [("z", "c"), ("a", "b"), ("m", "a")]);
        let names: Vec<&str> = row
            .children
            .iter()
            .map(|child| &*child.name.value)
            .collect();
        assert_eq!(names, ["y", "w"]);
        assert_eq!(row.lookups[0].column.value, ["q"]);
    }

    #[test]
    fn places_are_kept() {
        let root = root(
            "[[resource.children]]\nname = 'c'\ntable = 't'\norder_by = ['a',\n 'b']\nfields = { a = 'b' }",
        );
        let child = &root.row.children[0];
        let place = &child.order_by.as_ref().unwrap().place;
        assert_eq!(
            (place.line, place.key.as_str()),
            (7, "resource[0].children[0].order_by")
        );
        let field = &child.row.fields.as_ref().unwrap()[0];
        assert_eq!(
            field.column.place.to_string(),
            "larder.toml:9: resource[0].children[0].fields.a"
        );
    }

    #[test]
    fn names_are_single_within_a_row() {
        only(
            "fields = { a = 'x', b = 'x' }",
            "4: resource[0].fields.b: two fields of one name: \"x\"",
        );
        only(
            "fields = { a = 'x' }\n[[resource.children]]\nname = 'x'\ntable = 't'",
            "6: resource[0].children[0].name: two fields of one name: \"x\" is already taken on line 4 by resource[0].fields.a",
        );
        only(
            "[[resource.children]]\nname = 'x'\ntable = 't'\n[[resource.lookups]]\nname = 'x'\ntable = 't'\ncolumn = 'c'",
            "8: resource[0].lookups[0].name: two fields of one name",
        );
        let nested = "[[resource.children]]\nname = 'n'\ntable = 't'\n[[resource.children.children]]\nname = 'n'\ntable = 't'";
        assert_eq!(
            root(nested).row.children[0].row.children[0].name.value,
            "n",
            "another row, another space"
        );
    }

    #[test]
    fn identifiers_fit_postgres() {
        only(
            "fields = { a = '' }",
            "4: resource[0].fields.a: the field name is empty",
        );
        only(
            "fields = { '' = 'a' }",
            "4: resource[0].fields.\"\": the column is empty",
        );
        only(
            &format!("fields = {{ a = '{}' }}", "x".repeat(64)),
            "4: resource[0].fields.a: the field name has 64 bytes",
        );
        only(
            &format!("key = '{}'", "é".repeat(32)),
            "4: resource[0].key: the column has 64 bytes",
        );
        only(
            "key = ['a', '']",
            "4: resource[0].key[1]: the column is empty",
        );
        assert_eq!(
            root(&format!("key = '{}'", "x".repeat(63)))
                .key
                .unwrap()
                .value[0]
                .len(),
            63
        );
    }

    #[test]
    fn wrong_shapes_name_themselves() {
        only(
            "fields = ['a']",
            "4: resource[0].fields: expected { column = \"name\" }, found a list",
        );
        only(
            "fields = { a = 1 }",
            "4: resource[0].fields.a: expected a string, found the integer 1",
        );
        only(
            "fields.a.b = 'c'",
            "4: resource[0].fields.a: expected a string, found a table",
        );
        only(
            "children = { name = 'a' }",
            "4: resource[0].children: expected [[resource.children]], found a table",
        );
        only(
            "children = ['a']",
            "4: resource[0].children[0]: expected a table, found the string \"a\"",
        );
    }

    #[test]
    fn lookups_need_a_column_and_have_no_children() {
        only(
            "[[resource.lookups]]\nname = 'x'\ntable = 't'",
            "4: resource[0].lookups[0].column: `column` is missing",
        );
        only(
            "[[resource.lookups]]\nname = 'x'\ntable = 't'\ncolumn = 'c'\n[[resource.lookups.children]]\nname = 'y'\ntable = 't'",
            "8: resource[0].lookups[0].children: unknown key",
        );
    }

    #[test]
    fn mistakes_at_any_depth_are_told_together() {
        let told = testing::told(&format!(
            "{ROOT}{}",
            "kee = 'x'\n[[resource.children]]\nname = 'c'\n[[resource.children.children]]\ntable = 't'\n\
             [[resource.children.children.lookups]]\nname = 'l'\ntable = 't'\ncolumn = []"
        ));
        let keys = [
            "4: resource[0].kee: ",
            "5: resource[0].children[0].table: ",
            "7: resource[0].children[0].children[0].name: ",
            "12: resource[0].children[0].children[0].lookups[0].column: ",
        ];
        assert_eq!(told.len(), keys.len(), "{told:#?}");
        for (told, key) in told.iter().zip(keys) {
            assert!(told.starts_with(key), "{told}");
        }
    }
}
