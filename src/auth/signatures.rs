//! The signatures of tokens, made and verified by ring.
//!
//! jsonwebtoken uses RustCrypto, aws-lc or a provider that it is given. rustls uses ring already, so a provider with ring
//! keeps larder to one implementation of cryptography.

use std::sync::Once;

use jsonwebtoken::crypto::{CryptoProvider, JwkUtils, JwtSigner, JwtVerifier};
use jsonwebtoken::errors::{ErrorKind, Result, new_error};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::rand::SystemRandom;
use ring::signature as by;
use ring::{hmac, signature::RsaPublicKeyComponents, signature::UnparsedPublicKey};
use signature::{Error, Signer, Verifier};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |&algorithm, key| {
        fits(algorithm, key.family())?;
        let key = key.clone();
        Ok(Box::new(Signing { algorithm, key }))
    },
    verifier_factory: |&algorithm, key| {
        fits(algorithm, key.family())?;
        let key = key.clone();
        Ok(Box::new(Verifying { algorithm, key }))
    },
    // larder never derives a public key from a private one.
    jwk_utils: JwkUtils::new_unimplemented(),
};

/// Makes jsonwebtoken use ring in the whole process.
pub(super) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        if PROVIDER.install_default().is_err() {
            tracing::error!("jsonwebtoken uses another cryptography provider than ring");
        }
    });
}

/// Checks that the key is for the algorithm: a public key must never be used as the secret of an HMAC.
fn fits(algorithm: Algorithm, family: AlgorithmFamily) -> Result<()> {
    if algorithm.family() == family {
        Ok(())
    } else {
        Err(new_error(ErrorKind::InvalidKeyFormat))
    }
}

struct Signing {
    algorithm: Algorithm,
    key: EncodingKey,
}

struct Verifying {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl Signer<Vec<u8>> for Signing {
    fn try_sign(&self, message: &[u8]) -> std::result::Result<Vec<u8>, Error> {
        let key = self.key.inner();
        let random = SystemRandom::new();
        let rejected = |_| Error::new();
        if let Some(algorithm) = hmac_of(self.algorithm) {
            let tag = hmac::sign(&hmac::Key::new(algorithm, key), message);
            return Ok(tag.as_ref().to_vec());
        }
        let ecdsa = match self.algorithm {
            Algorithm::ES256 => &by::ECDSA_P256_SHA256_FIXED_SIGNING,
            Algorithm::ES384 => &by::ECDSA_P384_SHA384_FIXED_SIGNING,
            Algorithm::EdDSA => {
                let pair = by::Ed25519KeyPair::from_pkcs8_maybe_unchecked(key).map_err(rejected)?;
                return Ok(pair.sign(message).as_ref().to_vec());
            }
            _ => return sign_rsa(self.algorithm, key, message),
        };
        let pair = by::EcdsaKeyPair::from_pkcs8(ecdsa, key, &random).map_err(rejected)?;
        let signature = pair.sign(&random, message).map_err(|_| Error::new())?;
        Ok(signature.as_ref().to_vec())
    }
}

fn sign_rsa(
    algorithm: Algorithm,
    key: &[u8],
    message: &[u8],
) -> std::result::Result<Vec<u8>, Error> {
    let encoding: &dyn by::RsaEncoding = match algorithm {
        Algorithm::RS256 => &by::RSA_PKCS1_SHA256,
        Algorithm::RS384 => &by::RSA_PKCS1_SHA384,
        Algorithm::RS512 => &by::RSA_PKCS1_SHA512,
        Algorithm::PS256 => &by::RSA_PSS_SHA256,
        Algorithm::PS384 => &by::RSA_PSS_SHA384,
        Algorithm::PS512 => &by::RSA_PSS_SHA512,
        _ => return Err(Error::new()),
    };
    let pair = by::RsaKeyPair::from_der(key).map_err(|_| Error::new())?;
    let mut signature = vec![0; pair.public().modulus_len()];
    pair.sign(encoding, &SystemRandom::new(), message, &mut signature)
        .map_err(|_| Error::new())?;
    Ok(signature)
}

impl JwtSigner for Signing {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for Verifying {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let verified = match (self.key.kind(), hmac_of(self.algorithm)) {
            (DecodingKeyKind::SecretOrDer(secret), Some(algorithm)) => {
                hmac::verify(&hmac::Key::new(algorithm, secret), message, signature)
            }
            (DecodingKeyKind::RsaModulusExponent { n, e }, _) => {
                let parameters = rsa_of(self.algorithm).ok_or_else(Error::new)?;
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (DecodingKeyKind::SecretOrDer(key), None) => {
                let parameters: &dyn by::VerificationAlgorithm = match self.algorithm {
                    Algorithm::ES256 => &by::ECDSA_P256_SHA256_FIXED,
                    Algorithm::ES384 => &by::ECDSA_P384_SHA384_FIXED,
                    Algorithm::EdDSA => &by::ED25519,
                    rsa => rsa_of(rsa).ok_or_else(Error::new)?,
                };
                UnparsedPublicKey::new(parameters, key).verify(message, signature)
            }
        };
        verified.map_err(|_| Error::new())
    }
}

impl JwtVerifier for Verifying {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

fn hmac_of(algorithm: Algorithm) -> Option<hmac::Algorithm> {
    match algorithm {
        Algorithm::HS256 => Some(hmac::HMAC_SHA256),
        Algorithm::HS384 => Some(hmac::HMAC_SHA384),
        Algorithm::HS512 => Some(hmac::HMAC_SHA512),
        _ => None,
    }
}

fn rsa_of(algorithm: Algorithm) -> Option<&'static by::RsaParameters> {
    match algorithm {
        Algorithm::RS256 => Some(&by::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Some(&by::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Some(&by::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Some(&by::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Some(&by::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Some(&by::RSA_PSS_2048_8192_SHA512),
        _ => None,
    }
}
