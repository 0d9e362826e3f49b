//! Bodies in transit: the kept bytes at every split, the end of each body, and every fault of a chunk.
//! Properties compare with a naive parser that has the whole body.

use proptest::prelude::*;
use proptest::sample::select;
use proto::http_forward::{Body, BodyError, Framing};
use proto::limits::{CHUNK_EXTENSION_BYTES_MAX, HEADERS_MAX, TRAILER_BYTES_MAX};

use crate::seeded;

/// The forwarded bytes, trailers included, and the number of bytes that belong to the body.
pub(crate) type Outcome = Result<(Vec<u8>, usize), BodyError>;

/// Calls the parser (no other function does): with pieces that end at `cuts`, with the remaining bytes, then
/// with the end of the connection.
pub(crate) fn run_body(mut body: Body, bytes: &[u8], cuts: impl IntoIterator<Item = usize>) -> Outcome {
    let (mut out, mut taken, mut start) = (Vec::new(), 0, 0);
    for end in cuts.into_iter().chain([bytes.len()]) {
        let mut piece = bytes[start..end].to_vec();
        start = end;
        let was_complete = body.is_complete();
        let done = body.consume(&mut piece)?;
        assert!(
            done.forwarded <= done.consumed && done.consumed <= piece.len(),
            "{done:?} of {}",
            piece.len()
        );
        assert!(done.consumed == piece.len() || body.is_complete(), "an incomplete body takes all bytes");
        assert!(!was_complete || done.consumed == 0, "a complete body takes no byte");
        taken += done.consumed;
        out.extend_from_slice(&piece[..done.forwarded]);
        if body.is_complete() {
            out.extend_from_slice(&body.take_trailers());
        }
        assert_eq!(body.take_trailers(), b"", "trailers are returned once, at the end");
    }
    body.end()?;
    assert!(body.is_complete());
    Ok((out, taken))
}

fn render(outcome: &Outcome) -> String {
    match outcome {
        Ok((out, taken)) => format!("{taken}: {}", out.escape_ascii()),
        Err(error) => format!("{error:?}"),
    }
}

/// Checks that the outcome is the same whole, cut at each byte, and byte by byte.
#[track_caller]
fn check_with(new: impl Fn() -> Body, bytes: &[u8], expected: &str) {
    let shown = bytes[..bytes.len().min(80)].escape_ascii();
    assert_eq!(render(&run_body(new(), bytes, [])), expected, "whole: {shown}");
    if bytes.len() < 1000 {
        for cut in 0..=bytes.len() {
            assert_eq!(render(&run_body(new(), bytes, [cut])), expected, "cut at {cut}: {shown}");
        }
    }
    assert_eq!(render(&run_body(new(), bytes, 1..bytes.len())), expected, "byte by byte: {shown}");
}

#[track_caller]
fn check(framing: Framing, bytes: &str, expected: &str) {
    check_with(|| Body::new(framing), bytes.as_bytes(), expected);
}

/// Checks a chunked body that is forwarded as `kept`, and unwrapped as `data`. Each proper prefix is
/// truncated.
#[track_caller]
fn check_chunks(bytes: &str, kept: &str, data: &str) {
    let result = |kept: &str| format!("{}: {}", bytes.len(), kept.as_bytes().escape_ascii());
    check(Framing::Chunked, bytes, &result(kept));
    check_with(|| Body::dechunked(Framing::Chunked), bytes.as_bytes(), &result(data));
    for length in 0..bytes.len() {
        let early = run_body(Body::new(Framing::Chunked), &bytes.as_bytes()[..length], []);
        assert_eq!(early, Err(BodyError::Truncated), "{:?}", &bytes[..length]);
    }
    let followed = format!("{bytes}0\r\n\r\nGET / HTTP/1.1\r\n\r\n");
    check(Framing::Chunked, &followed, &result(kept));
}

/// Checks a chunked body that is refused, with and without unwrapping.
#[track_caller]
fn check_refused(bytes: &str, expected: BodyError) {
    check(Framing::Chunked, bytes, &format!("{expected:?}"));
    check_with(|| Body::dechunked(Framing::Chunked), bytes.as_bytes(), &format!("{expected:?}"));
}

#[test]
fn length_framing_counts_bytes() {
    for unwrapped in [false, true] {
        let new = |framing| move || if unwrapped { Body::dechunked(framing) } else { Body::new(framing) };
        check_with(new(Framing::None), b"GET /", "0: ");
        check_with(new(Framing::Length(0)), b"GET /", "0: ");
        check_with(new(Framing::Length(5)), b"hello", "5: hello");
        check_with(new(Framing::Length(5)), b"helloGET /", "5: hello");
        check_with(new(Framing::Length(5)), b"hell", "Truncated");
        check_with(new(Framing::Length(5)), b"", "Truncated");
        check_with(new(Framing::Length(i64::MAX as u64)), b"hello", "Truncated");
        check_with(new(Framing::UntilClose), b"hello\r\n\r\n0\r\n\r\n", "14: hello\\r\\n\\r\\n0\\r\\n\\r\\n");
        check_with(new(Framing::UntilClose), b"", "0: ");
    }
    assert!(Body::new(Framing::None).is_complete() && Body::new(Framing::Length(0)).is_complete());
    assert!(!Body::new(Framing::UntilClose).is_complete() && !Body::new(Framing::Chunked).is_complete());
}

/// A read for a body of known length must not include bytes of the next message.
#[test]
fn read_limit_stays_within_the_body() {
    for (framing, limit) in [
        (Framing::Length(5), 5),
        (Framing::Length(i64::MAX as u64), 100),
        (Framing::Chunked, 100),
        (Framing::UntilClose, 100),
    ] {
        assert_eq!(Body::new(framing).read_limit(100), limit, "{framing:?}");
        assert_eq!(Body::new(framing).is_chunked(), framing == Framing::Chunked);
    }
    let mut body = Body::new(Framing::Length(5));
    body.consume(&mut b"hel".to_vec()).expect("a length has no malformed bytes");
    assert_eq!((body.read_limit(100), body.read_limit(1)), (2, 1));
}

#[test]
fn chunks_are_forwarded_unchanged() {
    for (bytes, data) in [
        ("0\r\n\r\n", ""),
        ("5\r\nhello\r\n0\r\n\r\n", "hello"),
        ("5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", "hello world"),
        ("5\r\n\r\n0\r\n\r\n0\r\n\r\n", "\r\n0\r\n"),
        ("a\r\n0123456789\r\n0\r\n\r\n", "0123456789"),
        ("A\r\n0123456789\r\n00\r\n\r\n", "0123456789"),
        ("000000000000005\r\nhello\r\n000000000000000\r\n\r\n", "hello"),
        ("1F\r\n0123456789012345678901234567890\r\n0\r\n\r\n", "0123456789012345678901234567890"),
    ] {
        check_chunks(bytes, bytes, data);
    }
}

#[test]
fn chunk_extensions_are_removed() {
    for extension in [
        ";",
        ";a",
        ";a=b",
        "; a = \"b;c\" ; d",
        ";\t",
        ";;;",
        ";a=\"\\\"\"",
        ";x\u{fc}",
        ";a=5",
        ";Content-Length: 5",
    ] {
        let bytes = format!("5{extension}\r\nhello\r\n0{extension}\r\n\r\n");
        check_chunks(&bytes, "5\r\nhello\r\n0\r\n\r\n", "hello");
    }
    for (lines, expected) in [
        ("5;a\rb\r\nhello\r\n0\r\n\r\n", BodyError::ChunkSizeMalformed),
        ("5;a\nhello\r\n0\r\n\r\n", BodyError::ChunkSizeMalformed),
        ("5;a\n\r\nhello\r\n0\r\n\r\n", BodyError::ChunkSizeMalformed),
        ("5;\0\r\nhello\r\n0\r\n\r\n", BodyError::ChunkSizeMalformed),
        ("5;\x7f\r\nhello\r\n0\r\n\r\n", BodyError::ChunkSizeMalformed),
    ] {
        check_refused(lines, expected);
    }
}

/// The bound is for all extensions of one body: otherwise each byte of data could have a kilobyte of them.
#[test]
fn chunk_extensions_are_bounded() {
    let of = |bytes: usize| format!("1;{}\r\nx\r\n", "e".repeat(bytes - 1));
    let most = [of(CHUNK_EXTENSION_BYTES_MAX), "0\r\n\r\n".to_owned()].concat();
    check(Framing::Chunked, &most, &format!("{}: 1\\r\\nx\\r\\n0\\r\\n\\r\\n", most.len()));
    check_refused(&of(CHUNK_EXTENSION_BYTES_MAX + 1), BodyError::ChunkLineTooLong);
    let many = [of(CHUNK_EXTENSION_BYTES_MAX - 1), "0;\r\n\r\n".to_owned()].concat();
    check(Framing::Chunked, &many, &format!("{}: 1\\r\\nx\\r\\n0\\r\\n\\r\\n", many.len()));
    check_refused(
        &[of(CHUNK_EXTENSION_BYTES_MAX), "0;\r\n\r\n".to_owned()].concat(),
        BodyError::ChunkLineTooLong,
    );
    check_refused(&"1;\r\nx\r\n".repeat(CHUNK_EXTENSION_BYTES_MAX + 1), BodyError::ChunkLineTooLong);
}

#[test]
fn chunk_sizes_are_strict() {
    for size in [
        "", " ", "+5", "-5", "-0", " 5", "5 ", "\t5", "5\t", "0x5", "0X5", "x5", "5g", "5h", "5.0", "5,5",
        "5_0", "5:", "5\0", "\u{665}", "5\x0b", "5 ;a", "\r\n5", "\"5\"", "five",
    ] {
        check_refused(&format!("{size}\r\nhello\r\n0\r\n\r\n"), BodyError::ChunkSizeMalformed);
    }
    for size in ["0000000000000005", "ffffffffffffffff", "10000000000000005", "8000000000000000"] {
        check_refused(&format!("{size}\r\nhello\r\n0\r\n\r\n"), BodyError::ChunkLineTooLong);
    }
    // A 32-bit parser would read these sizes as 5 or a negative number; here they have their full value.
    for size in ["100000005", "fffffffffffffff", "80000000"] {
        check_refused(&format!("{size}\r\nhello\r\n0\r\n\r\n"), BodyError::Truncated);
    }
    for (bytes, expected) in [
        ("5\nhello\r\n0\r\n\r\n", BodyError::ChunkSizeMalformed),
        ("5\rhello\r\n0\r\n\r\n", BodyError::ChunkSizeMalformed),
        ("5\r\r\nhello\r\n0\r\n\r\n", BodyError::ChunkSizeMalformed),
        ("5\n\r\nhello\r\n0\r\n\r\n", BodyError::ChunkSizeMalformed),
        ("\r\n0\r\n\r\n", BodyError::ChunkSizeMalformed),
        ("0\n\n", BodyError::ChunkSizeMalformed),
        ("hello", BodyError::ChunkSizeMalformed),
    ] {
        check_refused(bytes, expected);
    }
}

#[test]
fn chunk_must_end_where_its_size_says() {
    for (bytes, expected) in [
        ("5\r\nhello0\r\n\r\n", BodyError::ChunkEndMissing),
        ("5\r\nhello\n0\r\n\r\n", BodyError::ChunkEndMissing),
        ("5\r\nhello\r0\r\n\r\n", BodyError::ChunkEndMissing),
        ("5\r\nhello\r\r\n0\r\n\r\n", BodyError::ChunkEndMissing),
        ("5\r\nhello \r\n0\r\n\r\n", BodyError::ChunkEndMissing),
        ("4\r\nhello\r\n0\r\n\r\n", BodyError::ChunkEndMissing),
        ("6\r\nhello\r\n0\r\n\r\n", BodyError::ChunkEndMissing),
        ("5\r\nhello\r\n\r\n0\r\n\r\n", BodyError::ChunkSizeMalformed),
    ] {
        check_refused(bytes, expected);
    }
}

/// An earlier version regenerated trailers, with a space after each colon. Trailers of the maximum length
/// then grew, and a second gateway refused them (found by the fuzzer). They are forwarded unchanged.
#[test]
fn trailers_are_forwarded_unchanged() {
    let data = "5\r\nhello\r\n0\r\n";
    for trailers in [
        "X-Sum: 1\r\n",
        "x-sum:1\r\nETag:\t\"x\" \t\r\nx-sum: 1\r\n",
        "Empty:\r\n",
        "X: tab\tand \u{fc}\r\n",
        "GET: http://a.example/ HTTP/1.1\r\n",
    ] {
        let bytes = format!("{data}{trailers}\r\n");
        let expected = format!("{}: {}", bytes.len(), bytes.as_bytes().escape_ascii());
        check(Framing::Chunked, &bytes, &expected);
        let unwrapped = format!("{}: hello", bytes.len());
        check_with(|| Body::dechunked(Framing::Chunked), bytes.as_bytes(), &unwrapped);
        for length in 0..bytes.len() {
            let early = run_body(Body::new(Framing::Chunked), &bytes.as_bytes()[..length], []);
            assert_eq!(early, Err(BodyError::Truncated));
        }
    }
}

#[test]
fn without_trailers_drops_them() {
    for (bytes, kept) in [
        ("5\r\nhello\r\n0\r\nX-Sum: 1\r\nY: 2\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n"),
        ("5\r\nhello\r\n0\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n"),
    ] {
        let expected = format!("{}: {}", bytes.len(), kept.as_bytes().escape_ascii());
        check_with(|| Body::new(Framing::Chunked).without_trailers(), bytes.as_bytes(), &expected);
        let unwrapped = format!("{}: hello", bytes.len());
        check_with(|| Body::dechunked(Framing::Chunked).without_trailers(), bytes.as_bytes(), &unwrapped);
    }
    let refused = b"0\r\nHost: x\r\n\r\n";
    check_with(|| Body::new(Framing::Chunked).without_trailers(), refused, "TrailerForbidden");
    check_with(|| Body::new(Framing::Length(5)).without_trailers(), b"hello", "5: hello");
}

#[test]
fn trailers_that_alter_the_head_are_refused() {
    for name in [
        "Content-Length",
        "transfer-encoding",
        "HOST",
        "Connection",
        "Keep-Alive",
        "TE",
        "Trailer",
        "Upgrade",
        "Via",
        "Expect",
        "Max-Forwards",
        "Proxy-Authorization",
        "Proxy-Authenticate",
        "Proxy-Connection",
        "Authorization",
        "Cookie",
        "Set-Cookie",
        "WWW-Authenticate",
        "content-type",
        "Content-Encoding",
        "Content-Range",
    ] {
        check_refused(&format!("0\r\nX: 1\r\n{name}: x\r\n\r\n"), BodyError::TrailerForbidden);
    }
    for name in ["Content-MD5", "Content-Digest", "ETag", "Server-Timing", "Set-Cookies", "Trailers"] {
        let bytes = format!("0\r\n{name}: x\r\n\r\n");
        check(Framing::Chunked, &bytes, &format!("{}: {}", bytes.len(), bytes.as_bytes().escape_ascii()));
    }
}

/// An earlier version split trailers at LF and trimmed ASCII whitespace. It cleaned and forwarded `A: 1\n`,
/// `A: 1\r\r\n` and a form feed, where another parser finds other lines or another end of the body. They are
/// parsed like the lines of a head.
#[test]
fn trailer_lines_are_as_strict_as_header_lines() {
    for lines in [
        "A: 1\nB: 2\r\n",
        "A: 1\n\r\n",
        "\nA: 1\r\n",
        "A: 1\r\r\n",
        "A: 1\rB: 2\r\n",
        "A: 1\x0c\r\n",
        "A:\x0b1\r\n",
        "A: \x0c1\r\n",
        "A: 1\0\r\n",
        "A: \x7f\r\n",
        "A: 1\r\n folded\r\n",
        " A: 1\r\n",
        "\tA: 1\r\n",
        "A : 1\r\n",
        "A\r\n",
        ": 1\r\n",
        "A B: 1\r\n",
        "\u{fc}: 1\r\n",
        "5\r\nhello\r\n0\r\n",
    ] {
        check_refused(&format!("0\r\n{lines}\r\n"), BodyError::TrailerMalformed);
    }
    check_refused("0\r\n\rX", BodyError::TrailerMalformed);
    // The error comes at once, not at the length limit.
    let mut body = Body::new(Framing::Chunked);
    assert_eq!(body.consume(&mut b"0\r\nA: 1\n\n".to_vec()), Err(BodyError::TrailerMalformed));
}

#[test]
fn trailers_are_bounded() {
    let of = |bytes: usize| format!("0\r\nX:{}\r\n\r\n", "x".repeat(bytes - "X:\r\n\r\n".len()));
    let most = of(TRAILER_BYTES_MAX);
    check(Framing::Chunked, &most, &format!("{}: {}", most.len(), most.as_bytes().escape_ascii()));
    check_refused(&of(TRAILER_BYTES_MAX + 1), BodyError::TrailerTooLong);
    let lines = |count: usize| format!("0\r\n{}\r\n", "X: 1\r\n".repeat(count));
    let most = lines(HEADERS_MAX);
    check(Framing::Chunked, &most, &format!("{}: {}", most.len(), most.as_bytes().escape_ascii()));
    check_refused(&lines(HEADERS_MAX + 1), BodyError::TrailerTooLong);
}

/// A naive parser of a body without extensions and trailers: its data and its length, if it is complete.
fn model(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut data, mut rest) = (Vec::new(), bytes);
    loop {
        let line_end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let digits = str::from_utf8(&rest[..line_end]).ok()?;
        if !(1..=15).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let size = usize::from_str_radix(digits, 16).ok()?;
        rest = &rest[line_end + 2..];
        if rest.len() < size || !rest[size..].starts_with(b"\r\n") {
            return None;
        }
        data.extend_from_slice(&rest[..size]);
        rest = &rest[size + 2..];
        if size == 0 {
            return Some((data, bytes.len() - rest.len()));
        }
    }
}

/// Chunks, sometimes with faults between them.
fn chunks() -> impl Strategy<Value = Vec<u8>> {
    let data = prop::collection::vec(select(b"ab\r\n05".as_slice()), 0..6);
    let chunk = (data, any::<bool>()).prop_map(|(data, pads)| {
        let size = if pads { format!("{:04X}", data.len()) } else { format!("{:x}", data.len()) };
        [size.as_bytes(), b"\r\n", &data, b"\r\n"].concat()
    });
    let fault = select(vec!["\r", "\n", "0", "5", "\r\n", "0\r\n\r\n", " ", "-", "x"]);
    let piece = prop_oneof![12 => chunk, 1 => fault.prop_map(|fault| fault.as_bytes().to_vec())];
    prop::collection::vec(piece, 0..5).prop_map(|pieces| [&pieces.concat(), &b"0\r\n\r\nGET"[..]].concat())
}

proptest! {
    #![proptest_config(seeded(8192))]

    #[test]
    fn chunks_agree_with_a_naive_reader(bytes in chunks()) {
        let expected = model(&bytes);
        let wrapped = run_body(Body::new(Framing::Chunked), &bytes, []).ok();
        let data = run_body(Body::dechunked(Framing::Chunked), &bytes, []).ok();
        // The next hop finds the same end in the forwarded bytes.
        if let Some((kept, taken)) = &wrapped {
            prop_assert_eq!(&kept[..], &bytes[..*taken]);
            prop_assert_eq!(model(kept).map(|(_, length)| length), Some(kept.len()));
        }
        prop_assert_eq!(data, expected);
    }

    #[test]
    fn any_split_forwards_the_same_bytes(
        bytes in chunks(), extension in "(;[a-z=]{0,3})?", trailer in "(X-[a-z]: [a-z]\r\n){0,2}",
        mut cuts in prop::collection::vec(0usize..60, 0..6), unwraps in any::<bool>(),
    ) {
        let text = String::from_utf8(bytes).expect("ASCII");
        let bytes = text.replace("0\r\n\r\n", &format!("0{extension}\r\n{trailer}\r\n")).into_bytes();
        cuts.retain(|&cut| cut <= bytes.len());
        cuts.sort_unstable();
        let new = || if unwraps { Body::dechunked(Framing::Chunked) } else { Body::new(Framing::Chunked) };
        prop_assert_eq!(run_body(new(), &bytes, cuts), run_body(new(), &bytes, []));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let _ = run_body(Body::new(Framing::Chunked), &bytes, []);
        let _ = run_body(Body::new(Framing::Chunked), &[&b"0\r\n"[..], &bytes, b"\r\n\r\n"].concat(), []);
    }
}

/// The properties above would also hold for a parser that refuses everything.
#[test]
fn generator_reaches_both_outcomes() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::new(seeded(1));
    let strategy = chunks();
    let bodies = (0..1000).map(|_| strategy.new_tree(&mut runner).expect("no filter rejects").current());
    let (read, refused): (Vec<_>, Vec<_>) = bodies.partition(|bytes| model(bytes).is_some());
    assert!(read.len() > 100 && refused.len() > 50, "{} and {}", read.len(), refused.len());
}
