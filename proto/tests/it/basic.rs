//! Basic credentials: valid ones, the error of each invalid one, and secrets that stay out of `Debug`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use proto::credentials::Credentials;
use proto::credentials::basic_credentials;

use crate::seeded;

fn render(value: &[u8]) -> String {
    match basic_credentials(value) {
        Ok(Credentials { user, secret }) => format!("{user} / {}", secret.expose().escape_ascii()),
        Err(error) => {
            assert_eq!(error.status(), 407);
            format!("{error:?}")
        }
    }
}

#[track_caller]
fn check(value: &str, expected: &str) {
    assert_eq!(render(value.as_bytes()), expected, "{value:?}");
}

#[track_caller]
fn check_pair(pair: &[u8], expected: &str) {
    check(&format!("Basic {}", STANDARD.encode(pair)), expected);
}

#[test]
fn credentials_are_decoded() {
    check("Basic Y2k6c2VjcmV0", "ci / secret");
    check("basic Y2k6c2VjcmV0", "ci / secret");
    check("BASIC   Y2k6c2VjcmV0", "ci / secret");
    check_pair(b"ci:with:colons:", "ci / with:colons:");
    check_pair("j\u{fc}rgen:p\u{e4}ss".as_bytes(), "j\u{fc}rgen / p\\xc3\\xa4ss");
    check_pair(b"ci:\x00\xff", "ci / \\x00\\xff");
    check_pair(b"a b:c d", "a b / c d");
}

#[test]
fn other_schemes_and_broken_base64_are_refused() {
    for value in
        ["", "Basic", "Bearer abc", "BasicY2k6c2VjcmV0", "Basic\tY2k6c2VjcmV0", " Basic Y2k6c2VjcmV0"]
    {
        check(value, "SchemeUnknown");
    }
    for value in
        ["Basic Y2k6c2VjcmV0=", "Basic Y2k6eA", "Basic Y2k6e!==", "Basic Y2k6c2Vj cmV0", "Basic -_-_"]
    {
        check(value, "NotBase64");
    }
    // The unused bits of the last digit are not zero: two spellings of one credential.
    check("Basic Y2k6eB==", "NotBase64");
    check("Basic ", "ColonMissing");
}

#[test]
fn pairs_are_checked() {
    check_pair(b"no colon", "ColonMissing");
    check_pair(b":secret", "UserEmpty");
    check_pair(b"ci:", "SecretEmpty");
    check_pair(b"c\ni:secret", "UserNotText");
    check_pair(b"c\0i:secret", "UserNotText");
    check_pair(b"c\xffi:secret", "UserNotText");
    check_pair("c\u{85}i:secret".as_bytes(), "UserNotText");
}

#[test]
fn lengths_are_bounded() {
    let (user, secret) = ("u".repeat(255), "s".repeat(255));
    check_pair(format!("{user}:{secret}").as_bytes(), &format!("{user} / {secret}"));
    check_pair(format!("{user}u:s").as_bytes(), "UserTooLong");
    check_pair(format!("u:{secret}s").as_bytes(), "SecretTooLong");
    check_pair(format!("{user}:{secret}ss").as_bytes(), "SecretTooLong");
    check_pair(format!("{user}:{secret}sss").as_bytes(), "PairTooLong");
    check(&format!("Basic {}", "A".repeat(8000)), "PairTooLong");
}

#[test]
fn debug_output_hides_the_secret() {
    let credentials = basic_credentials(b"Basic Y2k6c2VjcmV0").expect("valid");
    let debug = format!("{credentials:?} {credentials:#?}");
    assert!(debug.contains("ci") && debug.contains("Secret(..)"), "{debug}");
    assert!(!debug.contains("secret\"") && !debug.contains("115"), "{debug}");
}

proptest! {
    #![proptest_config(seeded(1024))]

    #[test]
    fn encoded_credentials_round_trip(
        user in "[^:\\p{Cc}]{1,60}",
        secret in prop::collection::vec(any::<u8>(), 1..=255),
    ) {
        let mut pair = user.clone().into_bytes();
        pair.push(b':');
        pair.extend_from_slice(&secret);
        let value = format!("Basic {}", STANDARD.encode(&pair));
        let credentials = basic_credentials(value.as_bytes()).expect("valid");
        prop_assert_eq!(credentials.user, user);
        prop_assert_eq!(credentials.secret.expose(), &secret[..]);
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..900),
        digits in "[A-Za-z0-9+/=]{0,800}",
    ) {
        let _ = basic_credentials(&bytes);
        let _ = basic_credentials(format!("Basic {digits}").as_bytes());
    }
}
