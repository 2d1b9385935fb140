//! FerretDB over SQLite, by the protocol of MongoDB.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use async_trait::async_trait;
use mongodb::bson::{Bson, Document, doc};
use mongodb::{Client, Collection, Database, IndexModel};

use crate::labs::workers::store::{Match, Plan, Store};
use crate::labs::workers::subscriber::{Buffer, Columns, NUMBERS, Slot, Subscriber, TEXTS};

const COLLECTION: &str = "subscriber";

/// Returns the arguments of the server.
pub(super) fn line(at: &str, address: SocketAddr) -> Result<String> {
    Ok(format!(
        "--listen-addr={address} --debug-addr=- --telemetry=disable --log-level=error \
         --handler=sqlite --sqlite-url=file:{at}/ --state-dir={at}"
    ))
}

/// A client with one connection. `_id` is the id.
pub(super) struct FerretdbStore(Database);

impl FerretdbStore {
    pub(super) async fn open(address: &str) -> Result<Self> {
        let url = format!("mongodb://{address}/?directConnection=true&maxPoolSize=1");
        Ok(Self(Client::with_uri_str(url).await?.database("workers")))
    }

    fn collection(&self) -> Collection<Document> {
        self.0.collection(COLLECTION)
    }
}

fn number_name(place: usize) -> &'static str {
    if place == 0 { "_id" } else { NUMBERS[place] }
}

fn filter(query: Match) -> Document {
    doc! {
        "worker_id": i64::from(query.slot.0),
        "timezone": i64::from(query.slot.1),
        "notify_after": { "$lte": i64::from(query.due) },
    }
}

#[async_trait]
impl Store for FerretdbStore {
    async fn create(&mut self, is_reset: bool) -> Result<()> {
        if is_reset {
            self.collection().drop().await?;
        }
        Ok(())
    }

    async fn fill(&mut self, rows: &[Subscriber]) -> Result<()> {
        let mut documents = Vec::new();
        for row in rows {
            let mut document = Document::new();
            for (place, number) in row.numbers.iter().enumerate() {
                document.insert(number_name(place), i64::from(*number));
            }
            for (name, text) in TEXTS.iter().zip(&row.texts) {
                document.insert(*name, text);
            }
            documents.push(document);
        }
        self.collection().insert_many(documents).await?;
        Ok(())
    }

    async fn index(&mut self) -> Result<()> {
        let keys = doc! { "worker_id": 1, "timezone": 1, "notify_after": 1 };
        let index = IndexModel::builder().keys(keys).build();
        self.collection().create_index(index).await?;
        Ok(())
    }

    async fn find(&mut self, query: Match, found: &mut Buffer) -> Result<()> {
        let collection = self.collection();
        let mut find = collection.find(filter(query));
        if let Some(limit) = query.limit {
            find = find.limit(limit.into());
        }
        if query.columns == Columns::Short {
            let short = doc! { "worker_id": 1, "timezone": 1, "notify_after": 1, "endpoint": 1 };
            find = find.projection(short);
        }
        let (mut rows, (numbers, _)) = (find.await?, query.columns.counts());
        while rows.advance().await? {
            let row = rows.current();
            let number = |place| anyhow::Ok(u32::try_from(row.get_i64(number_name(place))?)?);
            let text = |place: usize| anyhow::Ok(row.get_str(TEXTS[place - numbers])?);
            found.add().read(query.columns, number, text)?;
        }
        Ok(())
    }

    async fn move_due(&mut self, _: Slot, ids: &[u32], due: u32) -> Result<usize> {
        let list: Vec<Bson> = ids.iter().map(|id| Bson::Int64((*id).into())).collect();
        let set = doc! { "$set": { "notify_after": i64::from(due) } };
        let (collection, ids) = (self.collection(), doc! { "_id": { "$in": list } });
        let updated = collection.update_many(ids, set).await?;
        Ok(updated.modified_count.try_into()?)
    }

    async fn plan(&mut self, query: Match) -> Result<Option<Plan>> {
        let mut find = doc! { "find": COLLECTION, "filter": filter(query) };
        if let Some(limit) = query.limit {
            find.insert("limit", i64::from(limit));
        }
        let explained = self.0.run_command(doc! { "explain": find }).await?;
        let plan = explained.get("queryPlanner").context("no queryPlanner")?;
        Ok(Some((plan.to_string(), None)))
    }
}
