//! How much time does one request take from the parsed request to the ready response, through the whole service?
//!
//! Cases: a memory hit; the same by an alias; with a token, verified or ignored; with that of the owner; a 304; a disk hit; a
//! miss. The documents are random
//! departments of one `dept` and ten `emp` rows. The feed runs, over a private PostgreSQL of the bench's own. For hits in
//! memory it also prints how often and how much memory is allocated, on the thread that handles the request; times include
//! those of the counter. For comparison: a hit took 13.3 µs, 11 allocations and 3,265 bytes in the handler of the 2020 Go
//! test bed.

#![expect(clippy::print_stdout, reason = "the allocations are its output")]

use std::cell::Cell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use alloc_tracker::{Allocator, Session};
use anyhow::{Context, ensure};
use axum::body::{Body, Bytes};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderValue, Request, StatusCode};
use criterion::{BatchSize, Criterion};
use http_body_util::BodyExt;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use larder::commands::serve::Service;
use larder::config::Config;
use larder::http::middleware::stack::PublicService;
use larder::resource::definition::Tiers;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tempfile::TempDir;
use tikv_jemallocator::Jemalloc;
use tokio::runtime::{Handle, Runtime};
use tower::ServiceExt;
use uuid::Uuid;

mod postgres;

use crate::postgres::{DEMO, with_postgres};

/// As `larder` has it, with a counter for each thread.
#[global_allocator]
static ALLOCATOR: Allocator<Jemalloc> = Allocator::new(Jemalloc);

const DEPTS: u32 = 1_000;
const HIT: &str = "larder; hit; detail=memory";
/// Hits whose allocations are counted.
const COUNTED: u64 = 1_000;
const MEMORY: Tiers = Tiers {
    memory: true,
    disk: false,
};
const DISK: Tiers = Tiers {
    memory: false,
    disk: true,
};
const NONE: Tiers = Tiers {
    memory: false,
    disk: false,
};
/// Every request has to have a token.
const JWT: &str =
    "[auth.jwt]\nalgorithms = ['HS256']\nsecret = 'a secret that is thirty-two bytes'\n";

/// The paths of documents up to the key, and up to the alias.
const KEYS: &str = "/depts/";
const ALIASES: &str = "/depts/by/no/";
/// The line of the demo's resource after which others follow.
const NAME: &str = "name = \"depts\"\n";
/// All documents belong to the client, and do not show it.
const OWNED: &str = "name = 'depts'\nread = ['reader']\n\
    owner = { column = 'owner', claim = 'sub', roles = ['reader'] }\n";
const ALIASED: &str = "name = 'depts'\nby = [{ name = 'no', columns = 'deptno' }]\n";
/// The `sub` of the token.
const SUBJECT: Uuid = Uuid::from_u128(42);

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    with_postgres(&runtime, DEPTS, |url| measure(&runtime, url))
}

fn measure(runtime: &Runtime, url: &str) -> anyhow::Result<()> {
    let mut criterion = Criterion::default().configure_from_args();
    runtime.block_on(add_owner(url))?;
    let closed = format!("{JWT}{DEMO}");
    let owned = format!("{JWT}{}", DEMO.replace(NAME, OWNED));
    let aliased = DEMO.replace(NAME, ALIASED);
    for (name, tiers, toml, path, cache_status) in [
        ("disk hit", DISK, DEMO, KEYS, "larder; hit; detail=disk"),
        (
            "miss",
            NONE,
            DEMO,
            KEYS,
            "larder; fwd=miss; detail=postgres",
        ),
        ("memory hit with a token", MEMORY, &*closed, KEYS, HIT),
        ("memory hit of the owner", MEMORY, &owned, KEYS, HIT),
        ("memory hit by an alias", MEMORY, &aliased, ALIASES, HIT),
    ] {
        let warm = WarmService::start(runtime, url, tiers, toml, path)?;
        warm.bench(runtime, &mut criterion, name, cache_status, None)?;
        warm.stop(runtime);
    }
    let mut memory = WarmService::start(runtime, url, MEMORY, DEMO, KEYS)?;
    memory.bench(runtime, &mut criterion, "memory hit", HIT, None)?;
    let etag = runtime.block_on(memory.get(1))?.etag;
    memory.bench(runtime, &mut criterion, "304", HIT, Some(&etag))?;
    // The header takes time even if it is ignored: a request without headers is parsed and dropped faster.
    memory.authorization = Some(authorization()?);
    let name = "memory hit with a token unread";
    memory.bench(runtime, &mut criterion, name, HIT, None)?;
    memory.stop(runtime);
    criterion.final_summary();
    Ok(())
}

/// A larder with some tiers, which hold every document.
struct WarmService {
    service: Service,
    public: PublicService,
    /// The token of requests, if they need one.
    authorization: Option<HeaderValue>,
    /// Where the documents are, up to the key.
    path: &'static str,
    _state: TempDir,
}

impl WarmService {
    /// Starts it with the configuration `toml`, for requests of the documents at `path`.
    fn start(
        runtime: &Runtime,
        url: &str,
        tiers: Tiers,
        toml: &str,
        path: &'static str,
    ) -> anyhow::Result<Self> {
        let state = tempfile::tempdir()?;
        let directory = state
            .path()
            .to_str()
            .context("a temporary directory that is not UTF-8")?;
        let overrides = [
            ("database.url", url),
            ("state_dir", directory),
            ("disk.linger", "1ms"),
        ];
        let mut config = Config::from_toml(toml, &overrides)?;
        config.restrict_tiers(tiers);
        let _entered = runtime.enter();
        let service = Service::start(&config, url, Uuid::new_v4(), &[Handle::current()])?;
        let public = service.public();
        let authorization = if config.auth.is_on() {
            Some(authorization()?)
        } else {
            None
        };
        let warm = Self {
            service,
            public,
            authorization,
            path,
            _state: state,
        };
        runtime.block_on(warm.warm_up())?;
        Ok(warm)
    }

    /// Waits until the service is ready, and reads every document.
    async fn warm_up(&self) -> anyhow::Result<()> {
        let admin = self.service.admin_router(None);
        for _ in 0..500 {
            let ready = admin
                .clone()
                .oneshot(
                    Request::get("/readyz")
                        .header("host", "localhost")
                        .body(Body::empty())?,
                )
                .await?;
            if ready.status() == StatusCode::OK {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for key in 1..=DEPTS {
            self.get(key).await?;
        }
        Ok(())
    }

    /// Measures random keys. Fails unless each document comes from the tier that `cache_status` names.
    fn bench(
        &self,
        runtime: &Runtime,
        criterion: &mut Criterion,
        name: &str,
        cache_status: &str,
        etag: Option<&str>,
    ) -> anyhow::Result<()> {
        for key in 1..=DEPTS {
            let mut tries = 0;
            while runtime.block_on(self.get(key))?.cache_status != cache_status {
                tries += 1;
                ensure!(
                    tries < 500,
                    "document {key} does not come as {cache_status}"
                );
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        // A linear congruential generator (Knuth, MMIX) with a fixed seed: the same keys in every run.
        let state = Cell::new(42_u64);
        let next = || {
            state.set(
                state
                    .get()
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407),
            );
            let key = state.get() >> 33;
            let key = if etag.is_some() {
                1
            } else {
                key % u64::from(DEPTS) + 1
            };
            let request = Request::get(format!("{}{key}", self.path)).header("host", "localhost");
            let request = match etag {
                Some(etag) => request.header("if-none-match", etag),
                None => request,
            };
            let mut request = request.body(Body::empty());
            if let Ok(request) = &mut request {
                self.authorize(request);
            }
            request
        };
        if cache_status == HIT {
            self.count_allocations(runtime, name, next)?;
        }
        criterion.bench_function(name, |bencher| {
            bencher.to_async(runtime).iter_batched(
                next,
                |request| async { self.handle(request?).await },
                BatchSize::SmallInput,
            );
        });
        Ok(())
    }

    async fn handle(&self, request: Request<Body>) -> anyhow::Result<Bytes> {
        let response = self.public.clone().oneshot(request).await?;
        let body = response.into_body().collect().await;
        Ok(body.map_err(anyhow::Error::from_boxed)?.to_bytes())
    }

    /// Prints what a request of `next` allocates.
    fn count_allocations(
        &self,
        runtime: &Runtime,
        name: &str,
        next: impl Fn() -> Result<Request<Body>, axum::http::Error>,
    ) -> anyhow::Result<()> {
        let requests: Vec<_> = (0..COUNTED).map(|_| next()).collect::<Result<_, _>>()?;
        let session = Session::new().no_file().no_stdout();
        let operation = session.operation(name);
        runtime.block_on(async {
            let _span = operation.measure_thread().iterations(COUNTED);
            for request in requests {
                self.handle(request).await?;
            }
            anyhow::Ok(())
        })?;
        let report = session.to_report();
        let (_, counted) = report.operations().next().context("nothing was counted")?;
        let (allocations, bytes) = counted
            .allocations()
            .zip(counted.bytes())
            .context("no mean")?;
        println!(
            "{name}: {allocations:.1} allocations, {bytes:.0} bytes (the Go test bed: 11 allocations, 3,265 bytes)"
        );
        Ok(())
    }

    fn authorize(&self, request: &mut Request<Body>) {
        if let Some(authorization) = &self.authorization {
            let headers = request.headers_mut();
            headers.insert(AUTHORIZATION, authorization.clone());
        }
    }

    async fn get(&self, key: u32) -> anyhow::Result<CachedAnswer> {
        let mut request = Request::get(format!("{}{key}", self.path))
            .header("host", "localhost")
            .body(Body::empty())?;
        self.authorize(&mut request);
        let response = self.public.clone().oneshot(request).await?;
        let header = |name: &str| {
            let value = response
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        ensure!(
            response.status().is_success(),
            "document {key}: {}",
            response.status()
        );
        Ok(CachedAnswer {
            cache_status: header("cache-status"),
            etag: header("etag"),
        })
    }

    fn stop(self, runtime: &Runtime) {
        runtime.block_on(self.service.stop());
    }
}

/// Gives all documents one owner, which they do not show.
async fn add_owner(url: &str) -> anyhow::Result<()> {
    let sql = format!("alter table dept add column owner uuid not null default '{SUBJECT}'");
    let mut connection = PgConnection::connect(url).await?;
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut connection)
        .await?;
    Ok(())
}

struct CachedAnswer {
    cache_status: String,
    etag: String,
}

/// A token as an identity provider issues it, valid for an hour.
fn authorization() -> anyhow::Result<HeaderValue> {
    let claims = serde_json::json!({
        "iss": "https://login.example/realms/shop",
        "sub": SUBJECT.to_string(),
        "exp": SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() + 3600,
        "roles": ["reader", "writer", "operator"],
    });
    let key = EncodingKey::from_secret(b"a secret that is thirty-two bytes");
    let token = encode(&Header::new(Algorithm::HS256), &claims, &key)?;
    Ok(HeaderValue::from_str(&format!("Bearer {token}"))?)
}
