//! Programs that make each of their steps durable: a mail server and a database.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result};
use rusqlite::{Connection, params};

use super::random::{Contents, Random};
use super::{Session, Tally, tree};

/// A mail server's deliveries, as maildir(5) has them: a message is written below `tmp` and made durable,
/// then renamed into `new`, and that made durable, too.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// How many messages.
    pub messages: u64,
    /// Bytes in each of them.
    pub size: usize,
    /// Where randomness starts.
    pub seed: u64,
}

impl Delivery {
    /// Runs its one phase.
    pub fn run(&self, session: &mut Session) -> Result<()> {
        let contents = Contents::new(self.seed, self.size);
        session.prepare("mailbox", |root, _| {
            ["tmp", "new"].iter().try_for_each(|dir| Ok(fs::create_dir(root.join(dir))?))
        })?;
        session.write_phase("deliver", self.messages, true, |root, tally| {
            let new = root.join("new");
            for i in 0..self.messages {
                let name = format!("{i:06}");
                let message = root.join("tmp").join(&name);
                tree::create(&message, contents.of(i, self.size))?;
                File::open(&message)?.sync_all()?;
                fs::rename(&message, new.join(&name))?;
                File::open(&new)?.sync_all()?;
                tally.file(self.size as u64)?;
            }
            Ok(())
        })
    }
}

/// Transactions that change two rows and add one, on SQLite with everything durable.
#[derive(Clone, Copy, Debug)]
pub struct Transactions {
    /// How many of each kind.
    pub transactions: u64,
    /// Where randomness starts.
    pub seed: u64,
}

impl Transactions {
    /// Runs both phases.
    pub fn run(&self, session: &mut Session) -> Result<()> {
        for (phase, journal) in [("rollback journal", "DELETE"), ("write-ahead log", "WAL")] {
            session.prepare("database", |root, _| open(root, journal).map(drop))?;
            session.write_phase(phase, self.transactions, true, |root, tally| {
                self.commit(&mut open(root, journal)?, tally)
            })?;
        }
        Ok(())
    }

    fn commit(&self, database: &mut Connection, tally: &Tally) -> Result<()> {
        let mut random = Random::new(self.seed);
        for i in 0..self.transactions {
            let transaction = database.transaction()?;
            for _ in 0..2 {
                let account = random.index(ACCOUNTS) as i64;
                let change = "UPDATE account SET balance = balance + 1 WHERE id = ?1";
                transaction.execute(change, params![account])?;
            }
            let entry = "INSERT INTO entry (id, text) VALUES (?1, ?2)";
            transaction.execute(entry, params![i as i64, "a".repeat(100)])?;
            transaction.commit()?;
            tally.file(0)?;
        }
        Ok(())
    }
}

const ACCOUNTS: usize = 10_000;

/// The database of this kind, which is made if it is not there.
fn open(root: &Path, journal: &str) -> Result<Connection> {
    let mut database = Connection::open(root.join(format!("{journal}.sqlite")))?;
    let mode: String =
        database.query_row(&format!("PRAGMA journal_mode = {journal}"), [], |row| row.get(0))?;
    anyhow::ensure!(mode.eq_ignore_ascii_case(journal), "SQLite has journal mode {mode}");
    database.pragma_update(None, "synchronous", "FULL").context("synchronous = FULL")?;
    let transaction = database.transaction()?;
    let made = transaction.execute_batch(
        "CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, balance INTEGER);
         CREATE TABLE IF NOT EXISTS entry (id INTEGER PRIMARY KEY, text TEXT);",
    );
    made?;
    let is_new: bool =
        transaction.query_row("SELECT count(*) = 0 FROM account", [], |row| row.get(0))?;
    if is_new {
        for account in 0..ACCOUNTS as i64 {
            transaction.execute("INSERT INTO account VALUES (?1, 0)", params![account])?;
        }
    }
    transaction.commit()?;
    Ok(database)
}
