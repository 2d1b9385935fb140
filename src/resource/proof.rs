//! What proves that an answer comes from the statement that was sent.
//!
//! sqlx names prepared statements `sqlx_s_1`, `sqlx_s_2`, … on every connection, and sends Sync between Parse and Bind.
//! A connection pooler that larder was not told of may hand each of these steps to another server connection, where the
//! same name (or the unnamed statement) belongs to another statement: PostgreSQL then answers with another table's rows.
//! sqlx 0.9 keeps the counter of these names to itself, and SQL `execute` takes no parameters of the protocol, so names
//! that never repeat would cost documents their binary form. They are not needed: each statement carries a constant of
//! its own, a hash of its text, and its answer is used only if it brings that constant along. Two statements of one text
//! over one database and role read the same, so the text stands for the resource and its definition.
//!
//! The proof also names the server process, which never changes under a connection without a pooler.

use xxhash_rust::xxh3::xxh3_64;

/// Where the proof stands in a template. No SQL text can contain it.
pub(crate) const PROOF: &str = "\0proof\0";

/// Bytes of the constant, and of the number of the server process after it.
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

    /// The server process that answered, if `answered` is the proof of this statement.
    pub(crate) fn process(self, answered: &[u8]) -> Option<i32> {
        let (constant, process) = answered.split_at_checked(CONSTANT_BYTES)?;
        let process = i32::from_be_bytes(process.try_into().ok()?);
        (constant == self.0.to_be_bytes()).then_some(process)
    }
}

/// SQL text whose answer carries its proof.
#[derive(Clone, Debug)]
pub struct Proved {
    sql: String,
    proof: Proof,
}

impl Proved {
    /// The statement `template`, with the proof wherever [`PROOF`] stands.
    pub(crate) fn new(template: &str) -> Self {
        let proof = Proof::of(template);
        Self {
            sql: template.replace(PROOF, &proof.sql()),
            proof,
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.sql
    }

    /// What its answer has to carry.
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
        let one = Proved::new(&template);
        let other = Proved::new(&format!("select {PROOF}, 2"));
        assert!(!one.as_str().contains('\0'));
        let mut answered = one.proof().0.to_be_bytes().to_vec();
        answered.extend_from_slice(&42_i32.to_be_bytes());
        assert_eq!(one.proof().process(&answered), Some(42));
        assert_eq!(other.proof().process(&answered), None);
        assert_eq!(one.proof().process(&answered[..11]), None);
        assert_eq!(one.proof().process(b""), None);
    }
}
