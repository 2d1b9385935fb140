//! Proof that a result comes from the statement that was sent.
//!
//! sqlx names prepared statements `sqlx_s_1`, `sqlx_s_2`, … on every connection, and sends Sync between Parse and Bind.
//! A connection pooler that larder does not know of may send each of these steps to another server connection. There
//! the same name, or the unnamed statement, may belong to another statement, and PostgreSQL returns rows of another
//! table.
//!
//! Names that never repeat would prevent this, but sqlx 0.9 does not let its users choose them. SQL `execute` does, but
//! takes no parameters of the protocol, and documents would lose their binary form. So each statement contains a
//! constant of its own, a hash of its text, and its result is used only if it contains that constant. Two statements
//! with the same text, database and role read the same rows, so the text stands for the resource and its definition.
//!
//! The proof also has the number of the server process. On a connection without a pooler it never changes.

use xxhash_rust::xxh3::xxh3_64;

/// The placeholder of the proof in a template. No SQL text can contain it.
pub(crate) const PROOF: &str = "\0proof\0";

/// The bytes of the constant. The number of the server process follows them.
const CONSTANT_BYTES: usize = 8;

/// The constant of one statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof(u64);

impl Proof {
    fn of(template: &str) -> Self {
        Self(xxh3_64(template.as_bytes()))
    }

    /// SQL for the proof as a `bytea`, under every search path.
    fn sql(self) -> String {
        format!(
            "(pg_catalog.int8send('{}'::pg_catalog.int8) operator(pg_catalog.||) \
             pg_catalog.int4send(pg_catalog.pg_backend_pid()))",
            self.0.cast_signed()
        )
    }

    /// The server process that ran the statement; `None` if `returned` is not the proof of this statement.
    pub(crate) fn process(self, returned: &[u8]) -> Option<i32> {
        let (constant, process) = returned.split_at_checked(CONSTANT_BYTES)?;
        let process = i32::from_be_bytes(process.try_into().ok()?);
        (constant == self.0.to_be_bytes()).then_some(process)
    }
}

/// SQL text of a statement whose result contains its proof.
#[derive(Clone, Debug)]
pub struct ProvedSql {
    sql: String,
    proof: Proof,
}

impl ProvedSql {
    /// The statement `template`, with the proof in place of each [`PROOF`].
    pub(crate) fn new(template: &str) -> Self {
        let proof = Proof::of(template);
        Self {
            sql: template.replace(PROOF, &proof.sql()),
            proof,
        }
    }

    /// The SQL text.
    pub fn as_str(&self) -> &str {
        &self.sql
    }

    /// The proof that its result must contain.
    pub fn proof(&self) -> Proof {
        self.proof
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_statements_own_proof_names_a_process() {
        let template = format!("select {PROOF}, 1");
        let one = ProvedSql::new(&template);
        let other = ProvedSql::new(&format!("select {PROOF}, 2"));
        assert!(!one.as_str().contains('\0'));
        let mut answered = one.proof().0.to_be_bytes().to_vec();
        answered.extend_from_slice(&42_i32.to_be_bytes());
        assert_eq!(one.proof().process(&answered), Some(42));
        assert_eq!(other.proof().process(&answered), None);
        assert_eq!(one.proof().process(&answered[..11]), None);
        assert_eq!(one.proof().process(b""), None);
    }
}
