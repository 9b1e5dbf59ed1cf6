//! Tokens: random secrets. The service stores only their SHA-256 digest.

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use subtle::ConstantTimeEq;

use crate::config::Token;

/// Prefix of every token, for secret scanners.
const PREFIX: &str = "sg_";
/// Random bytes per token: 256 bits cannot be guessed.
const BYTES: usize = 32;
/// Maximum length of a token, in bytes; longer ones are not compared.
const MAX_TOKEN: usize = 256;

/// Generates a token and its hexadecimal digest for the config.
///
/// # Errors
/// The system's random number generator fails.
pub(crate) fn generate() -> Result<(String, String), String> {
    let mut bytes = [0; BYTES];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| "cannot create a token: the system's random number generator failed".to_owned())?;
    let token = format!("{PREFIX}{}", hex(&bytes));
    let sha256 = hex(digest(&SHA256, token.as_bytes()).as_ref());
    Ok((token, sha256))
}

/// Finds a presented token, comparing with all in constant time.
pub(super) fn find<'t>(tokens: &'t [Token], presented: &str) -> Option<&'t Token> {
    if presented.len() > MAX_TOKEN {
        return None;
    }
    let presented = digest(&SHA256, presented.as_bytes());
    let mut found = None;
    for token in tokens {
        if bool::from(token.sha256.0.expose().as_slice().ct_eq(presented.as_ref())) {
            found = Some(token);
        }
    }
    found
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Right, Rights};

    /// A guessed or truncated token must not grant access.
    #[test]
    fn only_the_token_itself_is_found() {
        let (token, sha256) = generate().unwrap();
        assert_ne!(generate().unwrap().0, token);
        let mut bytes = [0; 32];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&sha256[2 * at..2 * at + 2], 16).unwrap();
        }
        let known = [Token {
            name: "ops".into(),
            rights: Rights::of([Right::Write]),
            sha256: bytes.into(),
            key: None,
        }];
        assert_eq!(find(&known, &token).map(|token| token.name.as_str()), Some("ops"));
        for other in ["", &sha256, &token[..66], &format!("{token} "), &"x".repeat(300)] {
            assert_eq!(find(&known, other), None);
        }
    }
}
