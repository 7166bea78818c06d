//! Whose turn it is, and who is sent away, on a clock that only the test moves.

use std::pin::pin;
use std::task::Poll;

use chrono::DateTime;
use futures_util::{FutureExt, poll};
use tokio::task::unconstrained;

use super::*;
use crate::clock::ManualClock;

const SECOND: Duration = Duration::from_secs(1);

fn clock() -> ManualClock {
    ManualClock::new(DateTime::UNIX_EPOCH)
}

fn slots(places: usize, wait: Duration, clock: &ManualClock) -> Slots {
    Slots::new("main", places, wait, SECOND * 8, clock.clock())
}

fn tenant(name: &str) -> TenantId {
    TenantId::new(name)
}

fn assert_idle(slots: &Slots) {
    assert!(slots.0.lock().turns.is_idle());
}

#[tokio::test]
async fn a_wait_of_zero_turns_away_at_once() {
    let clock = clock();
    let slots = slots(1, Duration::ZERO, &clock);
    let held = slots.take(&tenant("a")).await.unwrap();
    let refused = slots.take(&tenant("a")).await.err();
    assert_eq!(refused, Some(NoSlot::Discarded { in_use: 1, allowed: 1 }));
    drop(held);
    drop(slots.take(&tenant("a")).await.unwrap());
    assert_idle(&slots);
}

#[tokio::test]
async fn a_wait_is_bounded_and_leaves_the_line() {
    let clock = clock();
    let slots = slots(1, SECOND * 10, &clock);
    let held = slots.take(&tenant("a")).await.unwrap();
    let a = tenant("a");
    let mut waiting = pin!(slots.take(&a));
    assert!(poll!(&mut waiting).is_pending());
    assert!(slots.is_full());
    clock.advance(SECOND * 8);
    assert!(poll!(&mut waiting).is_pending(), "at most a tenth is taken off");
    clock.advance(SECOND * 2);
    assert_eq!(waiting.await.err(), Some(NoSlot::TimedOut));
    drop(held);
    assert_idle(&slots);
}

#[tokio::test]
async fn a_heavy_tenant_does_not_starve_another() {
    // So many polls are more than a task is given at a time.
    unconstrained(a_heavy_and_a_light_tenant()).await;
}

async fn a_heavy_and_a_light_tenant() {
    let clock = clock();
    let slots = slots(2, SECOND * 10, &clock);
    let (heavy, light) = (tenant("heavy"), tenant("light"));
    let first = slots.take(&heavy).await.unwrap();
    let second = slots.take(&heavy).await.unwrap();
    let mut import: Vec<_> = (0..1_000).map(|_| Box::pin(slots.take(&heavy))).collect();
    for call in &mut import {
        assert!(poll!(call).is_pending());
    }
    let mut single = pin!(slots.take(&light));
    assert!(poll!(&mut single).is_pending());
    drop(first);
    let Poll::Ready(Ok(single)) = poll!(&mut single) else { panic!("the next free slot is its") };
    drop(second);
    let Poll::Ready(Ok(next)) = poll!(&mut import[0]) else { panic!("first come first served") };
    assert!(poll!(&mut import[1]).is_pending());
    drop((single, next));
    // Two slots came back; both go to the only tenant that waits.
    assert!(poll!(&mut import[1]).is_ready());
    drop(import);
    assert_idle(&slots);
}

#[tokio::test]
async fn one_that_goes_away_gives_its_slot_to_the_next() {
    let clock = clock();
    let slots = slots(1, SECOND * 10, &clock);
    let a = tenant("a");
    let held = slots.take(&a).await.unwrap();
    let mut lost = Box::pin(slots.take(&a));
    let mut next = pin!(slots.take(&a));
    assert!(poll!(&mut lost).is_pending() && poll!(&mut next).is_pending());
    drop(held);
    // Given to the first, which never looks.
    drop(lost);
    assert!(poll!(&mut next).is_ready());
}

#[tokio::test]
async fn after_a_refusal_one_call_at_a_time() {
    let clock = clock();
    let slots = slots(3, SECOND * 10, &clock);
    let a = tenant("a");
    let held = [(); 3].map(|()| slots.clone());
    let mut held: Vec<_> = {
        let mut all = Vec::new();
        for slots in &held {
            all.push(slots.take(&a).await.unwrap());
        }
        all
    };
    let sent = clock.now();
    held[0].failed(FailureKind::RateLimited, sent, None);
    let mut waiting = pin!(slots.take(&a));
    assert!(poll!(&mut waiting).is_pending());
    held.truncate(1);
    assert!(poll!(&mut waiting).is_pending(), "the one that is allowed is in use");
    held.clear();
    let Poll::Ready(Ok(slot)) = poll!(&mut waiting) else { panic!("one is free") };
    slot.answered(clock.now());
    drop(slots.take(&a).await.unwrap());
    drop(slot);
    assert_idle(&slots);
}

#[tokio::test]
async fn after_a_refusal_long_calls_of_before_hold_nobody_up_for_ever_and_bring_nothing_back() {
    let clock = clock();
    let slots = slots(3, SECOND * 30, &clock);
    let a = tenant("a");
    let sent = clock.now();
    let long = [slots.take(&a).await.unwrap(), slots.take(&a).await.unwrap()];
    let refused = slots.take(&a).await.unwrap();
    clock.advance(SECOND);
    refused.failed(FailureKind::RateLimited, sent, None);
    drop(refused);
    let mut next = pin!(slots.take(&a));
    let mut last = pin!(slots.take(&a));
    assert!(poll!(&mut next).is_pending() && poll!(&mut last).is_pending());
    clock.advance(SECOND * 8);
    let Poll::Ready(Ok(next)) = poll!(&mut next) else { panic!("the long ones count no more") };
    assert!(poll!(&mut last).is_pending(), "one at a time");
    let [one, other] = long;
    one.answered(sent);
    drop(one);
    assert!(poll!(&mut last).is_pending(), "an answer of before says nothing");
    next.answered(clock.now());
    drop(next);
    let Poll::Ready(Ok(last)) = poll!(&mut last) else { panic!("its place is free") };
    let second = slots.take(&a).now_or_never().expect("two at a time now");
    assert!(slots.is_full());
    drop((last, second, other));
    assert_idle(&slots);
    assert_eq!(slots.0.lock().older, 0);
}

async fn refuse(slots: &Slots, clock: &ManualClock) {
    let slot = slots.take(&tenant("a")).await.unwrap();
    slot.failed(FailureKind::RateLimited, clock.now(), None);
}

#[tokio::test]
async fn a_latched_provider_is_left_alone_and_then_asked_once() {
    let clock = clock();
    let slots = slots(4, SECOND * 10, &clock);
    for _ in 0..3 {
        refuse(&slots, &clock).await;
        clock.advance(SECOND / 10);
    }
    let a = tenant("a");
    let mut waiting: Vec<_> = (0..5).map(|_| Box::pin(slots.take(&a))).collect();
    for call in &mut waiting {
        assert!(poll!(call).is_pending(), "it opens within the wait");
    }
    clock.advance(SECOND * 8);
    let mut given = Vec::new();
    for call in &mut waiting {
        if let Poll::Ready(slot) = poll!(call) {
            given.push(slot.unwrap());
        }
    }
    assert_eq!(given.len(), 1, "one to try with");
    given[0].failed(FailureKind::RateLimited, clock.now(), None);
    given.clear();
    let left = SECOND * 16;
    assert_eq!(slots.take(&a).await.err(), Some(NoSlot::Latched { left }), "longer than the wait");
    assert!(slots.is_full());
    clock.advance(SECOND * 16);
    drop(waiting);
    slots.take(&a).await.unwrap().answered(clock.now());
    assert!(!slots.is_full());
    assert_idle(&slots);
}

#[tokio::test]
async fn a_closed_account_sends_everybody_away_at_once() {
    let clock = clock();
    let slots = slots(1, SECOND * 10, &clock);
    let a = tenant("a");
    let slot = slots.take(&a).await.unwrap();
    let mut waiting = pin!(slots.take(&a));
    assert!(poll!(&mut waiting).is_pending());
    assert_eq!(slots.closed_for(), None);
    let left = SECOND * 60;
    slot.failed(FailureKind::Quota, clock.now(), Some(left));
    assert_eq!(waiting.await.err(), Some(NoSlot::Closed { left }));
    assert_eq!(slots.take(&a).await.err(), Some(NoSlot::Closed { left }));
    assert_eq!(slots.closed_for(), Some(left));
    drop(slot);
    clock.advance(left);
    assert_eq!(slots.closed_for(), None);
    drop(slots.take(&a).await.unwrap());
    assert_idle(&slots);
}

#[tokio::test]
async fn a_thousand_calls_against_a_provider_that_refuses_are_few_calls() {
    unconstrained(a_thousand_calls()).await;
}

async fn a_thousand_calls() {
    let clock = clock();
    let slots = slots(64, SECOND * 30, &clock);
    let names: Vec<_> = (0..1_000).map(|number| tenant(&format!("t{}", number % 7))).collect();
    let mut waiting: Vec<_> = names.iter().map(|name| Some(Box::pin(slots.take(name)))).collect();
    let (mut calls, mut sent_away) = (0, 0);
    while sent_away + calls < 1_000 {
        let mut under_way = Vec::new();
        for call in &mut waiting {
            let Some(future) = call else { continue };
            match poll!(future) {
                Poll::Ready(Ok(slot)) => under_way.push(slot),
                Poll::Ready(Err(_)) => sent_away += 1,
                Poll::Pending => continue,
            }
            *call = None;
        }
        let sent = clock.now();
        clock.advance(SECOND);
        for slot in &under_way {
            slot.failed(FailureKind::RateLimited, sent, None);
        }
        calls += under_way.len();
    }
    assert!(calls < 64 + 10, "{calls} calls");
    assert_idle(&slots);
}
