//! Why PostgreSQL does not let larder in, and what to do.
//!
//! The messages of PostgreSQL are translated, so the cause is told by the SQLSTATE and, where one has several causes, by the
//! function of PostgreSQL that raised it (auth.c, miscinit.c and postinit.c; the names are the same since PostgreSQL 9).

use sqlx::error::DatabaseError;
use sqlx::postgres::PgDatabaseError;

use crate::source::SourceError;

/// The refusals: SQLSTATE, the function that raises it (empty: any), and what to do.
const REFUSALS: [(&str, &str, &str); 7] = [
    (
        "28P01",
        "",
        "check the user and the password in the URL (database.url, DATABASE_URL)",
    ),
    (
        "28000",
        "ClientAuthentication",
        "add a line for this client, user and database to pg_hba.conf and reload it, or connect as a line there allows \
         (with TLS: sslmode=require)",
    ),
    (
        "28000",
        "InitializeSessionUserId",
        "create the role and let it log in (create role … login), or name another user in the URL",
    ),
    (
        "28000",
        "",
        "check the user in the URL, and which authentication pg_hba.conf demands of it",
    ),
    (
        "3D000",
        "",
        "create the database, or name another one in the URL",
    ),
    (
        "42501",
        "CheckMyDatabase",
        "run: grant connect on database … to …, or name another user in the URL",
    ),
    (
        "55000",
        "",
        "the database accepts no connections; run: alter database … allow_connections true",
    ),
];

/// The meaning of `error`, which PostgreSQL returned while a connection was being opened, if it does not let larder in.
/// `message` is what may be told of its message.
pub(super) fn refusal(error: &dyn DatabaseError, message: &str) -> Option<SourceError> {
    let code = error.code()?;
    let postgres = error.try_downcast_ref::<PgDatabaseError>();
    let routine = postgres.and_then(PgDatabaseError::routine);
    let context = postgres.and_then(PgDatabaseError::r#where);
    let (remedy, message) = match context.and_then(|context| context.lines().last()) {
        Some(function) => (OF_TRIGGER, format!("{message} ({function})")),
        None => (
            remedy(&code, routine.unwrap_or_default())?,
            message.to_owned(),
        ),
    };
    Some(SourceError::Login {
        code: code.into_owned(),
        message,
        remedy,
    })
}

/// Only code that users have written gives an error a context: before the first statement that is a login event trigger.
const OF_TRIGGER: &str = "the function is that of a login event trigger, which runs at each login: let it accept larder's \
     role, or grant the role what the function needs";

fn remedy(code: &str, routine: &str) -> Option<&'static str> {
    let mut refusals = REFUSALS.iter();
    let (_, _, remedy) = refusals.find(|(known, raised_by, _)| {
        *known == code && (raised_by.is_empty() || *raised_by == routine)
    })?;
    Some(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_its_remedy() {
        for (code, routine, part) in [
            ("28P01", "auth_failed", "password"),
            ("28000", "ClientAuthentication", "pg_hba.conf and reload"),
            ("28000", "InitializeSessionUserId", "create role"),
            ("28000", "auth_failed", "which authentication"),
            ("3D000", "InitPostgres", "create the database"),
            ("42501", "CheckMyDatabase", "grant connect"),
        ] {
            assert!(remedy(code, routine).unwrap().contains(part), "{code}");
        }
        for code in ["57P03", "53300", "08P01", "42501"] {
            assert_eq!(remedy(code, ""), None, "{code}");
        }
    }
}
