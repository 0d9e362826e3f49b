//! Ten gigabytes up and ten down at the same time, in two chunked requests of curl: no byte is lost or moved,
//! the bill is what both ends counted, and the gateway buffers little.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use super::stripes::{bytes, receive, send};
use crate::harness::{EVERY_CPU, Gateway, with_timeouts};
use crate::origin::read_head;

/// The most that the gateway may hold of twenty gigabytes in flight; its buffers are 64 KiB.
const HELD_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Between two samples of the gateway's memory.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
const EMPTY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

#[test]
#[ignore = "takes a minute or more, needs curl: cargo xtask services"]
fn ten_gigabytes_each_way_through_chunked_requests() {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [up_to, down_from] = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
    let mut gateway = Gateway::local(EVERY_CPU);
    let before = gateway.memory_bytes();
    let [uploader, downloader] = [(up_to, &["-T", "-"][..]), (down_from, &[])]
        .map(|(origin, words)| curl(gateway.listeners[0], origin, words));
    let mut most = before;
    let (up, framed, heads) = thread::scope(|scope| {
        let origins =
            [scope.spawn(|| serve_upload(&listeners[0])), scope.spawn(|| serve_download(&listeners[1]))];
        let ends = [scope.spawn(|| upload(uploader)), scope.spawn(|| download(downloader))];
        while !ends.iter().all(|end| end.is_finished()) {
            most = most.max(gateway.memory_bytes());
            thread::sleep(SAMPLE_INTERVAL);
        }
        let heads = ends.map(|end| end.join().unwrap()).iter().sum::<u64>();
        let [(up_head, up_body), (down_head, down_body)] = origins.map(|origin| origin.join().unwrap());
        (up_head + up_body + down_head, down_body, heads)
    });
    gateway.stop();
    assert_eq!(gateway.usage_of("me"), (2, up, framed + heads));
    let held = most - before;
    println!("{held} bytes more than the {before} of an idle gateway");
    assert!(held <= HELD_BYTES_MAX, "{held} bytes were held");
}

/// Starts curl, which finally prints the length of all received heads to standard error.
fn curl(proxy: SocketAddr, origin: SocketAddr, words: &[&str]) -> Child {
    let mut command = Command::new("curl");
    command.args(["-q", "--silent", "--show-error", "--noproxy", "", "--proxy", &proxy.to_string()]);
    command.args(["--write-out", "%{stderr}%{size_header}", &format!("http://{origin}/")]).args(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn upload(mut curl: Child) -> u64 {
    assert_eq!(send(curl.stdin.take().unwrap(), 1), bytes());
    heads(curl)
}

fn download(mut curl: Child) -> u64 {
    drop(curl.stdin.take());
    assert_eq!(receive(curl.stdout.take().unwrap(), 2), bytes());
    heads(curl)
}

fn heads(curl: Child) -> u64 {
    let output = curl.wait_with_output().unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{printed}");
    printed.trim().parse().unwrap_or_else(|_| panic!("{printed}"))
}

/// Responds to an upload; returns the bytes of its head, and of its body with framing.
fn serve_upload(listener: &TcpListener) -> (u64, u64) {
    let mut stream = with_timeouts(listener.accept().unwrap().0);
    let head = read_head(&mut stream).unwrap();
    assert!(head.contains("\r\nTransfer-Encoding: chunked\r\n"), "{head}");
    let source = BufReader::with_capacity(256 * 1024, stream.try_clone().unwrap());
    let mut chunks = Chunks { source, left: 0, is_first: true, is_over: false, framed: 0 };
    assert_eq!(receive(&mut chunks, 1), bytes());
    stream.write_all(EMPTY.as_bytes()).unwrap();
    (head.len() as u64, chunks.framed)
}

/// Responds with a download; returns the bytes of the request, and of the response's body with framing.
fn serve_download(listener: &TcpListener) -> (u64, u64) {
    let mut stream = with_timeouts(listener.accept().unwrap().0);
    let head = read_head(&mut stream).unwrap();
    stream.write_all(CHUNKED.as_bytes()).unwrap();
    let mut frames = Frames { sink: stream, framed: 0 };
    assert_eq!(send(&mut frames, 2), bytes());
    frames.frame(b"").unwrap();
    (head.len() as u64, frames.framed)
}

/// Writes each buffer as a chunk.
struct Frames {
    sink: TcpStream,
    /// Bytes so far, framing included.
    framed: u64,
}

impl Frames {
    /// Writes a chunk of these bytes; the last one, if there are none.
    fn frame(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let chunk = [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        self.framed += chunk.len() as u64;
        self.sink.write_all(&chunk)
    }
}

impl Write for Frames {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.frame(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Reads the data of chunks without extensions, until the last chunk.
struct Chunks {
    source: BufReader<TcpStream>,
    /// Remaining bytes of the chunk.
    left: usize,
    is_first: bool,
    is_over: bool,
    /// Bytes so far, framing included.
    framed: u64,
}

impl Chunks {
    /// Reads a line, which is a number or empty.
    fn line(&mut self) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.source.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        self.framed += line.len() as u64;
        String::from_utf8(line).unwrap().trim_end().to_owned()
    }

    /// Reads the end of a chunk and the size of the next.
    fn next(&mut self) {
        if !std::mem::take(&mut self.is_first) {
            assert_eq!(self.line(), "");
        }
        self.left = usize::from_str_radix(&self.line(), 16).unwrap();
        if self.left == 0 {
            assert_eq!(self.line(), "", "there is no trailer");
            self.is_over = true;
        }
    }
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 && !self.is_over {
            self.next();
        }
        if self.is_over {
            return Ok(0);
        }
        let limit = buffer.len().min(self.left);
        let count = self.source.read(&mut buffer[..limit])?;
        assert!(count > 0 || limit == 0, "the body ends in the middle of a chunk");
        self.left -= count;
        self.framed += count as u64;
        Ok(count)
    }
}
