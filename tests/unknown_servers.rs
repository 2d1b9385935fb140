//! Servers with which larder's PostgreSQL driver opens no connection: what is told, and what to do.

use std::future::pending;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use larder::source::session::Database;
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};

/// The version 3 in a certificate: a tag, and the number 2.
const VERSION_3: &[u8] = &[0xa0, 3, 2, 1, 2];

/// Why no connection is opened to a server that does `serve` with each client.
async fn told(parameters: &str, serve: &impl AsyncFn(TcpStream)) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let url = format!("postgres://app@localhost:{port}/app?{parameters}");
    let database = Database::new(&url, false, Duration::from_secs(5)).unwrap();
    let serving = async {
        while let Ok((client, _)) = listener.accept().await {
            serve(client).await;
        }
    };
    let opened = tokio::select! {
        opened = database.connect() => opened,
        () = serving => pending().await,
    };
    let Err(error) = opened else {
        panic!("connected in spite of: {parameters}");
    };
    error.to_string()
}

/// The place in the driver's source was told, and not what to do.
#[tokio::test(flavor = "multi_thread")]
async fn methods_that_the_driver_does_not_know_are_named() {
    let told = told("sslmode=disable", &async |mut client: TcpStream| {
        // The message of the client, then AuthenticationSASL with the one method.
        client.read_buf(&mut Vec::with_capacity(1024)).await.ok();
        client
            .write_all(b"R\0\0\0\x15\0\0\0\x0aOAUTHBEARER\0\0")
            .await
            .ok();
        client.read_buf(&mut Vec::with_capacity(1024)).await.ok();
    })
    .await;
    for part in ["OAUTHBEARER, which larder does not know", "pg_hba.conf"] {
        assert!(told.contains(part), "{told}");
    }
    assert!(!told.contains(".rs"), "{told}");
}

/// What larder tells of a server with a certificate of `params`, if it trusts the certificate in the file `trusted`. In the file
/// `own` is that of the server. Its DER is changed by `change`.
async fn told_of_certificate(
    params: &CertificateParams,
    directory: &Path,
    trusted: &str,
    change: impl FnOnce(&mut Vec<u8>),
) -> String {
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    std::fs::write(directory.join("own"), certificate.pem()).unwrap();
    let mut certificate = certificate.der().to_vec();
    change(&mut certificate);
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let key = ring::sign::any_supported_type(&key).unwrap();
    let certified = CertifiedKey::new(vec![CertificateDer::from(certificate)], key);
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let trusted = directory.join(trusted);
    let parameters = format!("sslmode=verify-full&sslrootcert={}", trusted.display());
    told(&parameters, &async |mut client: TcpStream| {
        // SSLRequest has 8 bytes.
        if client.read_exact(&mut [0; 8]).await.is_ok() {
            client.write_all(b"S").await.ok();
            acceptor.accept(client).await.ok();
        }
    })
    .await
}

/// The first is made as PostgreSQL's manual says, and psql accepts it.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_that_the_driver_refuses_are_told_with_what_to_do() {
    let directory = TempDir::new().unwrap();
    let of = |host: &str| CertificateParams::new([host.to_owned()]).unwrap();
    let mut other = of("localhost");
    other.distinguished_name = DistinguishedName::new();
    let other = other.self_signed(&KeyPair::generate().unwrap()).unwrap();
    std::fs::write(directory.path().join("other"), other.pem()).unwrap();
    let mut authority = of("localhost");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let is_version = |bytes: &[u8]| bytes == VERSION_3;
    let older = |certificate: &mut Vec<u8>| {
        let at = certificate.windows(VERSION_3.len()).position(is_version);
        certificate[at.unwrap() + 4] = 0;
    };
    let same = |_: &mut Vec<u8>| {};
    let directory = directory.path();
    for (told, remedy) in [
        (
            told_of_certificate(&authority, directory, "own", same).await,
            "basicConstraints=critical,CA:FALSE",
        ),
        (
            told_of_certificate(&of("localhost"), directory, "own", older).await,
            "it must be of version 3",
        ),
        (
            told_of_certificate(&of("db.example"), directory, "own", same).await,
            "subjectAltName (DNS:HOST or IP:ADDRESS)",
        ),
        (
            told_of_certificate(&of("localhost"), directory, "other", same).await,
            "by sslrootcert",
        ),
    ] {
        assert!(told.contains(remedy), "{told}");
    }
}
