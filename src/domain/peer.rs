//! What one node shows another to be given a stream: proof that it reads the same database, good for
//! one run's stream and for nothing else.
//!
//! The secret itself stays in the database. An address in `nodes` that leads to somebody else gets no
//! more than a number that opens the stream it was asked for, and that for minutes.

use std::fmt;
use std::fmt::Write;

use chrono::{DateTime, Utc};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::ids::{RequestId, TenantId};

/// How far the time of a proof may lie from the clock of the node that checks it, back or ahead, in
/// seconds. A proof is made for one request that follows at once, so this is what clocks may differ
/// by; those of machines that are kept at all are seconds apart. Nodes that are further apart are
/// nodes that cannot reach each other: the record is waited for.
pub const PROOF_SECONDS: i64 = 300;

/// The block of SHA-256, in bytes.
const BLOCK: usize = 64;

/// What all nodes on one database share.
#[derive(Clone)]
pub struct ClusterSecret([u8; 32]);

impl ClusterSecret {
    pub fn new(secret: [u8; 32]) -> Self {
        Self(secret)
    }

    /// The proof for the stream of this run, made now: the time in whole seconds and a seal over all.
    pub fn proof(
        &self,
        tenant: &TenantId,
        key: Uuid,
        run: RequestId,
        now: DateTime<Utc>,
    ) -> String {
        let made = now.timestamp();
        format!("{made}.{}", self.seal(tenant, key, run, made))
    }

    /// Whether a proof is one for this stream, and not too old or from too far ahead. Every wrong seal
    /// takes as long.
    pub fn accepts(
        &self,
        proof: &str,
        tenant: &TenantId,
        key: Uuid,
        run: RequestId,
        now: DateTime<Utc>,
    ) -> bool {
        let Some((made, seal)) = proof.split_once('.') else { return false };
        let Ok(made) = made.parse::<i64>() else { return false };
        let right = self.seal(tenant, key, run, made);
        let differ = |(a, b): (u8, u8)| a ^ b;
        seal.len() == right.len()
            && right.bytes().zip(seal.bytes()).map(differ).fold(0, |all, one| all | one) == 0
            && made.abs_diff(now.timestamp()) <= PROOF_SECONDS.unsigned_abs()
    }

    fn seal(&self, tenant: &TenantId, key: Uuid, run: RequestId, made: i64) -> String {
        // No name of a tenant holds U+0000, so that two different streams are two texts.
        let what = format!("oncekey stream 2\0{made}\0{tenant}\0{key}\0{run}");
        let mut seal = String::with_capacity(64);
        for byte in hmac(&self.0, what.as_bytes()) {
            // Writing to a String cannot fail.
            let _ = write!(seal, "{byte:02x}");
        }
        seal
    }
}

impl fmt::Debug for ClusterSecret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ClusterSecret([redacted])")
    }
}

/// HMAC-SHA-256 (RFC 2104) under a key that is no longer than a block.
fn hmac(key: &[u8; 32], text: &[u8]) -> [u8; 32] {
    let pad = |with: u8| {
        let mut block = [with; BLOCK];
        for (byte, key) in block.iter_mut().zip(key) {
            *byte ^= key;
        }
        block
    };
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_hmac_as_others_compute_it() {
        // From Python's hmac module.
        let hex: String =
            hmac(&[0x0b; 32], b"Hi There").iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "198a607eb44bfbc69903a0f1cf2bbdc5ba0aa3f3d9ae3c1c7a3b1696a0b68cf7");
    }

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    #[test]
    fn a_proof_opens_one_stream() {
        let (secret, id, now) = (ClusterSecret::new([7; 32]), Uuid::from_u128, at(0));
        let tenant = TenantId::new("t1");
        let proof = secret.proof(&tenant, id(1), RequestId(id(2)), now);
        let accepts = |proof: &str, tenant: &TenantId, key, run| {
            secret.accepts(proof, tenant, id(key), RequestId(id(run)), now)
        };
        assert!(accepts(&proof, &tenant, 1, 2));
        assert!(!accepts(&proof, &tenant, 1, 3));
        assert!(!accepts(&proof, &tenant, 2, 2));
        assert!(!accepts(&proof, &TenantId::new("t2"), 1, 2));
        let (made, seal) = proof.split_once('.').unwrap();
        for broken in ["", ".", made, seal, &proof[1..], &proof[..proof.len() - 1]] {
            assert!(!accepts(broken, &tenant, 1, 2), "{broken}");
        }
        let other = ClusterSecret::new([8; 32]);
        assert!(!other.accepts(&proof, &tenant, id(1), RequestId(id(2)), now));
        assert_eq!(format!("{secret:?}"), "ClusterSecret([redacted])");
    }

    #[test]
    fn a_proof_is_good_for_minutes_and_its_time_cannot_be_changed() {
        let (secret, tenant) = (ClusterSecret::new([7; 32]), TenantId::new("t1"));
        let (key, run) = (Uuid::from_u128(1), RequestId(Uuid::from_u128(2)));
        let proof = secret.proof(&tenant, key, run, at(0));
        let accepts = |proof: &str, now| secret.accepts(proof, &tenant, key, run, now);
        for (seconds, good) in [
            (-PROOF_SECONDS - 1, false),
            (-PROOF_SECONDS, true),
            (PROOF_SECONDS, true),
            (PROOF_SECONDS + 1, false),
        ] {
            assert_eq!(accepts(&proof, at(seconds)), good, "{seconds}");
        }
        let (_, seal) = proof.split_once('.').unwrap();
        let later = at(PROOF_SECONDS + 1);
        assert!(!accepts(&format!("{}.{seal}", later.timestamp()), later));
        for time in [i64::MIN, i64::MAX] {
            assert!(!accepts(&format!("{time}.{seal}"), later));
        }
    }
}
