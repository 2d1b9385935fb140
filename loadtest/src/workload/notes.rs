//! Documents of a table with row security: which of them larder's role may see is what faults change.

use crate::workload::history::Digest;
use crate::workload::viewer::Audience;

use super::ExpectedDocument;

/// Documents, on top of those of plots.
pub(crate) const NOTES: u32 = 100;

/// The table, what its policies read, and the role that larder connects as, which is not above policies.
pub(crate) const NOTES_SCHEMA: &str = "
create table note (id integer primary key, tenant text not null, visible_until timestamptz, revision bigint not null);
create table note_grant (id integer primary key, open boolean not null);
create role note_reader;
create role note_group;
create role follower login password 'follower';
grant create on database larder to follower;
grant select on note_grant to follower;
alter table root owner to follower;
alter table child owner to follower;
alter table grandchild owner to follower;
alter table site owner to follower;
alter table note owner to follower;
";

/// Everything is to be seen, by what the row alone decides, and nothing of an earlier fault is left.
pub(crate) const NOTES_PLAIN: &str = "drop policy if exists note_shown on note; drop policy if exists note_more on note; \
    drop policy if exists note_less on note; alter table note enable row level security, force row level security; \
    create policy note_shown on note using (revision > 0); \
    update note set visible_until = null where visible_until is not null; \
    update note_grant set open = true where not open; \
    create or replace function note_shown(id integer) returns boolean language sql stable as 'select true'; \
    alter role follower set app.tenant = 'even'; alter role follower nobypassrls; \
    revoke note_reader, note_group from follower; revoke note_reader from note_group";
/// How larder is told of them.
pub(crate) const NOTES_RESOURCE: &str = r#"
[[resource]]
name = "notes"
table = "public.note"
key = "id"
row_security = "as-larder"
fields = { id = "id", revision = "revision" }
"#;

/// What larder's role may see of the table.
#[derive(Clone, Debug)]
pub(crate) struct Notes {
    /// Keys of other documents are below.
    first: u32,
    shown: Vec<bool>,
}

impl Notes {
    /// Of keys from `first`; all are to be seen.
    pub(crate) fn new(first: u32, count: u32) -> Self {
        Self {
            first,
            shown: (0..count).map(|_| true).collect(),
        }
    }

    pub(crate) fn keys(&self) -> std::ops::Range<u32> {
        let count = u32::try_from(self.shown.len()).unwrap_or(u32::MAX);
        self.first..self.first + count
    }

    /// The statement that fills the tables.
    pub(crate) fn fill(&self) -> String {
        let std::ops::Range { start, end } = self.keys();
        format!(
            "insert into note select id, case id % 2 when 0 then 'even' else 'odd' end, null, 1 \
             from generate_series({start}, {end} - 1) id; \
             insert into note_grant select id, true from note"
        )
    }

    /// The documents that change where those are to be seen whose key is `shown`, as they are then.
    pub(crate) fn changed(&self, shown: impl Fn(u32) -> bool) -> Vec<ExpectedDocument> {
        let now = self.keys().zip(&self.shown);
        now.filter(|(key, now)| shown(*key) != **now)
            .map(|(key, now)| made(key, !now))
            .collect()
    }

    /// Those are to be seen now whose key is `shown`.
    pub(crate) fn show(&mut self, shown: impl Fn(u32) -> bool) {
        self.shown = self.keys().map(shown).collect();
    }

    /// The documents as they are now.
    pub(crate) fn made(&self) -> Vec<ExpectedDocument> {
        let now = self.keys().zip(&self.shown);
        now.map(|(key, shown)| made(key, *shown)).collect()
    }
}

fn made(key: u32, shown: bool) -> ExpectedDocument {
    let body = format!(r#"{{"id":{key},"revision":1}}"#);
    let digest = if shown {
        Digest::of(body.as_bytes())
    } else {
        Digest::ABSENT
    };
    let audience = Audience::Everyone;
    ExpectedDocument {
        key,
        digest,
        audience,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_shown_otherwise_changes() {
        let mut notes = Notes::new(11, 4);
        assert!(notes.changed(|_| true).is_empty());
        let even = |key: u32| key.is_multiple_of(2);
        let changed = notes.changed(even);
        assert_eq!(changed, [made(11, false), made(13, false)]);
        assert_eq!(changed[0].digest, Digest::ABSENT);
        notes.show(even);
        assert!(notes.changed(even).is_empty());
        assert_eq!(notes.changed(|_| true), [made(11, true), made(13, true)]);
        assert_eq!(notes.made()[1], made(12, true));
    }
}
