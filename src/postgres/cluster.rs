//! From settings to a server that serves: own it, or attach to the one that another process owns.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::binaries::Binaries;
use super::leftovers::{self, PidFile};
use super::lock::{self, Announcement, OwnerLock};
use super::log::Log;
use super::place::{PORT, Place, socket_file};
use super::server::Server;
use super::session::{self, DATABASE, USER};
use super::wait::poll;
use super::{ClusterSettings, PostgresError, initdb};

/// How long a start may show no progress. A recovery logs a line every ten seconds.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How long the owner's server is waited for.
const ATTACH_LIMIT: Duration = Duration::from_secs(60);

/// The server's settings; those of the caller come after them. 200 sessions serve several
/// processes with the default pool; the memory is PostgreSQL's own default, said here so that a
/// cluster made on a machine short of it does not keep less for ever.
const PARAMETERS: [(&str, &str); 6] = [
    ("max_connections", "200"),
    ("shared_buffers", "128MB"),
    ("wal_compression", "on"),
    ("log_min_messages", "warning"),
    ("log_checkpoints", "off"),
    ("unix_socket_permissions", "0700"),
];

/// A private cluster that serves. When it is dropped by its owner, the server stops.
#[derive(Debug)]
pub struct Cluster {
    home: PathBuf,
    socket_dir: PathBuf,
    port: u16,
    postmaster: i32,
    fresh: bool,
    owned: Option<Owned>,
}

#[derive(Debug)]
struct Owned {
    server: Server,
    /// The folder of the socket where it is not in the cluster's own.
    elsewhere: Option<PathBuf>,
    /// Free only once the server has ended.
    lock: OwnerLock,
}

/// Brings up the cluster for `settings`: starts it and owns it, or attaches to the server of
/// another process that does. Blocks for 0.1 to 0.3 s, about a second longer the first time, and a
/// minute at most where nothing moves.
///
/// # Errors
/// Each says in one line what to do; see [`PostgresError`]. Nothing is left running.
pub fn start_or_attach(settings: &ClusterSettings) -> Result<Cluster, PostgresError> {
    let place = Place::find(settings)?;
    let cluster = poll(ATTACH_LIMIT, || match OwnerLock::try_take(&place)? {
        Some(lock) => start(settings, &place, lock).map(Some),
        None => Ok(attach(&place)),
    })?;
    cluster.ok_or_else(|| PostgresError::AttachTimeout {
        owner: lock::read(&place.lock()).0,
        home: place.home,
        waited: ATTACH_LIMIT,
    })
}

/// `None`: the owner's server does not serve yet, or no longer.
fn attach(place: &Place) -> Option<Cluster> {
    let (_, found) = lock::read(&place.lock());
    let found = found?;
    session::check(&socket_file(&found.socket_dir)).ok()?;
    // A new owner withdraws what the one before it said; what still stands is of the present one.
    if lock::read(&place.lock()).1.as_ref() != Some(&found) {
        return None;
    }
    Some(Cluster {
        home: place.home.clone(),
        socket_dir: found.socket_dir,
        port: found.port,
        postmaster: found.postmaster,
        fresh: false,
        owned: None,
    })
}

fn start(
    settings: &ClusterSettings,
    place: &Place,
    mut lock: OwnerLock,
) -> Result<Cluster, PostgresError> {
    let major = place.major()?;
    let binaries = Binaries::find(settings.binaries.as_deref(), major, place)?;
    leftovers::clear(place)?;
    let log = Log::open(place)?;
    initdb::remove_unfinished(&place.home);
    if major.is_none() {
        initdb::run(place, &binaries, settings, &log)?;
    }
    let socket_dir = place.socket_dir()?;
    clear_socket(&socket_dir)?;

    let mut command = place.account.command(binaries.postgres());
    command.arg("-D").arg(place.data()).args(arguments(settings, &socket_dir));
    command.stdout(log.writer()?).stderr(log.writer()?);
    let server = Server::spawn(command).map_err(|error| PostgresError::StartFailed {
        exit: "not run".to_owned(),
        log: log.path.clone(),
        tail: error.to_string(),
    })?;
    wait_until_ready(&server, &place.data(), &log)?;
    session::ensure_database(&socket_file(&socket_dir)).map_err(|error| {
        PostgresError::Session { home: place.home.clone(), reason: error.to_string() }
    })?;

    let elsewhere = (socket_dir != place.run()).then(|| socket_dir.clone());
    let postmaster = server.pid;
    lock.announce(&Announcement { postmaster, port: PORT, socket_dir: socket_dir.clone() })
        .map_err(PostgresError::folder("write", &place.lock()))?;
    Ok(Cluster {
        home: place.home.clone(),
        socket_dir,
        port: PORT,
        postmaster,
        fresh: major.is_none(),
        owned: Some(Owned { server, elsewhere, lock }),
    })
}

fn arguments(settings: &ClusterSettings, socket_dir: &Path) -> Vec<OsString> {
    let ours = PARAMETERS.iter().map(|(name, value)| format!("{name}={value}"));
    let callers = settings.parameters.iter().map(|(name, value)| format!("{name}={value}"));
    // The last value counts: where the server listens is nobody's choice but ours. The folder is
    // an element of a list, in which quotes keep commas and blanks together.
    let quoted = socket_dir.to_string_lossy().replace('"', "\"\"");
    let address = [
        "listen_addresses=".to_owned(),
        format!("port={PORT}"),
        format!("unix_socket_directories=\"{quoted}\""),
    ];
    let all = ours.chain(callers).chain(address);
    all.flat_map(|parameter| [OsString::from("-c"), parameter.into()]).collect()
}

/// The socket and its lock file would outlive a server that was killed, and the process id in the
/// latter may by now be another's. No server is left that they could belong to.
fn clear_socket(dir: &Path) -> Result<(), PostgresError> {
    let socket = socket_file(dir);
    let mut lock = socket.clone().into_os_string();
    lock.push(".lock");
    for path in [PathBuf::from(lock), socket] {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(PostgresError::folder("remove", &path)(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Waits for the server's own word that it takes sessions, for as long as it makes progress.
fn wait_until_ready(server: &Server, data: &Path, log: &Log) -> Result<(), PostgresError> {
    loop {
        let before = log.length();
        let ready = poll(START_LIMIT, || match server.exited() {
            Some(exit) => {
                Err(PostgresError::StartFailed { exit, log: log.path.clone(), tail: log.tail() })
            }
            None => Ok(PidFile::read(data)
                .filter(|file| file.pid == server.pid && file.ready)
                .map(drop)),
        })?;
        if ready.is_some() {
            return Ok(());
        }
        if log.length() == before {
            let waited = START_LIMIT;
            return Err(PostgresError::StartTimeout { waited, log: log.path.clone() });
        }
    }
}

impl Cluster {
    /// The folder with the server's socket, as `host` of a connection.
    pub fn socket_dir(&self) -> &Path {
        &self.socket_dir
    }

    /// The number in the socket's name. Nothing listens on the network.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The superuser; it has no password, the socket's folder is what guards the server.
    pub fn user(&self) -> &str {
        USER
    }

    /// The database of the product, which exists.
    pub fn database(&self) -> &str {
        DATABASE
    }

    /// The folder that holds the cluster, its log and its lock. Under the state root where root
    /// asked for a folder that the server's user cannot use.
    pub fn data_dir(&self) -> &Path {
        &self.home
    }

    /// The process id of the server.
    pub fn postmaster(&self) -> i32 {
        self.postmaster
    }

    /// Whether this process started the server, which ends with it; otherwise another one did.
    pub fn owned(&self) -> bool {
        self.owned.is_some()
    }

    /// Whether the server still runs, by a look at its process.
    pub fn stands(&self) -> bool {
        match &self.owned {
            Some(owned) => owned.server.exited().is_none(),
            None => leftovers::is_postmaster(self.postmaster, &self.home.join("data")),
        }
    }

    /// Whether this start made the cluster.
    pub fn fresh(&self) -> bool {
        self.fresh
    }

    /// The same as a URL, in the form that libpq and sqlx read.
    pub fn connection_url(&self) -> String {
        let mut host = String::new();
        for byte in self.socket_dir.as_os_str().as_encoded_bytes() {
            if byte.is_ascii_alphanumeric() {
                host.push(char::from(*byte));
            } else {
                // Writing to a string cannot fail.
                let _ = write!(host, "%{byte:02X}");
            }
        }
        format!("postgres://{USER}@{host}:{}/{DATABASE}", self.port)
    }

    /// Ends the server in good order and waits for it: sessions are cut, all data are written.
    /// Without effect on a server that another process owns.
    ///
    /// # Errors
    /// The server did not end within 75 s.
    pub fn stop(mut self) -> Result<(), PostgresError> {
        self.owned.take().map_or(Ok(()), |mut owned| owned.stop())
    }
}

impl Owned {
    fn stop(&mut self) -> Result<(), PostgresError> {
        // Nobody is to attach to what is about to end. Where that cannot be written, whoever tries
        // to finds no server, and tries again.
        let _ = self.lock.withdraw();
        let stopped = self.server.stop();
        if let Some(dir) = &self.elsewhere {
            // One that stays is used again.
            let _ = fs::remove_dir(dir);
        }
        stopped
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if !self.server.stopped {
            // Nobody is left to hear of a failure; the next start ends what stays.
            let _ = self.stop();
        }
    }
}
