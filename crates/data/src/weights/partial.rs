//! A directory that appears whole or not at all: filled as `OUT.partial-PID` and renamed at the end.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::WeightError;

/// The directory being filled; removed unless it is committed.
#[derive(Debug)]
pub struct PartialDir {
    dir: PathBuf,
}

impl PartialDir {
    /// Makes `OUT.partial-PID` and removes what dead processes left behind.
    ///
    /// # Errors
    /// [`WeightError::Io`].
    pub fn create(out: &Path) -> Result<Self, WeightError> {
        let name = out.file_name().ok_or(io::ErrorKind::InvalidInput).map_err(|e| WeightError::io(out)(e.into()))?;
        let prefix = format!("{}.partial-", name.to_string_lossy());
        for left in fs::read_dir(parent(out)).into_iter().flatten().flatten() {
            let owner = left.file_name().to_string_lossy().strip_prefix(&prefix).map(str::to_owned);
            if owner.is_some_and(|pid| is_dead(&pid)) {
                fs::remove_dir_all(left.path()).map_err(WeightError::io(&left.path()))?;
            }
        }
        let dir = out.with_file_name(format!("{prefix}{}", std::process::id()));
        fs::create_dir_all(&dir).map_err(WeightError::io(&dir))?;
        Ok(Self { dir })
    }

    /// Where to write.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Puts the directory in place of `out`.
    ///
    /// # Errors
    /// [`WeightError::Io`].
    pub fn commit(self, out: &Path) -> Result<(), WeightError> {
        fs::remove_dir_all(out).or_else(missing_is_fine).map_err(WeightError::io(out))?;
        fs::rename(&self.dir, out).map_err(WeightError::io(out))?;
        File::open(parent(out)).and_then(|dir| dir.sync_all()).map_err(WeightError::io(out))
    }
}

impl Drop for PartialDir {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.dir).ok();
    }
}

fn missing_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// The directory that holds `path`.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether no process has this id, as far as the system tells.
fn is_dead(pid: &str) -> bool {
    Path::new("/proc/self").exists() && pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists()
}
