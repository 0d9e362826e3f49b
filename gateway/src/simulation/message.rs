//! HTTP messages as the simulated client and origin write and read them: a reader of its own, so that the
//! gateway's is not compared with itself.

/// How the end of a body is told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Framing {
    Length,
    Chunked,
    /// By the end of the connection: responses only.
    Close,
}

/// A message that was read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Message {
    /// The start line and the header, without the empty line.
    pub(super) head: String,
    /// The body, as far as it was received.
    pub(super) body: Vec<u8>,
    /// Bytes of the whole message; `None` if more of it may follow.
    pub(super) bytes: Option<usize>,
    /// Whether the end of the connection is the end of the body.
    pub(super) ends_with_connection: bool,
}

impl Message {
    /// Reads the message at the beginning of `received`; `None` if its head is not complete. `has_body` tells
    /// whether a response can have one.
    ///
    /// # Errors
    /// What is malformed.
    pub(super) fn read(received: &[u8], has_body: bool) -> Result<Option<Message>, String> {
        let Some(end) = position(received, b"\r\n\r\n") else { return Ok(None) };
        let head = String::from_utf8_lossy(&received[..end]).into_owned();
        let rest = &received[end + 4..];
        let is_request = !head.starts_with("HTTP/");
        let mut ends_with_connection = false;
        let (body, length) = if !has_body {
            (Vec::new(), Some(0))
        } else if field(&head, "transfer-encoding").is_some_and(|coding| coding == "chunked") {
            read_chunks(rest)?
        } else if let Some(length) = field(&head, "content-length") {
            let length: usize = length.parse().map_err(|_| format!("content-length {length}"))?;
            (rest[..length.min(rest.len())].to_vec(), (rest.len() >= length).then_some(length))
        } else if is_request {
            (Vec::new(), Some(0))
        } else {
            ends_with_connection = true;
            (rest.to_vec(), None)
        };
        let bytes = length.map(|length| end + 4 + length);
        Ok(Some(Message { head, body, bytes, ends_with_connection }))
    }

    /// The value of a field of the head, in lower case.
    pub(super) fn field(&self, name: &str) -> Option<String> {
        field(&self.head, name)
    }

    /// The status of a response.
    pub(super) fn status(&self) -> Option<u16> {
        self.head.split(' ').nth(1)?.parse().ok()
    }
}

/// A body in this framing, and the field of the head that announces it.
pub(super) fn framed(body: &[u8], framing: Framing) -> (String, Vec<u8>) {
    /// Bytes of a chunk: small, so that bodies have several.
    const CHUNK_BYTES: usize = 700;
    match framing {
        Framing::Length => (format!("Content-Length: {}\r\n", body.len()), body.to_vec()),
        Framing::Close => (String::new(), body.to_vec()),
        Framing::Chunked => {
            let mut chunks = Vec::new();
            for chunk in body.chunks(CHUNK_BYTES) {
                chunks.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
                chunks.extend(chunk);
                chunks.extend(b"\r\n");
            }
            chunks.extend(b"0\r\n\r\n");
            ("Transfer-Encoding: chunked\r\n".to_owned(), chunks)
        }
    }
}

/// The content of chunks, and their bytes if the last one is complete.
fn read_chunks(received: &[u8]) -> Result<(Vec<u8>, Option<usize>), String> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let Some(line) = position(&received[at..], b"\r\n") else { return Ok((body, None)) };
        let size = String::from_utf8_lossy(&received[at..at + line]).into_owned();
        let digits = size.split(';').next().unwrap_or_default();
        let size = usize::from_str_radix(digits, 16).map_err(|_| format!("chunk size {digits:?}"))?;
        at += line + 2;
        if size == 0 {
            return Ok((body, position(&received[at..], b"\r\n").map(|end| at + end + 2)));
        }
        let end = received.len().min(at + size);
        body.extend(&received[at..end]);
        if received.len() < at + size + 2 {
            return Ok((body, None));
        }
        at += size + 2;
    }
}

fn field(head: &str, name: &str) -> Option<String> {
    head.split("\r\n").skip(1).find_map(|line| {
        let (field, value) = line.split_once(':')?;
        field.eq_ignore_ascii_case(name).then(|| value.trim().to_ascii_lowercase())
    })
}

fn position(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}
