//! Tokens: made of random bits, known to the service by their digest alone.

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use subtle::ConstantTimeEq;

use crate::config::Token;

/// What every token begins with, so that people and scanners for secrets know one.
const PREFIX: &str = "sg_";
/// Random bytes of a token: more than anybody can try.
const BYTES: usize = 32;
/// Longest token that is looked at.
const MAX_TOKEN: usize = 256;

/// A new token, and the digest that the configuration takes.
///
/// # Errors
/// When the system has no random numbers.
pub(crate) fn make() -> Result<(String, String), String> {
    let mut bytes = [0; BYTES];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| "the system gives no random numbers, so there is no token".to_owned())?;
    let token = format!("{PREFIX}{}", hex(&bytes));
    let sha256 = hex(digest(&SHA256, token.as_bytes()).as_ref());
    Ok((token, sha256))
}

/// The token that this is. Compares with all of them, in a time that does not depend on which it is like.
pub(super) fn find<'t>(tokens: &'t [Token], presented: &str) -> Option<&'t Token> {
    if presented.len() > MAX_TOKEN {
        return None;
    }
    let presented = digest(&SHA256, presented.as_bytes());
    let mut found = None;
    for token in tokens {
        if bool::from(token.sha256.expose().as_slice().ct_eq(presented.as_ref())) {
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

    /// A token that two services know, or one that nobody made, would open what it must not.
    #[test]
    fn only_the_token_itself_is_found() {
        let (token, sha256) = make().unwrap();
        assert_ne!(make().unwrap().0, token);
        let mut bytes = [0; 32];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&sha256[2 * at..2 * at + 2], 16).unwrap();
        }
        let known = [Token { name: "ops".into(), rights: Rights::of([Right::Write]), sha256: bytes.into() }];
        assert_eq!(find(&known, &token).map(|token| token.name.as_str()), Some("ops"));
        for other in ["", &sha256, &token[..66], &format!("{token} "), &"x".repeat(300)] {
            assert_eq!(find(&known, other), None);
        }
    }
}
