//! A load process: this executable as a process of its own that serves or generates load, one line of text
//! per command and one line of JSON per answer.
//!
//! Guarantees: it ends with the lab, and listens on loopback only.

use std::fmt;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::net::SocketAddr;
use std::process::{ChildStdin, ChildStdout};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde_json::{Value, json};

use crate::kit::child::{self, Child, ChildSettings};
use crate::kit::load::watched_streams::WatchedStreams;
use crate::kit::load::{self, Direction, Role, pingpong::PingPong, requests::Requests, tunnel::Tunnel};

/// The commands of a load process.
#[derive(clap::Subcommand, Clone, Debug, PartialEq, Eq)]
pub(crate) enum LoadCommand {
    /// Start a server; the answer has its `port`.
    Serve { role: Role },
    /// Return the bytes that its servers have sent and received so far.
    Totals,
    /// Make short connections.
    Short { tunnel: Tunnel, connections: u32, concurrency: u32 },
    /// Make short connections at a rate, for a time.
    Arrive {
        to: SocketAddr,
        rate_per_s: u32,
        #[arg(value_parser = load::milliseconds)]
        time: Duration,
    },
    /// Make HTTP requests.
    Requests(Requests),
    /// Run a number of streams for a time.
    Stream {
        tunnel: Tunnel,
        direction: Direction,
        #[arg(value_parser = load::milliseconds)]
        time: Duration,
        streams: u32,
    },
    /// Run streams until the relay ends them, and report their bytes second by second.
    WatchedStreams(WatchedStreams),
    /// Keep this many tunnels open and otherwise idle.
    Hold { to: SocketAddr, tunnels: u32 },
    /// Send one message through each open tunnel.
    Touch,
    /// Close all tunnels.
    Release,
    /// Exchange small messages at a fixed rate.
    PingPong(PingPong),
}

/// The lab's end of a load process.
#[derive(Debug)]
pub(crate) struct LoadProcess {
    child: Child,
    commands: BufWriter<ChildStdin>,
    responses: BufReader<ChildStdout>,
}

impl LoadProcess {
    /// Starts a load process.
    ///
    /// # Errors
    /// The process could not be created.
    pub(crate) fn start(settings: &ChildSettings) -> Result<Self> {
        let mut child = Child::start_piped(&child::own_program()?, &["load-process".into()], settings)?;
        let (input, output) =
            child.take_pipes().context("the load process has no pipe for its input or its output")?;
        Ok(Self { child, commands: BufWriter::new(input), responses: BufReader::new(output) })
    }

    /// Sends a command and waits for the answer.
    ///
    /// # Errors
    /// The command failed, with its reason, or the process has ended.
    pub(crate) fn call(&mut self, command: &LoadCommand) -> Result<Value> {
        self.begin(command)?;
        self.finish()
    }

    /// Sends a command whose answer `finish` will read.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn begin(&mut self, command: &LoadCommand) -> Result<()> {
        child::fail_if_interrupted()?;
        writeln!(self.commands, "{command}")?;
        self.commands.flush().context("a load process has ended")
    }

    /// Reads the answer to the command that was begun.
    ///
    /// # Errors
    /// The command failed, with its reason, or the process has ended.
    pub(crate) fn finish(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.responses.read_line(&mut line)?;
        child::fail_if_interrupted()?;
        if line.is_empty() {
            bail!("load process {} has ended without an answer", self.child.id());
        }
        let response: Value =
            serde_json::from_str(&line).context("a load process's answer is one line of JSON")?;
        if let Some(reason) = response.get("error").and_then(Value::as_str) {
            bail!("{reason}");
        }
        Ok(response)
    }

    /// Starts a server in the process and returns its address.
    ///
    /// # Errors
    /// The process could not listen.
    pub(crate) fn serve(&mut self, role: Role) -> Result<SocketAddr> {
        let response = self.call(&LoadCommand::Serve { role })?;
        let port = response["port"].as_u64().and_then(|port| u16::try_from(port).ok());
        Ok(SocketAddr::from(([127, 0, 0, 1], port.context("a server's answer has its port")?)))
    }
}

/// A number in a load process's answer.
///
/// # Errors
/// The answer has no such number.
pub(crate) fn number_in(response: &Value, name: &str) -> Result<f64> {
    response[name].as_f64().with_context(|| format!("a load process's answer has no {name}: {response}"))
}

/// The process's side: executes commands until its input ends.
///
/// # Errors
/// Its output cannot be written.
pub(crate) fn serve_commands() -> Result<()> {
    let mut tunnels = load::idle::Tunnels::default();
    let mut output = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let response = line.parse().and_then(|command| execute(&command, &mut tunnels));
        let response = response.unwrap_or_else(|error| json!({ "error": format!("{line}: {error:#}") }));
        writeln!(output, "{response}")?;
        output.flush()?;
    }
    Ok(())
}

fn execute(command: &LoadCommand, tunnels: &mut load::idle::Tunnels) -> Result<Value> {
    match *command {
        LoadCommand::Serve { role } => Ok(json!({ "port": load::servers::start(role)?.port() })),
        LoadCommand::Totals => Ok(load::servers::totals()),
        LoadCommand::Short { ref tunnel, connections, concurrency } => {
            load::short::run(tunnel, connections, concurrency)
        }
        LoadCommand::Arrive { to, rate_per_s, time } => load::short::arrive(to, rate_per_s, time),
        LoadCommand::Requests(ref requests) => load::requests::run(requests),
        LoadCommand::Stream { ref tunnel, direction, time, streams } => {
            load::stream::run(tunnel, direction, time, streams)
        }
        LoadCommand::WatchedStreams(ref streams) => load::watched_streams::run(streams),
        LoadCommand::Hold { to, tunnels: count } => tunnels.hold(to, count),
        LoadCommand::Touch => Ok(tunnels.touch()),
        LoadCommand::Release => {
            *tunnels = load::idle::Tunnels::default();
            Ok(json!({}))
        }
        LoadCommand::PingPong(ref ping_pong) => load::pingpong::run(ping_pong),
    }
}

impl fmt::Display for LoadCommand {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serve { role } => write!(text, "serve {role}"),
            Self::Totals => write!(text, "totals"),
            Self::Short { tunnel, connections, concurrency } => {
                write!(text, "short {tunnel} {connections} {concurrency}")
            }
            Self::Arrive { to, rate_per_s, time } => {
                write!(text, "arrive {to} {rate_per_s} {}", time.as_millis())
            }
            Self::Requests(Requests { via, origin, persistence, count, concurrency }) => {
                write!(text, "requests {via} {origin} {persistence} {count} {concurrency}")
            }
            Self::Stream { tunnel, direction, time, streams } => {
                write!(text, "stream {tunnel} {direction} {} {streams}", time.as_millis())
            }
            Self::WatchedStreams(WatchedStreams { tunnel, direction, streams, time, quiet }) => {
                let [time, quiet] = [time, quiet].map(Duration::as_millis);
                write!(text, "watched-streams {tunnel} {direction} {streams} {time} {quiet}")
            }
            Self::Hold { to, tunnels } => write!(text, "hold {to} {tunnels}"),
            Self::Touch => write!(text, "touch"),
            Self::Release => write!(text, "release"),
            Self::PingPong(PingPong { to, connections, rate_per_s, time }) => {
                write!(text, "ping-pong {to} {connections} {rate_per_s} {}", time.as_millis())
            }
        }
    }
}

impl FromStr for LoadCommand {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self> {
        Ok(Line::try_parse_from(line.split(' '))?.command)
    }
}

/// A line of the load process's input.
#[derive(clap::Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[command(subcommand)]
    command: LoadCommand,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::load::{Persistence, handshake::Protocol, tunnel::Proxy};

    #[test]
    fn commands_survive_their_text() {
        let to = SocketAddr::from(([127, 0, 0, 1], 21_000));
        let time = Duration::from_millis(1_500);
        let by = |protocol| Tunnel { to, proxy: Some(Proxy { address: to, protocol }) };
        let requests =
            |persistence| Requests { via: to, origin: to, persistence, count: 50_000, concurrency: 100 };
        let commands = [
            LoadCommand::Serve { role: Role::Reply },
            LoadCommand::Serve { role: Role::Echo },
            LoadCommand::Serve { role: Role::Source },
            LoadCommand::Serve { role: Role::Sink },
            LoadCommand::Serve { role: Role::Origin },
            LoadCommand::Totals,
            LoadCommand::Short { tunnel: to.into(), connections: 50_000, concurrency: 500 },
            LoadCommand::Short { tunnel: by(Protocol::Socks5), connections: 50_000, concurrency: 500 },
            LoadCommand::Arrive { to, rate_per_s: 200, time },
            LoadCommand::Requests(requests(Persistence::KeepAlive)),
            LoadCommand::Requests(requests(Persistence::Close)),
            LoadCommand::Stream { tunnel: to.into(), direction: Direction::Up, time, streams: 1 },
            LoadCommand::Stream {
                tunnel: by(Protocol::Connect),
                direction: Direction::Down,
                time,
                streams: 100,
            },
            LoadCommand::WatchedStreams(WatchedStreams {
                tunnel: by(Protocol::Connect),
                direction: Direction::Up,
                streams: 64,
                time,
                quiet: time,
            }),
            LoadCommand::Hold { to, tunnels: 9_000 },
            LoadCommand::Touch,
            LoadCommand::Release,
            LoadCommand::PingPong(PingPong { to, connections: 100, rate_per_s: 500, time }),
        ];
        for command in commands {
            let line = command.to_string();
            assert_eq!(line.parse::<LoadCommand>().expect("its own text is a command"), command, "{line}");
        }
    }

    #[test]
    fn unknown_commands_are_refused() {
        for line in ["", "serve", "serve tea", "short 127.0.0.1:1 x 2", "hold somewhere 3", "touch twice"] {
            assert!(line.parse::<LoadCommand>().is_err(), "{line:?}");
        }
    }
}
