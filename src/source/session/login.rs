//! Why PostgreSQL does not let larder in, and what to do.
//!
//! The messages of PostgreSQL are translated, so the cause is told by the SQLSTATE and, where one has several causes, by the
//! function of PostgreSQL that raised it (auth.c, miscinit.c and postinit.c; the names are the same since PostgreSQL 9).

use rustls::CertificateError;
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

/// What sqlx says before the names of the methods, if it knows none that the server offers. It has no type for that.
const UNKNOWN_METHODS: &str = "unsupported SASL authentication mechanisms: ";

/// Tells why a connection could not be opened that PostgreSQL has not refused, and what to do.
pub(super) fn failure(error: &sqlx::Error) -> String {
    let remedy = match error {
        sqlx::Error::Protocol(text) => {
            // The place in sqlx's source follows.
            let text = text
                .rsplit_once(" (")
                .map_or(text.as_str(), |(text, _)| text);
            return match text.strip_prefix(UNKNOWN_METHODS) {
                Some(offered) => format!(
                    "PostgreSQL offers no other authentication than {offered}, which larder does not know: let pg_hba.conf \
                     demand scram-sha-256 or a client certificate (cert) of this user, by a line before, and reload it"
                ),
                None => text.to_owned(),
            };
        }
        sqlx::Error::Io(cause) => {
            let cause = cause.get_ref();
            match cause.and_then(|cause| cause.downcast_ref::<rustls::Error>()) {
                Some(rustls::Error::InvalidCertificate(why)) => certificate_remedy(why),
                _ => None,
            }
        }
        _ => None,
    };
    match remedy {
        Some(remedy) => format!("{error}: {remedy}"),
        None => error.to_string(),
    }
}

/// What to do about a certificate of the server. webpki's errors have no type of rustls.
fn certificate_remedy(why: &CertificateError) -> Option<&'static str> {
    let text = format!("{why:?}");
    let has = |name: &str| text.contains(name);
    if has("CaUsedAsEndEntity") {
        Some(
            "the server's certificate is one of a CA, as PostgreSQL's manual makes it; make a self-signed one by openssl req \
             -new -x509 with -addext basicConstraints=critical,CA:FALSE and -addext subjectAltName=DNS:HOST",
        )
    } else if has("UnsupportedCertVersion") {
        Some(
            "the server's certificate has no extensions; it must be of version 3, with subjectAltName=DNS:HOST",
        )
    } else if has("NotValidForName") {
        Some(
            "the server's certificate must have the host of the URL as subjectAltName (DNS:HOST or IP:ADDRESS), since CN does \
             not count; sslmode=verify-ca does not compare it",
        )
    } else if has("UnknownIssuer") || has("BadSignature") {
        Some(
            "name the present certificate of the issuer, or the server's own if it is self-signed, by sslrootcert",
        )
    } else {
        None
    }
}

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
    fn what_the_driver_refuses_has_its_remedy() {
        let place = "/src/sqlx-postgres-0.9.0/src/connection/sasl.rs:46";
        for (text, part) in [
            (
                format!("{UNKNOWN_METHODS}OAUTHBEARER ({place})"),
                "OAUTHBEARER, which larder does not know",
            ),
            (
                format!("expected SASLFinal but received Ok ({place})"),
                "SASLFinal",
            ),
        ] {
            let told = failure(&sqlx::Error::Protocol(text));
            assert!(told.contains(part) && !told.contains(".rs"), "{told}");
        }
        for (why, part) in [
            (CertificateError::UnknownIssuer, "sslrootcert"),
            // The certificate was renewed under the same name.
            (CertificateError::BadSignature, "sslrootcert"),
            (CertificateError::NotValidForName, "subjectAltName"),
        ] {
            let error = rustls::Error::InvalidCertificate(why);
            let told = failure(&std::io::Error::other(error).into());
            assert!(told.contains(part), "{told}");
        }
        let other = std::io::Error::other("connecting took too long");
        assert!(failure(&other.into()).ends_with("connecting took too long"));
    }

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
