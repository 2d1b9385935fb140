//! The rows of documents: how they are checked, inserted, replaced and deleted.

use serde_json::Value;
use sqlx::Row;

use super::{Column, Members, Oracle, Refusals, Right, Role, Target, literal_of, member, rows_of};
use crate::checks::scope::differential::ddl::names;

impl Oracle<'_> {
    /// Inserts a document, whose owner is the principal where the body does not tell one.
    pub(super) async fn insert_document(
        &mut self,
        target: &Target<'_>,
        refusals: &mut Refusals,
    ) -> anyhow::Result<()> {
        let mut document = target.document.clone();
        let keys = self.schema.tables[0].of_role(Role::Key).zip(&target.key);
        document.extend(keys.map(|(column, part)| (column.name.clone(), part.clone())));
        self.set_owner(&mut document, refusals);
        self.check_new_pointers(0, &document, refusals).await?;
        self.insert_row(0, &document, &[], refusals).await
    }

    /// The restricted write documents of their own alone.
    fn set_owner(&self, document: &mut Members, refusals: &mut Refusals) {
        let (Right::Own(owner), Some(of)) = (self.right, &self.schema.owner) else {
            return;
        };
        let own = owner.map(|owner| of.kind.json(owner));
        if own.is_none()
            || document
                .get("o")
                .is_some_and(|named| Some(named) != own.as_ref())
        {
            refusals.add(403);
        }
        document.insert("o".to_owned(), own.unwrap_or_default());
    }

    /// Inserts a row and the rows below it.
    async fn insert_row(
        &mut self,
        table: usize,
        members: &Members,
        link: &[Value],
        refusals: &mut Refusals,
    ) -> anyhow::Result<()> {
        let of = &self.schema.tables[table];
        let is_told = |column: &&Column| members.contains_key(&column.name);
        let told: Vec<&Column> = of.columns.iter().filter(is_told).collect();
        let links: Vec<&Column> = of.of_role(Role::Link).collect();
        let literals = link
            .iter()
            .chain(told.iter().map(|column| &members[&column.name]));
        let sql = format!(
            "insert into {} ({}) values ({})",
            self.schema.table_sql(table),
            names(links.into_iter().chain(told.iter().copied())),
            literals.map(literal_of).collect::<Vec<_>>().join(", ")
        );
        let key = self.key_of(table, members);
        if let Some(status) = self.statement(&sql).await? {
            refusals.add(status);
            // PostgreSQL judges a row before its key, larder may do so after.
            if status == 422 && self.exists(table, &key).await? {
                refusals.add(409);
            }
            return Ok(());
        }
        self.check_visible(table, &key, refusals).await?;
        for child in self.schema.children(table).collect::<Vec<_>>() {
            let name = &self.schema.tables[child].name;
            for row in rows_of(members, name) {
                Box::pin(self.insert_row(child, row, &key, refusals)).await?;
            }
        }
        Ok(())
    }

    /// Replaces a document, or what a patch tells of it.
    pub(super) async fn replace_document(
        &mut self,
        target: &Target<'_>,
        stored: &Members,
        refusals: &mut Refusals,
    ) -> anyhow::Result<()> {
        let mut document = target.document.clone();
        self.set_owner(&mut document, refusals);
        let target = Target {
            key: target.key.clone(),
            document: &document,
            is_patch: target.is_patch,
        };
        self.replace_row(0, &target, stored, refusals).await
    }

    async fn replace_row(
        &mut self,
        table: usize,
        target: &Target<'_>,
        stored: &Members,
        refusals: &mut Refusals,
    ) -> anyhow::Result<()> {
        let members = target.document;
        self.check_pointers(table, members, Some(stored), refusals)
            .await?;
        let children = self.schema.children(table);
        let is_told = |child: &usize| {
            !target.is_patch || members.contains_key(&self.schema.tables[*child].name)
        };
        let children: Vec<usize> = children.filter(is_told).collect();
        for child in &children {
            self.remove_rows(*child, members, &target.key, refusals)
                .await?;
        }
        self.update_row(table, target, refusals).await?;
        self.check_visible(table, &target.key, refusals).await?;
        for child in children {
            let name = &self.schema.tables[child].name;
            for row in rows_of(members, name) {
                Box::pin(self.put_row(child, row, &target.key, refusals)).await?;
            }
        }
        Ok(())
    }

    async fn update_row(
        &mut self,
        table: usize,
        target: &Target<'_>,
        refusals: &mut Refusals,
    ) -> anyhow::Result<()> {
        let members = target.document;
        let is_kept = |column: &&Column| {
            let is_left_out = !members.contains_key(&column.name);
            is_left_out && (target.is_patch || column.default.is_some())
        };
        let shown = self.schema.tables[table].shown();
        let changed = shown.filter(|column| column.role != Role::Key && !is_kept(column));
        let sets: Vec<String> = changed
            .map(|column| {
                format!(
                    "{} = {}",
                    column.name,
                    literal_of(&member(members, &column.name))
                )
            })
            .collect();
        if sets.is_empty() {
            return Ok(());
        }
        let (table_sql, is_key) = (
            self.schema.table_sql(table),
            self.is_key_sql(table, &target.key),
        );
        let sql = format!("update {table_sql} set {} where {is_key}", sets.join(", "));
        if let Some(status) = self.statement(&sql).await? {
            refusals.add(status);
        }
        Ok(())
    }

    /// A row below: a visible one is replaced, another one inserted.
    async fn put_row(
        &mut self,
        table: usize,
        members: &Members,
        link: &[Value],
        refusals: &mut Refusals,
    ) -> anyhow::Result<()> {
        let key = self.key_of(table, members);
        let rows = self.visible_below(table, link).await?;
        match rows.iter().find(|row| self.key_of(table, row) == key) {
            Some(stored) => {
                let target = Target {
                    key,
                    document: members,
                    is_patch: false,
                };
                self.replace_row(table, &target, stored, refusals).await
            }
            None => {
                self.check_new_pointers(table, members, refusals).await?;
                self.insert_row(table, members, link, refusals).await
            }
        }
    }

    /// Deletes the visible rows below a row that the body leaves out.
    async fn remove_rows(
        &mut self,
        table: usize,
        members: &Members,
        link: &[Value],
        refusals: &mut Refusals,
    ) -> anyhow::Result<()> {
        let name = self.schema.tables[table].name.clone();
        for row in self.visible_below(table, link).await? {
            let key = self.key_of(table, &row);
            let mut kept = rows_of(members, &name);
            if kept.all(|kept| self.key_of(table, kept) != key)
                && let Some(status) = self.delete_row(table, &key).await?
            {
                refusals.add(status);
            }
        }
        Ok(())
    }

    /// Deletes a row after the visible rows below it; a soft deletion keeps those. Returns the status of a failure, also that of
    /// rows that would have been kept: larder learns only from the row above that they are.
    pub(super) async fn delete_row(
        &mut self,
        table: usize,
        key: &[Value],
    ) -> anyhow::Result<Option<u16>> {
        self.plain("savepoint below").await?;
        for child in self.schema.children(table).collect::<Vec<_>>() {
            for row in self.visible_below(child, key).await? {
                let key = self.key_of(child, &row);
                if let Some(status) = Box::pin(self.delete_row(child, &key)).await? {
                    return Ok(Some(status));
                }
            }
        }
        if self.schema.tables[table].is_soft {
            self.plain("rollback to savepoint below").await?;
        }
        self.plain("release savepoint below").await?;
        let is_key = self.is_key_sql(table, key);
        let sql = format!(
            "delete from {} where {is_key}",
            self.schema.table_sql(table)
        );
        self.statement(&sql).await
    }

    /// The visible rows of `table` below the row with this key.
    async fn visible_below(
        &mut self,
        table: usize,
        link: &[Value],
    ) -> anyhow::Result<Vec<Members>> {
        let links = self.schema.tables[table].of_role(Role::Link).zip(link);
        let linked = links.map(|(column, part)| format!("{} = {}", column.name, literal_of(part)));
        let (rows, linked) = (
            self.schema.visible_sql(table),
            linked.collect::<Vec<_>>().join(" and "),
        );
        let rows = self
            .rows(&format!(
                "select to_jsonb(t)::text from {rows} t where {linked}"
            ))
            .await?;
        let rows = rows
            .iter()
            .map(|row| Ok(serde_json::from_str(row.try_get(0)?)?));
        rows.collect()
    }

    /// A row that larder does not see after the write can't be written.
    async fn check_visible(
        &mut self,
        table: usize,
        key: &[Value],
        refusals: &mut Refusals,
    ) -> anyhow::Result<()> {
        let (rows, is_key) = (self.schema.visible_sql(table), self.is_key_sql(table, key));
        if !self
            .is_any(&format!("select from {rows} t where {is_key}"))
            .await?
        {
            refusals.add(422);
        }
        Ok(())
    }

    /// The columns of a new row, and of those below it, that point somewhere.
    async fn check_new_pointers(
        &mut self,
        table: usize,
        members: &Members,
        refusals: &mut Refusals,
    ) -> anyhow::Result<()> {
        self.check_pointers(table, members, None, refusals).await?;
        for child in self.schema.children(table).collect::<Vec<_>>() {
            let name = &self.schema.tables[child].name;
            for row in rows_of(members, name) {
                Box::pin(self.check_new_pointers(child, row, refusals)).await?;
            }
        }
        Ok(())
    }

    /// The restricted let columns point elsewhere than before only where they may.
    async fn check_pointers(
        &mut self,
        table: usize,
        members: &Members,
        stored: Option<&Members>,
        refusals: &mut Refusals,
    ) -> anyhow::Result<()> {
        let pointers = self.schema.tables[table].of_role(Role::Pointer);
        let pointers: Vec<&Column> = pointers.filter(|column| column.is_shown).collect();
        for column in pointers {
            let Some(value) = members.get(&column.name) else {
                continue;
            };
            let is_changed = stored.is_none_or(|stored| member(stored, &column.name) != *value);
            if is_changed && !self.may_point(table, &column.name, value).await? {
                refusals.add(403);
            }
        }
        Ok(())
    }

    fn key_of(&self, table: usize, members: &Members) -> Vec<Value> {
        let columns = self.schema.tables[table].of_role(Role::Key);
        columns
            .map(|column| member(members, &column.name))
            .collect()
    }
}
