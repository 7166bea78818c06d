//! Where the cluster lies and whom it belongs to, decided once per start.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind::NotFound};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::account::{Account, is_root, own_uid};
use super::folders::{make_missing, own_file, own_folder, remove_empty, resolved, stable_name};
use super::{ClusterSettings, PostgresError};

/// The server listens on no network, so the port only names the socket.
pub(super) const PORT: u16 = 5432;

/// A folder that is ours, with the user that the server runs as.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) home: PathBuf,
    pub(super) account: Account,
    /// User and group of the home: the account, or root.
    owner: (u32, u32),
}

impl Place {
    /// The wanted place, made ready. As root a place under the state root stands in for one that
    /// the unprivileged user cannot use; a cluster that is already in either is never left behind.
    pub(super) fn find(settings: &ClusterSettings) -> Result<Self, PostgresError> {
        let wanted = resolve(&settings.data_dir)?.join("postgres");
        if !is_root() {
            return Self::prepare(&wanted)?.ok_or_else(|| unusable(&wanted, "you"));
        }
        let instead = resolve(&settings.state_root)?.join(stable_name(&wanted));
        for home in [&wanted, &instead] {
            if home.join("data/PG_VERSION").exists() {
                return Self::prepare(home)?.ok_or_else(|| unusable(home, "the server's user"));
            }
        }
        match Self::prepare(&wanted) {
            // Not found any more: another start has just tried it, to no avail, and taken it back.
            Err(PostgresError::Folder { source, .. }) if source.kind() == NotFound => {}
            Ok(None) => {}
            Ok(Some(place)) => return Ok(place),
            Err(error) => return Err(error),
        }
        Self::prepare(&instead)?.ok_or_else(|| unusable(&instead, "the server's user"))
    }

    /// Makes the folders that are missing. `None`: the account cannot use them, and they are gone
    /// again.
    fn prepare(home: &Path) -> Result<Option<Self>, PostgresError> {
        let account = account_for(home)?;
        let made = make_missing(home, home_mode(own_uid(), account.uid))
            .map_err(PostgresError::folder("make", home))?;
        let owner = fs::symlink_metadata(home).map_err(PostgresError::folder("look at", home))?;
        let owner = (owner.uid(), owner.gid());
        let place = Self { home: home.to_owned(), account, owner };
        let ready = place.claim_folders();
        if !matches!(ready, Ok(true)) && !made.is_empty() {
            remove_empty(&[place.run()]);
            remove_empty(&made);
        }
        Ok(ready?.then_some(place))
    }

    fn claim_folders(&self) -> Result<bool, PostgresError> {
        let (Account { uid, gid, .. }, owner) = (&self.account, self.owner);
        let (uid, gid) = (*uid, *gid);
        own_folder(&self.home, owner.0, owner.1, home_mode(owner.0, uid))
            .map_err(PostgresError::folder("use", &self.home))?;
        match own_folder(&self.run(), uid, gid, 0o700) {
            Ok(()) => self.account.can_use(&self.run()),
            // Mounts that ignore or refuse owners: no place for a server with a user of its own.
            Err(_) if uid != own_uid() => Ok(false),
            Err(error) => Err(PostgresError::folder("use", &self.run())(error)),
        }
    }

    /// Opens or makes one of the files that belong to whoever starts the server.
    pub(super) fn open_file(
        &self,
        path: &Path,
        options: &mut OpenOptions,
    ) -> Result<File, PostgresError> {
        let (uid, gid) = self.owner;
        own_file(path, uid, gid, options).map_err(PostgresError::folder("open", path))
    }

    /// The cluster itself.
    pub(super) fn data(&self) -> PathBuf {
        self.home.join("data")
    }

    /// The folder of the socket, and what the account's use of this place was tried with.
    pub(super) fn run(&self) -> PathBuf {
        self.home.join("run")
    }

    pub(super) fn lock(&self) -> PathBuf {
        self.home.join("lock")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.home.join("log")
    }

    /// The major version of the cluster that is here. `None`: none yet.
    pub(super) fn major(&self) -> Result<Option<u32>, PostgresError> {
        let data = self.data();
        match fs::read_to_string(data.join("PG_VERSION")) {
            Ok(text) => match text.trim().parse() {
                Ok(major) => Ok(Some(major)),
                Err(_) => Err(PostgresError::NotACluster { path: data }),
            },
            Err(error) if error.kind() == NotFound => {
                let entries = fs::read_dir(&data).into_iter().flatten();
                if entries.count() == 0 {
                    Ok(None)
                } else {
                    Err(PostgresError::NotACluster { path: data })
                }
            }
            Err(error) => Err(PostgresError::folder("read", &data)(error)),
        }
    }

    /// The folder for the socket: in this place, or under `/tmp` where the path would not fit into
    /// a socket's address or into the text of a connection URL.
    pub(super) fn socket_dir(&self) -> Result<PathBuf, PostgresError> {
        let run = self.run();
        if run.to_str().is_some() && socket_file(&run).as_os_str().len() <= SOCKET_PATH_LIMIT {
            return Ok(run);
        }
        let Account { uid, gid, .. } = self.account;
        let short = PathBuf::from(format!("/tmp/oncekey-{uid}-{}", stable_name(&self.home)));
        own_folder(&short, uid, gid, 0o700).map_err(PostgresError::folder("use", &short))?;
        Ok(short)
    }
}

/// Bytes of path that a socket address holds: 107 on Linux, 103 on macOS.
const SOCKET_PATH_LIMIT: usize =
    size_of::<libc::sockaddr_un>() - std::mem::offset_of!(libc::sockaddr_un, sun_path) - 1;

/// The socket that a server with our port makes in `dir`.
pub(super) fn socket_file(dir: &Path) -> PathBuf {
    dir.join(format!(".s.PGSQL.{PORT}"))
}

/// The server's user only passes through a folder that is somebody else's.
fn home_mode(owner: u32, account: u32) -> u32 {
    if owner == account { 0o700 } else { 0o711 }
}

/// Whom the server of this place runs as. What is there already decides, so that a cluster stays
/// with its user whether it is later started by that user or by root.
fn account_for(home: &Path) -> Result<Account, PostgresError> {
    let found = [home.to_owned(), home.join("data")]
        .map(|path| fs::symlink_metadata(&path).ok().map(|found| (path, found.uid(), found.gid())));
    if !is_root() {
        let foreign = found.into_iter().flatten().find(|(_, uid, _)| *uid != own_uid());
        return match foreign {
            Some((path, owner, _)) => Err(PostgresError::Foreign { path, owner }),
            None => Ok(Account::own()),
        };
    }
    match found {
        [Some((_, uid, gid)), _] | [_, Some((_, uid, gid))] if uid != 0 => {
            Ok(Account::owner(uid, gid))
        }
        [_, Some((path, ..))] => Err(PostgresError::folder("use", &path)(io::Error::other(
            "its files belong to root, give them to an ordinary user",
        ))),
        _ => Account::unprivileged(),
    }
}

fn resolve(path: &Path) -> Result<PathBuf, PostgresError> {
    let path = resolved(path).map_err(PostgresError::folder("find", path))?;
    if path.as_os_str().as_encoded_bytes().iter().any(u8::is_ascii_control) {
        // The server writes its folder into files that are read by lines.
        let error = io::Error::other("a control character in its name");
        return Err(PostgresError::folder("use", &path)(error));
    }
    Ok(path)
}

fn unusable(home: &Path, user: &str) -> PostgresError {
    let error = io::Error::new(io::ErrorKind::PermissionDenied, format!("closed to {user}"));
    PostgresError::folder("use", home)(error)
}
