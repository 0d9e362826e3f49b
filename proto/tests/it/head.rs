//! The head scanner: the end of a head at every split, at the length limit, and against a naive search.

use proptest::prelude::*;
use proto::http_head::{HeadError, HeadScanner, HeadTooLarge, RequestError};
use proto::limits::HEAD_BYTES_MAX;

use crate::seeded;

type Found = Result<Option<usize>, HeadTooLarge>;

/// Scans prefixes that end at `cuts`, then the whole buffer; stops at the first result.
fn find_in_pieces(buffer: &[u8], cuts: impl IntoIterator<Item = usize>) -> Found {
    let mut scanner = HeadScanner::default();
    for end in cuts {
        match scanner.find(&buffer[..end]) {
            Ok(None) => {}
            result => return result,
        }
    }
    scanner.find(buffer)
}

#[track_caller]
fn check(buffer: &[u8], expected: Found) {
    assert_eq!(find_in_pieces(buffer, []), expected, "whole: {:?}", buffer.escape_ascii().to_string());
    for cut in 0..=buffer.len() {
        assert_eq!(find_in_pieces(buffer, [cut]), expected, "cut at {cut}");
    }
    assert_eq!(find_in_pieces(buffer, 0..buffer.len()), expected, "byte by byte");
}

#[test]
fn head_ends_at_its_first_empty_line() {
    check(b"", Ok(None));
    check(b"CONNECT a:1 HTTP/1.1\r\n", Ok(None));
    check(b"CONNECT a:1 HTTP/1.1\r\n\r", Ok(None));
    check(b"CONNECT a:1 HTTP/1.1\r\n\r\n", Ok(Some(24)));
    check(b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n\x16\x03\x01\r\n\r\n", Ok(Some(35)));
    check(b"CONNECT a:1 HTTP/1.1\r\n\r\nCONNECT b:1 HTTP/1.1\r\n\r\n", Ok(Some(24)));
    check(b"a\r\r\n\r\r\n\r\n", Ok(Some(9)));
}

#[test]
fn bare_line_feeds_end_a_head_too() {
    check(b"CONNECT a:1 HTTP/1.1\n\n", Ok(Some(22)));
    check(b"CONNECT a:1 HTTP/1.1\r\n\n", Ok(Some(23)));
    check(b"CONNECT a:1 HTTP/1.1\n\r\n", Ok(Some(23)));
    check(b"\nCONNECT", Ok(Some(1)));
    check(b"\r\nCONNECT", Ok(Some(2)));
}

#[test]
fn head_length_bound_is_exact() {
    let head_of = |length: usize| {
        let mut head = b"CONNECT a:1 HTTP/1.1\r\nX: ".to_vec();
        head.resize(length - 4, b'x');
        head.extend_from_slice(b"\r\n\r\n");
        head
    };
    check(&head_of(HEAD_BYTES_MAX), Ok(Some(HEAD_BYTES_MAX)));
    check(&head_of(HEAD_BYTES_MAX + 1), Err(HeadTooLarge));
    check(&vec![b'x'; HEAD_BYTES_MAX - 1], Ok(None));
    check(&vec![b'x'; HEAD_BYTES_MAX], Err(HeadTooLarge));
    check(&vec![b'x'; 3 * HEAD_BYTES_MAX], Err(HeadTooLarge));
    let mut followed = head_of(HEAD_BYTES_MAX);
    followed.extend_from_slice(b"early data");
    check(&followed, Ok(Some(HEAD_BYTES_MAX)));
    assert_eq!(HeadTooLarge.status(), 431);
}

#[test]
fn oversized_part_of_a_request_is_named() {
    let find = |buffer: &[u8]| HeadScanner::default().find_request(buffer);
    assert_eq!(find(b"GET http://a/ HTTP/1.1\r\n\r\n"), Ok(Some(26)));
    let url = "x".repeat(HEAD_BYTES_MAX);
    let error = find(format!("GET http://a/{url}").as_bytes()).expect_err("the URL is too long");
    assert_eq!((error, error.status()), (RequestError::UriTooLong, 414));
    let error = find(url.as_bytes()).expect_err("the method is too long");
    assert_eq!((error, error.status()), (RequestError::MethodTooLong, 501));
    let error =
        find(format!("GET http://a/ HTTP/1.1\r\nX: {url}").as_bytes()).expect_err("a line is too long");
    assert_eq!((error, error.status()), (HeadError::HeadTooLarge(HeadTooLarge).into(), 431));
}

fn naive(buffer: &[u8]) -> Option<usize> {
    (1..=buffer.len()).find(|&end| {
        let head = &buffer[..end];
        matches!(head, b"\n" | b"\r\n") || head.ends_with(b"\n\n") || head.ends_with(b"\n\r\n")
    })
}

proptest! {
    #![proptest_config(seeded(2048))]

    #[test]
    fn any_split_agrees_with_naive_search(
        buffer in prop::collection::vec(prop::sample::select(b"ab\r\n".as_slice()), 0..40),
        mut cuts in prop::collection::vec(0usize..40, 0..6),
    ) {
        cuts.retain(|&cut| cut <= buffer.len());
        cuts.sort_unstable();
        prop_assert_eq!(find_in_pieces(&buffer, cuts), Ok(naive(&buffer)));
    }
}
