//! A small server on the engine: it replies to each line with the result of a slow function. One thread has
//! all connections and never computes. The pool computes, and refuses jobs that would be late.
//!
//! ```text
//!   cargo run -p engine --example line_server     then, in another terminal:
//!   (printf 'hello\nworld\nsleep\n'; sleep 1) | nc 127.0.0.1 7007
//! ```

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use engine::accept::{self, Acceptor, worker_group};
use engine::executor::Executor;
use engine::inbox::Notifier;
use engine::net::TcpStream;
use engine::pool::{Class, ClassSettings, Pool, PoolSettings, Shedding, blocking};
use engine::reactor::{RawToken, Reactor};
use engine::stats::ReactorStats;
use sys::socket::ListenOptions;

/// The classes of jobs: jobs that compute, and jobs that wait. Neither takes the other's threads.
const COMPUTING: Class = Class(0);
const WAITING: Class = Class(1);

const ADDRESS: &str = "127.0.0.1:7007";
const CONNECTIONS_MAX: usize = 1_000;
const LINE_BYTES_MAX: usize = 256;

fn main() -> io::Result<()> {
    let pool = pool()?;
    let (notifier, stats) = (Arc::new(Notifier::new()?), Arc::new(ReactorStats::default()));
    let reactor = Reactor::new(Arc::clone(&notifier), Arc::clone(&stats))?;
    // A worker group of one thread; with several, connections could be handed off.
    let worker = Rc::new(worker_group([(Arc::clone(&notifier), stats)]).remove(0));
    let mut connections: Executor<Pin<Box<dyn Future<Output = ()>>>> =
        Executor::new(CONNECTIONS_MAX, notifier);

    let strategy = accept::strategy("exclusive").expect("it is one of the engine's strategies");
    let address = ADDRESS.parse().expect("an address and a port");
    let handle = accept::listen(strategy, address, ListenOptions::plain(128), 1, 0)?.remove(0);
    let mut acceptor = Acceptor::new(&reactor, &worker, handle, RawToken(0))?;
    println!("listening on {ADDRESS}");

    let mut events = Vec::new();
    loop {
        reactor.poll(&mut events, || !connections.has_runnable())?;
        // There is one listener, so every event is its event.
        if !events.is_empty() {
            // On descriptor exhaustion the acceptor backs off by itself.
            let _ = acceptor.accept(|socket, _peer| {
                let stream = TcpStream::new(&reactor, socket);
                let serve = serve(stream, pool.clone());
                // An error ends the connection, and is not reported.
                let accepted = connections.spawn(Box::pin(async { drop(serve.await) }));
                accepted.is_ok() && !connections.is_full()
            });
            events.clear();
        }
        if connections.run(drop).polled > 0 && !connections.is_full() {
            acceptor.resume();
        }
    }
}

/// A permit for each CPU, a class for each kind of job.
fn pool() -> io::Result<Pool> {
    let computing = ClassSettings {
        name: "computing",
        queue_max: 10_000,
        deadline: Some(Duration::from_secs(1)),
        // A job takes some milliseconds, so a wait of some milliseconds is no overload.
        shedding: Some(Shedding { target: Duration::from_millis(100), interval: Duration::from_secs(1) }),
        ..ClassSettings::default()
    };
    let waiting = ClassSettings { name: "waiting", queue_max: 100, ..ClassSettings::default() };
    Pool::start(PoolSettings { name: "lines", classes: vec![computing, waiting], ..PoolSettings::default() })
}

/// A connection from its first line to its end.
async fn serve(stream: TcpStream, pool: Pool) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(LINE_BYTES_MAX);
    while stream.read(&mut buffer).await? > 0 {
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            stream.write_all(reply(&pool, line).await.as_bytes()).await?;
        }
        if buffer.len() == LINE_BYTES_MAX {
            return stream.write_all(b"error: the line is too long\n").await;
        }
    }
    Ok(())
}

/// The pool's result for a line, or why there is none.
async fn reply(pool: &Pool, line: Vec<u8>) -> String {
    let job = match line.trim_ascii() {
        // Declares its wait: another job has its permit meanwhile.
        b"sleep" => pool.run(WAITING, || {
            blocking(|| std::thread::sleep(Duration::from_millis(100)));
            0
        }),
        _ => pool.run(COMPUTING, move || hash(&line)),
    };
    match job {
        Err(refused) => format!("error: {refused}\n"),
        Ok(job) => match job.await {
            Ok(hash) => format!("{hash:016x}\n"),
            Err(failure) => format!("error: {failure}\n"),
        },
    }
}

/// FNV-1a, a hundred thousand times over: some milliseconds.
fn hash(line: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    (0..100_000).fold(0xcbf2_9ce4_8422_2325, |hash, _| line.trim_ascii().iter().fold(hash, step))
}
