//! TLS: the certificate in force, and its replacement.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use axum::http::HeaderValue;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::ProducesTickets;
use tokio_rustls::rustls::{Error as RustlsError, ServerConfig};

use crate::server::validity::Validity;

/// Section `[tls]`.
#[derive(Clone, Debug, Default)]
pub struct TlsConfig {
    /// PEM: the certificate, then the intermediate certificates. Without it there is no TLS.
    pub certificate_file: Option<PathBuf>,
    /// PEM: the certificate's key, as PKCS#8, SEC1 or PKCS#1.
    pub key_file: Option<PathBuf>,
    /// The value of `Strict-Transport-Security`.
    pub hsts: Option<HeaderValue>,
}

/// Why the certificate can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificate file can't be read, or contains no certificate.
    #[error("no certificate can be read from {0:?}: {1}")]
    Certificate(PathBuf, PemError),
    /// The key file can't be read, or contains no private key.
    #[error("no private key can be read from {0:?}: {1}")]
    Key(PathBuf, PemError),
    /// The key is not the certificate's, or rustls does not support one of them.
    #[error("certificate and key can't be used: {0}")]
    Unusable(#[from] RustlsError),
    /// The certificate is not valid now.
    #[error("the certificate in {0:?} is not valid: {1}")]
    NotValid(PathBuf, String),
}

impl TlsError {
    /// The setting that the error is about.
    pub fn setting(&self) -> &'static str {
        match self {
            Self::Certificate(..) | Self::Unusable(_) | Self::NotValid(..) => {
                "tls.certificate_file"
            }
            Self::Key(..) => "tls.key_file",
        }
    }
}

/// The certificate in force.
pub struct Tls {
    certificate_file: PathBuf,
    key_file: PathBuf,
    /// Kept when the certificate is replaced, so that clients may resume their sessions.
    tickets: Arc<dyn ProducesTickets>,
    current: ArcSwap<Certificate>,
    pub(crate) hsts: Option<Arc<HeaderValue>>,
}

/// A certificate with its key.
struct Certificate {
    /// How connections are made with it.
    config: Arc<ServerConfig>,
    /// `None` if it is malformed.
    validity: Option<Validity>,
}

impl Tls {
    /// Reads both files; `None` if none are configured. A certificate that is not valid now is used, since nothing else can
    /// be, and logged. Blocks on the file system.
    ///
    /// # Errors
    /// [`TlsError`] if they contain no usable certificate and key.
    pub fn load(config: &TlsConfig) -> Result<Option<Self>, TlsError> {
        let (Some(certificate_file), Some(key_file)) = (&config.certificate_file, &config.key_file)
        else {
            return Ok(None);
        };
        let tickets = ring::Ticketer::new()?;
        let current = read(certificate_file, key_file, &tickets)?;
        if let Err(error) = check_validity(certificate_file, &current) {
            tracing::error!("{error}; clients will refuse it");
        }
        Ok(Some(Self {
            certificate_file: certificate_file.clone(),
            key_file: key_file.clone(),
            tickets,
            current: ArcSwap::from_pointee(current),
            hsts: config.hsts.clone().map(Arc::new),
        }))
    }

    /// Reads both files again, for new connections. Blocks on the file system.
    ///
    /// # Errors
    /// [`TlsError`] if they contain no usable certificate and key, or if the certificate is not valid now; the old ones then
    /// stay in force.
    pub fn reload(&self) -> Result<(), TlsError> {
        let next = read(&self.certificate_file, &self.key_file, &self.tickets)?;
        check_validity(&self.certificate_file, &next)?;
        self.current.store(Arc::new(next));
        Ok(())
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.current.load().config))
    }

    /// When the certificate in force expires; `None` if it does not tell.
    pub fn expires_at(&self) -> Option<SystemTime> {
        self.current.load().validity.as_ref()?.expires_at()
    }
}

/// Checks that `certificate` is valid now.
fn check_validity(file: &Path, certificate: &Certificate) -> Result<(), TlsError> {
    let validity = certificate.validity.as_ref();
    let why = validity.and_then(|validity| validity.excludes(SystemTime::now()));
    why.map_or(Ok(()), |why| Err(TlsError::NotValid(file.to_owned(), why)))
}

/// TLS 1.2 and 1.3, as rustls has them by default.
fn read(
    certificate_file: &Path,
    key_file: &Path,
    tickets: &Arc<dyn ProducesTickets>,
) -> Result<Certificate, TlsError> {
    let unreadable = |error| TlsError::Certificate(certificate_file.to_owned(), error);
    let chain = CertificateDer::pem_file_iter(certificate_file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(unreadable)?;
    if chain.is_empty() {
        return Err(unreadable(PemError::NoItemsFound));
    }
    let validity = chain.first().and_then(|first| Validity::of(first));
    let key = PrivateKeyDer::from_pem_file(key_file)
        .map_err(|error| TlsError::Key(key_file.to_owned(), error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.ticketer = Arc::clone(tickets);
    Ok(Certificate {
        config: Arc::new(config),
        validity,
    })
}
