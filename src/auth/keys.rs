//! Where the keys of tokens come from, and that they may change while larder runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::ensure;
use arc_swap::ArcSwapOption;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};

use crate::auth::config::JwtConfig;
use crate::auth::keyring::{self, BYTES_MAX, Keyring};
use crate::resource::definition::Mistake;

/// Pause between two looks at files of keys.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// Pause between two fetches of keys that nobody misses.
const FETCH_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// The least pause between two fetches, so that tokens with invented keys fetch no more than this.
const FETCH_PAUSE: Duration = Duration::from_secs(30);
/// The longest a fetch may take.
const FETCH_MAX: Duration = Duration::from_secs(5);

/// The keys in force.
pub(super) struct Keys {
    config: JwtConfig,
    /// Empty until they were first fetched.
    current: ArcSwapOption<Keyring>,
    /// Raised after each change of them.
    generation: AtomicU64,
    /// The last fetch.
    fetched: Mutex<Fetched>,
}

#[derive(Default)]
struct Fetched {
    at: Option<Instant>,
    /// What it gave.
    json: Vec<u8>,
}

impl Keys {
    /// Reads the keys, and follows their changes in `tasks` from then on.
    ///
    /// # Errors
    /// As [`Keyring::read`], and a set without any key for `algorithms`.
    pub(super) fn start(config: &JwtConfig, tasks: &mut JoinSet<()>) -> Result<Arc<Self>, Mistake> {
        let known = files(config);
        let keyring = Keyring::read(config)?;
        if let (Some(path), Some(keyring)) = (&config.jwks_file, &keyring)
            && keyring.is_empty()
        {
            let message = "contains no key for any of `algorithms`".to_owned();
            return Err(keyring::mistake(path, "auth.jwt.jwks_file", message));
        }
        let keys = Arc::new(Self {
            config: config.clone(),
            current: ArcSwapOption::from_pointee(keyring),
            generation: AtomicU64::new(0),
            fetched: Mutex::default(),
        });
        let followed = Arc::downgrade(&keys);
        if config.jwks_url.is_some() {
            tasks.spawn(follow_url(followed));
        } else if config.secret.is_none() {
            tasks.spawn(follow_files(followed, known));
        }
        Ok(keys)
    }

    /// Verdicts of an earlier generation are void.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The keys in force; none yet if they could never be fetched.
    pub(super) fn current(&self) -> Option<Arc<Keyring>> {
        self.current.load_full()
    }

    /// Fetches newer keys, where they are fetched and that was not done just now. Who comes meanwhile waits for the same
    /// answer, at most [`FETCH_MAX`].
    ///
    /// It goes on if this future is dropped: clients that leave in the middle must not keep keys from being fetched.
    pub(super) async fn refresh(self: &Arc<Self>) {
        if self.config.jwks_url.is_some() {
            let keys = Arc::clone(self);
            let fetching = tokio::spawn(async move { keys.fetch_newer().await });
            if let Err(error) = fetching.await {
                tracing::error!("fetching auth.jwt.jwks_url failed: {error}");
            }
        }
    }

    async fn fetch_newer(&self) {
        let Some(url) = &self.config.jwks_url else {
            return;
        };
        let mut fetched = self.fetched.lock().await;
        if fetched.at.is_some_and(|at| at.elapsed() < FETCH_PAUSE) {
            return;
        }
        fetched.at = Some(Instant::now());
        match fetch(url.expose()).await {
            Ok(json) if json == fetched.json => {}
            Ok(json) => match Keyring::of_set(&json, &self.config.algorithms) {
                Some(keyring) => {
                    fetched.json = json;
                    self.replace(keyring);
                }
                None => tracing::warn!("auth.jwt.jwks_url returned no JSON Web Key Set (RFC 7517)"),
            },
            // Without the URL, which may hold a password.
            Err(error) => tracing::warn!("auth.jwt.jwks_url can't be fetched: {error:#}"),
        }
    }

    /// A set without keys takes the place of the old one as well: so an issuer revokes them.
    fn replace(&self, keyring: Keyring) {
        let is_empty = keyring.is_empty();
        self.current.store(Some(Arc::new(keyring)));
        // After the keys: a verdict by the old ones must not pass for one by the new.
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

/// What the files hold, to tell a change.
fn files(config: &JwtConfig) -> Vec<Option<Vec<u8>>> {
    let paths = [
        &config.secret_file,
        &config.public_key_file,
        &config.private_key_file,
        &config.jwks_file,
    ];
    let paths = paths.into_iter().flatten();
    paths.map(|path| keyring::read(path, "").ok()).collect()
}

async fn follow_url(keys: Weak<Keys>) {
    let mut looks = interval(FETCH_INTERVAL);
    loop {
        looks.tick().await;
        let Some(keys) = keys.upgrade() else {
            return;
        };
        keys.refresh().await;
        if keys.current().is_none_or(|keyring| keyring.is_empty()) {
            looks.reset_after(FETCH_PAUSE);
        }
    }
}

async fn follow_files(keys: Weak<Keys>, mut known: Vec<Option<Vec<u8>>>) {
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

async fn fetch(url: &str) -> anyhow::Result<Vec<u8>> {
    // The first one counts; whoever has installed one before has chosen ring as well.
    drop(rustls::crypto::ring::default_provider().install_default());
    // Where the keys are is configured: nobody else may say that they are elsewhere.
    let client = reqwest::Client::builder()
        .timeout(FETCH_MAX)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()?;
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
    use jsonwebtoken::{Algorithm, Header};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::auth::config::Secret;

    /// A set with one key that nobody signs with.
    fn set(kid: &str) -> String {
        let x = "A".repeat(43);
        format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"{kid}","x":"{x}"}}]}}"#)
    }

    /// Keys from a server that gives one answer after the other, and then none any more; they are not followed.
    async fn keys_of(answers: Vec<String>) -> Arc<Keys> {
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
        Arc::new(Keys {
            config,
            current: ArcSwapOption::empty(),
            generation: AtomicU64::new(0),
            fetched: Mutex::default(),
        })
    }

    fn good(body: &str) -> String {
        let length = body.len();
        format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
    }

    /// As if the last fetch were long ago.
    async fn refresh_later(keys: &Arc<Keys>) {
        keys.fetched.lock().await.at = None;
        keys.refresh().await;
    }

    fn has(keys: &Keys, kid: &str) -> bool {
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
    async fn what_is_no_set_of_keys_changes_nothing() {
        let long = " ".repeat(BYTES_MAX as usize + 1);
        let elsewhere = "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\n\r\n";
        let mut answers = vec![good(&set("a")), good("{}"), good(""), good(&long)];
        answers.extend([elsewhere.to_owned(), "HTTP/1.1 500 No\r\n\r\n".to_owned()]);
        let count = answers.len();
        let keys = keys_of(answers).await;
        // One more time than there are answers.
        for _ in 0..=count {
            refresh_later(&keys).await;
            assert!(has(&keys, "a"));
        }
        assert_eq!(keys.generation(), 1);
    }
}
