//! Making a cluster, once. It is made beside its place and renamed into it, so that whatever is
//! found in the place is whole, wherever an earlier attempt was cut.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

use super::binaries::Binaries;
use super::folders::own_folder;
use super::log::Log;
use super::place::Place;
use super::server::tie_to_us;
use super::session::USER;
use super::{ClusterSettings, PostgresError};

/// What a cluster is called while it is made; a process id follows.
const UNFINISHED: &str = "data.unfinished-";

/// From this version on the server brings its own C.UTF-8, which no update of the system changes.
const BUILTIN_LOCALE_SINCE: u32 = 17;

/// Makes the cluster of `place`, which has none.
pub(super) fn run(
    place: &Place,
    binaries: &Binaries,
    settings: &ClusterSettings,
    log: &Log,
) -> Result<(), PostgresError> {
    let unfinished = place.home.join(format!("{UNFINISHED}{}", std::process::id()));
    let account = &place.account;
    own_folder(&unfinished, account.uid, account.gid, 0o700)
        .map_err(PostgresError::folder("make", &unfinished))?;
    let failed =
        |tail| PostgresError::InitFailed { path: place.home.clone(), log: log.path.clone(), tail };

    let mut command = account.command(binaries.initdb());
    command.arg("--pgdata").arg(&unfinished).args(["--username", USER, "--encoding=UTF8"]);
    // Texts compare by their bytes: no index depends on a library that the system may update.
    command.arg("--locale=C");
    if binaries.major >= BUILTIN_LOCALE_SINCE {
        command.args(["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]);
    }
    command.args(["--auth-local=trust", "--auth-host=reject", "--no-instructions"]);
    if !settings.durable() {
        command.arg("--no-sync");
    }
    tie_to_us(&mut command, libc::SIGTERM);
    let status = command.stdout(Stdio::null()).stderr(log.writer()?).status();
    match status {
        Ok(status) if status.success() => {}
        Ok(_) => return Err(failed(log.tail())),
        Err(error) => return Err(failed(error.to_string())),
    }
    fs::rename(&unfinished, place.data()).map_err(PostgresError::folder("make", &place.data()))?;
    // The rename itself, too, must outlive a power cut.
    File::open(&place.home)
        .and_then(|home| home.sync_all())
        .map_err(PostgresError::folder("write", &place.home))
}

/// Removes what attempts that were cut have left. At every start: the `initdb` of such an attempt
/// may have gone on writing for a moment, and kept the next start from removing it.
pub(super) fn remove_unfinished(home: &Path) {
    for entry in fs::read_dir(home).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            // What cannot be removed costs room, and no more.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
