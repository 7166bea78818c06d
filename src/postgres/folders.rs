//! Folders and files that must be ours: made, or found, without following anything that somebody
//! else may have planted.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use super::account::own_uid;

/// Makes the folders that are missing on the way to `path` and tells which, the outermost first.
/// On error what was made is gone again.
pub(super) fn make_missing(path: &Path, mode: u32) -> io::Result<Vec<PathBuf>> {
    let missing: Vec<_> = path.ancestors().take_while(|dir| !dir.exists()).collect();
    let mut made: Vec<PathBuf> = Vec::new();
    for dir in missing.into_iter().rev() {
        match DirBuilder::new().mode(mode).create(dir) {
            // The mode of the call is cut by the umask.
            Ok(()) => made.push(dir.to_owned()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => {
                remove_empty(&made);
                return Err(error);
            }
        }
        fs::set_permissions(dir, Permissions::from_mode(mode))?;
    }
    Ok(made)
}

/// Takes back what [`make_missing`] made, as far as it is empty.
pub(super) fn remove_empty(made: &[PathBuf]) {
    for dir in made.iter().rev() {
        // What is in use by now stays, which is all that a failure can mean.
        let _ = fs::remove_dir(dir);
    }
}

/// Makes sure that `path` is a folder of the user `uid`, with exactly `mode`. One that is there and
/// belongs to neither that user nor us, or is a link, is an error of kind `PermissionDenied`.
pub(super) fn own_folder(path: &Path, uid: u32, gid: u32, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let dir = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
        .open(path)
        .map_err(|_| denied("it is not a folder of our own"))?;
    give(&dir, uid, gid)?;
    dir.set_permissions(Permissions::from_mode(mode))
}

/// Opens or makes a file of the user `uid`, readable by its owner alone. What is there and belongs
/// to neither that user nor us, is a link, or has a second name, is an error.
pub(super) fn own_file(
    path: &Path,
    uid: u32,
    gid: u32,
    options: &mut OpenOptions,
) -> io::Result<File> {
    let file = options
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.nlink() != 1 {
        return Err(denied("it is not a file of our own"));
    }
    give(&file, uid, gid)?;
    Ok(file)
}

/// Makes `uid` the owner of what was ours so far.
fn give(opened: &File, uid: u32, gid: u32) -> io::Result<()> {
    let owner = opened.metadata()?.uid();
    if owner == uid {
        return Ok(());
    }
    if owner != own_uid() {
        return Err(denied("it belongs to another user"));
    }
    fchown(opened, Some(uid), Some(gid))?;
    if opened.metadata()?.uid() != uid {
        return Err(denied("its file system keeps no owners"));
    }
    Ok(())
}

fn denied(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// Absolute, with the links of what exists already followed, so that one folder has one name
/// whether or not it has been made yet.
pub(super) fn resolved(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    for dir in path.ancestors() {
        if let Ok(real) = fs::canonicalize(dir) {
            let rest = path.strip_prefix(dir).map_err(io::Error::other)?;
            return Ok(if rest.as_os_str().is_empty() { real } else { real.join(rest) });
        }
    }
    Ok(path)
}

/// A name for a path that is the same in every build and version: FNV-1a, 64 bits, in hexadecimal.
pub(super) fn stable_name(path: &Path) -> String {
    let bytes = path.as_os_str().as_encoded_bytes();
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_keeps_its_name_over_versions() {
        // The published value for "foobar". With another one every cluster under the state root
        // would be lost.
        assert_eq!(stable_name(Path::new("foobar")), "85944171f73967e8");
    }

    #[test]
    fn a_planted_link_is_refused() {
        let base = std::env::temp_dir().join(format!("oncekey-folders-{}", std::process::id()));
        fs::create_dir_all(base.join("target")).unwrap();
        std::os::unix::fs::symlink(base.join("target"), base.join("link")).unwrap();
        let refused = own_folder(&base.join("link"), own_uid(), 0, 0o700).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        fs::write(base.join("file"), "").unwrap();
        fs::hard_link(base.join("file"), base.join("other")).unwrap();
        let options = &mut OpenOptions::new();
        let refused = own_file(&base.join("other"), own_uid(), 0, options.write(true)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        fs::remove_dir_all(base).unwrap();
    }
}
