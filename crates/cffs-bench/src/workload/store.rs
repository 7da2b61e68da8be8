//! How small contents are kept: as files, or in what people use when they give up on files.
//!
//! A tar archive can be read in order, or by an index of its members, but not changed. A table in
//! SQLite can do everything, in one transaction for each phase that writes. Both lie on a file
//! system; what they gain, and what they cost, is a measure for what that file system lacks.

use std::fs::{self, File};
use std::io::BufWriter;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rusqlite::{Connection, Statement, params};

use super::random::Contents;
use super::{Tally, tree};

/// A way to keep small contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Store {
    /// A file for each.
    #[default]
    Files,
    /// A member of an archive for each.
    Tar,
    /// A row for each.
    Sqlite,
}

/// Members of one size under given names, kept in a store.
pub struct Collection<'a> {
    /// How.
    pub store: Store,
    /// Their names, in the order in which they are made.
    pub names: &'a [PathBuf],
    /// Bytes in each of them.
    pub size: usize,
    /// Their contents.
    pub contents: &'a Contents,
}

impl Collection<'_> {
    /// Whether members can be replaced and removed one by one.
    pub fn is_mutable(&self) -> bool {
        self.store != Store::Tar
    }

    /// Makes all members.
    pub fn create(&self, root: &Path, tally: &Tally) -> Result<()> {
        match self.store {
            Store::Files => {
                let directories: std::collections::BTreeSet<_> =
                    self.names.iter().filter_map(|name| name.parent()).collect();
                for directory in directories {
                    fs::create_dir(root.join(directory))?;
                }
                self.each(tally, |i, name| Ok(tree::create(&root.join(name), self.data(i))?))
            }
            Store::Tar => {
                let file = BufWriter::with_capacity(1 << 20, File::create(archive(root))?);
                let mut builder = tar::Builder::new(file);
                self.each(tally, |i, name| {
                    let mut header = tar::Header::new_gnu();
                    header.set_size(self.size as u64);
                    header.set_mode(0o644);
                    Ok(builder.append_data(&mut header, name, self.data(i))?)
                })?;
                builder.into_inner()?.into_inner().map_err(|e| e.into_error())?;
                Ok(())
            }
            Store::Sqlite => {
                Connection::open(database(root))?.execute_batch(
                    "CREATE TABLE file (name TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID",
                )?;
                self.in_transaction(root, "INSERT INTO file VALUES (?1, ?2)", |insert| {
                    self.each(tally, |i, name| {
                        insert.execute(params![text(name)?, self.data(i)])?;
                        Ok(())
                    })
                })
            }
        }
    }

    /// Reads the members with these numbers, in this order, until the phase's time is over.
    pub fn read(&self, root: &Path, order: &[usize], tally: &Tally) -> Result<()> {
        let mut buffer = vec![0; self.size + 1];
        match self.store {
            Store::Files => {
                for &i in order {
                    let bytes = tree::read(&root.join(&self.names[i]), &mut buffer)?;
                    if !tally.file(bytes)? {
                        break;
                    }
                }
            }
            Store::Tar => {
                // Members have one size, so that an index would say no more than this does.
                let file = File::open(archive(root))?;
                let member = 512 + (self.size as u64).next_multiple_of(512);
                for &i in order {
                    file.read_exact_at(&mut buffer[..self.size], i as u64 * member + 512)?;
                    if !tally.file(self.size as u64)? {
                        break;
                    }
                }
            }
            Store::Sqlite => {
                let connection = Connection::open(database(root))?;
                let mut select = connection.prepare("SELECT data FROM file WHERE name = ?1")?;
                for &i in order {
                    let name = text(&self.names[i])?;
                    let data: Vec<u8> = select.query_row([name], |row| row.get(0))?;
                    if !tally.file(data.len() as u64)? {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Replaces the contents of all members.
    pub fn overwrite(&self, root: &Path, tally: &Tally) -> Result<()> {
        match self.store {
            Store::Files => {
                self.each(tally, |i, name| Ok(tree::overwrite(&root.join(name), self.data(i + 1))?))
            }
            Store::Tar => bail!("an archive cannot be changed"),
            Store::Sqlite => {
                self.in_transaction(root, "UPDATE file SET data = ?2 WHERE name = ?1", |update| {
                    self.each(tally, |i, name| {
                        update.execute(params![text(name)?, self.data(i + 1)])?;
                        Ok(())
                    })
                })
            }
        }
    }

    /// Removes all members.
    pub fn remove(&self, root: &Path, tally: &Tally) -> Result<()> {
        match self.store {
            Store::Files => {
                for name in self.names {
                    fs::remove_file(root.join(name))?;
                    tally.file(0)?;
                }
                Ok(())
            }
            Store::Tar => bail!("an archive cannot be changed"),
            Store::Sqlite => {
                self.in_transaction(root, "DELETE FROM file WHERE name = ?1", |delete| {
                    for name in self.names {
                        delete.execute([text(name)?])?;
                        tally.file(0)?;
                    }
                    Ok(())
                })
            }
        }
    }

    fn data(&self, i: usize) -> &[u8] {
        self.contents.of(i as u64, self.size)
    }

    fn each(&self, tally: &Tally, mut work: impl FnMut(usize, &Path) -> Result<()>) -> Result<()> {
        for (i, name) in self.names.iter().enumerate() {
            work(i, name).with_context(|| format!("{}", name.display()))?;
            tally.file(self.size as u64)?;
        }
        Ok(())
    }

    fn in_transaction(
        &self,
        root: &Path,
        statement: &str,
        work: impl FnOnce(&mut Statement) -> Result<()>,
    ) -> Result<()> {
        let mut connection = Connection::open(database(root))?;
        let transaction = connection.transaction()?;
        work(&mut transaction.prepare(statement)?)?;
        Ok(transaction.commit()?)
    }
}

fn archive(root: &Path) -> PathBuf {
    root.join("files.tar")
}

fn database(root: &Path) -> PathBuf {
    root.join("files.sqlite")
}

/// A name of our own making as a key.
fn text(name: &Path) -> Result<&str> {
    name.to_str().context("a name of ours is not text")
}
