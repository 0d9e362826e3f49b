//! PostgreSQL as `cargo xtask services` starts it: a serial key, a prepared statement, a connection for each
//! writer. One row in each transaction, with `synchronous_commit` off or on, or binary COPY in batches.
//!
//! Guarantees: a server that would not sync takes no part where syncing is compared; its table is dropped
//! afterwards.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use ::postgres::binary_copy::BinaryCopyInWriter;
use ::postgres::types::Type;
use ::postgres::{Client, Config, NoTls, Statement};
use anyhow::{Context, Result, bail, ensure};

use super::row::{Row, TEXT};
use super::store::{InsertResult, OpenStore, Store, StoreSettings, Writer};
use crate::kit::usage;

/// Rows of a COPY, which is one transaction.
const COPY_ROWS: usize = 10_000;

/// One name for all runs: the next run drops the table of a killed lab.
const TABLE: &str = "lab_inserts";

/// Connections beyond the writers': the one that creates the table, and those that the server reserves for
/// its superuser.
const CONNECTIONS_BESIDE: usize = 4;

/// How rows are committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Commit {
    /// One row, answered before it is on the disk.
    Async,
    /// One row, answered when it is on the disk.
    Sync,
    /// Batches, answered before they are on the disk.
    Copy,
}

struct Server {
    /// Used only when the store ends; the lock is needed because writers' threads hold the store as well.
    client: Mutex<Client>,
    processes: Vec<i32>,
}

pub(super) fn open(settings: &StoreSettings, commit: Commit) -> Result<OpenStore> {
    let services = settings.services.as_deref();
    let config = config(
        services.context("not installed: there is no target/services.env; run `cargo xtask services`")?,
    )?;
    let mut client = connect(&config).context("not running: start it with `cargo xtask services`")?;
    check(&mut client, settings.writers, commit)?;
    client.batch_execute(&format!(
        "SET client_min_messages = warning;
         DROP TABLE IF EXISTS {TABLE};
         CREATE TABLE {TABLE} (id bigserial PRIMARY KEY, at bigint, writer int, guid bytea, text text)"
    ))?;
    let processes = postmaster(&mut client)?.into_iter().collect();
    let server = Server { client: Mutex::new(client), processes };
    let writer = |_| writer(&config, commit);
    let writers = (0..settings.writers).map(writer).collect::<Result<_>>()?;
    Ok(OpenStore { writers, store: Box::new(server) })
}

/// The server's version; `None` where there is no server.
pub(super) fn version(services: Option<&Path>) -> Option<String> {
    let mut client = connect(&config(services?).ok()?).ok()?;
    show(&mut client, "server_version").ok()
}

fn writer(config: &Config, commit: Commit) -> Result<Box<dyn Writer>> {
    let mut client = connect(config)?;
    let is_synchronous = if commit == Commit::Sync { "on" } else { "off" };
    client.batch_execute(&format!("SET synchronous_commit = {is_synchronous}"))?;
    if commit == Commit::Copy {
        let copy = format!("COPY {TABLE} (at, writer, guid, text) FROM STDIN (FORMAT binary)");
        return Ok(Box::new(Copy { client, copy, rows: Vec::with_capacity(COPY_ROWS) }));
    }
    let insert = format!("INSERT INTO {TABLE} (at, writer, guid, text) VALUES ($1, $2, $3, $4)");
    let statement = client.prepare(&insert)?;
    Ok(Box::new(Single { client, statement }))
}

/// The server's address in the services' file.
fn config(services: &Path) -> Result<Config> {
    let text = std::fs::read_to_string(services).with_context(|| {
        format!("not installed: there is no {}; run `cargo xtask services`", services.display())
    })?;
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.with_context(|| format!("{} has no {key}", services.display()))
    };
    let mut config = Config::new();
    config.host("127.0.0.1").port(value("POSTGRES_PORT")?.parse()?);
    config.user(value("POSTGRES_USER")?).dbname(value("POSTGRES_DATABASE")?);
    config.application_name("lab");
    Ok(config)
}

fn connect(config: &Config) -> Result<Client> {
    Ok(config.connect(NoTls)?)
}

/// Whether the server allows enough connections, and really syncs where that is compared.
fn check(client: &mut Client, writers: usize, commit: Commit) -> Result<()> {
    let connections: usize = show(client, "max_connections")?.parse()?;
    ensure!(
        writers + CONNECTIONS_BESIDE <= connections,
        "the server permits {connections} connections, and {writers} writers need more"
    );
    let fsync = show(client, "fsync")?;
    if commit == Commit::Sync && fsync != "on" {
        bail!("the server runs with fsync = {fsync}, so that its commits sync nothing");
    }
    Ok(())
}

fn show(client: &mut Client, settings: &str) -> Result<String> {
    Ok(client.query_one(&format!("SHOW {settings}"), &[])?.get(0))
}

/// The server's first process; `None` where it is not among this machine's.
fn postmaster(client: &mut Client) -> Result<Option<i32>> {
    let backend: i32 = client.query_one("SELECT pg_backend_pid()", &[])?.get(0);
    let known = usage::processes_named("postgres");
    Ok(usage::parent_of(backend).filter(|parent| known.contains(&backend) && known.contains(parent)))
}

impl Store for Server {
    fn processes(&self) -> Vec<i32> {
        self.processes.clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let client = self.client.get_mut().unwrap_or_else(PoisonError::into_inner);
        // A server that has ended cannot drop its table, and the next run does.
        let _ = client.batch_execute(&format!("DROP TABLE IF EXISTS {TABLE}"));
    }
}

struct Single {
    client: Client,
    statement: Statement,
}

impl Writer for Single {
    fn insert(&mut self, row: &Row) -> Result<InsertResult> {
        let (at, writer) = (row.at_ns.cast_signed(), row.writer.cast_signed());
        let guid = row.guid.to_be_bytes();
        self.client.execute(&self.statement, &[&at, &writer, &guid.as_slice(), &TEXT])?;
        Ok(InsertResult::Accepted(1))
    }
}

struct Copy {
    client: Client,
    copy: String,
    /// Rows of the batch that is being gathered.
    rows: Vec<Row>,
}

impl Writer for Copy {
    fn insert(&mut self, row: &Row) -> Result<InsertResult> {
        self.rows.push(*row);
        if self.rows.len() < COPY_ROWS {
            return Ok(InsertResult::Gathered);
        }
        self.finish().map(InsertResult::Accepted)
    }

    fn finish(&mut self) -> Result<u64> {
        if self.rows.is_empty() {
            return Ok(0);
        }
        let writer = self.client.copy_in(&self.copy)?;
        let mut copy = BinaryCopyInWriter::new(writer, &[Type::INT8, Type::INT4, Type::BYTEA, Type::TEXT]);
        for row in self.rows.drain(..) {
            let (at, writer) = (row.at_ns.cast_signed(), row.writer.cast_signed());
            let guid = row.guid.to_be_bytes();
            copy.write(&[&at, &writer, &guid.as_slice(), &TEXT])?;
        }
        Ok(copy.finish()?)
    }
}
