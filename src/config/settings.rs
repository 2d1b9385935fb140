//! The table of settings: the one place that knows a setting's key, default, bounds and help.
//!
//! Reading the file, the environment and the flags, suggestions for unknown keys, `config --example` and
//! `config --dump` all walk [`SETTINGS`], in its order.

use std::time::Duration;

use bytesize::{GIB, KIB, MIB, PIB, TIB};

use super::Config;
use super::value::{FINDINGS, HOSTS, ORIGINS, Slot, TOKENS, ValueError};

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
pub(super) const SECTIONS: [Section; 12] = [
    section("", ""),
    section(
        "database",
        "PostgreSQL. Without a URL larder starts a private one under state_dir.",
    ),
    section(
        "memory",
        "The first tier: documents in the process's memory.",
    ),
    section(
        "disk",
        "The second tier: documents in files under state_dir.",
    ),
    section("feed", "How larder learns of committed changes."),
    section(
        "audit",
        "A sample of the hits is read again from PostgreSQL and compared: \
         larder_audit_stale_total must stay 0.",
    ),
    section("check", "What larder check reports, and serve warns of."),
    section(
        "limits",
        "Limits for clients. Timeouts are accurate to a second.",
    ),
    section(
        "tls",
        "TLS 1.2 and 1.3 on the public address. SIGHUP reads the files again.",
    ),
    section(
        "cors",
        "Pages of other origins in browsers (CORS). Without origins, browsers do not let them \
         read responses.",
    ),
    section(
        "auth",
        "Authentication. Without users, API keys and a key for JWTs, every client may read and \
         write.",
    ),
    section(
        "auth.jwt",
        "JSON Web Tokens (JWT), sent as Authorization: Bearer or in a cookie; accepted if a key \
         for them is configured.",
    ),
];

/// The value of a setting that is not set.
pub(super) enum Preset {
    /// This value.
    Value(&'static str),
    /// What [`Config::blank`] holds; the example file shows this value.
    Absent(&'static str),
    /// As `Absent`, for what takes the place of the setting above it and can't be set beside it.
    Instead(&'static str),
}

/// The way into the configuration, with type and bounds.
type SlotOf = fn(&mut Config) -> Slot<'_>;

/// One setting.
pub(super) struct Setting {
    /// The dotted key: `listen`, `memory.max_bytes`.
    pub(super) path: &'static str,
    pub(super) preset: Preset,
    /// For the reader of the example file.
    pub(super) help: &'static str,
    pub(super) slot: SlotOf,
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

    const fn help(self, help: &'static str) -> Self {
        Self { help, ..self }
    }

    /// Reads `text` into the configuration.
    pub(super) fn put(&self, config: &mut Config, text: &str) -> Result<(), ValueError> {
        (self.slot)(config).put(text)
    }
}

/// Every setting but `[[resource]]` and `[[dispatch]]`, which are no lists of plain values.
pub(super) const SETTINGS: [Setting; 74] = [
    default("listen", "127.0.0.1:8080", |c| Slot::Address(&mut c.listen))
        .help("The public address."),
    default("admin", "127.0.0.1:8081", |c| Slot::Address(&mut c.admin))
        .help("Health, metrics, status and purge; keep it off the public network."),
    default("dispatch_admin", "127.0.0.1:8082", |c| {
        Slot::Address(&mut c.dispatch_admin)
    })
    .help("The same of larder dispatch."),
    optional("hosts", "larder.internal", |c| {
        Slot::List(&mut c.hosts, &HOSTS)
    })
    .help(
        "Names, besides localhost, by which a listen on loopback without [auth] may be called: \
         web pages could otherwise reach it by a name of their own. Trusted proxies use any.",
    ),
    optional("admin_hosts", "admin.internal", |c| {
        Slot::List(&mut c.admin_hosts, &HOSTS)
    })
    .help("The same for the admin address without an admin token."),
    default("insecure", "false", |c| Slot::Flag(&mut c.insecure))
        .help("Allow listen beyond loopback without [auth] or [tls]."),
    default("docs", "true", |c| Slot::Flag(&mut c.docs))
        .help("Serve the resources at /, their OpenAPI description at /openapi.json and Swagger UI at /docs."),
    default("access_log", "off", |c| {
        Slot::AccessLog(&mut c.access_log.format)
    })
    .help(
        "A line for each response of the public address, without credentials: \"off\", \
         \"json\" or \"combined\".",
    ),
    optional("access_log_file", "/var/log/larder/access.log", |c| {
        Slot::File(&mut c.access_log.file)
    })
    .help("The file that the lines are appended to; SIGHUP opens it again. Absent: stderr."),
    default("log_slow", "250ms", |c| {
        Slot::Duration(&mut c.source.log_slow, Duration::ZERO..=HOUR)
    })
    .help("Reads of documents from PostgreSQL that take as long are logged, ten lines a minute; 0s: none."),
    default("state_dir", ".larder", |c| Slot::Path(&mut c.state_dir))
        .help("Directory of the private PostgreSQL and the disk tier."),
    default("install", "auto", |c| Slot::Install(&mut c.install)).help(
        "\"auto\": serve creates schema larder and the triggers; \"manual\": run larder \
         install yourself.",
    ),
    default("idempotency_keys", "false", |c| {
        Slot::Flag(&mut c.feed.answers)
    })
    .help(
        "Accept Idempotency-Key with writes. Responses are kept in table larder.answer, which \
         publications for all tables include. Always true with the private PostgreSQL.",
    ),
    default("shutdown_delay", "0s", |c| {
        Slot::Duration(&mut c.shutdown_delay, Duration::ZERO..=HOUR)
    })
    .help(
        "After SIGTERM /readyz is 503, and requests are served for this long before the drain: \
         the time in which load balancers notice.",
    ),
    default("shutdown_timeout", "30s", |c| {
        Slot::Duration(&mut c.shutdown_timeout, SECOND..=HOUR)
    })
    .help("How long accepted requests and pending disk batches may take at shutdown."),
    optional("workers", "2", |c| Slot::Count(&mut c.workers, 1..=1024))
        .help("Threads that serve requests; absent: as many as the machine has cores."),
    default("request_timeout", "10s", |c| {
        Slot::Duration(&mut c.request_timeout, MILLISECOND..=HOUR)
    })
    .help("The longest time that a request waits for PostgreSQL."),
    default("document_max", "16MiB", |c| {
        Slot::Bytes(&mut c.source.document_bytes_max, 1..=GIB)
    })
    .help("The largest document, and the largest request body for one document."),
    optional("database.url", "postgres://app@db.example/app", |c| {
        Slot::Url(&mut c.database_url)
    })
    .help("DATABASE_URL sets it, too. It is read as psql reads it; a parameter that larder can't obey is refused."),
    optional(
        "database.listen_url",
        "postgres://app@direct.db.example/app",
        |c| Slot::Url(&mut c.listen_url),
    )
    .help("A direct connection for the change feed if url leads to a pooler."),
    default("database.connections", "16", |c| {
        Slot::Count(&mut c.source.connections, 4..=1000)
    })
    .help("The most connections to PostgreSQL: two for the change feed, the others for reads and writes."),
    default("database.statement_timeout", "5s", |c| {
        Slot::Duration(&mut c.source.statement_timeout, MILLISECOND..=HOUR)
    })
    .help("The longest run time of one statement."),
    default("database.pooler", "false", |c| {
        Slot::Flag(&mut c.source.pooler)
    })
    .help("url leads to a transaction pooler: no named statements, and listen_url is required."),
    default("memory.max_bytes", "256MiB", |c| {
        Slot::Bytes(&mut c.memory.bytes_max, KIB..=PIB)
    })
    .help("Size of the memory tier: documents, keys and overhead."),
    default("disk.max_bytes", "4GiB", |c| {
        Slot::Bytes(&mut c.disk.bytes_max, 16 * MIB..=PIB)
    })
    .help("Size on disk above which the oldest entries are removed."),
    default("disk.cache", "256MiB", |c| {
        Slot::Bytes(&mut c.disk.cache_bytes, 64 * KIB..=TIB)
    })
    .help(
        "Page cache of the disk tier (sled). Reads are 7 to 15 times slower if the documents in \
         use do not fit.",
    ),
    default("disk.batch", "10000", |c| {
        Slot::Count(&mut c.disk.batch_entries, 1..=1_000_000)
    })
    .help("Entries per write to disk."),
    default("disk.linger", "1s", |c| {
        Slot::Duration(&mut c.disk.linger, MILLISECOND..=MINUTE)
    })
    .help("The longest time that an entry waits for its batch."),
    default("feed.max_staleness", "1s", |c| {
        Slot::Duration(&mut c.feed.max_staleness, Duration::from_millis(10)..=HOUR)
    })
    .help(
        "The bound on staleness: if the last check of the database is older, the tiers do not \
         answer.",
    ),
    default("feed.poll_interval", "50ms", |c| {
        Slot::Duration(&mut c.feed.poll_interval, MILLISECOND..=HOUR)
    })
    .help("The longest pause between two polls for changes; at most max_staleness."),
    default("feed.notify", "true", |c| Slot::Flag(&mut c.feed.notify))
        .help("Triggers send NOTIFY at commit; without it, changes are found by polling."),
    default("feed.on_loss", "bypass", |c| {
        Slot::OnLoss(&mut c.feed.on_loss)
    })
    .help(
        "If the last check is older than max_staleness: \"bypass\" reads from PostgreSQL, \
         \"serve-stale\" responds from a tier with Age and Warning.",
    ),
    default("feed.retention", "1h", |c| {
        Slot::Duration(&mut c.feed.retention, SECOND..=DAYS_30)
    })
    .help(
        "How long the change log is kept for a larder that has stopped; its disk tier stays \
         usable that long.",
    ),
    default("feed.keys_per_statement", "10000", |c| {
        Slot::Count32(&mut c.feed.keys_per_statement, 1..=10_000_000)
    })
    .help(
        "A statement that changes more documents invalidates ranges of keys; one that inserts \
         more, only remembered absences.",
    ),
    default("audit.sample", "0.001", |c| {
        Slot::Share(&mut c.audit.sample)
    })
    .help("The share of hits that are read again and compared; 0 switches the audit off."),
    optional("check.ignore", "unused-index:public.dept_name_idx", |c| {
        Slot::List(&mut c.check_ignore, &FINDINGS)
    })
    .help("Findings to leave out: the id of a rule, or ID:OBJECT for one object."),
    default("limits.connections", "16384", |c| {
        Slot::Count(&mut c.limits.connections, 1..=1_000_000)
    })
    .help("The most open connections; more are closed at once."),
    default("limits.connections_per_address", "4096", |c| {
        Slot::Count(&mut c.limits.connections_per_address, 1..=1_000_000)
    })
    .help("The same for one client: an IPv4 address or a /64 of IPv6."),
    default("limits.header_timeout", "5s", |c| {
        Slot::Duration(&mut c.limits.header_timeout, SECOND..=HOUR)
    })
    .help(
        "Time from connecting to the first request, and from a request's first byte to the \
         end of its head.",
    ),
    default("limits.idle_timeout", "75s", |c| {
        Slot::Duration(&mut c.limits.idle_timeout, SECOND..=DAYS_30)
    })
    .help("How long a connection stays open without a request."),
    default("limits.body_timeout", "30s", |c| {
        Slot::Duration(&mut c.limits.body_timeout, SECOND..=HOUR)
    })
    .help("The longest total wait for a request body; every 500 bytes received add a second."),
    default("limits.write_timeout", "60s", |c| {
        Slot::Duration(&mut c.limits.write_timeout, SECOND..=HOUR)
    })
    .help(
        "A client that reads nothing of its response for this long loses its connection; over \
         HTTP/2, one that reads less than 1/64 of the bytes that wait for it.",
    ),
    default("limits.answer_max", "64MiB", |c| {
        Slot::Bytes(&mut c.answers.answer_bytes_max, MIB..=GIB)
    })
    .help(
        "The documents of a batch or of return=representation together; more are answered with 413. \
         A page of a list ends before.",
    ),
    default("limits.answers_memory", "512MiB", |c| {
        Slot::Bytes(&mut c.answers.memory_bytes_max, MIB..=TIB)
    })
    .help(
        "All answers with many documents that are being made or sent; the clients that read nothing \
         for the longest time lose theirs.",
    ),
    default("limits.bodies_memory", "256MiB", |c| {
        Slot::Bytes(&mut c.bodies_bytes_max, 16 * MIB..=TIB)
    })
    .help(
        "All request bodies that are being received, bulk writes excepted, and the decoders of encoded \
         bodies; a quarter of it for one client. Those of which nothing arrives for the longest time are \
         answered with 503.",
    ),
    default("limits.requests_per_second", "0", |c| {
        Slot::Count32(&mut c.limits.requests_per_second, 0..=1_000_000)
    })
    .help("Requests per second of one client; more are answered with 429. 0: no limit."),
    default("limits.burst", "100", |c| {
        Slot::Count32(&mut c.limits.burst, 1..=1_000_000)
    })
    .help("Requests that a client may send at once after a pause."),
    optional("limits.trusted_proxies", "10.0.0.0/8, fd00::/8", |c| {
        Slot::Networks(&mut c.limits.trusted_proxies)
    })
    .help("Proxies whose X-Forwarded-For is trusted."),
    optional("limits.proxy_protocol", "10.0.0.0/8, fd00::/8", |c| {
        Slot::Networks(&mut c.limits.proxy_protocol)
    })
    .help(
        "Proxies that begin each connection with a header of the PROXY protocol, version 1 or 2. \
         It names the client; X-Forwarded-For counts only if that is in trusted_proxies.",
    ),
    optional("tls.certificate_file", "/etc/larder/fullchain.pem", |c| {
        Slot::File(&mut c.tls.certificate_file)
    })
    .help(
        "PEM file with the certificate, then the intermediate certificates. Without it there is \
         no TLS.",
    ),
    optional("tls.key_file", "/etc/larder/privkey.pem", |c| {
        Slot::File(&mut c.tls.key_file)
    })
    .help("PEM file with the certificate's private key."),
    optional("tls.hsts", "max-age=31536000", |c| {
        Slot::Header(&mut c.tls.hsts)
    })
    .help("Value of the header Strict-Transport-Security."),
    optional("cors.origins", "https://app.example", |c| {
        Slot::List(&mut c.cors.origins, &ORIGINS)
    })
    .help("Origins whose pages may read responses; [\"*\"] for all."),
    default("cors.methods", "GET,HEAD,POST,PUT,PATCH,DELETE", |c| {
        Slot::List(&mut c.cors.methods, &TOKENS)
    })
    .help("Methods that these pages may use."),
    default(
        "cors.headers",
        "authorization,cache-control,content-type,idempotency-key,if-match,if-none-match,larder-token,prefer",
        |c| Slot::List(&mut c.cors.headers, &TOKENS),
    )
    .help("Headers that these pages may send."),
    default("cors.credentials", "false", |c| {
        Slot::Flag(&mut c.cors.credentials)
    })
    .help("These pages may send cookies and HTTP authentication; requires origins by name."),
    default("cors.max_age", "10m", |c| {
        Slot::Duration(&mut c.cors.max_age, Duration::ZERO..=HOUR * 24)
    })
    .help("How long browsers may cache the response to a preflight request."),
    optional("auth.admin_token_file", "/run/secrets/larder-admin", |c| {
        Slot::File(&mut c.auth.admin_token_file)
    })
    .help(
        "File with the token of the admin address (Authorization: Bearer), which then \
         requires it.",
    ),
    alternative("auth.admin_token", "secret", |c| {
        Slot::Secret(&mut c.auth.admin_token)
    })
    .help("The token itself; LARDER_AUTH__ADMIN_TOKEN keeps it out of the file."),
    optional("auth.jwt.algorithms", "HS256", |c| {
        Slot::Algorithms(&mut c.auth.jwt.algorithms)
    })
    .help("Accepted algorithms: HS256/384/512 with a secret, else RS, PS, ES (256, 384), EdDSA."),
    optional("auth.jwt.secret_file", "/run/secrets/larder-jwt", |c| {
        Slot::File(&mut c.auth.jwt.secret_file)
    })
    .help(
        "File with the secret of HS256, HS384 or HS512. Key files are read again when they \
         change.",
    ),
    alternative("auth.jwt.secret", "secret", |c| {
        Slot::Secret(&mut c.auth.jwt.secret)
    })
    .help("The secret itself; LARDER_AUTH__JWT__SECRET keeps it out of the file."),
    alternative("auth.jwt.public_key_file", "/etc/larder/jwt.pem", |c| {
        Slot::File(&mut c.auth.jwt.public_key_file)
    })
    .help("A public key (PEM)."),
    alternative(
        "auth.jwt.private_key_file",
        "/run/secrets/larder-jwt.pem",
        |c| Slot::File(&mut c.auth.jwt.private_key_file),
    )
    .help("Beside public_key_file: signs the tokens of POST /signin (PEM, PKCS #8)."),
    alternative("auth.jwt.jwks_file", "/etc/larder/jwks.json", |c| {
        Slot::File(&mut c.auth.jwt.jwks_file)
    })
    .help("Public keys (RFC 7517)."),
    alternative(
        "auth.jwt.jwks_url",
        "https://login.example/.well-known/jwks.json",
        |c| Slot::JwksUrl(&mut c.auth.jwt.jwks_url),
    )
    .help(
        "Public keys, fetched every five minutes and for an unknown kid: https, or http on \
         loopback.",
    ),
    optional("auth.jwt.issuer", "https://login.example", |c| {
        Slot::Text(&mut c.auth.jwt.issuer)
    })
    .help("Required value of claim iss, but for tokens of POST /signin; absent: any."),
    optional("auth.jwt.audience", "larder", |c| {
        Slot::Text(&mut c.auth.jwt.audience)
    })
    .help("Required value of claim aud; absent: tokens with an audience are refused."),
    default("auth.jwt.roles_claim", "roles", |c| {
        Slot::Text(&mut c.auth.jwt.roles_claim)
    })
    .help(
        "The claim with the roles, a list or a string of words; a dotted path for a nested claim.",
    ),
    default("auth.jwt.leeway", "0s", |c| {
        Slot::Duration(
            &mut c.auth.jwt.leeway,
            Duration::ZERO..=Duration::from_secs(300),
        )
    })
    .help("Tolerated difference from the clock of the token's issuer."),
    optional("auth.jwt.cookie", "larder", |c| {
        Slot::Text(&mut c.auth.jwt.cookie)
    })
    .help("Name of a cookie that may contain the token; absent: none."),
    default("auth.jwt.same_site", "strict", |c| {
        Slot::SameSite(&mut c.auth.jwt.same_site)
    })
    .help(
        "From which pages browsers send the cookie: \"strict\", those of the same site; \"none\", also those of \
         other sites among cors.origins, which needs cors.credentials and TLS.",
    ),
    default("auth.jwt.lifetime", "15m", |c| {
        Slot::Duration(&mut c.auth.jwt.lifetime, SECOND..=DAYS_30)
    })
    .help("How long a token of POST /signin and POST /refresh is valid."),
    default("auth.jwt.session_max", "12h", |c| {
        Slot::Duration(&mut c.auth.jwt.session_max, SECOND..=DAYS_30)
    })
    .help("How long after signing in POST /refresh issues tokens."),
];

const fn section(name: &'static str, help: &'static str) -> Section {
    Section { name, help }
}

/// A setting with a default.
const fn default(path: &'static str, value: &'static str, slot: SlotOf) -> Setting {
    Setting {
        path,
        preset: Preset::Value(value),
        help: "",
        slot,
    }
}

/// A setting without a default; the example file shows `example`.
const fn optional(path: &'static str, example: &'static str, slot: SlotOf) -> Setting {
    Setting {
        preset: Preset::Absent(example),
        ..default(path, "", slot)
    }
}

/// The same for a setting that excludes the one above it.
const fn alternative(path: &'static str, example: &'static str, slot: SlotOf) -> Setting {
    Setting {
        preset: Preset::Instead(example),
        ..default(path, "", slot)
    }
}

#[cfg(test)]
mod tests;
