//! Writers that change whose documents are, and whether they are visible: one by plain SQL, and the staff through larder.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use serde_json::json;
use testkit::http::{Client, Request};
use tokio::time::sleep;

use crate::checks::scope::leaks::history::State;
use crate::checks::scope::leaks::world::{
    CUSTOMERS, HTTP_ITEMS, ITEMS, SITES, STAFF_KEY, World, number_of,
};
use crate::harness::session::SqlSession;
use larder::clock::Boottime;

/// Between two commits of plain SQL.
const PAUSE: Duration = Duration::from_millis(4);
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Between two writes of the staff.
const STAFF_PAUSE: Duration = Duration::from_millis(30);

/// An owner: mostly a principal.
fn owner(rng: &mut fastrand::Rng) -> Option<i64> {
    let owner = rng.i64(0..=CUSTOMERS + 1);
    (owner > 0).then_some(owner)
}

fn owner_sql(owner: Option<i64>) -> String {
    owner.map_or("null".to_owned(), |owner| owner.to_string())
}

/// Changes documents by plain SQL.
pub(super) struct SqlWriter {
    pub(super) world: Arc<World>,
    pub(super) rng: fastrand::Rng,
    pub(super) session: SqlSession,
}

impl SqlWriter {
    /// Inserts all rows.
    pub(super) async fn fill(&mut self) -> anyhow::Result<()> {
        let mut sql = String::new();
        for site in 1..=SITES {
            let state = self.drawn(true, String::new());
            let (owner, version) = (owner_sql(state.owner), state.version);
            sql += &format!("insert into site values ({site}, {owner}, {version});");
            if let Some(mut history) = self.world.site(site) {
                history.note(state, Boottime::now());
                history.settle(version, true, Boottime::now());
            }
        }
        for id in 1..=ITEMS + HTTP_ITEMS {
            let state = self.drawn(true, number_of(id));
            sql += &insert_sql(id, &state, self.rng.i64(1..=SITES));
            let version = state.version;
            self.world.note(id, state);
            self.world.settle(id, version, true);
        }
        Ok(self.session.run(&sql).await?)
    }

    fn state(&self, owner: Option<i64>, is_visible: bool, number: String) -> State {
        State {
            version: self.world.version(),
            owner,
            is_visible,
            number,
        }
    }

    /// A state with a drawn owner.
    fn drawn(&mut self, is_visible: bool, number: String) -> State {
        let owner = owner(&mut self.rng);
        self.state(owner, is_visible, number)
    }

    /// Writes until the load is to end.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        while !self.world.is_over() {
            match self.rng.u8(..12) {
                0 => self.change_site().await?,
                1 => self.swap_numbers().await?,
                _ => self.change_item().await?,
            }
            sleep(PAUSE).await;
        }
        Ok(())
    }

    async fn change_item(&mut self) -> anyhow::Result<()> {
        let id = self.rng.i64(1..=ITEMS);
        let Some(last) = self.world.last(id) else {
            bail!("document {id} has no history");
        };
        let is_there = !last.number.is_empty();
        let (sql, next) = match self.rng.u8(..10) {
            _ if !is_there => {
                let next = self.drawn(true, number_of(id));
                (insert_sql(id, &next, self.rng.i64(1..=SITES)), next)
            }
            // Its number stays with it: only those that never change theirs are deleted.
            0 if id > ITEMS / 2 => {
                let next = self.state(None, false, String::new());
                (format!("delete from item where id = {id};"), next)
            }
            1..=3 => {
                let next = self.state(last.owner, !last.is_visible, last.number);
                (update_sql(id, &next), next)
            }
            4 => {
                let next = self.drawn(!last.is_visible, last.number);
                (update_sql(id, &next), next)
            }
            _ => {
                let next = self.drawn(last.is_visible, last.number);
                (update_sql(id, &next), next)
            }
        };
        self.commit(&sql, vec![(id, next)]).await
    }

    /// Two documents exchange their numbers, with all that is known by these.
    async fn swap_numbers(&mut self) -> anyhow::Result<()> {
        let half = ITEMS / 2;
        let ids = [self.rng.i64(1..half), self.rng.i64(1..half)];
        let [Some(one), Some(other)] = ids.map(|id| self.world.last(id)) else {
            bail!("documents {ids:?} have no history");
        };
        if ids[0] == ids[1] {
            return Ok(());
        }
        let first = self.state(one.owner, one.is_visible, other.number);
        let second = self.state(other.owner, other.is_visible, one.number);
        // No other document has this number.
        let freed = format!("update item set number = 'free' where id = {};", ids[0]);
        let updates = [update_sql(ids[1], &second), update_sql(ids[0], &first)];
        let sql = freed + updates.concat().as_str();
        self.commit(&sql, vec![(ids[0], first), (ids[1], second)])
            .await
    }

    async fn change_site(&mut self) -> anyhow::Result<()> {
        let site = self.rng.i64(1..=SITES);
        let next = self.drawn(true, String::new());
        let (owner, version) = (owner_sql(next.owner), next.version);
        let sql =
            format!("update site set owner = {owner}, version = {version} where id = {site};");
        if let Some(mut history) = self.world.site(site) {
            history.note(next, Boottime::now());
        }
        let is_committed = match self.session.run(&sql).await {
            Ok(()) => true,
            Err(_) => self.is_version("site", site, Some(version)).await,
        };
        if let Some(mut history) = self.world.site(site) {
            history.settle(version, is_committed, Boottime::now());
        }
        Ok(())
    }

    /// Runs the statements in one transaction, which makes these states of documents.
    async fn commit(&mut self, sql: &str, states: Vec<(i64, State)>) -> anyhow::Result<()> {
        let noted: Vec<(i64, i64, bool)> = states
            .iter()
            .map(|(id, state)| (*id, state.version, !state.number.is_empty()))
            .collect();
        for (id, state) in states {
            self.world.note(id, state);
        }
        let is_committed = match self.session.run(&format!("begin; {sql} commit")).await {
            Ok(()) => true,
            Err(_) => {
                let (id, version, is_there) = noted[0];
                self.is_version("item", id, is_there.then_some(version))
                    .await
            }
        };
        for (id, version, _) in noted {
            self.world.settle(id, version, is_committed);
        }
        Ok(())
    }

    /// Whether a row has this version, or is not there; asked until PostgreSQL answers.
    async fn is_version(&mut self, table: &str, id: i64, version: Option<i64>) -> bool {
        let sql = format!("select version::text from {table} where id = {id}");
        loop {
            match self.session.texts(&sql).await {
                Ok(found) => {
                    let expected = version.map(|version| version.to_string());
                    return found.first() == expected.as_ref();
                }
                Err(_) => sleep(RETRY_PAUSE).await,
            }
        }
    }
}

fn insert_sql(id: i64, state: &State, site: i64) -> String {
    let (owner, version, number) = (owner_sql(state.owner), state.version, &state.number);
    format!(
        "insert into item (id, owner, version, number, site) values ({id}, {owner}, {version}, '{number}', {site});\
         insert into part values ({id}, {id}, {id} % 3 = 0, 'of {id}') on conflict do nothing;"
    )
}

fn update_sql(id: i64, state: &State) -> String {
    let (owner, version, number) = (owner_sql(state.owner), state.version, &state.number);
    let gone = !state.is_visible;
    format!(
        "update item set owner = {owner}, version = {version}, gone = {gone}, number = '{number}' where id = {id};"
    )
}

/// Changes, deletes and inserts documents through larder.
pub(super) struct StaffWriter {
    pub(super) world: Arc<World>,
    pub(super) rng: fastrand::Rng,
    pub(super) client: Client,
}

impl StaffWriter {
    /// Writes until the load is to end.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        while !self.world.is_over() {
            // What is not answered may have been done or not: both are possible from then on.
            self.write().await.ok();
            sleep(STAFF_PAUSE).await;
        }
        Ok(())
    }

    async fn write(&mut self) -> anyhow::Result<()> {
        let id = ITEMS + self.rng.i64(1..=HTTP_ITEMS);
        let (drawn, version) = (owner(&mut self.rng), self.world.version());
        let is_there = self
            .world
            .last(id)
            .is_some_and(|last| !last.number.is_empty());
        let mut next = State {
            version,
            owner: drawn,
            is_visible: true,
            number: number_of(id),
        };
        let mut request =
            Request::new("PATCH", format!("/items/{id}")).with("x-api-key", STAFF_KEY);
        match self.rng.u8(..10) {
            _ if !is_there => {
                request.method = "PUT";
                let body = json!({"owner": drawn, "version": version, "number": next.number});
                request = request.with_body("application/json", body.to_string());
            }
            0 => {
                request.method = "DELETE";
                next.is_visible = false;
                next.number.clear();
            }
            _ => {
                let body = json!({"owner": drawn, "version": version}).to_string();
                request = request.with_body("application/json", body);
            }
        }
        self.world.note(id, next);
        let answer = self.client.send(&request).await?;
        match answer.status {
            200..300 => self.world.settle(id, version, true),
            400..500 => self.world.settle(id, version, false),
            _ => {}
        }
        Ok(())
    }
}
