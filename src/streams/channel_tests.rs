//! What readers of a channel get, and what a hub keeps.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use uuid::Uuid;

use super::*;
use crate::domain::ids::{Fence, RequestId, TenantId};
use crate::domain::record::StoredAnswer;

const NOW: Duration = Duration::from_secs(1_000);

fn run(fence: i64) -> Run {
    Run {
        tenant: TenantId::new("t1"),
        key: Uuid::nil(),
        fence: Fence(fence),
        id: RequestId(Uuid::from_u128(fence.unsigned_abs().into())),
        held: false,
    }
}

fn find(hub: &Hub, fence: i64, now: Duration) -> Option<Arc<Channel>> {
    hub.find(&TenantId::new("t1"), Uuid::nil(), run(fence).id, now)
}

fn completed(body: Vec<u8>) -> Ending {
    Ending::Completed(Arc::new(StoredAnswer { status: 200, body }))
}

/// What there is without waiting. The flag: whether it is over.
fn read(reader: &mut Reader) -> (String, bool) {
    let mut all = Vec::new();
    loop {
        match reader.next().now_or_never() {
            Some(Some(bytes)) => all.extend_from_slice(&bytes),
            over => return (String::from_utf8(all).unwrap(), over.is_some()),
        }
    }
}

fn behind(fence: i64, n: u64) -> Begin {
    Begin::Behind(StreamId::Run { fence: Fence(fence), n })
}

fn events(text: &str) -> usize {
    text.matches("event: ").count()
}

#[test]
fn what_was_read_stays_an_event_and_what_was_not_is_gathered() {
    let hub = Hub::default();
    let writer = hub.open(run(1), NOW);
    let mut early = writer.channel().reader(Begin::Start);
    writer.push("a");
    writer.push("b");
    let (first, _) = read(&mut early);
    assert!(first.ends_with("id: 1-2\nevent: delta\ndata: {\"text\":\"ab\"}\n\n"), "{first}");
    writer.push("c\0");
    let (second, over) = read(&mut early);
    assert_eq!(second, "id: 1-3\nevent: delta\ndata: {\"text\":\"c\u{fffd}\"}\n\n");
    assert!(!over);
    writer.push("d");
    writer.finish(&completed(b"{}".to_vec()), NOW);
    let (rest, over) = read(&mut early);
    assert!(rest.ends_with("id: 1-5\nevent: completed\ndata: {}\n\n") && over, "{rest}");
    let channel = find(&hub, 1, NOW).unwrap();
    let whole = [first, second, rest].concat();
    assert_eq!(read(&mut channel.reader(Begin::Start)), (whole.clone(), true));
    for n in 1..=5 {
        let (text, _) = read(&mut channel.reader(behind(1, n)));
        assert_eq!(events(&text), 5 - usize::try_from(n).unwrap(), "{text}");
        assert!(whole.ends_with(&text));
    }
    for elsewhere in [behind(1, 6), behind(2, 1), Begin::Elsewhere] {
        let (text, _) = read(&mut channel.reader(elsewhere));
        assert!(text.starts_with("event: restarted\n") && text.ends_with(&whole), "{text}");
    }
}

#[test]
fn a_failed_call_is_forgotten_until_somebody_has_text_of_it() {
    let hub = Hub::default();
    let writer = hub.open(run(1), NOW);
    let mut reader = writer.channel().reader(Begin::Start);
    read(&mut reader);
    writer.push(&"x".repeat(10_000));
    assert!(!writer.forget());
    assert_eq!(read(&mut reader), (String::new(), false));
    writer.push("y");
    let (text, _) = read(&mut reader);
    assert_eq!(text, "id: 1-2\nevent: delta\ndata: {\"text\":\"y\"}\n\n");
    assert!(writer.forget());
    assert!(read(&mut writer.channel().reader(Begin::Start)).0.contains("\"y\""));
}

#[test]
fn a_held_stream_says_nothing_before_its_answer_was_accepted() {
    let hub = Hub::default();
    let writer = hub.open(Run { held: true, ..run(1) }, NOW);
    let mut reader = writer.channel().reader(Begin::Start);
    read(&mut reader);
    writer.push("no");
    assert_eq!(read(&mut reader).0, "");
    assert!(!writer.forget());
    writer.accepted("yes");
    assert!(read(&mut reader).0.contains("\"yes\""));
}

#[test]
fn text_is_kept_about_once_however_small_its_pieces_and_however_many_readers() {
    let hub = Hub::default();
    let writer = hub.open(run(1), NOW);
    let stuck: Vec<Reader> = (0..50).map(|_| writer.channel().reader(Begin::Start)).collect();
    let text: String = (0..300_000).map(|n| format!("{n} ")).collect();
    for piece in text.split_inclusive(' ') {
        writer.push(piece);
    }
    writer.finish(&completed(vec![b'x'; text.len()]), NOW);
    let (_, bytes) = hub.held();
    assert!(bytes < 2 * text.len() + text.len() / 10, "{bytes} for {}", text.len());
    for mut reader in stuck {
        let mut frames: Vec<Bytes> = Vec::new();
        while let Some(Some(frame)) = reader.next().now_or_never() {
            frames.push(frame);
        }
        let deltas = frames.iter().filter_map(|frame| {
            let data = std::str::from_utf8(frame).unwrap().split_once("event: delta\ndata: ")?.1;
            let data: serde_json::Value = serde_json::from_str(data).unwrap();
            Some(data["text"].as_str().unwrap().to_owned())
        });
        assert_eq!(deltas.collect::<String>(), text);
    }
}

#[test]
fn an_event_is_the_same_bytes_for_every_reader_and_none_of_its_own() {
    let hub = Hub::default();
    let writer = hub.open(run(1), NOW);
    let mut readers: Vec<Reader> =
        (0..100).map(|_| writer.channel().reader(Begin::Start)).collect();
    let mut ask = || -> HashSet<(*const u8, usize)> {
        let next = |reader: &mut Reader| reader.next().now_or_never().flatten().unwrap();
        readers.iter_mut().map(next).map(|bytes| (bytes.as_ptr(), bytes.len())).collect()
    };
    assert_eq!(ask().len(), 1, "started");
    for n in 0..100 {
        writer.push(&n.to_string());
        assert_eq!(ask().len(), 1, "a delta");
    }
    let answer = Arc::new(StoredAnswer { status: 200, body: vec![b'x'; 3 << 20] });
    writer.finish(&Ending::Completed(answer.clone()), NOW);
    assert_eq!(ask().len(), 1, "the head of the last event");
    let body = (answer.body.as_ptr(), answer.body.len());
    assert_eq!(ask(), HashSet::from([body]), "its data is the body that was committed");
}

#[test]
fn a_record_is_told_to_every_reader_from_the_same_bytes() {
    const BYTES: usize = 3 << 20;
    let (shelf, run) = (Shelf::default(), run(3));
    let replay = |begin| {
        let answer = Arc::new(StoredAnswer { status: 200, body: vec![b'x'; BYTES] });
        let text = |answer: &StoredAnswer| String::from_utf8(answer.body.clone()).ok();
        Replay::new(run.fence, run.id, shelf.share((run.fence, run.id), &answer, text), begin)
    };
    let at =
        |replay: Replay| -> Vec<_> { replay.map(|part| (part.as_ptr(), part.len())).collect() };
    let first = replay(Begin::Start);
    let readers: Vec<Replay> = (0..50).map(|_| replay(Begin::Start)).collect();
    let resumed = replay(Begin::Behind(StreamId::Record { fence: run.fence, n: 7 }));
    let first = at(first);
    assert!(first.iter().map(|(_, bytes)| bytes).sum::<usize>() > 2 * BYTES);
    assert!(readers.into_iter().all(|reader| at(reader) == first));
    assert_eq!(at(resumed), first[7..]);
}

#[test]
fn what_ended_is_kept_for_its_time_and_no_longer() {
    let hub = Hub::default();
    let writer = hub.open(run(1), NOW);
    writer.push("a");
    let channel = writer.channel().clone();
    drop(writer.channel().reader(Begin::Start));
    writer.finish(&completed(b"{}".to_vec()), NOW);
    let almost = NOW + KEPT_FOR - Duration::from_millis(1);
    assert!(find(&hub, 1, almost).is_some());
    assert!(find(&hub, 2, almost).is_none(), "another run's");
    let mut slow = channel.reader(Begin::Start);
    assert!(find(&hub, 1, NOW + KEPT_FOR).is_none());
    assert_eq!(hub.held(), (0, 0));
    // Who had not read it by then is cut.
    assert_eq!(read(&mut slow), (String::new(), true));
    assert!(read(&mut channel.reader(behind(1, 1))).1);
}

#[test]
fn ended_streams_are_bounded_and_the_oldest_go_first() {
    let hub = Hub::default();
    let open = |key: u128| hub.open(Run { key: Uuid::from_u128(key), ..run(1) }, NOW);
    for key in 1..=10 {
        let writer = open(key);
        drop(writer.channel().reader(Begin::Start));
        writer.finish(&completed(vec![b'x'; 8 << 20]), NOW);
    }
    let kept = |key| hub.find(&TenantId::new("t1"), Uuid::from_u128(key), run(1).id, NOW).is_some();
    assert!(!kept(1) && !kept(2) && kept(4) && kept(10));
    assert!(hub.held().1 <= 64 << 20);
}

#[test]
fn a_stream_that_nobody_joined_is_not_kept() {
    let hub = Hub::default();
    hub.open(run(1), NOW).finish(&completed(b"{}".to_vec()), NOW);
    assert!(find(&hub, 1, NOW).is_none());
    assert_eq!(hub.held(), (0, 0));
}

#[test]
fn a_newer_run_takes_the_place_and_keeps_it() {
    let hub = Hub::default();
    hub.open(run(1), NOW).finish(&completed(b"{}".to_vec()), NOW);
    let newer = hub.open(run(2), NOW);
    assert!(find(&hub, 1, NOW).is_none());
    // The end of the older one's time does not touch it.
    assert!(find(&hub, 2, NOW + KEPT_FOR).is_some());
    assert_eq!(hub.held(), (1, 0));
    drop(newer);
    assert!(find(&hub, 2, NOW).is_none());
}

#[test]
fn a_run_that_never_says_how_it_ended_was_lost() {
    let hub = Hub::default();
    let writer = hub.open(run(1), NOW);
    let mut reader = writer.channel().reader(Begin::Start);
    drop(writer);
    let (text, over) = read(&mut reader);
    assert!(text.contains("event: failed") && text.contains("run_lost") && over, "{text}");
}

#[test]
fn a_record_is_told_in_the_same_pieces_every_time() {
    let text: String = (0..30_000).map(|n| format!("{n}é ")).collect();
    let answer = Arc::new(StoredAnswer { status: 200, body: b"{\"a\":1}".to_vec() });
    let shelf = Shelf::default();
    let told = |begin| {
        let run = run(3);
        let told = shelf.share((run.fence, run.id), &answer, |_| Some(text.clone()));
        let replay = Replay::new(run.fence, run.id, told, begin);
        String::from_utf8(replay.flatten().collect()).unwrap()
    };
    let whole = told(Begin::Start);
    let count = events(&whole);
    assert!(count > 4, "several pieces");
    for n in 1..=count {
        let rest = told(Begin::Behind(StreamId::Record { fence: Fence(3), n: n as u64 }));
        assert!(whole.ends_with(&rest));
        assert_eq!(events(&rest), count - n);
    }
    let id = |n| StreamId::Record { fence: Fence(3), n };
    for elsewhere in [
        Begin::Behind(id(count as u64 + 1)),
        Begin::Behind(StreamId::Record { fence: Fence(2), n: 1 }),
        behind(3, 1),
        Begin::Elsewhere,
    ] {
        let text = told(elsewhere);
        assert!(text.starts_with("event: restarted\n") && text.ends_with(&whole));
    }
}
