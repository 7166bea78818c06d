//! What one node shows another to be given a stream: proof that it reads the same database, good for
//! one run's stream and for nothing else.
//!
//! The secret itself stays in the database. An address in `nodes` that leads to somebody else gets no
//! more than a number that opens the stream it was asked for.

use std::fmt;
use std::fmt::Write;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::ids::{RequestId, TenantId};

/// The block of SHA-256, in bytes.
const BLOCK: usize = 64;

/// What all nodes on one database share.
#[derive(Clone)]
pub struct ClusterSecret([u8; 32]);

impl ClusterSecret {
    pub fn new(secret: [u8; 32]) -> Self {
        Self(secret)
    }

    /// The proof for the stream of this run.
    pub fn proof(&self, tenant: &TenantId, key: Uuid, run: RequestId) -> String {
        // No name of a tenant holds U+0000, so that two different streams are two texts.
        let what = format!("oncekey stream 1\0{tenant}\0{key}\0{run}");
        let mut proof = String::with_capacity(64);
        for byte in hmac(&self.0, what.as_bytes()) {
            // Writing to a String cannot fail.
            let _ = write!(proof, "{byte:02x}");
        }
        proof
    }

    /// Whether a proof is the one for this stream; takes as long for every wrong one.
    pub fn accepts(&self, proof: &str, tenant: &TenantId, key: Uuid, run: RequestId) -> bool {
        let right = self.proof(tenant, key, run);
        let differ = |(a, b): (u8, u8)| a ^ b;
        proof.len() == right.len()
            && right.bytes().zip(proof.bytes()).map(differ).fold(0, |all, one| all | one) == 0
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

    #[test]
    fn a_proof_opens_one_stream() {
        let (secret, id) = (ClusterSecret::new([7; 32]), |n| Uuid::from_u128(n));
        let tenant = TenantId::new("t1");
        let proof = secret.proof(&tenant, id(1), RequestId(id(2)));
        assert!(secret.accepts(&proof, &tenant, id(1), RequestId(id(2))));
        assert!(!secret.accepts(&proof, &tenant, id(1), RequestId(id(3))));
        assert!(!secret.accepts(&proof, &tenant, id(2), RequestId(id(2))));
        assert!(!secret.accepts(&proof, &TenantId::new("t2"), id(1), RequestId(id(2))));
        assert!(!secret.accepts(&proof[1..], &tenant, id(1), RequestId(id(2))));
        assert!(!secret.accepts("", &tenant, id(1), RequestId(id(2))));
        let other = ClusterSecret::new([8; 32]);
        assert!(!other.accepts(&proof, &tenant, id(1), RequestId(id(2))));
        assert_eq!(format!("{secret:?}"), "ClusterSecret([redacted])");
    }
}
