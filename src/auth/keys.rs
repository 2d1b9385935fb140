//! The keys that verify tokens, which may change while larder runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use anyhow::{Context, ensure};
use arc_swap::ArcSwapOption;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout};

use crate::auth::config::JwtConfig;
use crate::auth::keyring::{self, BYTES_MAX, Keyring};
use crate::resource::definition::Mistake;

/// Time between two checks of the key files.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// Time between two fetches of the key set, unless a token has an unknown key.
const FETCH_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// The shortest time between two fetches, so that tokens with invented keys do not cause more of them.
const FETCH_PAUSE: Duration = Duration::from_secs(10);
/// The pause after a first failed fetch. It doubles with each further failure, up to [`FETCH_PAUSE`].
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(500);
/// How long a request waits for newer keys; the keys at hand decide after that.
const REQUEST_WAIT_MAX: Duration = Duration::from_secs(1);
/// The longest a fetch may take.
const FETCH_MAX: Duration = Duration::from_secs(5);

/// The keys in force.
pub(super) struct TokenKeys {
    config: JwtConfig,
    /// Empty until the first fetch has succeeded.
    current: ArcSwapOption<Keyring>,
    /// Raised after each change of the keys.
    generation: AtomicU64,
    fetches: Mutex<Fetches>,
    /// Raised at the end of each fetch.
    ended: watch::Sender<u64>,
}

/// The fetches of the key set.
struct Fetches {
    is_running: bool,
    /// No fetch begins before.
    next: Option<Instant>,
    /// The next pause after a failure.
    retry_pause: Duration,
    has_failed: bool,
    /// The last response that was a key set.
    json: Vec<u8>,
}

/// The one fetch that runs. Dropping it allows the next.
struct RunningFetch {
    keys: Arc<TokenKeys>,
}

impl Drop for RunningFetch {
    fn drop(&mut self) {
        self.keys.lock_fetches().is_running = false;
        self.keys.ended.send_modify(|count| *count += 1);
    }
}

impl TokenKeys {
    /// Reads the keys, and spawns a task in `tasks` that watches them for changes.
    ///
    /// # Errors
    /// As [`Keyring::read`]; also a file with a set that has no key for `algorithms`.
    pub(super) fn start(config: &JwtConfig, tasks: &mut JoinSet<()>) -> Result<Arc<Self>, Mistake> {
        let known = files(config);
        let keyring = Keyring::read(config)?;
        if let (Some(path), Some(keyring)) = (&config.jwks_file, &keyring)
            && keyring.is_empty()
        {
            let message = "contains no key for any of `algorithms`".to_owned();
            return Err(keyring::file_mistake(path, "auth.jwt.jwks_file", message));
        }
        let keys = Arc::new(Self::new(config.clone(), keyring));
        let followed = Arc::downgrade(&keys);
        if config.jwks_url.is_some() {
            tasks.spawn(follow_url(followed));
        } else if config.secret.is_none() {
            tasks.spawn(follow_files(followed, known));
        }
        Ok(keys)
    }

    fn new(config: JwtConfig, keyring: Option<Keyring>) -> Self {
        Self {
            config,
            current: ArcSwapOption::from_pointee(keyring),
            generation: AtomicU64::new(0),
            fetches: Mutex::new(Fetches {
                is_running: false,
                next: None,
                retry_pause: RETRY_PAUSE_MIN,
                has_failed: false,
                json: Vec::new(),
            }),
            ended: watch::Sender::new(0),
        }
    }

    /// The generation of the keys. A credential that was verified in an earlier one has to be verified again.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The keys in force; `None` if they could not be fetched yet.
    pub(super) fn current(&self) -> Option<Arc<Keyring>> {
        self.current.load_full()
    }

    /// Fetches newer keys, if there is a URL and the pause since the last fetch is over. Waits for that fetch, or for the
    /// one that runs, at most [`REQUEST_WAIT_MAX`].
    ///
    /// The fetch continues if this future is dropped, so a client that disconnects does not prevent it.
    pub(super) async fn refresh(self: &Arc<Self>) {
        self.refresh_within(REQUEST_WAIT_MAX).await;
    }

    async fn refresh_within(self: &Arc<Self>, wait_max: Duration) {
        if self.config.jwks_url.is_none() {
            return;
        }
        // Before the fetch begins, so that its end is not missed.
        let mut ended = self.ended.subscribe();
        {
            let mut fetches = self.lock_fetches();
            if !fetches.is_running {
                if fetches.next.is_some_and(|next| Instant::now() < next) {
                    return;
                }
                fetches.is_running = true;
                let running = RunningFetch {
                    keys: Arc::clone(self),
                };
                tokio::spawn(async move { running.keys.fetch_newer().await });
            }
        }
        // If it takes longer, the keys at hand decide.
        timeout(wait_max, ended.changed()).await.ok();
    }

    async fn fetch_newer(&self) {
        let Some(url) = &self.config.jwks_url else {
            return;
        };
        let fetched = fetch(url.expose()).await.and_then(|json| {
            if json == self.lock_fetches().json {
                return Ok(());
            }
            let keyring = Keyring::parse_set(&json, &self.config.algorithms);
            let keyring = keyring.context("the response is no JSON Web Key Set (RFC 7517)")?;
            self.lock_fetches().json = json;
            self.replace(keyring);
            Ok(())
        });
        let mut fetches = self.lock_fetches();
        let pause = if fetched.is_ok() {
            fetches.retry_pause = RETRY_PAUSE_MIN;
            FETCH_PAUSE
        } else {
            let pause = fetches.retry_pause;
            fetches.retry_pause = (pause * 2).min(FETCH_PAUSE);
            pause
        };
        fetches.next = Some(Instant::now() + pause);
        let had_failed = std::mem::replace(&mut fetches.has_failed, fetched.is_err());
        // Without the URL, which may contain a password.
        match fetched {
            Err(error) if !had_failed => {
                tracing::warn!("auth.jwt.jwks_url can't be fetched: {error:#}")
            }
            Err(error) => tracing::debug!("auth.jwt.jwks_url can't be fetched: {error:#}"),
            Ok(()) if had_failed => tracing::info!("auth.jwt.jwks_url is fetched again"),
            Ok(()) => {}
        }
    }

    fn lock_fetches(&self) -> MutexGuard<'_, Fetches> {
        // No code that holds the lock can leave it half changed.
        self.fetches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time until the next fetch that no token asks for.
    fn pause(&self) -> Duration {
        let fetches = self.lock_fetches();
        let has_keys = self.current().is_some_and(|keyring| !keyring.is_empty());
        if has_keys && !fetches.has_failed {
            return FETCH_INTERVAL;
        }
        let next = fetches.next.unwrap_or_else(Instant::now);
        // A fetch that runs has set no pause yet.
        next.saturating_duration_since(Instant::now())
            .max(RETRY_PAUSE_MIN)
    }

    /// Puts new keys into force. A set without keys replaces the old one as well: an issuer may have revoked all.
    fn replace(&self, keyring: Keyring) {
        let is_empty = keyring.is_empty();
        self.current.store(Some(Arc::new(keyring)));
        // After the keys, so that no credential that the old keys verified gets the new generation.
        self.generation.fetch_add(1, Ordering::Release);
        if is_empty {
            tracing::error!(
                "the key set has no key for any of `algorithms`: no token is valid any more"
            )
        } else {
            tracing::info!("the keys that verify tokens were replaced")
        }
    }
}

/// The contents of the files, to detect a change.
fn files(config: &JwtConfig) -> Vec<Option<Vec<u8>>> {
    let paths = [
        &config.secret_file,
        &config.public_key_file,
        &config.private_key_file,
        &config.jwks_file,
    ];
    let paths = paths.into_iter().flatten();
    paths
        .map(|path| keyring::read_file(path, "").ok())
        .collect()
}

async fn follow_url(keys: Weak<TokenKeys>) {
    loop {
        let pause = {
            let Some(keys) = keys.upgrade() else {
                return;
            };
            keys.refresh_within(FETCH_MAX).await;
            keys.pause()
        };
        sleep(pause).await;
    }
}

async fn follow_files(keys: Weak<TokenKeys>, mut known: Vec<Option<Vec<u8>>>) {
    let mut looks = interval(LOOK_INTERVAL);
    loop {
        looks.tick().await;
        let Some(keys) = keys.upgrade() else {
            return;
        };
        let look = move || {
            let files = files(&keys.config);
            if known != files {
                match Keyring::read(&keys.config) {
                    Ok(Some(keyring)) => keys.replace(keyring),
                    Ok(None) => {}
                    Err(mistake) => {
                        tracing::warn!(
                            "the keys that verify tokens can't be read again; the old keys stay in force: {mistake}"
                        )
                    }
                }
            }
            files
        };
        match tokio::task::spawn_blocking(look).await {
            Ok(files) => known = files,
            Err(error) => {
                tracing::error!("the key files are no longer watched for changes: {error}");
                return;
            }
        }
    }
}

/// Begins a client of web servers. It follows no redirects and uses no proxy: only the configuration decides what larder
/// speaks to.
pub(crate) fn web_client(timeout: Duration) -> reqwest::ClientBuilder {
    // Only the first call has an effect. All other calls in larder install ring as well.
    drop(rustls::crypto::ring::default_provider().install_default());
    reqwest::Client::builder()
        .timeout(timeout)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
}

async fn fetch(url: &str) -> anyhow::Result<Vec<u8>> {
    let client = web_client(FETCH_MAX).build()?;
    let answer = client.get(url).send().await;
    let mut answer = answer.map_err(reqwest::Error::without_url)?;
    ensure!(
        answer.status().is_success(),
        "the server responded with {}",
        answer.status()
    );
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await.map_err(reqwest::Error::without_url)? {
        body.extend_from_slice(&part);
        ensure!(
            body.len() as u64 <= BYTES_MAX,
            "the response is longer than {BYTES_MAX} bytes"
        );
    }
    ensure!(!body.is_empty(), "the response is empty");
    Ok(body)
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use jsonwebtoken::{Algorithm, Header};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::auth::config::Secret;

    /// A set with one key that signs no token.
    fn set(kid: &str) -> String {
        let x = "A".repeat(43);
        format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"{kid}","x":"{x}"}}]}}"#)
    }

    /// Keys from a server that sends these responses one after the other, and then none; they are not watched for changes.
    async fn keys_of(answers: Vec<String>) -> Arc<TokenKeys> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    stream.read_buf(&mut request).await.unwrap();
                }
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let config = JwtConfig {
            algorithms: vec![Algorithm::EdDSA],
            jwks_url: Some(Secret::new(&format!("http://{address}/keys"))),
            ..JwtConfig::default()
        };
        Arc::new(TokenKeys::new(config, None))
    }

    fn good(body: &str) -> String {
        let length = body.len();
        format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
    }

    /// As if the last fetch were long ago.
    async fn refresh_later(keys: &Arc<TokenKeys>) {
        keys.lock_fetches().next = None;
        keys.refresh().await;
    }

    fn has(keys: &TokenKeys, kid: &str) -> bool {
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = Some(kid.to_owned());
        let current = keys.current();
        current.is_some_and(|keyring| keyring.find(&header).is_ok())
    }

    #[tokio::test]
    async fn new_keys_take_the_place_of_the_old_and_void_their_verdicts() {
        let keys = keys_of(vec![good(&set("a")), good(&set("a")), good(&set("b"))]).await;
        keys.refresh().await;
        assert!(has(&keys, "a"));
        let before = keys.generation();
        refresh_later(&keys).await;
        assert_eq!(keys.generation(), before, "the same keys void nothing");
        refresh_later(&keys).await;
        assert!(has(&keys, "b") && !has(&keys, "a"));
        assert_ne!(keys.generation(), before);
    }

    #[tokio::test]
    async fn keys_are_not_fetched_again_at_once() {
        let keys = keys_of(vec![good(&set("a")), good(&set("b"))]).await;
        for _ in 0..10 {
            keys.refresh().await;
        }
        assert!(has(&keys, "a"));
        refresh_later(&keys).await;
        assert!(has(&keys, "b"), "the second answer was still there");
    }

    #[tokio::test]
    async fn a_set_without_keys_voids_the_old_ones() {
        let keys = keys_of(vec![
            good(&set("a")),
            good(r#"{"keys":[]}"#),
            good(&set("a")),
        ])
        .await;
        keys.refresh().await;
        let before = keys.generation();
        refresh_later(&keys).await;
        assert!(!has(&keys, "a") && keys.current().is_some());
        assert_ne!(keys.generation(), before);
        refresh_later(&keys).await;
        assert!(has(&keys, "a"));
    }

    #[tokio::test]
    async fn a_response_that_is_not_a_key_set_changes_nothing() {
        let other = set("b");
        let long = other.clone() + &" ".repeat(BYTES_MAX as usize);
        let failed = good(&other).replace("200 OK", "500 No");
        let elsewhere = "HTTP/1.1 302 Found\r\nlocation: /b\r\nconnection: close\r\n\r\n";
        let mut answers = vec![good(&set("a")), good("{}"), good(""), good(&long), failed];
        answers.push(elsewhere.to_owned());
        let count = answers.len();
        // A client that follows the redirect would get this.
        answers.push(good(&other));
        let keys = keys_of(answers).await;
        for _ in 0..count {
            refresh_later(&keys).await;
            assert!(has(&keys, "a"));
        }
        assert_eq!(keys.generation(), 1);
    }

    /// All tokens were 503 for 30 s after an issuer that was down for a moment at the start.
    #[tokio::test]
    async fn keys_are_soon_fetched_again_after_a_failure() {
        let down = "HTTP/1.1 503 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        let keys = keys_of(vec![down.to_owned(), down.to_owned(), good(&set("a"))]).await;
        let following = tokio::spawn(follow_url(Arc::downgrade(&keys)));
        let mut ended = keys.ended.subscribe();
        let third = ended.wait_for(|count| *count == 3);
        timeout(FETCH_PAUSE / 2, third).await.unwrap().unwrap();
        assert!(has(&keys, "a"));
        following.abort();
    }

    #[tokio::test]
    async fn keys_are_fetched_every_five_minutes_while_that_works() {
        let down = "HTTP/1.1 503 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        let none = good(r#"{"keys":[]}"#);
        let keys = keys_of(vec![good(&set("a")), down.to_owned(), none]).await;
        // Before the first fetch, and while one runs.
        assert_eq!(keys.pause(), RETRY_PAUSE_MIN);
        keys.fetch_newer().await;
        assert_eq!(keys.pause(), FETCH_INTERVAL);
        keys.fetch_newer().await;
        assert!(keys.pause() <= RETRY_PAUSE_MIN, "after a failure");
        // Its issuer may be about to publish keys.
        keys.fetch_newer().await;
        let pause = keys.pause();
        assert!(RETRY_PAUSE_MIN < pause && pause <= FETCH_PAUSE, "{pause:?}");
    }

    /// The time is a paused one, which advances while nothing else happens.
    #[tokio::test(start_paused = true)]
    async fn a_fetch_without_an_answer_ends() {
        let (_listener, keys) = silent().await;
        let began = Instant::now();
        keys.fetch_newer().await;
        assert!(began.elapsed() < 2 * FETCH_MAX);
        assert!(keys.lock_fetches().has_failed);
    }

    #[tokio::test]
    async fn pauses_after_failures_double_and_begin_anew_after_a_success() {
        let down = "HTTP/1.1 503 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        let mut answers = vec![down.to_owned(); 7];
        answers.extend([good(&set("a")), down.to_owned()]);
        let keys = keys_of(answers).await;
        for milliseconds in [500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000, 10_000, 500] {
            let began = Instant::now();
            keys.fetch_newer().await;
            let pause = Duration::from_millis(milliseconds);
            let next = keys.lock_fetches().next.unwrap();
            assert!(next >= began + pause, "{pause:?}");
            assert!(next <= Instant::now() + pause, "{pause:?}");
        }
    }

    /// Keys from a server that never answers.
    async fn silent() -> (TcpListener, Arc<TokenKeys>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/keys", listener.local_addr().unwrap());
        let config = JwtConfig {
            algorithms: vec![Algorithm::EdDSA],
            jwks_url: Some(Secret::new(&url)),
            ..JwtConfig::default()
        };
        (listener, Arc::new(TokenKeys::new(config, None)))
    }

    #[tokio::test]
    async fn requests_wait_a_second_at_most_for_one_fetch() {
        let (listener, keys) = silent().await;
        let began = Instant::now();
        tokio::join!(keys.refresh(), keys.refresh(), keys.refresh());
        assert!(began.elapsed() < FETCH_MAX / 2);
        // It never answers, and only one connection was opened.
        let _fetch = listener.accept().await.unwrap();
        timeout(Duration::from_millis(50), listener.accept())
            .await
            .unwrap_err();
    }

    /// Keys rotated without a new `kid` meant 401 for up to 5 minutes.
    #[tokio::test]
    async fn a_token_that_the_keys_at_hand_do_not_verify_asks_for_newer_ones() {
        use jsonwebtoken::{EncodingKey, encode};
        use ring::signature::{Ed25519KeyPair, KeyPair};

        use crate::auth::tokens::{JwtVerifier, unix_time};

        crate::auth::signatures::install();
        let random = ring::rand::SystemRandom::new();
        let key = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        let public = Ed25519KeyPair::from_pkcs8(key.as_ref()).unwrap();
        let x = URL_SAFE_NO_PAD.encode(public.public_key().as_ref());
        let newer = set("a").replace(&"A".repeat(43), &x);
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = Some("a".to_owned());
        let claims = serde_json::json!({"sub": "anna", "exp": unix_time() + 1000});
        let token = encode(&header, &claims, &EncodingKey::from_ed_der(key.as_ref())).unwrap();
        // Another key of this name, none of this name, and no keys at all.
        for at_hand in [Some(set("a")), Some(set("b")), None] {
            let is_empty = at_hand.is_none();
            let answers = at_hand.iter().map(|set| good(set));
            let keys = keys_of(answers.chain([good(&newer)]).collect()).await;
            if !is_empty {
                keys.refresh().await;
                keys.lock_fetches().next = None;
            }
            let verifier = JwtVerifier::new(&keys.config, Arc::clone(&keys));
            let verified = verifier.verify(token.as_bytes()).await;
            assert_eq!(verified.unwrap().name, "anna", "{at_hand:?}");
        }
    }

    #[tokio::test]
    async fn a_file_needs_a_key_at_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("keys.json");
        let config = JwtConfig {
            algorithms: vec![Algorithm::EdDSA],
            jwks_file: Some(file.clone()),
            ..JwtConfig::default()
        };
        let mut tasks = JoinSet::new();
        std::fs::write(&file, r#"{"keys":[]}"#).unwrap();
        let mistake = TokenKeys::start(&config, &mut tasks).err().unwrap();
        assert!(mistake.message.contains("no key"), "{mistake}");
        std::fs::write(&file, set("a")).unwrap();
        assert!(TokenKeys::start(&config, &mut tasks).is_ok());
    }
}
