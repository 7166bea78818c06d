//! Where a capture lies within the store. Tenants are named by any text, so a name becomes part of a
//! path only where it is one of letters, and otherwise as its hash: no name leads out of its folder,
//! is too long for a file system, or meets another one.

use object_store::path::Path;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::CapturesError;
use crate::domain::ids::TenantId;

/// What no plain name begins with.
const HASHED: &str = "_";
/// Longer names are hashed.
const LONGEST_NAME: usize = 64;

/// `<tenant>/<capture>`.
pub(super) fn of(tenant: &TenantId, capture: Uuid) -> Path {
    Path::from_iter([folder(tenant.as_str()), capture.hyphenated().to_string()])
}

/// A location as [`of`] made it. Others are refused: whatever wrote them was not this.
pub(super) fn read(location: &str) -> Result<Path, CapturesError> {
    let missing = || CapturesError::Missing { location: location.to_owned() };
    let (tenant, capture) = location.split_once('/').ok_or_else(missing)?;
    let name = tenant.strip_prefix(HASHED).unwrap_or(tenant);
    if !is_plain(name) || Uuid::try_parse(capture).is_err() {
        return Err(missing());
    }
    Path::parse(location).map_err(|_| missing())
}

fn folder(tenant: &str) -> String {
    if is_plain(tenant) && tenant.len() <= LONGEST_NAME {
        return tenant.to_owned();
    }
    let hash = Sha256::digest(tenant.as_bytes());
    std::iter::once(HASHED.to_owned())
        .chain(hash.iter().map(|byte| format!("{byte:02x}")))
        .collect()
}

/// Small letters only: some file systems take capitals for the same.
fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.bytes().next().is_some_and(plain)
        && name.bytes().all(|byte| plain(byte) || matches!(byte, b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(tenant: &str) -> String {
        of(&TenantId::new(tenant), Uuid::nil()).to_string()
    }

    #[test]
    fn a_plain_name_is_its_folder() {
        assert_eq!(place("acme-2"), "acme-2/00000000-0000-0000-0000-000000000000");
    }

    #[test]
    fn no_name_leads_anywhere_else_or_meets_another() {
        let long = "x".repeat(300);
        let names =
            ["..", "../../etc", "a/b", "/", "", ".", "Acme", "acme", "_", "a\0b", "ä", &long];
        let places: std::collections::BTreeSet<String> = names.map(place).into();
        assert_eq!(places.len(), names.len());
        for place in places {
            let parts: Vec<&str> = place.split('/').collect();
            assert_eq!(parts.len(), 2, "{place}");
            assert!(
                parts[0].len() <= 65 && !parts[0].contains('.') && !parts[0].is_empty(),
                "{place}"
            );
            assert_eq!(read(&place).unwrap().to_string(), place);
        }
    }

    #[test]
    fn a_location_that_nobody_made_is_missing() {
        let id = Uuid::nil();
        let locations = [
            "".to_owned(),
            id.to_string(),
            format!("../{id}"),
            format!("/etc/{id}"),
            format!("acme/../{id}"),
            format!("_/{id}"),
            "acme/passwd".to_owned(),
        ];
        for location in locations {
            assert!(matches!(read(&location), Err(CapturesError::Missing { .. })), "{location}");
        }
    }
}
