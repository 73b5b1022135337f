//! Files that appear whole or not at all: written beside their place under another name, hashed on the way, synced, then
//! renamed.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::StoreError;

/// A file in the making. Dropping it without [`AtomicFile::commit`] removes what was written.
pub(crate) struct AtomicFile {
    file: File,
    hash: Sha256,
    bytes: u64,
    partial: PathBuf,
    path: PathBuf,
    committed: bool,
}

impl AtomicFile {
    /// Opens `NAME.partial` beside `path`.
    pub(crate) fn create(path: &Path) -> Result<Self, StoreError> {
        let mut name = path.file_name().ok_or_else(|| StoreError::corrupt(path, "not a file name"))?.to_os_string();
        name.push(".partial");
        let partial = path.with_file_name(name);
        let file = File::create(&partial).map_err(StoreError::io(&partial))?;
        Ok(Self { file, hash: Sha256::new(), bytes: 0, partial, path: path.to_path_buf(), committed: false })
    }

    /// Syncs, renames into place and returns size and SHA-256.
    pub(crate) fn commit(mut self) -> Result<(u64, String), StoreError> {
        self.file.sync_all().map_err(StoreError::io(&self.partial))?;
        fs::rename(&self.partial, &self.path).map_err(StoreError::io(&self.path))?;
        self.committed = true;
        sync_parent(&self.path)?;
        Ok((self.bytes, hex(&std::mem::take(&mut self.hash).finalize())))
    }
}

impl Write for AtomicFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = self.file.write(buf)?;
        self.hash.update(&buf[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.committed {
            // Nothing better can be done with a failure here; the next run overwrites the same name.
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// Makes a rename in `path`'s directory survive a power cut (a no-op where directories cannot be opened).
fn sync_parent(path: &Path) -> Result<(), StoreError> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match File::open(parent) {
        Ok(dir) => dir.sync_all().map_err(StoreError::io(parent)),
        Err(_) => Ok(()),
    }
}

/// SHA-256 of a file, lower-case hexadecimal.
///
/// # Errors
/// [`StoreError::Io`] when the file cannot be read.
pub fn sha256_file(path: &Path) -> Result<String, StoreError> {
    let mut file = File::open(path).map_err(StoreError::io(path))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0u8; 1 << 20];
    loop {
        match file.read(&mut buffer).map_err(StoreError::io(path))? {
            0 => return Ok(hex(&hash.finalize())),
            n => hash.update(&buffer[..n]),
        }
    }
}

/// SHA-256 of `bytes`, lower-case hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        write!(out, "{byte:02x}").expect("writing to a string cannot fail");
        out
    })
}
