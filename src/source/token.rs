//! Tokens: a read that sends one sees the transaction that it names.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

/// A transaction of one epoch of the change log. `larder.token()` returns it as `NONCE.XID`.
///
/// ```
/// use larder::source::token::Token;
///
/// let token: Token = "00000000-0000-0000-0000-000000000007.42".parse()?;
/// assert_eq!(token.xid, 42);
/// assert_eq!(token.to_string(), "00000000-0000-0000-0000-000000000007.42");
/// # Ok::<(), larder::source::token::TokenError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// The nonce of the epoch.
    pub nonce: Uuid,
    /// The transaction's number.
    pub xid: u64,
}

/// The text is not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not of the form UUID.NUMBER, as larder.token() returns it")]
pub struct TokenError;

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let (nonce, xid) = text.split_once('.').ok_or(TokenError)?;
        Ok(Self {
            nonce: Uuid::try_parse(nonce).map_err(|_| TokenError)?,
            xid: xid.parse().map_err(|_| TokenError)?,
        })
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.nonce, self.xid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_a_nonce_and_a_number() {
        let nonce = Uuid::from_u128(7);
        let token = Token { nonce, xid: 42 };
        assert_eq!(format!("{nonce}.42").parse(), Ok(token));
        assert_eq!(token.to_string(), format!("{nonce}.42"));
        for text in [
            "",
            ".",
            "42",
            "7.42",
            &format!("{nonce}."),
            &format!("{nonce}.-1"),
            &format!("{nonce}.4 2"),
        ] {
            assert_eq!(text.parse::<Token>(), Err(TokenError), "{text}");
        }
    }
}
