//! Whether the database is still in the history that this larder followed, or was put back to an earlier state.
//!
//! A data directory that was copied while PostgreSQL was stopped has the same system identifier, oids and nonce when it
//! is put back later, and its transaction numbers may have been used for other transactions meanwhile. So this larder's
//! row in `larder.node` carries a random mark, drawn anew on each connection of the feed, before anything that is read
//! then can be stored, and with each heartbeat. The marks that the row may carry are kept in a file of the state
//! directory: the last one that PostgreSQL has acknowledged, and the next one, which is written there before it is
//! sent. Another mark means another history: nothing that either tier holds is known to be true (`tests/model`, module
//! `life`).

use std::fs;
use std::io;
use std::path::PathBuf;

use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::feed::position::Position;
use crate::source::SourceError;

/// The history that this larder follows, and the marks that its row may carry.
#[derive(Debug)]
pub(super) struct History {
    file: PathBuf,
    id: Uuid,
    acknowledged: Option<Uuid>,
    next: Option<Uuid>,
}

impl History {
    /// Reads what an earlier run has left in `file`; nothing where it can't be read.
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

    /// A name of the history, which what is on disk bears, too.
    pub(super) fn id(&self) -> Uuid {
        self.id
    }

    /// Compares the mark of `node` in the database, and draws a new one. Where it is another than expected, the
    /// history has a new name from here on. Nothing may be loaded before.
    ///
    /// # Errors
    /// What PostgreSQL said; then the marks stay as they were, or the next one counts as well.
    pub(super) async fn begin(
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
        let mark = self.draw();
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
        self.acknowledge();
        Ok(())
    }

    /// This larder may not write its row: each connection begins another history, and no run takes over from another.
    pub(super) fn lose(&mut self) {
        self.id = Uuid::new_v4();
        (self.acknowledged, self.next) = (None, None);
        self.write();
    }

    /// Draws the next mark and writes it down; the caller sends it.
    pub(super) fn draw(&mut self) -> Uuid {
        let mark = Uuid::new_v4();
        self.next = Some(mark);
        self.write();
        mark
    }

    /// PostgreSQL has committed the next mark.
    pub(super) fn acknowledge(&mut self) {
        self.acknowledged = self.next.take();
        self.write();
    }

    /// Without the file no later run takes over what is on disk. Nothing is synced: after a crash of the machine none
    /// does either.
    fn write(&self) {
        if let Err(error) = self.try_write() {
            tracing::warn!(
                "the next start can't use the disk tier's content: {}: {error}",
                self.file.display()
            );
            // It may name a mark that is past.
            if let Err(error) = fs::remove_file(&self.file) {
                tracing::debug!("{}: {error}", self.file.display());
            }
        }
    }

    fn try_write(&self) -> io::Result<()> {
        let lines = [Some(self.id), self.acknowledged, self.next];
        let lines = lines.map(|line| line.map_or_else(|| "-".to_owned(), |line| line.to_string()));
        let unfinished = self.file.with_extension("new");
        fs::write(&unfinished, lines.join("\n"))?;
        fs::rename(&unfinished, &self.file)
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
        let first = history.draw();
        assert_eq!(read(), (history.id, None, Some(first)));
        history.acknowledge();
        assert_eq!(read(), (history.id, Some(first), None));
        let second = history.draw();
        assert_eq!(read(), (history.id, Some(first), Some(second)));
        fs::write(&file, "no marks").unwrap();
        assert_ne!(read().0, history.id);
    }

    #[test]
    fn marks_that_cant_be_written_leave_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("marks");
        let mut history = History::open(file.clone());
        history.draw();
        history.acknowledge();
        fs::create_dir(file.with_extension("new")).unwrap();
        history.draw();
        assert!(!file.exists());
    }
}
