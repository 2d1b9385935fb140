//! The tables, and the requests that write to them.

use serde_json::{Value, json};
use testkit::http::Request;

/// The demo's tables, and a copy of them with triggers as applications have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    Plain,
    Triggers,
}

/// The copy and its triggers.
pub(super) const TABLES_SQL: &str = "
    create table triggers_dept (like dept including all);
    create table triggers_emp (like emp including all);
    alter table triggers_emp add foreign key (deptno) references triggers_dept;
    alter table triggers_dept add changed_at timestamptz;
    alter table triggers_emp add changed_at timestamptz;
    create function set_changed_at() returns trigger language plpgsql as $$ begin
      new.changed_at := now(); return new; end $$;
    create trigger set_changed_at before insert or update on triggers_dept for each row execute function set_changed_at();
    create trigger set_changed_at before insert or update on triggers_emp for each row execute function set_changed_at();
    create table audit (operation text, at timestamptz default now());
    create function audit() returns trigger language plpgsql as $$ begin
      insert into audit values (tg_op); return null; end $$;
    create trigger audit after insert or update or delete on triggers_dept for each row execute function audit();
    create trigger audit after insert or update or delete on triggers_emp for each row execute function audit();
";

/// The resources of both.
pub(super) fn resources() -> String {
    let resource = |table: Table| {
        format!(
            "[[resource]]\nname = '{dept}'\ntable = '{dept}'\n\
             fields = {{ deptno = 'no', dname = 'name', loc = 'loc' }}\n\
             [[resource.children]]\nname = 'emps'\ntable = '{emp}'\n\
             fields = {{ empno = 'no', ename = 'name', job = 'job', sal = 'sal' }}\n",
            dept = table.dept(),
            emp = table.emp()
        )
    };
    Table::ALL.map(resource).concat()
}

impl Table {
    pub(super) const ALL: [Self; 2] = [Self::Plain, Self::Triggers];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "no triggers",
            Self::Triggers => "triggers",
        }
    }

    /// The table of the root rows, and the resource.
    pub(super) fn dept(self) -> &'static str {
        match self {
            Self::Plain => "dept",
            Self::Triggers => "triggers_dept",
        }
    }

    pub(super) fn emp(self) -> &'static str {
        match self {
            Self::Plain => "emp",
            Self::Triggers => "triggers_emp",
        }
    }
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Post,
    /// All rows differ.
    PutAll,
    /// One row of eleven differs.
    PutOne,
    PutSame,
    /// A member of the root row.
    Patch,
    Delete,
    Bulk,
    LenientBulk,
}

impl Kind {
    pub(super) const ALL: [Self; 8] = [
        Self::Post,
        Self::PutAll,
        Self::PutOne,
        Self::PutSame,
        Self::Patch,
        Self::Delete,
        Self::Bulk,
        Self::LenientBulk,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Post => "POST",
            Self::PutAll => "PUT of eleven rows",
            Self::PutOne => "PUT of one row",
            Self::PutSame => "PUT of no row",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
            Self::Bulk => "bulk",
            Self::LenientBulk => "lenient bulk",
        }
    }

    /// Of the answer to such a request.
    pub(super) fn status(self) -> u16 {
        match self {
            Self::Post => 201,
            Self::Delete => 204,
            _ => 200,
        }
    }

    /// A request for the document `key`; `change` is another number for each.
    pub(super) fn request(self, table: Table, key: u64, change: u64) -> Request {
        let path = format!("/{}/{key}", table.dept());
        let (method, path, body) = match self {
            Self::Post | Self::Bulk | Self::LenientBulk => {
                let path = format!("/{}", table.dept());
                ("POST", path, Some(document(key, 0, 0)))
            }
            Self::PutAll => ("PUT", path, Some(document(key, change, change))),
            Self::PutOne => ("PUT", path, Some(document(key, 0, change))),
            Self::PutSame => ("PUT", path, Some(document(key, 0, 0))),
            Self::Patch => {
                let body = json!({"name": format!("NAME {change}")});
                ("PATCH", path, Some(body))
            }
            Self::Delete => ("DELETE", path, None),
        };
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let media_type = match self {
            Self::Patch => "application/merge-patch+json",
            _ => "application/json",
        };
        Request::new(method, path).with_body(media_type, body)
    }
}

/// A document of a dept and ten emps; `one` changes its last row, `all` the other ones.
fn document(key: u64, all: u64, one: u64) -> Value {
    let emps: Vec<Value> = (0..10)
        .map(|emp| {
            let change = if emp == 9 { one } else { all };
            let no = key * 10 + emp;
            json!({"no": no, "name": format!("EMPLOYEE {emp}"), "job": "CLERK", "sal": 1_000 + change % 1_000_000})
        })
        .collect();
    json!({"no": key, "name": format!("NAME {all}"), "loc": "NEW YORK", "emps": emps})
}

/// One request that inserts documents with these keys, as NDJSON.
pub(super) fn bulk(table: Table, kind: Kind, keys: impl Iterator<Item = u64>) -> Request {
    let body: String = keys
        .map(|key| format!("{}\n", document(key, 0, 0)))
        .collect();
    let request = Request::new("POST", format!("/{}", table.dept()));
    let request = request.with_body("application/x-ndjson", body);
    match kind {
        Kind::LenientBulk => request.with("prefer", "handling=lenient"),
        _ => request,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_row_or_all_rows_differ() {
        let same = document(7, 0, 0);
        let differing = |other: &Value| {
            let pairs = same["emps"].as_array().unwrap().iter();
            let others = other["emps"].as_array().unwrap();
            let emps = pairs.zip(others).filter(|(one, other)| one != other);
            emps.count() + usize::from(same["name"] != other["name"])
        };
        assert_eq!(differing(&document(7, 0, 3)), 1);
        assert_eq!(differing(&document(7, 3, 3)), 11);
        assert_eq!(differing(&document(7, 0, 0)), 0);
    }
}
