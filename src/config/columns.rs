//! The tables and columns that a resource names.

use toml::de::DeValue;

use super::names::identifier;
use super::text::{Reader, Table};
use crate::resource::definition::Located;

/// `table`; whether it is one is for the catalogue to say.
pub(super) fn relation(table: &Table<'_, '_>, reader: &mut Reader<'_>) -> Option<Located<String>> {
    let relation = reader.required(table, "table")?;
    if relation.value.trim().is_empty() || relation.value.contains('\0') {
        reader.refuse_at(&relation.place, "expected a table such as \"public.dept\"");
    }
    Some(relation)
}

/// A column, or a list of columns.
pub(super) fn columns(
    table: &Table<'_, '_>,
    key: &str,
    reader: &mut Reader<'_>,
) -> Option<Located<Vec<String>>> {
    let value = table.get(key)?;
    let path = table.path_of(key);
    let Located { value, place } = match value.get_ref() {
        DeValue::String(_) => {
            let column = reader.string(value, path)?;
            let place = column.place.clone();
            let value = vec![column];
            Located { value, place }
        }
        DeValue::Array(items) if items.is_empty() => {
            let message = "the list is empty: name a column or leave it out";
            reader.refuse(value.span().start, path, message);
            return None;
        }
        _ => reader.strings(table, key, "a column or a list of columns")?,
    };
    for column in &value {
        identifier(&column.value, &column.place, "column", reader);
    }
    Some(Located {
        value: value.into_iter().map(|column| column.value).collect(),
        place,
    })
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, testing};

    const ROOT: &str = "[[resource]]\nname = 'n'\ntable = 't'\n";

    #[track_caller]
    fn only(below: &str, beginning: &str) {
        testing::only(&format!("{ROOT}{below}"), beginning);
    }

    #[test]
    fn lists_are_neither_empty_nor_repeat() {
        only("key = []", "4: resource[0].key: the list is empty");
        only("fields = {}", "4: resource[0].fields: names no column");
        only(
            "key = ['a', 'b', 'a']",
            "4: resource[0].key[2]: `a` is named twice",
        );
        only(
            "key = 1",
            "4: resource[0].key: expected a column or a list of columns, found the integer 1",
        );
        only(
            "key = ['a', 1]",
            "4: resource[0].key[1]: expected a string, found the integer 1",
        );
        let key = |text: &str| {
            let config = Config::from_toml(&format!("{ROOT}{text}"), &[]).unwrap();
            config.resources[0].key.as_ref().unwrap().value.clone()
        };
        assert_eq!(key("key = 'a'"), ["a"]);
        assert_eq!(key("key = ['b', 'a']"), ["b", "a"]);
    }
}
