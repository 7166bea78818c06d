//! Clients that mint a key for every attempt: nothing can be deduplicated for them, so they are counted.
//!
//! The same tenant, end user and meaning under another key within a minute looks like a repeat that does
//! not know its key. It can be two honest questions too ("yes", twice), so it is a number for people and
//! changes nothing. Only hashes are kept, a bounded number of them, in this process.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use uuid::Uuid;

use crate::clock::Moment;
use crate::domain::hash::RequestHash;
use crate::domain::ids::TenantId;
use crate::domain::key::uuid_of;

/// Within which two keys for one meaning are counted.
const WINDOW: Duration = Duration::from_secs(60);
/// What is remembered at most: about 2 MiB, 6 MiB where each comes under many keys, and a minute of 273 new
/// operations a second. Above that the oldest is forgotten, and the count is too low.
const MOST_ASKED: usize = 16_384;
/// Of one meaning; a client that mints faster than that is counted all the same.
const MOST_KEYS: usize = 8;

/// What was asked within the last minute.
#[derive(Default)]
pub struct Minted(Mutex<Asked>);

#[derive(Default)]
struct Asked {
    /// The keys of one tenant's one meaning and when each came last, the latest at the end.
    keys: HashMap<Uuid, Vec<(Uuid, Moment)>>,
    /// Meanings as they came first; each stands here once.
    order: VecDeque<Uuid>,
}

impl Minted {
    /// Notes an arrival. The key of an earlier one that it is nearly identical to, where this key is seen
    /// for the first time.
    pub fn earlier(
        &self,
        tenant: &TenantId,
        hash: &RequestHash,
        key: Uuid,
        now: Moment,
    ) -> Option<Uuid> {
        let asked = uuid_of(&[tenant.as_str().as_bytes(), &hash.0]);
        // Lists of hashes: whole after any panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).note(asked, key, now)
    }
}

impl Asked {
    fn note(&mut self, asked: Uuid, key: Uuid, now: Moment) -> Option<Uuid> {
        let Some(keys) = self.keys.get_mut(&asked) else {
            self.make_room(now);
            self.keys.insert(asked, vec![(key, now)]);
            self.order.push_back(asked);
            return None;
        };
        keys.retain(|(_, at)| now.since(*at) <= WINDOW);
        let known = keys.iter().position(|(known, _)| *known == key);
        let known = known.map(|place| keys.remove(place)).is_some();
        let earlier = keys.last().map(|(key, _)| *key);
        if keys.len() == MOST_KEYS {
            keys.remove(0);
        }
        keys.push((key, now));
        earlier.filter(|_| !known)
    }

    /// Lets go of what is over, and of the oldest where there is no more room.
    fn make_room(&mut self, now: Moment) {
        // Two are looked at for each that comes, so that what is over goes faster than new ones come.
        for _ in 0..2 {
            let is_full = self.order.len() >= MOST_ASKED;
            let Some(oldest) = self.order.pop_front() else { return };
            let last = self.keys.get(&oldest).and_then(|keys| keys.last());
            if !is_full && last.is_some_and(|(_, at)| now.since(*at) <= WINDOW) {
                // Asked again since; it waits for its turn anew.
                self.order.push_back(oldest);
            } else {
                self.keys.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    fn key(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn clock() -> ManualClock {
        ManualClock::new("2026-08-19T00:36:57Z".parse().unwrap())
    }

    #[test]
    fn a_new_key_for_the_same_question_is_counted_once_and_within_a_minute() {
        let (minted, clock) = (Minted::default(), clock());
        let (acme, hash) = (TenantId::new("acme"), RequestHash([7; 32]));
        let earlier = |number| minted.earlier(&acme, &hash, key(number), clock.now());
        assert_eq!(earlier(1), None);
        assert_eq!(earlier(1), None, "a repeat that knows its key");
        assert_eq!(earlier(2), Some(key(1)));
        assert_eq!((earlier(1), earlier(2)), (None, None), "counted already");
        clock.advance(WINDOW);
        assert_eq!(earlier(3), Some(key(2)));
        clock.advance(WINDOW + Duration::from_millis(1));
        assert_eq!(earlier(4), None);
        let other = TenantId::new("other");
        assert_eq!(minted.earlier(&other, &hash, key(5), clock.now()), None);
        assert_eq!(minted.earlier(&acme, &RequestHash([8; 32]), key(6), clock.now()), None);
    }

    #[test]
    fn what_is_remembered_is_bounded_in_number_and_time() {
        let (minted, clock) = (Minted::default(), clock());
        let acme = TenantId::new("acme");
        let held = || {
            let asked = minted.0.lock().unwrap();
            assert_eq!(asked.keys.len(), asked.order.len());
            asked.keys.len()
        };
        let mut hash = [0; 32];
        for number in 0..MOST_ASKED as u128 + 100 {
            hash[..16].copy_from_slice(&number.to_be_bytes());
            assert_eq!(minted.earlier(&acme, &RequestHash(hash), key(1), clock.now()), None);
            assert!(held() <= MOST_ASKED);
        }
        for number in 2..100 {
            minted.earlier(&acme, &RequestHash(hash), key(number), clock.now());
        }
        assert!(minted.0.lock().unwrap().keys.values().all(|keys| keys.len() <= MOST_KEYS));
        clock.advance(WINDOW * 2);
        for number in 0..MOST_ASKED as u128 {
            hash[16..].copy_from_slice(&number.to_be_bytes());
            minted.earlier(&acme, &RequestHash(hash), key(1), clock.now());
            clock.advance(WINDOW);
        }
        assert!(held() <= 3, "{}", held());
    }
}
