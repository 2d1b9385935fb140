//! Names that fit where they stand and are not taken.

use std::collections::{HashMap, HashSet};

use crate::resource::catalogue::TableName;
use crate::resource::definition::{OWN_PATHS, SIGNING_IN_PATHS, is_path_character};

/// The longest name of a resource or a field (`NAMEDATALEN - 1`).
pub(super) const NAME_BYTES_MAX: usize = 63;

/// The names that are taken in one place.
#[derive(Default)]
pub(super) struct Names {
    taken: HashSet<String>,
    /// The last number that was given to a name.
    numbers: HashMap<String, usize>,
}

impl Names {
    /// Names of resources: larder's own paths are taken, also those that it has only if users can sign in.
    pub(super) fn of_resources() -> Self {
        let paths = OWN_PATHS.iter().chain(&SIGNING_IN_PATHS);
        Self {
            taken: paths.map(|path| (*path).to_owned()).collect(),
            numbers: HashMap::new(),
        }
    }

    /// Takes a name that others can't have.
    pub(super) fn take(&mut self, name: &str) {
        self.taken.insert(name.to_owned());
    }

    /// Takes the first of `wanted` that is free, else the last of them with a number.
    pub(super) fn give(&mut self, wanted: &[String]) -> String {
        let cut: Vec<String> = wanted.iter().map(|name| fitting(name, "")).collect();
        let free = cut.iter().find(|name| !self.taken.contains(*name));
        let given = match (free, wanted.last()) {
            (Some(free), _) => free.clone(),
            (None, last) => self.numbered(last.map_or("", String::as_str)),
        };
        self.take(&given);
        given
    }

    /// `name` with the first number from 2 on with which it is free. Those before the last one given are not tried again:
    /// in a database with names that have no Latin letters, thousands may be the same.
    fn numbered(&mut self, name: &str) -> String {
        let number = self.numbers.entry(name.to_owned()).or_insert(1);
        loop {
            *number += 1;
            let given = fitting(name, &format!("_{number}"));
            if !self.taken.contains(&given) {
                return given;
            }
        }
    }
}

/// `name`, cut so that it is short enough with `ending`.
fn fitting(name: &str, ending: &str) -> String {
    let mut length = name.len().min(NAME_BYTES_MAX - ending.len());
    while !name.is_char_boundary(length) {
        length -= 1;
    }
    let (start, _) = name.split_at(length);
    format!("{start}{ending}")
}

/// `name` as a segment of a path: other characters become `_`.
pub(super) fn segment(name: &str) -> String {
    let usable = |c| if is_path_character(c) { c } else { '_' };
    let segment: String = name.chars().map(usable).collect();
    match segment.as_str() {
        "." | ".." => "_".repeat(segment.len()),
        _ => segment,
    }
}

/// What a resource for `table` may be called.
pub(super) fn of_resource(table: &TableName) -> [String; 2] {
    let both = format!("{}_{}", table.schema, table.name);
    [segment(&table.name), segment(&both)]
}

/// What a lookup by `columns` of rows of `table` may be called.
pub(super) fn of_lookup(columns: &[String], table: &TableName) -> [String; 2] {
    let name = match columns {
        [column] => column
            .strip_suffix("_id")
            .filter(|name| !name.is_empty())
            .unwrap_or(column),
        _ => &table.name,
    };
    [name.to_owned(), format!("{name}_row")]
}

/// What rows of the child `table` may be called that refer to the row above by `columns`.
pub(super) fn of_child(table: &TableName, columns: &[String]) -> [String; 2] {
    let of = columns.join("_");
    [table.name.clone(), format!("{}_{of}", table.name)]
}
