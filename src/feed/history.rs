//! Whether the database is still in the history that this larder followed, or was put back to an earlier state.
//!
//! A data directory that was copied while PostgreSQL was stopped, and is put back later, has the same system
//! identifier, oids and nonce. Its transaction numbers may have been used for other transactions meanwhile. So this
//! larder's row in `larder.node` has a random mark. A new one is written on each connection of the feed, before
//! anything that is read over it can be stored, and with each heartbeat. A file in the state directory has the marks
//! that the row may have: the last one whose commit PostgreSQL has acknowledged, and the next one, which is in the file
//! before it is sent. Any other mark means another history, and everything in both tiers may be stale (`tests/model`,
//! module `life`).

use std::fs;
use std::path::PathBuf;

use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::feed::position::Position;
use crate::source::SourceError;
use crate::state::replace_or_remove;

/// The history that this larder follows, and the marks that its row may have.
#[derive(Debug)]
pub(super) struct History {
    file: PathBuf,
    id: Uuid,
    acknowledged: Option<Uuid>,
    next: Option<Uuid>,
}

impl History {
    /// Reads what an earlier run has written to `file`. If it can't be read, the history has a new name and no mark.
    pub(super) fn open(file: PathBuf) -> Self {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let mut lines = text.lines().map(|line| Uuid::try_parse(line).ok());
        Self {
            id: lines.next().flatten().unwrap_or_else(Uuid::new_v4),
            acknowledged: lines.next().flatten(),
            next: lines.next().flatten(),
            file,
        }
    }

    /// The name of the history, which the mark on disk has as well.
    pub(super) fn id(&self) -> Uuid {
        self.id
    }

    /// Compares the mark of `node` in the database with the expected ones, and writes a new one. If it is not an
    /// expected one, the history gets a new name. Nothing may be loaded before.
    ///
    /// # Errors
    /// If PostgreSQL can't be reached, or refuses a statement. The row may have the old or the new mark then; both are
    /// expected next time.
    pub(super) async fn compare(
        &mut self,
        connection: &mut PgConnection,
        node: Uuid,
        position: &Position,
    ) -> Result<(), SourceError> {
        let found: Option<Option<String>> =
            sqlx::query_scalar("select mark::text from larder.node where name = $1::text::uuid")
                .bind(node.to_string())
                .fetch_optional(&mut *connection)
                .await?;
        let found = found.flatten().and_then(|mark| Uuid::try_parse(&mark).ok());
        if found.is_none() || (found != self.acknowledged && found != self.next) {
            self.id = Uuid::new_v4();
        }
        self.acknowledged = found;
        let mark = self.draw_mark();
        sqlx::query(
            "insert into larder.node (name, position, seen_at, mark) \
             values ($1::text::uuid, $2::text::pg_snapshot, now(), $3::text::uuid) \
             on conflict (name) do update set mark = excluded.mark",
        )
        .bind(node.to_string())
        .bind(position.as_str())
        .bind(mark.to_string())
        .execute(connection)
        .await?;
        self.acknowledge_mark();
        Ok(())
    }

    /// Begins another history without marks. It is called on each connection if this larder may not write its row, so
    /// that no run resumes what an earlier one left.
    pub(super) fn renew(&mut self) {
        self.id = Uuid::new_v4();
        (self.acknowledged, self.next) = (None, None);
        self.write();
    }

    /// Draws the next mark and writes it to the file. The caller sends it to PostgreSQL.
    pub(super) fn draw_mark(&mut self) -> Uuid {
        let mark = Uuid::new_v4();
        self.next = Some(mark);
        self.write();
        mark
    }

    /// Records that PostgreSQL has committed the next mark.
    pub(super) fn acknowledge_mark(&mut self) {
        self.acknowledged = self.next.take();
        self.write();
    }

    /// Writes the file, or removes it if that fails: then no later run resumes what is on disk. The file is not synced,
    /// since no run resumes it after a crash of the machine.
    fn write(&self) {
        let lines = [Some(self.id), self.acknowledged, self.next];
        let lines = lines.map(|line| line.map_or_else(|| "-".to_owned(), |line| line.to_string()));
        if let Err(error) = replace_or_remove(&self.file, &lines.join("\n")) {
            tracing::warn!(
                "the next start can't use the disk tier's content: can't write {}: {error}",
                self.file.display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_mark_is_written_before_it_is_sent() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("marks");
        let read = || {
            let history = History::open(file.clone());
            (history.id, history.acknowledged, history.next)
        };
        let mut history = History::open(file.clone());
        let first = history.draw_mark();
        assert_eq!(read(), (history.id, None, Some(first)));
        history.acknowledge_mark();
        assert_eq!(read(), (history.id, Some(first), None));
        let second = history.draw_mark();
        assert_eq!(read(), (history.id, Some(first), Some(second)));
        fs::write(&file, "no marks").unwrap();
        assert_ne!(read().0, history.id);
    }

    #[test]
    fn marks_that_cant_be_written_leave_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("marks");
        let mut history = History::open(file.clone());
        history.draw_mark();
        history.acknowledge_mark();
        fs::create_dir(file.with_extension("new")).unwrap();
        history.draw_mark();
        assert!(!file.exists());
    }
}
