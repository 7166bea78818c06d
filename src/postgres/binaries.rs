//! Finding PostgreSQL on the machine. Distributions keep the server out of `PATH`, several versions
//! side by side, and a cluster runs only on the major version that made it.

use std::cmp::Reverse;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::account::Account;
use super::place::Place;
use super::{OLDEST_MAJOR, PostgresError};

/// A folder with the two programs that are needed, and their version.
#[derive(Debug)]
pub(super) struct Binaries {
    pub(super) dir: PathBuf,
    pub(super) major: u32,
}

/// Where packages put versions side by side: the parent, what comes before the version in the
/// folder's name, and where the programs are below it.
const VERSIONED: [(&str, &str, &str); 8] = [
    ("/usr/lib/postgresql", "", "bin"),          // Debian, Ubuntu
    ("/usr", "pgsql-", "bin"),                   // RPMs of the PostgreSQL project
    ("/usr/lib", "postgresql", "bin"),           // openSUSE
    ("/usr/libexec", "postgresql", ""),          // Alpine
    ("/opt/homebrew/opt", "postgresql@", "bin"), // Homebrew on Apple silicon
    ("/usr/local/opt", "postgresql@", "bin"),    // Homebrew on Intel
    ("/home/linuxbrew/.linuxbrew/opt", "postgresql@", "bin"),
    ("/Applications/Postgres.app/Contents/Versions", "", "bin"),
];

impl Binaries {
    /// The binaries for `place`: of the major version `wanted` where a cluster is there, else the
    /// first that is new enough. `only` names the one folder to look in.
    pub(super) fn find(
        only: Option<&Path>,
        wanted: Option<u32>,
        place: &Place,
    ) -> Result<Self, PostgresError> {
        let account = &place.account;
        let mut misses = Misses::default();
        let found = match only {
            Some(dir) => misses.consider(dir.to_owned(), wanted, account),
            None => told(account)
                .chain(versioned())
                .chain(on_path())
                .find_map(|dir| misses.consider(dir, wanted, account)),
        };
        found.ok_or_else(|| match (misses, wanted) {
            (Misses { refused: Some(program), .. }, _) => {
                PostgresError::CannotRun { user: account.name.clone(), program }
            }
            (_, Some(major)) => PostgresError::MajorMissing { data: place.data(), major },
            (Misses { other: Some(Self { dir, major }), .. }, None) => {
                PostgresError::TooOld { dir, major }
            }
            _ => PostgresError::NoBinaries { searched: only.map(Path::to_owned) },
        })
    }

    pub(super) fn postgres(&self) -> PathBuf {
        self.dir.join("postgres")
    }

    pub(super) fn initdb(&self) -> PathBuf {
        self.dir.join("initdb")
    }
}

/// What was found and not taken, for the message.
#[derive(Default)]
struct Misses {
    other: Option<Binaries>,
    refused: Option<PathBuf>,
}

impl Misses {
    fn consider(
        &mut self,
        dir: PathBuf,
        wanted: Option<u32>,
        account: &Account,
    ) -> Option<Binaries> {
        // Relative names would be looked for in the folder that programs are started in.
        let dir = fs::canonicalize(dir).ok()?;
        let postgres = dir.join("postgres");
        if !postgres.is_file() || !dir.join("initdb").is_file() {
            return None;
        }
        let Some(major) = major_of(&postgres, account) else {
            self.refused.get_or_insert(postgres);
            return None;
        };
        let found = Binaries { dir, major };
        if wanted.map_or(major >= OLDEST_MAJOR, |wanted| major == wanted) {
            return Some(found);
        }
        self.other.get_or_insert(found);
        None
    }
}

/// Runs it, as the user that it will have to run as.
fn major_of(postgres: &Path, account: &Account) -> Option<u32> {
    let output = account.command(postgres).arg("--version").stderr(Stdio::null()).output().ok()?;
    if !output.status.success() {
        return None;
    }
    major_in(&String::from_utf8_lossy(&output.stdout))
}

/// The version in `postgres (PostgreSQL) 15.13 (Debian …)`, `18beta1`, `19devel`.
fn major_in(text: &str) -> Option<u32> {
    let (_, version) = text.split_once("(PostgreSQL) ")?;
    leading_number(version)
}

fn leading_number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// What `pg_config` says, the one that the environment names first.
fn told(account: &Account) -> impl Iterator<Item = PathBuf> {
    let programs = env::var_os("PG_CONFIG").into_iter().chain([OsString::from("pg_config")]);
    programs.filter_map(move |program| {
        let mut command = account.command(program);
        let output = command.arg("--bindir").stderr(Stdio::null()).output().ok()?;
        let mut dir = output.stdout;
        dir.truncate(dir.trim_ascii_end().len());
        (output.status.success() && !dir.is_empty()).then(|| OsString::from_vec(dir).into())
    })
}

/// The folders of packages, the newest version first.
fn versioned() -> impl Iterator<Item = PathBuf> {
    let mut found: Vec<_> = VERSIONED
        .iter()
        .flat_map(|(parent, prefix, below)| {
            fs::read_dir(parent).into_iter().flatten().flatten().filter_map(move |entry| {
                let name = entry.file_name();
                let version = leading_number(name.to_str()?.strip_prefix(prefix)?)?;
                Some((version, entry.path().join(below)))
            })
        })
        .collect();
    found.sort_by_key(|(version, _)| Reverse(*version));
    found.into_iter().map(|(_, dir)| dir)
}

fn on_path() -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).filter(|dir| dir.is_absolute()).collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::major_in;

    #[test]
    fn the_major_version_is_read_from_every_kind_of_build() {
        for (text, major) in [
            ("postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)\n", Some(15)),
            ("postgres (PostgreSQL) 18beta1\n", Some(18)),
            ("postgres (PostgreSQL) 19devel", Some(19)),
            ("postgres (PostgreSQL) 9.6.24", Some(9)),
            ("postgres (PostgreSQL) ", None),
            ("something else 15", None),
        ] {
            assert_eq!(major_in(text), major, "{text}");
        }
    }
}
