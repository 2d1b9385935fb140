//! What the names of tables and columns tell: tables of tools, sessions and queues, columns with secrets, and deleted rows
//! that are still there.

use crate::resource::catalogue::{Column, Table, TableName};
use crate::resource::sql::identifier;
use crate::resource::value::ValueType;

/// Tables in which tools keep which migrations have run, in lower case.
const MIGRATION_TABLES: [&str; 32] = [
    "__diesel_schema_migrations",
    "__drizzle_migrations",
    "__efmigrationshistory",
    "_prisma_migrations",
    "_sqlx_migrations",
    "_yoyo_log",
    "_yoyo_migration",
    "_yoyo_version",
    "alembic_version",
    "ar_internal_metadata",
    "atlas_schema_revisions",
    "databasechangelog",
    "databasechangeloglock",
    "django_migrations",
    "doctrine_migration_versions",
    "flyway_schema_history",
    "goose_db_version",
    "gorp_migrations",
    "knex_migrations",
    "knex_migrations_lock",
    "kysely_migration",
    "kysely_migration_lock",
    "phinxlog",
    "pgmigrations",
    "play_evolutions",
    "refinery_schema_history",
    "schema_migration",
    "schema_migrations",
    "seaql_migrations",
    "sequelizemeta",
    "typeorm_metadata",
    "yoyo_lock",
];

/// Parts of the names of columns that hold secrets, in lower case and without `_`.
const SECRETS: &[&str] = &[
    "passw",
    "passphrase",
    "passcode",
    "passcrypt",
    "userpass",
    "cryptpass",
    "pwd",
    "pswd",
    "credential",
    "credhash",
    "recoverycode",
    "backupcode",
    "securitystamp",
    "securitycode",
    "securityanswer",
    "verificationcode",
    "confirmationcode",
    "activationcode",
    "authcode",
    "authorizationcode",
    "devicecode",
    "codechallenge",
    "codeverifier",
    "hmac",
    "signature",
    "accesskey",
    "authkey",
    "activationkey",
    "actkey",
    "loginkey",
    "securekey",
    "serverkey",
    "storedkey",
    "signingkey",
    "encryptionkey",
    "masterkey",
    "secret",
    "token",
    "salt",
    "hash",
    "digest",
    "apikey",
    "privatekey",
    "sessionid",
    "sessionkey",
    "sessiondata",
];

/// Words of such names.
const SECRET_WORDS: &[&str] = &[
    "pass",
    "pw",
    "psw",
    "cred",
    "creds",
    "otp",
    "totp",
    "pin",
    "ha1",
    "ha1b",
    "psk",
    "nthash",
    "nonce",
    "cnonce",
    "csrf",
    "jwt",
    "cvv",
    "cvc",
    "verifier",
    "encrypted",
    "ciphertext",
];

/// Those of them whose values may be numbers.
const SECRET_NUMBERS: &[&str] = &["otp", "totp", "pin", "cvv", "cvc"];

/// Words of hashes that are of places and pictures.
const OPEN_HASHES: &[&str] = &["blurhash", "geohash", "phash", "dhash", "ahash"];

/// Words before `hash` with the same meaning.
const OPEN_HASHED: &[&str] = &["blur", "geo", "perceptual"];

/// Last words of names of what is known about a secret.
const ABOUT_SECRETS: &[&str] = &[
    "algo",
    "algorithm",
    "at",
    "count",
    "endpoint",
    "expiration",
    "expires",
    "expiry",
    "lifetime",
    "limit",
    "method",
    "policy",
    "type",
];

/// Words after which `pass` is no password, and `pin` no number: `pass_rate`.
const PASSING: &[&str] = &["rate", "count", "mark", "type", "percentage", "score", "id"];

/// Last words of the names of tables whose rows are secrets.
const SECRET_TABLES: &[&str] = &[
    "credential",
    "credentials",
    "password",
    "passwords",
    "secret",
    "secrets",
    "token",
    "tokens",
];

/// Columns of such a table that have the secret.
const SECRET_MEMBERS: &[&str] = &[
    "body",
    "code",
    "content",
    "contents",
    "data",
    "key",
    "payload",
    "plaintext",
    "text",
    "value",
];

/// Columns of a session of a web application.
const SESSION_COLUMNS: [&str; 10] = [
    "data",
    "expire",
    "expires",
    "expire_date",
    "expires_at",
    "payload",
    "sess",
    "session_data",
    "value",
    "vars",
];

/// Columns of a queue of jobs.
const QUEUE_COLUMNS: [&str; 17] = [
    "args",
    "attempt",
    "attempts",
    "available_at",
    "failed_at",
    "job_class",
    "last_error",
    "locked_at",
    "locked_by",
    "payload",
    "queue",
    "queue_name",
    "reserved_at",
    "retries",
    "run_at",
    "scheduled_at",
    "task_name",
];

/// Tables of Celery, Quartz, Solid Queue, GoodJob, Oban, River and Django Q begin like this.
const QUEUE_PREFIXES: [&str; 8] = [
    "celery_",
    "django_celery_",
    "django_q_",
    "good_job",
    "oban_",
    "qrtz_",
    "river_",
    "solid_queue_",
];

/// Whether a migration tool keeps its state there.
pub(super) fn is_of_migrations(table: &Table) -> bool {
    let name = table.name.name.to_lowercase();
    let has = |columns: &[&str]| columns.iter().all(|name| table.column(name).is_some());
    MIGRATION_TABLES.contains(&name.as_str())
        || name == "migrations" && (has(&["migration", "batch"]) || has(&["timestamp", "name"]))
}

/// Why the rows of a table change too often to be served, if its name and its columns say so.
pub(super) fn transience(table: &Table) -> Option<&'static str> {
    let TableName { name, .. } = &table.name;
    let words = words(name);
    let has_word = |known: &[&str]| words.iter().any(|word| known.contains(&word.as_str()));
    let columns = table.columns.iter();
    let count = |known: &[&str]| {
        let named = columns
            .clone()
            .filter(|column| known.contains(&&*column.name.to_lowercase()));
        named.count()
    };
    let ends_in_session =
        |word: Option<&String>| word.is_some_and(|word| word == "session" || word == "sessions");
    if ends_in_session(words.last()) && (words.len() == 1 || count(&SESSION_COLUMNS) > 0) {
        return Some("its rows are sessions, which change with every request");
    }
    let lower = name.to_lowercase();
    let is_queue = QUEUE_PREFIXES
        .iter()
        .any(|prefix| lower.starts_with(prefix))
        || has_word(&[
            "job", "jobs", "task", "tasks", "queue", "queues", "queued", "outbox",
        ]) && count(&QUEUE_COLUMNS) >= 2;
    is_queue.then_some("its rows are a queue of jobs, which change all the time")
}

/// Whether the name of a column says that its values, which are of the type `value`, are secret.
pub(super) fn is_secret(column: &str, value: &ValueType) -> bool {
    let words = words(column);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let has_word = |known: &[&str]| {
        let mut places = words.iter().enumerate();
        places.any(|(at, word)| {
            let next = words.get(at + 1).copied().unwrap_or_default();
            let passes = matches!(*word, "pass" | "pin") && PASSING.contains(&next);
            known.contains(word) && !passes
        })
    };
    let is_last = |known: &[&str]| words.last().is_some_and(|last| known.contains(last));
    match value {
        ValueType::Array(element) => is_secret(column, element),
        ValueType::SmallInt
        | ValueType::Integer
        | ValueType::BigInt
        | ValueType::Numeric { .. } => has_word(SECRET_NUMBERS) && !is_last(ABOUT_SECRETS),
        ValueType::Boolean
        | ValueType::Real
        | ValueType::Double
        | ValueType::Date
        | ValueType::Timestamp
        | ValueType::TimestampTz
        | ValueType::Time
        | ValueType::TimeTz
        | ValueType::Interval
        | ValueType::Enum(_) => false,
        _ if is_last(ABOUT_SECRETS) || words.contains(&"endpoint") => false,
        _ => {
            let is_open = |at: usize| {
                let before = at.checked_sub(1).and_then(|before| words.get(before));
                OPEN_HASHES.contains(&words[at])
                    || words[at] == "hash" && before.is_some_and(|word| OPEN_HASHED.contains(word))
            };
            let places = (0..words.len()).filter(|&at| !is_open(at));
            let letters: String = places.map(|at| words[at]).collect();
            SECRETS.iter().any(|part| letters.contains(part)) || has_word(SECRET_WORDS)
        }
    }
}

/// Whether the name of a table says that a column is secret whose own name says nothing.
pub(super) fn is_secret_of(table: &str, column: &str, value: &ValueType) -> bool {
    let is_of_secrets = words(table)
        .last()
        .is_some_and(|last| SECRET_TABLES.contains(&last.as_str()));
    is_of_secrets
        && SECRET_MEMBERS.contains(&&*column.to_lowercase())
        && is_secret(SECRET_TABLES[0], value)
}

/// Whether values of a type have an attribute whose name says that it is secret.
pub(super) fn has_secret(value: &ValueType) -> bool {
    match value {
        ValueType::Array(element) => has_secret(element),
        ValueType::Composite(attributes) => attributes
            .iter()
            .any(|(name, value)| is_secret(name, value) || has_secret(value)),
        _ => false,
    }
}

/// Why a column with such a name is left out.
pub(super) const SECRET_NAME: &str = "which may hold a secret";

/// Why all readers would see rows of a table that row security hides from most roles.
pub(super) fn exposure(table: &Table) -> Option<String> {
    let row_security = table.row_security.as_ref()?;
    (!row_security.is_active()).then(|| {
        format!(
            "{} has row security, which does not apply to larder's role: every reader would see all rows",
            table.name
        )
    })
}

/// Why several rows of a table may have the same key.
pub(super) fn repetition(table: &Table) -> Option<&'static str> {
    (table.kind == 'r' && !table.descendants.is_empty()).then_some(
        "tables inherit from it, and may repeat its keys; a document whose key several rows have can't be read",
    )
}

/// The condition of rows that are not marked as deleted, if a column marks them that `is_readable`.
pub(super) fn not_deleted(table: &Table, is_readable: impl Fn(&str) -> bool) -> Option<String> {
    let marks = |column: &&Column| {
        let words = words(&column.name);
        let mut words = words.iter().map(String::as_str);
        let first = words
            .next()
            .filter(|word| *word != "is")
            .or_else(|| words.next());
        let is_mark = matches!(first, Some("deleted" | "removed" | "discarded" | "trashed"));
        is_mark && matches!(words.next(), None | Some("at" | "on" | "date" | "time"))
    };
    let mut columns = table.columns.iter().filter(marks);
    columns.find_map(|column| not_marked(column).filter(|_| is_readable(&column.name)))
}

/// The condition of rows that `column` does not mark, if its type says how it marks them.
fn not_marked(column: &Column) -> Option<String> {
    let name = condition_name(&column.name);
    match column.base_type.as_str() {
        "bool" => Some(format!("{name} is not true")),
        "timestamp" | "timestamptz" | "date" if !column.not_null => Some(format!("{name} is null")),
        "int2" | "int4" | "int8" if column.not_null => Some(format!("{name} = 0")),
        "int2" | "int4" | "int8" => Some(format!("coalesce({name}, 0) = 0")),
        _ => None,
    }
}

/// A column's name in a condition, in quotes if it needs them.
fn condition_name(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_lowercase() || c == '_';
    if name.chars().all(is_plain) {
        name.to_owned()
    } else {
        identifier(name)
    }
}

/// The words of a name in lower case: parts between underscores, and those that begin with a capital letter.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        if (c.is_uppercase() && was_lower || !c.is_alphanumeric())
            && words.last().is_some_and(|word| !word.is_empty())
        {
            words.push(String::new());
        }
        was_lower = c.is_lowercase();
        if let Some(word) = words.last_mut().filter(|_| c.is_alphanumeric()) {
            word.extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Whether the name of `child` begins with that of `parent`, in the singular or as it is: `order_lines` of `orders`.
pub(super) fn begins_with_name(child: &str, parent: &str) -> bool {
    let (child, parent) = (child.to_lowercase(), parent.to_lowercase());
    let singular = |ending: &str, instead: &str| {
        let stem = parent.strip_suffix(ending)?;
        (!stem.is_empty()).then(|| format!("{stem}{instead}"))
    };
    let stems = [
        Some(parent.clone()),
        singular("s", ""),
        singular("es", ""),
        singular("ies", "y"),
    ];
    let mut stems = stems.into_iter().flatten();
    child != parent && stems.any(|stem| child.starts_with(&stem))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the schemas of OpenStreetMap, Camunda, Crowd, WordPress, MusicBrainz, MediaWiki, Drupal, Joomla, GitLab, Mastodon,
    /// Mattermost, Odoo, NetBox, Synapse, Keycloak, Nextcloud, Zabbix, phpBB, Redmine, Gitea, Liferay, Magento, PrestaShop, MyBB,
    /// Invision, Kamailio, Asterisk, ejabberd, Vaultwarden, ASP.NET Identity, OTRS, Bugzilla, Matomo, Wiki.js, Samba and others.
    #[test]
    fn names_of_secrets_in_public_schemas_are_known() {
        let names = "pass_crypt pass_salt PWD_ pwd_ SALT_ credential user_pass user_activation_key ha1 ha1b user_password \
            user_newpassword user_token user_email_token pass otpKey otep_secret encrypted_password \
            reset_password_token otp_backup_codes encrypted_otp_secret_iv encrypted_value runners_token \
            private_key MfaSecret mfasecret password_crypt totp_secret password_hash access_token secret_data \
            credential_data passwd tls_psk user_newpasswd user_actkey user_form_salt hashed_password \
            crypted_password passwd_hash scratch_salt password_ digest rp_token secure_key loginkey \
            members_pass_hash members_pass_salt md5_cred md5secret serverkey storedkey SecurityStamp PasswordHash \
            pw cryptpassword token_auth tfaSecret totp_recover passphrase api_token apikey ApiKey signing_key \
            sessionKey user_pwd userPass smtp_pass db_creds \
            nonce code_challenge code_verifier hmac_key signature credentials backup_codes encrypted_totp_iv \
            encryptedDataIv session_id sessionId cnonce verifier pin userPin csrf blurhash_token geo_password_hash";
        let text = ValueType::Text { max: None };
        let of_texts = ValueType::Array(Box::new(text.clone()));
        for name in names.split_whitespace() {
            for value in [&text, &of_texts, &ValueType::Bytea, &ValueType::Json] {
                assert!(is_secret(name, value), "{name} {value:?}");
            }
        }
        for name in ["pin", "otp", "user_pin", "totp_code"] {
            assert!(is_secret(name, &ValueType::Integer), "{name}");
        }
    }

    #[test]
    fn columns_of_tables_of_secrets_are_secret() {
        let text = ValueType::Text { max: None };
        for (table, column) in [
            ("secrets", "value"),
            ("ApiToken", "key"),
            ("user_credentials", "Data"),
        ] {
            assert!(is_secret_of(table, column, &text), "{table} {column}");
        }
        for (table, column) in [
            ("secrets", "label"),
            ("secret_santa", "value"),
            ("setting", "value"),
        ] {
            assert!(!is_secret_of(table, column, &text), "{table} {column}");
        }
        assert!(!is_secret_of("tokens", "value", &ValueType::Integer));
    }

    #[test]
    fn ordinary_names_are_no_secrets() {
        for name in [
            "id",
            "name",
            "passenger_id",
            "passport_country",
            "bypass",
            "compass",
            "passed",
            "pass_rate",
            "keyboard",
            "key",
            "author",
            "footpath",
            "accredited",
            "opw",
            "chapter",
            "hat",
            "monkey",
            "spaces",
            "passage",
            "incredible",
            "blurhash",
            "blurHash",
            "geohash",
            "perceptual_hash",
            "token_endpoint",
            "token_endpoint_auth_method",
            "password_expires_at",
            "token_type",
            "hash_algorithm",
            "pin_type",
            "pinned",
            "announcement",
            "version_once",
        ] {
            let text = ValueType::Text { max: None };
            assert!(!is_secret(name, &text), "{name}");
        }
        let (flag, number, time) = (
            ValueType::Boolean,
            ValueType::BigInt,
            ValueType::TimestampTz,
        );
        for (name, value) in [
            ("password_limit", &number),
            ("token_id", &number),
            ("otp_count", &number),
            ("has_password", &flag),
            ("otp_required", &flag),
            ("reset_password_sent", &time),
            ("token_expires_at", &time),
            ("hash_kind", &ValueType::Enum(Vec::new())),
        ] {
            assert!(!is_secret(name, value), "{name}");
        }
    }
}
