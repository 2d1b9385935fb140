//! The text of the file that `larder init` writes.

use crate::config::{toml_list, toml_string};
use crate::resource::suggest::{
    LeftOut, SuggestedAlias, SuggestedChild, SuggestedLookup, SuggestedResource, SuggestedRow,
    Suggestion,
};
use crate::unseen::escaped;

const HEAD: &str = "\
# Written by `larder init`. `# ` begins a comment; `#` without a space begins what is suggested and not in force: remove the
# `#` to have it. What a comment says that larder refuses needs a change of the table first. Without [auth] every client that
# reaches the public address may read all of this; `larder config --example` shows all settings.
";
const WRITABLE: &str = "# Every such client may write all of it, too.\n";

/// The file for `suggestion`. Equal suggestions have equal texts.
pub(super) fn text(suggestion: &Suggestion, is_writable: bool) -> String {
    let mut file = File {
        out: HEAD.to_owned(),
        indent: String::new(),
        is_off: false,
        is_writable,
    };
    if is_writable {
        file.out.push_str(WRITABLE);
    }
    for resource in &suggestion.resources {
        file.resource(resource);
    }
    if !suggestion.left_out.is_empty() {
        file.out.push('\n');
        file.comment("Not served:");
    }
    for LeftOut { name, why, .. } in &suggestion.left_out {
        file.comment(&format!("{name} {why}"));
    }
    file.out
}

struct File {
    out: String,
    indent: String,
    /// What is written is not in force.
    is_off: bool,
    is_writable: bool,
}

impl File {
    fn comment(&mut self, text: &str) {
        let Self { out, indent, .. } = self;
        out.push_str(&format!("{indent}# {}\n", escaped(text)));
    }

    fn line(&mut self, text: &str) {
        let mark = if self.is_off { "#" } else { "" };
        let Self { out, indent, .. } = self;
        out.push_str(&format!("{indent}{mark}{text}\n"));
    }

    /// What is not in force whatever is around it.
    fn offer(&mut self, text: &str) {
        let was_off = std::mem::replace(&mut self.is_off, true);
        self.line(text);
        self.is_off = was_off;
    }

    /// Writes a table below the present one. `off` says why it is not in force.
    fn below(&mut self, header: &str, off: Option<&str>, write: impl FnOnce(&mut Self)) {
        self.out.push('\n');
        let (indent, was_off) = (self.indent.clone(), self.is_off);
        // The header of a resource has no dot.
        self.indent = "  ".repeat(header.matches('.').count());
        if let Some(why) = off {
            self.comment(&format!("Not in force: {why}."));
            self.is_off = true;
        }
        self.line(&format!("[[{header}]]"));
        write(self);
        (self.indent, self.is_off) = (indent, was_off);
    }

    fn resource(&mut self, resource: &SuggestedResource) {
        let SuggestedResource {
            name,
            key,
            off,
            filters,
            by,
            read_only,
            depth,
            row,
        } = resource;
        self.below("resource", off.as_deref(), |file| {
            file.line(&format!("name = {}", toml_string(name)));
            file.line(&format!("table = {}", toml_string(&row.table.written())));
            if let Some(key) = key {
                file.line(&format!("key = {}", columns(key)));
            }
            file.condition(row);
            if !file.is_writable {
                file.line("write = []");
            }
            if let Some(why) = read_only {
                file.comment(&format!("Documents can't be written: {why}."));
            }
            if !filters.is_empty() {
                file.offer(&format!("filters = {}", toml_list(filters)));
            }
            if let Some(depth) = depth {
                file.comment(&format!(
                    "Children end at level {depth}: with the next one there would be too many of them."
                ));
            }
            file.fields(row);
            for SuggestedAlias { name, columns: of } in by {
                let why = "another key of the same documents";
                file.below("resource.by", Some(why), |file| {
                    file.line(&format!("name = {}", toml_string(name)));
                    file.line(&format!("columns = {}", columns(of)));
                });
            }
            file.rows_below("resource", row);
        });
    }

    fn condition(&mut self, row: &SuggestedRow) {
        if let Some(condition) = &row.not_deleted {
            self.comment("Rows that are marked as deleted are served, too. To hide them:");
            self.offer(&format!("where = {}", toml_string(condition)));
        }
    }

    fn fields(&mut self, row: &SuggestedRow) {
        for column in &row.left_out {
            self.comment(&format!(
                "Left out: column {}, {}.",
                column.name, column.why
            ));
        }
        if self.is_writable && !row.needed.is_empty() {
            let names = row.needed.join(", ");
            self.comment(&format!(
                "New rows can't be written: they need a value of {names}, which has no default."
            ));
        }
        if self.is_off {
            self.line(&format!("fields = {}", toml_list(&row.fields)));
            return;
        }
        self.line("fields = [");
        for field in &row.fields {
            self.line(&format!("  {},", toml_string(field)));
        }
        self.line("]");
    }

    fn rows_below(&mut self, path: &str, row: &SuggestedRow) {
        let header = format!("{path}.children");
        for child in &row.children {
            self.child(&header, child);
        }
        let header = format!("{path}.lookups");
        for lookup in &row.lookups {
            self.lookup(&header, lookup);
        }
    }

    fn child(&mut self, header: &str, child: &SuggestedChild) {
        self.below(header, child.off.as_deref(), |file| {
            let row = &child.row;
            file.line(&format!("name = {}", toml_string(&child.name)));
            file.line(&format!("table = {}", toml_string(&row.table.written())));
            file.line(&format!("foreign_key = {}", columns(&child.foreign_key)));
            if let Some(order) = &child.order_by {
                file.line(&format!("order_by = {}", columns(order)));
            }
            file.condition(row);
            file.fields(row);
            file.rows_below(header, row);
        });
    }

    fn lookup(&mut self, header: &str, lookup: &SuggestedLookup) {
        self.below(header, lookup.off.as_deref(), |file| {
            let row = &lookup.row;
            file.line(&format!("name = {}", toml_string(&lookup.name)));
            file.line(&format!("table = {}", toml_string(&row.table.written())));
            file.line(&format!("column = {}", columns(&lookup.column)));
            if let Some(references) = &lookup.references {
                file.line(&format!("references = {}", columns(references)));
            }
            file.condition(row);
            file.fields(row);
        });
    }
}

/// One column, or a list of them.
fn columns(names: &[String]) -> String {
    match names {
        [name] => toml_string(name),
        names => toml_list(names),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// A right-to-left override made a comment look like a setting.
    #[test]
    fn what_is_not_seen_is_escaped() {
        let name = "a\u{202e}b\u{200b}c\nd\u{e0041}";
        let written = toml_string(name);
        assert!(written.is_ascii(), "{written}");
        let config = Config::from_toml(&format!("state_dir = {written}"), &[]).unwrap();
        assert_eq!(config.state_dir.to_str(), Some(name));
    }
}
