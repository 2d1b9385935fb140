//! The table of settings: the one place that knows a setting's key, default, bounds and help.
//!
//! Reading the file, the environment and the flags, suggestions for unknown keys, `config --example` and
//! `config --dump` all walk [`SETTINGS`], in its order.

use std::time::Duration;

use bytesize::{GIB, KIB, PIB, TIB};

use super::Config;
use super::value::{ORIGINS, Slot, TOKENS, ValueError};

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAYS_30: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// A section of the file and what it is about; the empty name is the top of the file.
pub(super) struct Section {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
}

/// Every section of plain settings, in the order of the example file.
pub(super) const SECTIONS: [Section; 11] = [
    Section { name: "", help: "" },
    Section {
        name: "database",
        help: "PostgreSQL. Without a URL larder starts a private one under state_dir.",
    },
    Section {
        name: "memory",
        help: "The first tier: documents in the process's memory.",
    },
    Section {
        name: "disk",
        help: "The second tier: documents in files under state_dir.",
    },
    Section {
        name: "feed",
        help: "How committed changes are followed.",
    },
    Section {
        name: "audit",
        help: "Hits are read again from PostgreSQL, beside serving: larder_audit_stale_total must stay 0.",
    },
    Section {
        name: "limits",
        help: "What clients may take. Times are kept to the second.",
    },
    Section {
        name: "tls",
        help: "TLS 1.2 and 1.3 on the public address. SIGHUP reads the files again.",
    },
    Section {
        name: "cors",
        help: "Pages of other origins in browsers. Without origins they may do nothing.",
    },
    Section {
        name: "auth",
        help: "Authentication. Without users, keys and a key for tokens, every client may do everything.",
    },
    Section {
        name: "auth.jwt",
        help: "JSON Web Tokens, as Authorization: Bearer or as a cookie; accepted if a key for them is configured.",
    },
];

/// What holds where nobody set anything.
pub(super) enum Preset {
    /// This value.
    Value(&'static str),
    /// What [`Config::blank`] holds; the example file shows this value.
    Absent(&'static str),
    /// As `Absent`, for what takes the place of the setting above it and can't be set beside it.
    Instead(&'static str),
}

/// One setting.
pub(super) struct Setting {
    /// The dotted key: `listen`, `memory.max_bytes`.
    pub(super) path: &'static str,
    pub(super) preset: Preset,
    /// For the reader of the example file.
    pub(super) help: &'static str,
    /// The way into the configuration, with type and bounds.
    pub(super) slot: fn(&mut Config) -> Slot<'_>,
}

impl Setting {
    /// The setting of this dotted key.
    pub(super) fn find(path: &str) -> Option<&'static Setting> {
        SETTINGS.iter().find(|setting| setting.path == path)
    }

    /// The name of its section, empty at the top of the file, and its key there.
    pub(super) fn section_and_key(&self) -> (&'static str, &'static str) {
        self.path.rsplit_once('.').unwrap_or(("", self.path))
    }

    /// `LARDER_SECTION__KEY`.
    pub(super) fn variable(&self) -> String {
        format!("LARDER_{}", self.path.to_uppercase().replace('.', "__"))
    }

    /// Reads `text` into the configuration.
    pub(super) fn put(&self, config: &mut Config, text: &str) -> Result<(), ValueError> {
        (self.slot)(config).put(text)
    }
}

/// Every setting but `[[resource]]`, which is not a list of plain values.
pub(super) const SETTINGS: [Setting; 64] = [
    Setting {
        path: "listen",
        preset: Preset::Value("127.0.0.1:8080"),
        help: "The public address.",
        slot: |c| Slot::Address(&mut c.listen),
    },
    Setting {
        path: "admin",
        preset: Preset::Value("127.0.0.1:8081"),
        help: "Health, metrics, status and purge; keep it off the public network.",
        slot: |c| Slot::Address(&mut c.admin),
    },
    Setting {
        path: "insecure",
        preset: Preset::Value("false"),
        help: "Allow listen beyond loopback without [auth] or [tls].",
        slot: |c| Slot::Flag(&mut c.insecure),
    },
    Setting {
        path: "docs",
        preset: Preset::Value("true"),
        help: "Serve the OpenAPI description at /openapi.json and Swagger UI at /docs.",
        slot: |c| Slot::Flag(&mut c.docs),
    },
    Setting {
        path: "access_log",
        preset: Preset::Value("off"),
        help: "A line for each response of the public address, without credentials: \"off\", \"json\" or \"combined\".",
        slot: |c| Slot::AccessLog(&mut c.access_log.format),
    },
    Setting {
        path: "access_log_file",
        preset: Preset::Absent("/var/log/larder/access.log"),
        help: "The file that lines are appended to, opened again at SIGHUP. Absent: stderr.",
        slot: |c| Slot::File(&mut c.access_log.file),
    },
    Setting {
        path: "state_dir",
        preset: Preset::Value(".larder"),
        help: "Holds the private PostgreSQL and the disk tier.",
        slot: |c| Slot::Path(&mut c.state_dir),
    },
    Setting {
        path: "install",
        preset: Preset::Value("auto"),
        help: "\"auto\": serve creates schema larder and the triggers; \"manual\": run larder install yourself.",
        slot: |c| Slot::Install(&mut c.install),
    },
    Setting {
        path: "idempotency_keys",
        preset: Preset::Value("false"),
        help: "Writes may have an Idempotency-Key; answers are kept in larder.answer, which publications send, too. \
            Always true in the private PostgreSQL.",
        slot: |c| Slot::Flag(&mut c.feed.answers),
    },
    Setting {
        path: "shutdown_timeout",
        preset: Preset::Value("30s"),
        help: "How long accepted requests and pending disk batches may take at shutdown.",
        slot: |c| Slot::Duration(&mut c.shutdown_timeout, Duration::ZERO..=HOUR),
    },
    Setting {
        path: "workers",
        preset: Preset::Absent("2"),
        help: "Threads that serve requests; absent: as many as the machine has cores.",
        slot: |c| Slot::Count(&mut c.workers, 1..=1024),
    },
    Setting {
        path: "request_timeout",
        preset: Preset::Value("10s"),
        help: "The longest a request may wait for its document.",
        slot: |c| Slot::Duration(&mut c.request_timeout, MILLISECOND..=HOUR),
    },
    Setting {
        path: "document_max",
        preset: Preset::Value("16MiB"),
        help: "A larger document is an error.",
        slot: |c| Slot::Bytes(&mut c.source.document_bytes_max, 1..=GIB),
    },
    Setting {
        path: "database.url",
        preset: Preset::Absent("postgres://app@db.example/app"),
        help: "DATABASE_URL does the same; takes sslmode, sslrootcert and friends.",
        slot: |c| Slot::Url(&mut c.database_url),
    },
    Setting {
        path: "database.listen_url",
        preset: Preset::Absent("postgres://app@direct.db.example/app"),
        help: "A direct connection for LISTEN where url leads to a pooler.",
        slot: |c| Slot::Url(&mut c.listen_url),
    },
    Setting {
        path: "database.connections",
        preset: Preset::Value("8"),
        help: "Connections that load documents.",
        slot: |c| Slot::Count(&mut c.source.connections, 1..=1000),
    },
    Setting {
        path: "database.statement_timeout",
        preset: Preset::Value("5s"),
        help: "The longest run of one statement.",
        slot: |c| Slot::Duration(&mut c.source.statement_timeout, MILLISECOND..=HOUR),
    },
    Setting {
        path: "database.pooler",
        preset: Preset::Value("false"),
        help: "url leads to a transaction pooler: no named statements, and listen_url is required.",
        slot: |c| Slot::Flag(&mut c.source.pooler),
    },
    Setting {
        path: "memory.max_bytes",
        preset: Preset::Value("256MiB"),
        help: "Documents, keys and overhead together.",
        slot: |c| Slot::Bytes(&mut c.memory.bytes_max, KIB..=PIB),
    },
    Setting {
        path: "disk.max_bytes",
        preset: Preset::Value("4GiB"),
        help: "Above this many bytes on disk the tier is emptied.",
        slot: |c| Slot::Bytes(&mut c.disk.bytes_max, 64 * KIB..=PIB),
    },
    Setting {
        path: "disk.cache",
        preset: Preset::Value("256MiB"),
        help: "sled's page cache: reads slow down 7-15 times where the hot set does not fit.",
        slot: |c| Slot::Bytes(&mut c.disk.cache_bytes, 64 * KIB..=TIB),
    },
    Setting {
        path: "disk.batch",
        preset: Preset::Value("10000"),
        help: "Entries per write to disk.",
        slot: |c| Slot::Count(&mut c.disk.batch_entries, 1..=1_000_000),
    },
    Setting {
        path: "disk.linger",
        preset: Preset::Value("1s"),
        help: "The longest wait of an entry for its batch.",
        slot: |c| Slot::Duration(&mut c.disk.linger, MILLISECOND..=MINUTE),
    },
    Setting {
        path: "feed.max_staleness",
        preset: Preset::Value("1s"),
        help: "The bound on staleness: without a check of the database within this time, the tiers do not answer.",
        slot: |c| Slot::Duration(&mut c.feed.max_staleness, Duration::from_millis(10)..=HOUR),
    },
    Setting {
        path: "feed.poll_interval",
        preset: Preset::Value("50ms"),
        help: "The longest pause between two polls for changes; at most max_staleness.",
        slot: |c| Slot::Duration(&mut c.feed.poll_interval, MILLISECOND..=HOUR),
    },
    Setting {
        path: "feed.notify",
        preset: Preset::Value("true"),
        help: "Triggers send NOTIFY at commit; without it, changes are found by polling.",
        slot: |c| Slot::Flag(&mut c.feed.notify),
    },
    Setting {
        path: "feed.on_loss",
        preset: Preset::Value("bypass"),
        help: "While freshness can't be proven: \"bypass\" reads from PostgreSQL, \"serve-stale\" responds with Age and Warning.",
        slot: |c| Slot::OnLoss(&mut c.feed.on_loss),
    },
    Setting {
        path: "feed.retention",
        preset: Preset::Value("1h"),
        help: "How long a stopped node's disk tier stays usable.",
        slot: |c| Slot::Duration(&mut c.feed.retention, SECOND..=DAYS_30),
    },
    Setting {
        path: "feed.keys_per_statement",
        preset: Preset::Value("10000"),
        help: "A statement that changes more documents invalidates ranges of keys; one that inserts more, remembered absences only.",
        slot: |c| Slot::Count32(&mut c.feed.keys_per_statement, 1..=10_000_000),
    },
    Setting {
        path: "audit.sample",
        preset: Preset::Value("0.001"),
        help: "The share of hits that are read again and compared; 0 switches the audit off.",
        slot: |c| Slot::Share(&mut c.audit.sample),
    },
    Setting {
        path: "limits.connections",
        preset: Preset::Value("16384"),
        help: "Open connections; further ones are closed at once.",
        slot: |c| Slot::Count(&mut c.limits.connections, 1..=1_000_000),
    },
    Setting {
        path: "limits.connections_per_address",
        preset: Preset::Value("4096"),
        help: "The same for one client: an IPv4 address or a /64 of IPv6.",
        slot: |c| Slot::Count(&mut c.limits.connections_per_address, 1..=1_000_000),
    },
    Setting {
        path: "limits.header_timeout",
        preset: Preset::Value("5s"),
        help: "Time from connecting to the first request, and from a request's first byte to the end of its head.",
        slot: |c| Slot::Duration(&mut c.limits.header_timeout, SECOND..=HOUR),
    },
    Setting {
        path: "limits.idle_timeout",
        preset: Preset::Value("75s"),
        help: "How long a connection stays open without a request.",
        slot: |c| Slot::Duration(&mut c.limits.idle_timeout, SECOND..=DAYS_30),
    },
    Setting {
        path: "limits.body_timeout",
        preset: Preset::Value("30s"),
        help: "How long larder waits for a request body in all; each 500 bytes that arrive add a second.",
        slot: |c| Slot::Duration(&mut c.limits.body_timeout, SECOND..=HOUR),
    },
    Setting {
        path: "limits.write_timeout",
        preset: Preset::Value("60s"),
        help: "How long a client may read nothing of its response; over HTTP/2, less than a 64th of what is pending.",
        slot: |c| Slot::Duration(&mut c.limits.write_timeout, SECOND..=HOUR),
    },
    Setting {
        path: "limits.requests_per_second",
        preset: Preset::Value("0"),
        help: "Requests a second of one client; more get 429. 0: no limit.",
        slot: |c| Slot::Count32(&mut c.limits.requests_per_second, 0..=1_000_000),
    },
    Setting {
        path: "limits.burst",
        preset: Preset::Value("100"),
        help: "Requests that a client may send at once after a pause.",
        slot: |c| Slot::Count32(&mut c.limits.burst, 1..=1_000_000),
    },
    Setting {
        path: "limits.trusted_proxies",
        preset: Preset::Absent("10.0.0.0/8, fd00::/8"),
        help: "Proxies whose X-Forwarded-For is trusted.",
        slot: |c| Slot::Networks(&mut c.limits.trusted_proxies),
    },
    Setting {
        path: "limits.proxy_protocol",
        preset: Preset::Value("false"),
        help: "Trusted proxies begin each connection with a header of the PROXY protocol, version 1 or 2.",
        slot: |c| Slot::Flag(&mut c.limits.proxy_protocol),
    },
    Setting {
        path: "tls.certificate_file",
        preset: Preset::Absent("/etc/larder/fullchain.pem"),
        help: "PEM: the certificate, then those that lead to a root. Without it there is no TLS.",
        slot: |c| Slot::File(&mut c.tls.certificate_file),
    },
    Setting {
        path: "tls.key_file",
        preset: Preset::Absent("/etc/larder/privkey.pem"),
        help: "PEM: the certificate's private key.",
        slot: |c| Slot::File(&mut c.tls.key_file),
    },
    Setting {
        path: "tls.hsts",
        preset: Preset::Absent("max-age=31536000"),
        help: "Strict-Transport-Security of every response.",
        slot: |c| Slot::Header(&mut c.tls.hsts),
    },
    Setting {
        path: "cors.origins",
        preset: Preset::Absent("https://app.example"),
        help: "Origins whose pages may read responses; [\"*\"] for all.",
        slot: |c| Slot::List(&mut c.cors.origins, &ORIGINS),
    },
    Setting {
        path: "cors.methods",
        preset: Preset::Value("GET,HEAD,POST,PUT,PATCH,DELETE"),
        help: "Methods that these pages may use.",
        slot: |c| Slot::List(&mut c.cors.methods, &TOKENS),
    },
    Setting {
        path: "cors.headers",
        preset: Preset::Value(
            "authorization,content-type,idempotency-key,if-match,if-none-match,larder-token,prefer",
        ),
        help: "Headers that these pages may send.",
        slot: |c| Slot::List(&mut c.cors.headers, &TOKENS),
    },
    Setting {
        path: "cors.credentials",
        preset: Preset::Value("false"),
        help: "These pages may send cookies and HTTP authentication; requires origins by name.",
        slot: |c| Slot::Flag(&mut c.cors.credentials),
    },
    Setting {
        path: "cors.max_age",
        preset: Preset::Value("10m"),
        help: "How long browsers may cache the response to a preflight request.",
        slot: |c| Slot::Duration(&mut c.cors.max_age, Duration::ZERO..=HOUR * 24),
    },
    Setting {
        path: "auth.admin_token_file",
        preset: Preset::Absent("/run/secrets/larder-admin"),
        help: "File with the token of the admin address (Authorization: Bearer), which then requires it.",
        slot: |c| Slot::File(&mut c.auth.admin_token_file),
    },
    Setting {
        path: "auth.admin_token",
        preset: Preset::Instead("secret"),
        help: "The token itself; LARDER_AUTH__ADMIN_TOKEN keeps it out of the file.",
        slot: |c| Slot::Secret(&mut c.auth.admin_token),
    },
    Setting {
        path: "auth.jwt.algorithms",
        preset: Preset::Absent("HS256"),
        help: "Accepted algorithms: HS256/384/512 with a secret, else RS, PS, ES (256, 384), EdDSA.",
        slot: |c| Slot::Algorithms(&mut c.auth.jwt.algorithms),
    },
    Setting {
        path: "auth.jwt.secret_file",
        preset: Preset::Absent("/run/secrets/larder-jwt"),
        help: "File with the secret of HS256, HS384 or HS512. Key files are read again when they change.",
        slot: |c| Slot::File(&mut c.auth.jwt.secret_file),
    },
    Setting {
        path: "auth.jwt.secret",
        preset: Preset::Instead("secret"),
        help: "The secret itself; LARDER_AUTH__JWT__SECRET keeps it out of the file.",
        slot: |c| Slot::Secret(&mut c.auth.jwt.secret),
    },
    Setting {
        path: "auth.jwt.public_key_file",
        preset: Preset::Instead("/etc/larder/jwt.pem"),
        help: "A public key (PEM).",
        slot: |c| Slot::File(&mut c.auth.jwt.public_key_file),
    },
    Setting {
        path: "auth.jwt.private_key_file",
        preset: Preset::Instead("/run/secrets/larder-jwt.pem"),
        help: "Beside public_key_file: signs the tokens of POST /signin (PEM, PKCS #8).",
        slot: |c| Slot::File(&mut c.auth.jwt.private_key_file),
    },
    Setting {
        path: "auth.jwt.jwks_file",
        preset: Preset::Instead("/etc/larder/jwks.json"),
        help: "Public keys (RFC 7517).",
        slot: |c| Slot::File(&mut c.auth.jwt.jwks_file),
    },
    Setting {
        path: "auth.jwt.jwks_url",
        preset: Preset::Instead("https://login.example/.well-known/jwks.json"),
        help: "Public keys, fetched every five minutes and for an unknown kid: https, or http on loopback.",
        slot: |c| Slot::JwksUrl(&mut c.auth.jwt.jwks_url),
    },
    Setting {
        path: "auth.jwt.issuer",
        preset: Preset::Absent("https://login.example"),
        help: "Required value of claim iss; absent: any.",
        slot: |c| Slot::Text(&mut c.auth.jwt.issuer),
    },
    Setting {
        path: "auth.jwt.audience",
        preset: Preset::Absent("larder"),
        help: "Required value of claim aud; absent: tokens with an audience are refused.",
        slot: |c| Slot::Text(&mut c.auth.jwt.audience),
    },
    Setting {
        path: "auth.jwt.roles_claim",
        preset: Preset::Value("roles"),
        help: "The claim with the roles, a list or a text of words; a dotted path for a nested claim.",
        slot: |c| Slot::Text(&mut c.auth.jwt.roles_claim),
    },
    Setting {
        path: "auth.jwt.leeway",
        preset: Preset::Value("0s"),
        help: "Tolerated difference to the clock of the token's issuer.",
        slot: |c| {
            Slot::Duration(
                &mut c.auth.jwt.leeway,
                Duration::ZERO..=Duration::from_secs(300),
            )
        },
    },
    Setting {
        path: "auth.jwt.cookie",
        preset: Preset::Absent("larder"),
        help: "Name of the cookie that may hold the token; absent: none.",
        slot: |c| Slot::Text(&mut c.auth.jwt.cookie),
    },
    Setting {
        path: "auth.jwt.lifetime",
        preset: Preset::Value("15m"),
        help: "How long a token of POST /signin and POST /refresh is valid.",
        slot: |c| Slot::Duration(&mut c.auth.jwt.lifetime, SECOND..=DAYS_30),
    },
    Setting {
        path: "auth.jwt.session_max",
        preset: Preset::Value("12h"),
        help: "How long after signing in POST /refresh gives out tokens.",
        slot: |c| Slot::Duration(&mut c.auth.jwt.session_max, SECOND..=DAYS_30),
    },
];

#[cfg(test)]
mod tests;
