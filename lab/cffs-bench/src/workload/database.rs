//! A database that makes each of its transactions durable.

use std::time::Duration;

use anyhow::{Result, bail};
use rusqlite::{Connection, params};

use super::Session;

/// How SQLite makes a transaction atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Journal {
    /// The old pages go to a file that is removed at the end of each transaction.
    Rollback,
    /// The new pages go to a log.
    Wal,
}

/// The size of the benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Database {
    /// How a transaction becomes atomic.
    pub journal: Journal,
    /// Transactions, of one row each.
    pub transactions: u64,
    /// The longest duration. The rate is valid even if not all transactions are done.
    pub time_max: Duration,
    /// The seed of all random choices.
    pub seed: u64,
}

/// Bytes in a row.
const ROW: usize = 100;

impl Database {
    pub fn run(&self, session: &mut Session) -> Result<()> {
        let contents = session.contents(self.seed, ROW);
        let mode = match self.journal {
            Journal::Rollback => "delete",
            Journal::Wal => "wal",
        };
        session.prepare("table", |root, _| {
            let database = Connection::open(root.join("data"))?;
            database.execute_batch("CREATE TABLE rows (id INTEGER PRIMARY KEY, row BLOB)")?;
            Ok(())
        })?;
        session.write_phase("transactions", self.transactions, true, |root, tally| {
            let database = Connection::open(root.join("data"))?;
            let set: String =
                database.query_row(&format!("PRAGMA journal_mode={mode}"), [], |row| row.get(0))?;
            if set != mode {
                bail!("SQLite uses the journal {set}, not {mode}");
            }
            database.execute_batch("PRAGMA synchronous=FULL")?;
            let mut insert = database.prepare("INSERT INTO rows VALUES (?1, ?2)")?;
            for i in 0..self.transactions {
                if tally.elapsed() >= self.time_max {
                    break;
                }
                insert.execute(params![i as i64, contents.of(i, ROW)])?;
                tally.file(ROW as u64)?;
            }
            Ok(())
        })
    }
}
