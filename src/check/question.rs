//! What PostgreSQL is asked to plan: larder's statements, and by which columns each of them has to find rows.

use std::sync::Arc;

use crate::check::queries::{QueryError, position};
use crate::check::{Rule, Severity};
use crate::resource::catalogue::TableName;
use crate::resource::condition::{Condition, and_sql};
use crate::resource::definition::Place;
use crate::resource::find::Find;
use crate::resource::key::KeyColumn;
use crate::resource::link::{KeyMapping, links};
use crate::resource::page::Page;
use crate::resource::sql::identifier;
use crate::resource::sql_type::{Equality, SqlType};
use crate::resource::write::WriteStatement;
use crate::resource::{Alias, Resource, Row};

/// Statements, and what their plans have to show.
#[derive(Clone, Debug)]
pub struct Question {
    /// What the statements do, for users.
    pub name: String,
    /// The statements.
    pub statements: Vec<PlannedStatement>,
    /// What the plans have to show.
    pub kind: QuestionKind,
}

/// A statement to be planned.
#[derive(Clone, Debug)]
pub struct PlannedStatement {
    /// Its text, with `$1, $2, …`.
    pub sql: String,
    /// The settings that it runs under.
    pub settings: PlanSettings,
}

/// The settings that a statement is planned under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanSettings {
    /// Those of reads and writes of documents.
    Documents,
    /// The same, with an index that has the rows in order where there is one.
    Pages,
    /// Those of the feed's passes.
    Passes,
    /// Those under which the plans of users' statements show what they lack.
    Users,
    /// Those of the session, to compare costs.
    Unchanged,
}

/// What plans have to show.
#[derive(Clone, Debug)]
pub enum QuestionKind {
    /// Each search is served by an index. The first statement does all of them, and each further statement one of them
    /// alone: in tables of few rows PostgreSQL may prefer an index that has the rows in order to one that finds them.
    Rows(Vec<Search>),
    /// The statements are the search alone, a first page, and a page after a key. An index finds the rows and has them in
    /// the order of pages.
    List(Search),
    /// The statement is a first page of all rows. An index has them in the order of pages.
    Order(Search),
    /// A statement of users.
    Users(UserStatement),
}

/// A search for rows by columns that are equal to known values.
#[derive(Clone, Debug)]
pub struct Search {
    /// The table's name in the statements.
    pub alias: String,
    /// The table.
    pub table: TableName,
    /// The columns.
    pub columns: Vec<String>,
    /// The columns of an index that serves it best.
    pub index: Vec<String>,
    /// The rule that a missing index is found by.
    pub rule: Rule,
    /// How bad a missing index is.
    pub severity: Severity,
    /// What leads to it.
    pub place: Option<Place>,
    /// The subject and the verb of a sentence about it.
    pub subject: String,
    /// The statement that only searches.
    pub alone: String,
}

/// A statement of users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserStatement {
    /// Its text, without a semicolon at its end.
    pub text: String,
    /// The file and the line where it begins; `None` if it is of no file.
    pub place: Option<Place>,
    /// The character of the line where it begins, counted from 1.
    pub column: usize,
    /// For users.
    pub name: String,
}

impl UserStatement {
    /// A mistake at a character of the text, counted from 0, as one of its file; `None` if it is of no file.
    pub fn error_at(&self, character: usize, message: &str) -> Option<QueryError> {
        let place = self.place.as_ref()?;
        let before: String = self.text.chars().take(character).collect();
        let (line, column) = position(&before);
        Some(QueryError {
            origin: Arc::clone(&place.origin),
            line: place.line + line - 1,
            column: match line {
                1 => self.column + column - 1,
                _ => column,
            },
            message: message.to_owned(),
        })
    }
}

impl From<UserStatement> for Question {
    fn from(statement: UserStatement) -> Self {
        Self {
            name: statement.name.clone(),
            statements: vec![PlannedStatement {
                sql: statement.text.clone(),
                settings: PlanSettings::Users,
            }],
            kind: QuestionKind::Users(statement),
        }
    }
}

/// A foreign key, as the trigger that PostgreSQL runs for it searches the rows that refer to a deleted one.
#[derive(Clone, Debug)]
pub struct Reference {
    /// The constraint's name.
    pub name: String,
    /// The referencing table.
    pub table: TableName,
    /// The referencing table is partitioned.
    pub is_partitioned: bool,
    /// The statement that grants what planning its searches needs, if larder's role lacks it.
    pub grant: Option<String>,
    /// The referenced table.
    pub target: TableName,
    /// Rows of the referenced table were deleted since the statistics were reset.
    pub has_deletes: bool,
    /// The pairs of columns.
    pub columns: Vec<ReferenceColumn>,
}

/// A column of a foreign key.
#[derive(Clone, Debug)]
pub struct ReferenceColumn {
    /// The referencing column.
    pub name: String,
    /// A cast to the type of the referenced column, `::type`; empty where larder's role may not name it.
    pub target_cast: String,
    /// The operator that compares them, as SQL; without its schema where larder's role may not use it.
    pub operator: String,
}

/// The questions about a resource.
pub fn questions(resource: &Resource) -> Vec<Question> {
    let about = About { resource };
    let mut questions = vec![about.documents()];
    questions.push(about.list_of_all());
    questions.extend(about.lists());
    questions.extend(about.aliases());
    questions.extend(about.passes());
    questions.extend(about.writes());
    questions
}

/// The question about a foreign key. larder deletes rows of `deleted` tables.
pub fn reference_question(
    reference: &Reference,
    place: Option<&Place>,
    deleted: &[&TableName],
) -> Question {
    let conditions = reference.columns.iter().enumerate().map(|(at, column)| {
        format!(
            "${}{} {} x.{}",
            at + 1,
            column.target_cast,
            column.operator,
            identifier(&column.name)
        )
    });
    let only = if reference.is_partitioned {
        ""
    } else {
        "only "
    };
    let columns: Vec<String> = reference
        .columns
        .iter()
        .map(|column| column.name.clone())
        .collect();
    let is_deleted = reference.has_deletes || deleted.contains(&&reference.target);
    let conditions = conditions.collect::<Vec<_>>().join(" and ");
    let from = format!("from {only}{} x where {conditions}", reference.table.sql());
    // The lock that the trigger takes as well needs a privilege, and changes no plan.
    let alone = format!("select 1 {from}");
    Question {
        name: format!("foreign key {} of {}", reference.name, reference.table),
        statements: [alone.clone(), alone.clone()]
            .map(|sql| PlannedStatement {
                sql,
                settings: PlanSettings::Users,
            })
            .into(),
        kind: QuestionKind::Rows(vec![Search {
            alone,
            alias: "x".into(),
            table: reference.table.clone(),
            index: columns.clone(),
            columns,
            rule: Rule::ForeignKey,
            severity: if is_deleted {
                Severity::Warning
            } else {
                Severity::Info
            },
            place: place.cloned(),
            subject: format!(
                "PostgreSQL, for each row of {} that is deleted, finds",
                reference.target
            ),
        }]),
    }
}

struct About<'r> {
    resource: &'r Resource,
}

impl About<'_> {
    fn question(
        &self,
        what: &str,
        settings: PlanSettings,
        statement: &str,
        searches: Vec<Search>,
    ) -> Question {
        let alone = searches.iter().map(|search| search.alone.as_str());
        let statements = [statement].into_iter().chain(alone);
        Question {
            name: format!("{what} of {}", self.resource.name),
            statements: statements
                .map(|sql| PlannedStatement {
                    sql: sql.to_owned(),
                    settings,
                })
                .collect(),
            kind: QuestionKind::Rows(searches),
        }
    }

    /// The search for the rows of a table that are called `alias`, by columns that are compared with values of types.
    fn search<'t>(
        &self,
        alias: &str,
        (table, condition): (&TableName, Option<&Condition>),
        columns: impl IntoIterator<Item = Compared<'t>>,
        subject: &str,
    ) -> Search {
        let mut names: Vec<String> = Vec::new();
        let mut conditions: Vec<String> = Vec::new();
        for (column, value_type, equality) in columns {
            names.push(column.to_owned());
            conditions.push(equality.sql(
                &format!("{alias}.{}", identifier(column)),
                &value_type.compared_parameter(names.len()),
            ));
        }
        let alone = format!(
            "select 1 from {} {alias} where {}{}",
            table.sql(),
            conditions.join(" and "),
            and_sql(condition, alias)
        );
        Search {
            alone,
            alias: alias.to_owned(),
            table: table.clone(),
            index: names.clone(),
            columns: names,
            rule: Rule::MissingIndex,
            severity: Severity::Warning,
            place: self.resource.place_of(table).cloned(),
            subject: subject.to_owned(),
        }
    }

    fn documents(&self) -> Question {
        let Resource {
            name, key, root, ..
        } = self.resource;
        let subject = format!("each document of {name} reads");
        let mut searches = vec![self.search("t0", of_row(root), types(&key.columns), &subject)];
        let mut tables = 0;
        self.rows_below(root, &subject, &mut tables, &mut searches);
        let statement = self.resource.documents_sql.as_str();
        self.question("documents", PlanSettings::Documents, statement, searches)
    }

    /// The searches of the rows below `row`, whose tables are called as in the statement (`resource/query.rs`).
    fn rows_below(&self, row: &Row, subject: &str, tables: &mut usize, searches: &mut Vec<Search>) {
        let children = row.children.iter().map(|child| (&child.on, &child.row));
        let lookups = row.lookups.iter().map(|lookup| (&lookup.on, &lookup.row));
        for (on, below) in children.chain(lookups) {
            *tables += 1;
            let columns = on.iter();
            let columns = columns.map(|pair| compared(&pair.own.name, &pair.upper.sql_type));
            let alias = format!("t{tables}");
            searches.push(Search {
                place: Some(below.place.clone()),
                ..self.search(&alias, of_row(below), columns, subject)
            });
            self.rows_below(below, subject, tables, searches);
        }
    }

    fn list_of_all(&self) -> Question {
        let Resource { name, key, .. } = self.resource;
        let page = Page {
            after: None,
            filters: Vec::new(),
            owner: None,
            limit: 1,
        };
        let subject = format!("each list of {name} reads");
        let search = self.search("t0", of_row(&self.resource.root), [], &subject);
        let key = key.columns.iter().map(|column| column.name.clone());
        Question {
            name: format!("lists of {name}"),
            statements: vec![PlannedStatement {
                sql: page.sql(self.resource, None).as_str().to_owned(),
                settings: PlanSettings::Pages,
            }],
            kind: QuestionKind::Order(Search {
                index: key.collect(),
                alone: page.sql(self.resource, None).as_str().to_owned(),
                ..search
            }),
        }
    }

    fn lists(&self) -> Vec<Question> {
        let Resource { name, filters, .. } = self.resource;
        let mut lists = Vec::new();
        // Without the operator no index serves, and the grant for it is told.
        let filters = filters.iter().enumerate();
        let filters = filters.filter(|(_, of)| *of.column.equality() != Equality::Records);
        for (place, filter) in filters {
            let page = Page {
                after: None,
                filters: vec![(place, Some(String::new()))],
                owner: None,
                limit: 1,
            };
            let subject = format!("each list of {name} by {} reads", filter.name);
            let what = format!("lists by {}", filter.name);
            let column = &filter.column;
            let column = (column.name(), column.sql_type(), column.equality());
            lists.push(self.list(&what, column, &filter.place, page, &subject));
        }
        if let Some(owner) = &self.resource.owner {
            let page = Page {
                after: None,
                filters: Vec::new(),
                owner: Some(String::new()),
                limit: 1,
            };
            let subject = format!("each list of one owner's documents of {name} reads");
            let column = compared(&owner.column.name, &owner.column.sql_type);
            lists.push(self.list("lists of one owner", column, &owner.place, page, &subject));
        }
        lists
    }

    /// The lists by a column, which the configuration names at a place.
    fn list(
        &self,
        what: &str,
        column: Compared<'_>,
        place: &Place,
        first: Page,
        subject: &str,
    ) -> Question {
        let root = of_row(&self.resource.root);
        let mut search = Search {
            place: Some(place.clone()),
            ..self.search("t0", root, [column], subject)
        };
        let key = self.resource.key.columns.iter();
        let key = key.map(|column| column.name.clone());
        search.index.extend(key.filter(|name| name != column.0));
        let after = Page {
            after: Some(String::new()),
            ..first.clone()
        };
        let alone = PlannedStatement {
            sql: search.alone.clone(),
            settings: PlanSettings::Documents,
        };
        let pages = [first, after].map(|page| PlannedStatement {
            sql: page.sql(self.resource, None).as_str().to_owned(),
            settings: PlanSettings::Pages,
        });
        Question {
            name: format!("{what} of {}", self.resource.name),
            statements: [alone].into_iter().chain(pages).collect(),
            kind: QuestionKind::List(search),
        }
    }

    fn aliases(&self) -> Vec<Question> {
        let Resource { name, root, by, .. } = self.resource;
        let question = |(place, alias): (usize, &Alias)| {
            let find = Find {
                alias: Some(place),
                texts: Vec::new(),
                owner: None,
            };
            let subject = format!("each read of {name} by {} reads", alias.name);
            let search = Search {
                place: Some(alias.place.clone()),
                ..self.search("t0", of_row(root), types(&alias.key.columns), &subject)
            };
            let sql = find.sql(self.resource, None);
            let what = format!("reads by {}", alias.name);
            self.question(&what, PlanSettings::Documents, sql.as_str(), vec![search])
        };
        by.iter().enumerate().map(question).collect()
    }

    /// A pass maps the keys of changed rows by joins. Each of them is planned alone: between tables of few rows PostgreSQL
    /// may choose another order of joins, in which an index is of no use.
    fn passes(&self) -> Vec<Question> {
        let mut questions = Vec::new();
        for link in links(self.resource) {
            let KeyMapping::Query { joins, .. } = &link.mapping else {
                continue;
            };
            for join in joins {
                let columns = join.columns.iter().zip(&join.compared);
                let columns =
                    columns.map(|(column, other)| compared(&column.name, &other.sql_type));
                let subject = format!(
                    "after each change of {}, a pass over {} reads",
                    link.table, self.resource.name
                );
                let search = self.search("t1", (&join.table, None), columns, &subject);
                let alone = search.alone.clone();
                questions.push(self.question("passes", PlanSettings::Passes, &alone, vec![search]));
            }
        }
        questions
    }

    fn writes(&self) -> Vec<Question> {
        let (Ok(writable), Some(sql)) = (&self.resource.writable, &self.resource.write_sql) else {
            return Vec::new();
        };
        let subject = format!("each write of a document of {} reads", self.resource.name);
        let question = |search: Search, statement: &WriteStatement| {
            let sql = statement.sql.as_str();
            self.question("writes", PlanSettings::Documents, sql, vec![search])
        };
        let root = of_row(&self.resource.root);
        let root = self.search("r", root, types(&self.resource.key.columns), &subject);
        let mut questions = vec![question(root, &sql.lock)];
        let deletes = sql.delete_levels.iter().rev().skip(1);
        let below = writable.levels.iter().skip(1).zip(&sql.lock_below);
        for ((level, lock), delete) in below.zip(deletes) {
            let links = level.link.iter();
            let columns = links.filter_map(|(own, _)| level.columns.get(*own));
            let columns = columns.map(|own| compared(&own.column, &own.plain_type));
            let from = (&level.table, level.condition.as_ref());
            let search = self.search("r", from, columns, &subject);
            questions.push(question(search.clone(), lock));
            questions.push(question(search, delete));
        }
        questions
    }
}

/// The table of a row, and its condition.
fn of_row(row: &Row) -> (&TableName, Option<&Condition>) {
    (&row.table, row.condition.as_ref())
}

/// The name of a column, the type of the value that it is compared with, and how.
type Compared<'t> = (&'t str, &'t SqlType, &'t Equality);

/// A column of a key or a link.
fn compared<'t>(name: &'t str, value_type: &'t SqlType) -> Compared<'t> {
    (name, value_type, &Equality::BUILT_IN)
}

fn types(columns: &[KeyColumn]) -> impl Iterator<Item = Compared<'_>> {
    let columns = columns.iter();
    columns.map(|column| compared(&column.name, &column.sql_type))
}
