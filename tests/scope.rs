//! Which documents exist for whom, and by which names: conditions on rows, owners of documents, and aliases.

mod aliases;
mod conditions;
mod kinds;
mod reads;
mod writes;

use std::fmt::Write as _;

use axum::http::Method;

use crate::harness::service::{TestResponse, TestService};

/// Keys of clients, and their SHA-256.
const HASHES: [(&str, &str); 5] = [
    (
        "c17",
        "3c44f43ed3a9baa9a1780533ae5bc50412abdaa03496d52aa9ffc577171d85cb",
    ),
    (
        "c18",
        "089ae52fdf81a5ee3d7b4253ab0a6b61c585f5717f7e32d1b62fbf699ad5b6bd",
    ),
    (
        "staff",
        "1562206543da764123c21bd524674f0a8aaf49c8a89744c97352fe677f7e4006",
    ),
    (
        "nobody",
        "6382b3cc881412b77bfcaeed026001c00d9e3025e66c20f6e7e92f079851462a",
    ),
    (
        "mixed",
        "3f8fee624f43b2a9d685353269a0ab3eac785863ab6227636db1060fba1855e0",
    ),
];

/// The customers 17 and 18, staff, a customer without a claim, and customer 17 with a further role. The key of each is its
/// name.
fn clients() -> String {
    let mut clients = "idempotency_keys = true\n".to_owned();
    for (name, hash) in HASHES {
        let (roles, claims) = match name {
            "staff" => ("'staff'", ""),
            "nobody" => ("'customer'", ""),
            "mixed" => ("'customer', 'clerk'", "claims = { sub = '17' }"),
            "c18" => ("'customer'", "claims = { sub = '18' }"),
            _ => ("'customer'", "claims = { sub = '17' }"),
        };
        let client = format!(
            "[[auth.key]]\nname = '{name}'\nhash = '{hash}'\nroles = [{roles}]\n{claims}\n"
        );
        clients.write_str(&client).unwrap();
    }
    clients
}

impl TestService {
    /// A request of the client with the key `client`.
    async fn by(
        &self,
        client: &str,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> TestResponse {
        let mut all = vec![("x-api-key", client)];
        all.extend_from_slice(headers);
        self.write(method, path, &all, body).await
    }

    /// The only text that `sql` returns.
    async fn text(&self, sql: &str) -> String {
        let mut connection = self.connect().await;
        let sql = sqlx::AssertSqlSafe(sql.to_owned());
        let text = sqlx::query_scalar(sql).fetch_one(&mut connection).await;
        text.unwrap()
    }
}
