//! Credentials at rest: passwords as argon2id strings, tokens as keyed hashes.
//!
//! Guarantees: No secret can be computed back or is ever printed. A comparison takes the same time wherever
//! the difference is. A stored hash cannot require more memory or time than the bounds here.
//!
//! Not handled here: throttling, and that a password check (some 50 ms) runs off the data path.

use std::fmt;
use std::io;
use std::str::FromStr;

use argon2::{Algorithm, Argon2, Params};
use blake2::Blake2bMac;
use blake2::digest::consts::U32;
use blake2::digest::{FixedOutput, KeyInit, Update};
use password_hash::{PasswordHasher, phc};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Shortest password that `user add` and `user passwd` accept, in bytes (NIST SP 800-63B, 5.1.1.2).
pub const PASSWORD_BYTES_MIN: usize = 8;

/// Longest password in bytes: RFC 1929 has one length byte, and argon2's cost must not grow with the input.
pub const PASSWORD_BYTES_MAX: usize = 255;

/// Memory of one verification at most, in KiB: a hash that requires more is rejected when it is loaded.
const ARGON2_MEMORY_KIB_MAX: u32 = 64 * 1024;
const ARGON2_PASSES_MAX: u32 = 4;
const ARGON2_LANES_MAX: u32 = 4;

/// The cost of new hashes: the second choice of the OWASP password storage cheat sheet (19 MiB, 2 passes).
const ARGON2_MEMORY_KIB: u32 = 19 * 1024;
const ARGON2_PASSES: u32 = 2;
const ARGON2_LANES: u32 = 1;

const _: () = assert!(ARGON2_MEMORY_KIB <= ARGON2_MEMORY_KIB_MAX);
const _: () = assert!(ARGON2_PASSES <= ARGON2_PASSES_MAX && ARGON2_LANES <= ARGON2_LANES_MAX);

/// 20 characters of 5 random bits each: out of reach for guessing even without argon2.
const GENERATED_PASSWORD_CHARS: usize = 20;

/// 26 characters of 5 random bits each, 130 bits: no argon2 is needed to protect their hash.
const TOKEN_CHARS: usize = 26;
const TOKEN_PREFIX: &str = "tgt_";

const TOKEN_KEY_BYTES: usize = 32;
const TOKEN_HASH_BYTES: usize = 32;
const TOKEN_HASH_PREFIX: &str = "blake2b:";

/// Digits and letters without i, l, o and u, which people misread; 32 of them, so that 5 bits select one.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// What proves that a client belongs to a user.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "passwords are the common case; a box would only move them")]
pub enum Credential {
    /// For people: slow to verify.
    Password(PasswordHash),
    /// For programs: fast to verify.
    Token(TokenHash),
}

impl Credential {
    /// Whether `secret` matches. A password takes some 50 ms and 19 MiB.
    pub fn verify(&self, secret: &[u8]) -> bool {
        match self {
            Credential::Password(hash) => hash.verify(secret),
            Credential::Token(hash) => hash.verify(secret),
        }
    }

    /// The name of the setting that holds it.
    pub fn key(&self) -> &'static str {
        match self {
            Credential::Password(_) => "password",
            Credential::Token(_) => "token",
        }
    }

    /// The stored form. It is not the secret, but does not belong into logs either.
    pub fn to_text(&self) -> String {
        match self {
            Credential::Password(hash) => hash.to_text(),
            Credential::Token(hash) => hash.to_text(),
        }
    }
}

/// Working memory of argon2, to be kept by a caller that checks many passwords. Allocating 19 MiB for each
/// fragmented the heap, and left the process with 130 MB.
#[derive(Default)]
pub struct HashMemory(Vec<argon2::Block>);

impl HashMemory {
    fn blocks(&mut self, count: usize) -> &mut [argon2::Block] {
        if self.0.len() < count {
            self.0.resize(count, argon2::Block::default());
        }
        &mut self.0[..count]
    }
}

/// The argon2id hash of a password, with its salt and cost.
#[derive(Clone, PartialEq)]
pub struct PasswordHash(phc::PasswordHash);

impl PasswordHash {
    /// Hashes a password with a new salt.
    ///
    /// # Errors
    /// The password is too short or too long, or has control characters; or the system has no random bytes.
    pub fn make(password: &str) -> Result<PasswordHash, CredentialError> {
        if !(PASSWORD_BYTES_MIN..=PASSWORD_BYTES_MAX).contains(&password.len()) {
            return Err(CredentialError::PasswordLength);
        }
        if password.chars().any(char::is_control) {
            return Err(CredentialError::PasswordControl);
        }
        let params = Params::new(ARGON2_MEMORY_KIB, ARGON2_PASSES, ARGON2_LANES, None)
            .expect("the cost constants lie within argon2's own bounds");
        let argon2 = Argon2::new(Algorithm::Argon2id, argon2::Version::V0x13, params);
        let hash = argon2.hash_password(password.as_bytes()).map_err(|_| CredentialError::Randomness)?;
        Ok(PasswordHash(hash))
    }

    /// Whether `password` matches. A wrong one takes as long.
    pub fn verify(&self, password: &[u8]) -> bool {
        self.verify_in(&mut HashMemory::default(), password)
    }

    /// As [`PasswordHash::verify`], in reused memory.
    pub fn verify_in(&self, memory: &mut HashMemory, password: &[u8]) -> bool {
        let (Some(salt), Some(hash)) = (&self.0.salt, &self.0.hash) else { return false };
        let Ok(params) = Params::try_from(&self.0) else { return false };
        let blocks = memory.blocks(params.block_count());
        let argon2 = Argon2::new(Algorithm::Argon2id, argon2::Version::V0x13, params);
        let mut output = Zeroizing::new(vec![0; hash.len()]);
        password.len() <= PASSWORD_BYTES_MAX
            && argon2.hash_password_into_with_memory(password, salt, &mut output, blocks).is_ok()
            && bool::from(output.ct_eq(hash.as_bytes()))
    }

    /// The cost of a verification: two of the same cost take the same time.
    pub fn cost(&self) -> Argon2Cost {
        let params = Params::try_from(&self.0).expect("the parameters were parsed with the hash");
        Argon2Cost { memory_kib: params.m_cost(), passes: params.t_cost(), lanes: params.p_cost() }
    }

    /// The PHC string.
    pub fn to_text(&self) -> String {
        self.0.to_string()
    }
}

/// The parameters of argon2 that determine the time of a verification (RFC 9106, section 3.1).
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Argon2Cost {
    memory_kib: u32,
    passes: u32,
    lanes: u32,
}

impl FromStr for PasswordHash {
    type Err = CredentialError;

    fn from_str(text: &str) -> Result<PasswordHash, CredentialError> {
        let hash = phc::PasswordHash::new(text).map_err(|_| CredentialError::NotArgon2id)?;
        let wrong_kind = hash.algorithm != Algorithm::Argon2id.ident()
            || hash.version != Some(argon2::Version::V0x13.into());
        if wrong_kind || hash.salt.is_none() || hash.hash.is_none() {
            return Err(CredentialError::NotArgon2id);
        }
        let params = Params::try_from(&hash).map_err(|_| CredentialError::NotArgon2id)?;
        if params.m_cost() > ARGON2_MEMORY_KIB_MAX
            || params.t_cost() > ARGON2_PASSES_MAX
            || params.p_cost() > ARGON2_LANES_MAX
        {
            return Err(CredentialError::Argon2Cost);
        }
        Ok(PasswordHash(hash))
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(..)")
    }
}

/// The keyed BLAKE2b hash of a token. Each user's key is random, so equal tokens have different hashes.
#[derive(Clone)]
pub struct TokenHash {
    key: [u8; TOKEN_KEY_BYTES],
    hash: [u8; TOKEN_HASH_BYTES],
}

impl TokenHash {
    /// Hashes a token with a new key.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn make(token: &str) -> Result<TokenHash, CredentialError> {
        let mut key = [0; TOKEN_KEY_BYTES];
        getrandom::fill(&mut key).map_err(|_| CredentialError::Randomness)?;
        Ok(TokenHash { key, hash: keyed_hash(&key, token.as_bytes()) })
    }

    /// The hash of no token: verifying against it takes the same time, and fails.
    pub fn decoy() -> TokenHash {
        TokenHash { key: [0; TOKEN_KEY_BYTES], hash: [0; TOKEN_HASH_BYTES] }
    }

    /// Whether `token` matches, in constant time; some hundred nanoseconds.
    pub fn verify(&self, token: &[u8]) -> bool {
        token.len() <= PASSWORD_BYTES_MAX && keyed_hash(&self.key, token).ct_eq(&self.hash).into()
    }

    /// `blake2b:KEY:HASH`, both hexadecimal.
    pub fn to_text(&self) -> String {
        format!("{TOKEN_HASH_PREFIX}{}:{}", hex(&self.key), hex(&self.hash))
    }
}

impl FromStr for TokenHash {
    type Err = CredentialError;

    fn from_str(text: &str) -> Result<TokenHash, CredentialError> {
        let parse = || {
            let (key, hash) = text.strip_prefix(TOKEN_HASH_PREFIX)?.split_once(':')?;
            Some(TokenHash { key: unhex(key)?, hash: unhex(hash)? })
        };
        parse().ok_or(CredentialError::NotTokenHash)
    }
}

impl PartialEq for TokenHash {
    fn eq(&self, other: &TokenHash) -> bool {
        self.key == other.key && bool::from(self.hash.ct_eq(&other.hash))
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(..)")
    }
}

/// What is wrong with a credential. No message quotes the credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// Too short or too long.
    #[error("a password has {PASSWORD_BYTES_MIN} to {PASSWORD_BYTES_MAX} bytes")]
    PasswordLength,
    /// Clients cannot send it, or not always in the same encoding.
    #[error("a password has no control characters")]
    PasswordControl,
    /// Not a PHC string, of another algorithm, or incomplete.
    #[error(
        "expected an argon2id hash, `$argon2id$v=19$m=..,t=..,p=..$SALT$HASH`, as `tollgate user` makes it"
    )]
    NotArgon2id,
    /// A hash with which one login would take the machine's memory or time.
    #[error(
        "this hash costs too much: at most m={ARGON2_MEMORY_KIB_MAX} (KiB), t={ARGON2_PASSES_MAX}, \
         p={ARGON2_LANES_MAX}"
    )]
    Argon2Cost,
    /// Not of the form that `user add --token` writes.
    #[error("expected a token's hash, `blake2b:KEY:HASH`, as `tollgate user add --token` makes it")]
    NotTokenHash,
    /// `getrandom` failed.
    #[error("the system gives no random bytes")]
    Randomness,
}

/// A new password for a person.
///
/// # Errors
/// The system has no random bytes.
pub fn generate_password() -> Result<Zeroizing<String>, CredentialError> {
    random_word(GENERATED_PASSWORD_CHARS).map_err(|_| CredentialError::Randomness)
}

/// A new token for a program: `tgt_` and 130 random bits.
///
/// # Errors
/// The system has no random bytes.
pub fn generate_token() -> Result<Zeroizing<String>, CredentialError> {
    let secret = random_word(TOKEN_CHARS).map_err(|_| CredentialError::Randomness)?;
    Ok(Zeroizing::new(format!("{TOKEN_PREFIX}{}", secret.as_str())))
}

/// A random word of `chars` characters, 5 bits each.
///
/// # Errors
/// The system has no random bytes.
pub fn random_word(chars: usize) -> io::Result<Zeroizing<String>> {
    let mut bytes = Zeroizing::new(vec![0; chars]);
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    let character = |&byte: &u8| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()]);
    // Collected into one allocation of the final size: growing would leave unwiped copies of a prefix.
    let mut word = Zeroizing::new(String::with_capacity(chars));
    word.extend(bytes.iter().map(character));
    Ok(word)
}

fn keyed_hash(key: &[u8; TOKEN_KEY_BYTES], token: &[u8]) -> [u8; TOKEN_HASH_BYTES] {
    let mut mac = Blake2bMac::<U32>::new_from_slice(key).expect("BLAKE2b takes keys of up to 64 bytes");
    mac.update(token);
    mac.finalize_fixed().into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    // `from_str_radix` alone would accept a sign.
    if text.len() != 2 * N || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_verifies_after_a_round_trip() {
        let hash = PasswordHash::make("correct horse").unwrap();
        let text = hash.to_text();
        assert!(text.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{text}");
        let read: PasswordHash = text.parse().unwrap();
        assert_eq!(read, hash);
        assert!(read.verify(b"correct horse"));
        assert!(!read.verify(b"correct hors"));
        assert!(!read.verify(b""));
        assert_ne!(PasswordHash::make("correct horse").unwrap(), hash, "salts differ");
    }

    #[test]
    fn token_verifies_after_a_round_trip() {
        let token = generate_token().unwrap();
        assert!(token.starts_with("tgt_") && token.len() == 30);
        let hash = TokenHash::make(&token).unwrap();
        let read: TokenHash = hash.to_text().parse().unwrap();
        assert_eq!(read, hash);
        assert!(read.verify(token.as_bytes()));
        assert!(!read.verify(&token.as_bytes()[1..]));
        assert_ne!(TokenHash::make(&token).unwrap(), hash, "keys differ");
        assert_ne!(generate_token().unwrap(), token);
    }

    #[test]
    fn bad_passwords_are_refused() {
        for (bad, error) in [
            ("", CredentialError::PasswordLength),
            ("1234567", CredentialError::PasswordLength),
            (&*"a".repeat(256), CredentialError::PasswordLength),
            ("12345678\n", CredentialError::PasswordControl),
            ("1234\x0056789", CredentialError::PasswordControl),
        ] {
            assert_eq!(PasswordHash::make(bad).unwrap_err(), error);
        }
    }

    #[test]
    fn stored_hashes_are_bounded() {
        let tail = "$c29tZXNhbHRzb21lc2FsdA$RdescudvJCsgt3ub+b27ltmRu8nyhAs7XVvNS0fKwVo";
        let check = |head: &str| format!("{head}{tail}").parse::<PasswordHash>().map(|_| ());
        assert_eq!(check("$argon2id$v=19$m=65536,t=4,p=4"), Ok(()));
        for (head, error) in [
            ("$argon2id$v=19$m=65537,t=1,p=1", CredentialError::Argon2Cost),
            ("$argon2id$v=19$m=8,t=5,p=1", CredentialError::Argon2Cost),
            ("$argon2id$v=19$m=64,t=1,p=5", CredentialError::Argon2Cost),
            ("$argon2i$v=19$m=64,t=1,p=1", CredentialError::NotArgon2id),
            ("$argon2id$v=16$m=64,t=1,p=1", CredentialError::NotArgon2id),
            ("$argon2id$m=64,t=1,p=1", CredentialError::NotArgon2id),
            ("$argon2id$v=19$m=0,t=1,p=1", CredentialError::NotArgon2id),
            ("$argon2id$v=19$m=64,t=0,p=1", CredentialError::NotArgon2id),
            ("hunter2", CredentialError::NotArgon2id),
        ] {
            assert_eq!(check(head).unwrap_err(), error, "{head}");
        }
        for bad in ["", "$argon2id$v=19$m=64,t=1,p=1", "$argon2id$v=19$m=64,t=1,p=1$c29tZXNhbHQ"] {
            assert_eq!(bad.parse::<PasswordHash>().unwrap_err(), CredentialError::NotArgon2id);
        }
    }

    #[test]
    fn bad_token_hashes_are_refused() {
        let good = TokenHash::make("tgt_x").unwrap().to_text();
        for bad in [
            "",
            "blake2b:",
            "blake2b::",
            &good[1..],
            &good[..good.len() - 1],
            &good.replacen("blake2b", "blake3", 1),
            &good.replace(':', "+"),
            &format!("{good}:00"),
        ] {
            assert_eq!(bad.parse::<TokenHash>().unwrap_err(), CredentialError::NotTokenHash, "{bad}");
        }
    }

    #[test]
    fn debug_output_has_no_secret() {
        let credentials = [
            Credential::Password(PasswordHash::make("correct horse").unwrap()),
            Credential::Token(TokenHash::make("tgt_x").unwrap()),
        ];
        let text = format!("{credentials:?}");
        assert_eq!(text, "[Password(PasswordHash(..)), Token(TokenHash(..))]");
    }
}
