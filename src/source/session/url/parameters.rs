//! The parameters of a PostgreSQL URL that larder knows, and what it does with each.

use crate::source::session::url::UrlError;

/// Variables that libpq reads where neither the URL nor its service sets the parameter, besides those that sqlx reads.
pub(super) const ENVIRONMENT: [(&str, &str); 18] = [
    ("PGSSLMODE", "sslmode"),
    ("PGSSLROOTCERT", "sslrootcert"),
    ("PGSSLCRL", "sslcrl"),
    ("PGSSLCRLDIR", "sslcrldir"),
    ("PGSSLCERTMODE", "sslcertmode"),
    ("PGSSLNEGOTIATION", "sslnegotiation"),
    ("PGSSLSNI", "sslsni"),
    ("PGSSLMINPROTOCOLVERSION", "ssl_min_protocol_version"),
    ("PGSSLMAXPROTOCOLVERSION", "ssl_max_protocol_version"),
    ("PGCHANNELBINDING", "channel_binding"),
    ("PGREQUIREAUTH", "require_auth"),
    ("PGREQUIREPEER", "requirepeer"),
    ("PGGSSENCMODE", "gssencmode"),
    ("PGTARGETSESSIONATTRS", "target_session_attrs"),
    ("PGCONNECT_TIMEOUT", "connect_timeout"),
    ("PGPASSFILE", "passfile"),
    ("PGMINPROTOCOLVERSION", "min_protocol_version"),
    ("PGMAXPROTOCOLVERSION", "max_protocol_version"),
];

/// What larder does with a parameter.
pub(super) enum Rule {
    /// It is obeyed with any value; `ConnectionUrl::parse` checks it.
    Obeyed,
    /// It has no effect: larder limits the time of each statement itself, and names itself.
    NoEffect,
    /// It is obeyed with these values only, for this reason.
    Only(&'static [&'static str], &'static str),
    /// It is refused with any value, for this reason.
    Refused(&'static str),
}

const NO_REVOCATION: &str =
    "larder's PostgreSQL driver does not read lists of revoked certificates";
const TLS_VERSIONS: &str = "larder accepts TLS 1.2 and TLS 1.3";

/// The parameters of libpq that larder knows.
pub(super) const PARAMETERS: [(&str, Rule); 49] = [
    ("host", Rule::Obeyed),
    ("hostaddr", Rule::Obeyed),
    ("port", Rule::Obeyed),
    ("dbname", Rule::Obeyed),
    ("user", Rule::Obeyed),
    ("password", Rule::Obeyed),
    ("passfile", Rule::Obeyed),
    ("service", Rule::Obeyed),
    ("servicefile", Rule::Obeyed),
    ("connect_timeout", Rule::Obeyed),
    ("options", Rule::Obeyed),
    ("sslmode", Rule::Obeyed),
    ("sslrootcert", Rule::Obeyed),
    ("sslcert", Rule::Obeyed),
    ("sslkey", Rule::Obeyed),
    ("require_auth", Rule::Obeyed),
    ("statement-cache-capacity", Rule::NoEffect),
    ("application_name", Rule::NoEffect),
    ("fallback_application_name", Rule::NoEffect),
    ("keepalives", Rule::NoEffect),
    ("keepalives_idle", Rule::NoEffect),
    ("keepalives_interval", Rule::NoEffect),
    ("keepalives_count", Rule::NoEffect),
    ("tcp_user_timeout", Rule::NoEffect),
    ("sslcompression", Rule::NoEffect),
    ("oauth_issuer", Rule::NoEffect),
    ("oauth_client_id", Rule::NoEffect),
    ("oauth_client_secret", Rule::NoEffect),
    ("oauth_scope", Rule::NoEffect),
    (
        "target_session_attrs",
        Rule::Only(
            &["any", "read-write", "primary"],
            "larder follows the primary, and writes to it",
        ),
    ),
    (
        "load_balance_hosts",
        Rule::Only(&["disable"], "larder tries the hosts in their order"),
    ),
    (
        "channel_binding",
        Rule::Only(
            &["disable", "prefer"],
            "larder's PostgreSQL driver does not bind channels; sslmode=verify-full authenticates the server",
        ),
    ),
    (
        "gssencmode",
        Rule::Only(
            &["disable", "prefer"],
            "larder's PostgreSQL driver does not encrypt by GSSAPI",
        ),
    ),
    (
        "sslnegotiation",
        Rule::Only(
            &["postgres"],
            "larder's PostgreSQL driver begins with SSLRequest",
        ),
    ),
    (
        "sslsni",
        Rule::Only(
            &["1"],
            "larder's PostgreSQL driver always sends the server's name",
        ),
    ),
    (
        "sslcertmode",
        Rule::Only(
            &["allow"],
            "larder sends the client certificate whenever the server requests it",
        ),
    ),
    (
        "ssl_min_protocol_version",
        Rule::Only(&["TLSv1", "TLSv1.1", "TLSv1.2"], TLS_VERSIONS),
    ),
    (
        "ssl_max_protocol_version",
        Rule::Only(&["TLSv1.3"], TLS_VERSIONS),
    ),
    (
        "min_protocol_version",
        Rule::Only(
            &["3.0"],
            "larder's PostgreSQL driver speaks version 3.0 of the protocol, as every server does; leave it out",
        ),
    ),
    (
        "max_protocol_version",
        Rule::Only(
            &["3.0", "3.2", "latest"],
            "versions of the protocol are 3.0, 3.2 and latest; larder's PostgreSQL driver speaks 3.0",
        ),
    ),
    (
        "sslkeylogfile",
        Rule::Refused("larder writes no keys of TLS to a file"),
    ),
    (
        "client_encoding",
        Rule::Only(
            &["UTF8", "utf8", "UTF-8", "utf-8", "auto"],
            "larder requires UTF8",
        ),
    ),
    (
        "replication",
        Rule::Only(
            &["false", "off", "no", "0"],
            "larder sends statements of SQL",
        ),
    ),
    (
        "requirepeer",
        Rule::Refused("larder's PostgreSQL driver does not check the server's user"),
    ),
    (
        "sslpassword",
        Rule::Refused(
            "larder's PostgreSQL driver does not decrypt keys; name a key without a password",
        ),
    ),
    ("sslcrl", Rule::Refused(NO_REVOCATION)),
    ("sslcrldir", Rule::Refused(NO_REVOCATION)),
    (
        "scram_client_key",
        Rule::Refused("larder's PostgreSQL driver authenticates by password"),
    ),
    (
        "scram_server_key",
        Rule::Refused("larder's PostgreSQL driver authenticates by password"),
    ),
];

/// Checks that larder can obey a parameter with this value.
pub(super) fn check_rule(name: &'static str, value: &str) -> Result<(), UrlError> {
    let rule = PARAMETERS.iter().find(|(known, _)| *known == name);
    let reason = match rule.map(|(_, rule)| rule) {
        Some(Rule::Only(values, reason)) if !values.contains(&value) => reason,
        Some(Rule::Refused(reason)) => reason,
        // Methods that sqlx never uses may be excluded.
        Some(Rule::Obeyed) if name == "require_auth" => {
            if value
                .split(',')
                .all(|method| ["!gss", "!sspi", "!oauth"].contains(&method))
            {
                return Ok(());
            }
            "larder's PostgreSQL driver uses whichever method the server requests; \
             sslmode=verify-full authenticates the server"
        }
        _ => return Ok(()),
    };
    Err(UrlError::Unsupported { name, reason })
}
