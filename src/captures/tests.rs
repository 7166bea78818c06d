//! Against a real folder.

use std::path::PathBuf;

use super::*;

/// A folder of the test's own, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("oncekey-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Folder(path)
    }

    fn open(&self) -> Captures {
        Captures::open(self.0.join("captures").to_str().unwrap()).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

#[tokio::test]
async fn what_was_kept_is_there_until_it_is_deleted() {
    let folder = Folder::new("kept");
    let captures = folder.open();
    let tenant = TenantId::new("../Acme & Co.");
    let bytes = Bytes::from_static(b"%PDF-\0\xff");
    let location = captures.put(&tenant, id(1), bytes.clone()).await.unwrap();
    // Another process, and the folder moved.
    let moved = folder.0.join("moved");
    std::fs::rename(folder.0.join("captures"), &moved).unwrap();
    let captures = Captures::open(moved.to_str().unwrap()).unwrap();
    assert_eq!(captures.get(&location).await.unwrap(), bytes);
    captures.delete(&location).await.unwrap();
    captures.delete(&location).await.unwrap();
    let missing = captures.get(&location).await.unwrap_err();
    assert!(matches!(&missing, CapturesError::Missing { location: named } if *named == location));
    assert!(!missing.is_passing());
}

#[tokio::test]
async fn captures_are_for_their_owner_alone() {
    let folder = Folder::new("private");
    let captures = folder.open();
    let location = captures.put(&TenantId::new("acme"), id(2), Bytes::new()).await.unwrap();
    let file = folder.0.join("captures").join(location);
    let mode = |path: &FilePath| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&file), 0o600);
    assert_eq!(mode(file.parent().unwrap()), 0o700);
    assert_eq!(mode(&folder.0.join("captures")), 0o700);
    // Nothing half written is left beside it.
    assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_store_that_cannot_take_it_says_whether_waiting_helps() {
    let folder = Folder::new("refused");
    let captures = folder.open();
    // A file where the tenant's folder belongs: for root, too, there is no way.
    std::fs::write(folder.0.join("captures").join("acme"), b"").unwrap();
    let refused = captures.put(&TenantId::new("acme"), id(3), Bytes::new()).await.unwrap_err();
    assert!(matches!(refused, CapturesError::Store { .. }), "{refused}");
    assert!(!refused.is_passing(), "{refused}");
}

#[test]
fn a_place_that_is_none_is_refused_at_the_start() {
    let folder = Folder::new("none");
    std::fs::create_dir_all(&folder.0).unwrap();
    std::fs::write(folder.0.join("file"), b"").unwrap();
    let file = folder.0.join("file").join("captures");
    for location in [file.to_str().unwrap(), "ftp://host/folder", "s3://"] {
        let refused = Captures::open(location).unwrap_err();
        assert!(matches!(refused, CapturesError::Location { .. }), "{refused}");
    }
    Captures::open("s3://bucket/some/prefix").unwrap();
}
