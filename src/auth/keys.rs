//! The keys that verify tokens, which may change while larder runs.

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

/// Time between two checks of the key files.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// Time between two fetches of the key set, unless a token has an unknown key.
const FETCH_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// The shortest time between two fetches, so that tokens with invented keys do not cause more of them.
const FETCH_PAUSE: Duration = Duration::from_secs(30);
/// The longest a fetch may take.
const FETCH_MAX: Duration = Duration::from_secs(5);

/// The keys in force.
pub(super) struct TokenKeys {
    config: JwtConfig,
    /// Empty until the first fetch has succeeded.
    current: ArcSwapOption<Keyring>,
    /// Raised after each change of the keys.
    generation: AtomicU64,
    /// The last fetch.
    fetched: Mutex<Fetched>,
}

#[derive(Default)]
struct Fetched {
    at: Option<Instant>,
    /// The response.
    json: Vec<u8>,
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

    /// The generation of the keys. A credential that was verified in an earlier one has to be verified again.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The keys in force; `None` if they could not be fetched yet.
    pub(super) fn current(&self) -> Option<Arc<Keyring>> {
        self.current.load_full()
    }

    /// Fetches newer keys, if there is a URL and the last fetch was not within [`FETCH_PAUSE`]. Concurrent calls wait for
    /// the same fetch, at most [`FETCH_MAX`].
    ///
    /// The fetch continues if this future is dropped, so a client that disconnects does not prevent it.
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
            Ok(json) => match Keyring::parse_set(&json, &self.config.algorithms) {
                Some(keyring) => {
                    fetched.json = json;
                    self.replace(keyring);
                }
                None => tracing::warn!("auth.jwt.jwks_url returned no JSON Web Key Set (RFC 7517)"),
            },
            // Without the URL, which may contain a password.
            Err(error) => tracing::warn!("auth.jwt.jwks_url can't be fetched: {error:#}"),
        }
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

async fn fetch(url: &str) -> anyhow::Result<Vec<u8>> {
    // Only the first call has an effect. All other calls in larder install ring as well.
    drop(rustls::crypto::ring::default_provider().install_default());
    // No redirects and no proxy: only the configuration decides where the keys come from.
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
        Arc::new(TokenKeys {
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
    async fn refresh_later(keys: &Arc<TokenKeys>) {
        keys.fetched.lock().await.at = None;
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
