//! What a parse costs is what its receipt says, over however many runs: no piece is paid for twice where
//! its answer was kept, and no run that lost its operation leaves a piece or a result behind.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::parse_answers::{Scene, pieces_of};
use crate::support::behind_proxy::BehindProxy;
use crate::support::events::names_of;
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::parse::{echo, found_in, piece_of, rows, script};
use crate::support::process::ProcessNode;
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider, patiently};
use crate::support::proxy::Mode;
use crate::support::{Events, TestDatabase, eventually};

const CHARS: usize = 450;
const COUNTED: &str = "select count(*) from provider_calls where counted";
const CALLS: &str = "select count(*) from provider_calls";
const KEPT: &str = "select count(*) from parse_chunks";

fn pieces_in(text: &str, chars: usize) -> Vec<String> {
    let pieces = oncekey::domain::parse::chunk(text, chars);
    pieces.iter().map(|piece| piece.text(text).to_owned()).collect()
}

fn everything_in(text: &str) -> Vec<Value> {
    found_in(text)["dialogue"].as_array().unwrap().clone()
}

/// The one receipt says so many calls, as many as count, and the sum of their tokens.
async fn assert_receipt(database: &TestDatabase, calls: i64) {
    let told = "select provider_calls::bigint from usage_receipts";
    assert_eq!(database.count(told).await, calls, "calls on the receipt");
    assert_eq!(database.count(COUNTED).await, calls, "calls that count");
    let sums =
        "select count(*) from usage_receipts u where u.output_tokens = (select sum(output_tokens)
            from provider_calls where counted) and u.cost_usd = (select sum(cost_usd)
            from provider_calls where counted)";
    assert_eq!(database.count(sums).await, 1, "the receipt is the sum of its calls");
    assert_eq!(database.count(KEPT).await, 0, "nothing is kept beside the result");
}

/// Two nodes that do not notice by themselves that a run was taken from them, and a parse at the first
/// one whose last piece is held at the provider.
struct Zombie {
    database: TestDatabase,
    provider: ScriptedProvider,
    first: TestNode,
    second: TestNode,
    text: String,
    pieces: usize,
    key: Uuid,
    /// Hold the last piece of the first run, and of the second.
    gates: [Gate; 2],
    asked: tokio::task::JoinHandle<crate::support::Answer>,
}

impl Zombie {
    async fn start() -> Self {
        let options = || {
            pieces_of(CHARS)
                .set("ONCEKEY_IDEMPOTENCY__HEARTBEAT", "10m")
                .set("ONCEKEY_IDEMPOTENCY__STALE_AFTER", "2h")
        };
        let database = TestDatabase::new().await;
        let provider = ScriptedProvider::start().await;
        let first = TestNode::start(&database, &provider, options()).await;
        let second = TestNode::start(&database, &provider, options()).await;
        database.age_epoch().await;
        let text = script(24);
        let pieces = pieces_in(&text, CHARS);
        let gates = [Gate::closed(), Gate::closed()];
        let (last, mut holds) = (pieces.last().unwrap().clone(), gates.clone().into_iter());
        provider.reply_by(move |request| {
            let reply = echo(request);
            match (piece_of(request) == last).then(|| holds.next()).flatten() {
                Some(gate) => reply.before_head(Action::Hold(gate)),
                None => reply,
            }
        });
        let (client, key, sent) = (first.client("t1").await, Uuid::new_v4(), text.clone());
        let asked = tokio::spawn(async move { client.parse(key, &sent).await });
        gates[0].until_reached(1).await;
        let kept = i64::try_from(pieces.len()).unwrap() - 1;
        eventually("all but one are kept", || async { database.count(KEPT).await == kept }).await;
        database.age_heartbeats().await;
        let pieces = pieces.len();
        Self { database, provider, first, second, text, pieces, key, gates, asked }
    }

    async fn end(self) {
        assert_eq!(self.provider.count(), self.pieces + 1, "one piece was asked about twice");
        assert_receipt(&self.database, i64::try_from(self.pieces).unwrap()).await;
        assert_eq!(self.database.count("select count(*) from parse_results").await, 1);
        // What came too late was paid for as well, and stands beside the receipt.
        let late = "select count(*) from provider_calls where not counted and output_tokens > 0";
        assert_eq!(self.database.count(late).await, 1);
        assert_clean(self.second.store()).await;
        assert!(self.first.shut_down().await && self.second.shut_down().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_piece_that_comes_after_the_takeover_is_kept_nowhere() {
    let zombie = Zombie::start().await;
    let client = zombie.second.client("t1").await;
    let (taker, key, sent) = (client.clone(), zombie.key, zombie.text.clone());
    let taken = tokio::spawn(async move { taker.parse(key, &sent).await });
    zombie.gates[1].until_reached(1).await;

    zombie.gates[0].open();
    let mut zombie = zombie;
    let late = patiently("the late run's client", &mut zombie.asked).await.unwrap();
    assert_eq!((late.status, &*late.error()), (503, "run_lost"));
    let kept = i64::try_from(zombie.pieces).unwrap() - 1;
    assert_eq!(zombie.database.count(KEPT).await, kept, "the late piece is not among them");
    assert_eq!(zombie.database.count("select count(*) from parse_results").await, 0);

    zombie.gates[1].open();
    assert_eq!(rows(&taken.await.unwrap()), everything_in(&zombie.text));
    zombie.asked = tokio::spawn(async move { late });
    zombie.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_piece_that_comes_after_the_other_runs_commit_is_kept_nowhere() {
    let mut zombie = Zombie::start().await;
    zombie.gates[1].open();
    let answer = zombie.second.client("t1").await.parse(zombie.key, &zombie.text).await;
    assert_eq!(rows(&answer), everything_in(&zombie.text));
    assert_eq!(zombie.database.count(KEPT).await, 0);

    zombie.gates[0].open();
    let late = patiently("the late run's client", &mut zombie.asked).await.unwrap();
    assert!(late.replayed(), "the outcome is its client's answer too");
    assert_eq!(late.bytes, answer.bytes);
    zombie.asked = tokio::spawn(async move { late });
    zombie.end().await;
}

/// Answers a parse of three pieces, of which the second fails once.
async fn first_run_keeps_two_of_three(scene: &BehindProxy, key: Uuid) -> String {
    let text = script(12);
    let pieces = pieces_in(&text, CHARS);
    assert_eq!(pieces.len(), 3);
    let mut failed = false;
    scene.provider.reply_by(move |request| {
        if piece_of(request) == pieces[1] && !std::mem::replace(&mut failed, true) {
            return Reply::status(500, &[], "boom");
        }
        echo(request)
    });
    assert_eq!(scene.client.parse(key, &text).await.error(), "provider_failed");
    assert_eq!(scene.database.count(KEPT).await, 2);
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_to_the_commit_is_lost() {
    let options = pieces_of(CHARS).set("ONCEKEY_RETRY__MAX_ATTEMPTS", "1");
    for never_arrives in [false, true] {
        let scene = BehindProxy::start(1, options.clone()).await;
        scene.provider.reply_by(echo);
        // Prepares every statement on the pool's one connection, so that each is one round trip.
        assert_eq!(scene.client.parse(Uuid::new_v4(), "MARA: warm\n").await.status, 200);
        scene
            .database
            .execute(
                "delete from outbox; delete from parse_results;
            delete from usage_receipts; delete from provider_calls; delete from request_records;
            delete from request_keys",
            )
            .await;
        let key = Uuid::new_v4();
        let text = first_run_keeps_two_of_three(&scene, key).await;
        scene.at(oncekey::faults::Point::BeforeCommit, move |proxy| {
            if never_arrives {
                proxy.set(Mode::Refuse);
                proxy.cut();
            } else {
                proxy.set(Mode::SwallowReplies);
            }
        });
        let (client, sent) = (scene.client.clone(), text.clone());
        let asked = tokio::spawn(async move { client.parse(key, &sent).await });
        if never_arrives {
            scene.proxy.until_refused(1).await;
        } else {
            scene.proxy.until_swallowed(1).await;
            eventually("it is committed, with what was kept gone", || async {
                scene.database.count("select count(*) from usage_receipts").await == 1
            })
            .await;
            assert_eq!(scene.database.count(KEPT).await, 0);
        }
        assert!(!asked.is_finished(), "nobody knows of the commit yet");
        scene.proxy.heal();

        let answer = patiently("the answer", asked).await.unwrap();
        assert_eq!(rows(&answer), everything_in(&text));
        assert!(!answer.replayed(), "this arrival ran");
        assert_eq!(scene.provider.count(), 1 + 3 + 1, "the commit alone was repeated");
        assert_receipt(&scene.database, 3).await;
        let again = scene.client.parse(key, &text).await;
        assert!(again.replayed());
        assert_eq!(again.bytes, answer.bytes);
        scene.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn halves_that_read_the_same_are_two_calls_and_the_whole_is_not_asked_about_again() {
    let scene = Scene::start(pieces_of(432).set("ONCEKEY_RETRY__MAX_ATTEMPTS", "1")).await;
    let text = ["MARA: the same words again\n".repeat(32), "OTTO: enough\n".to_owned()].concat();
    let pieces = pieces_in(&text, 432);
    assert_eq!((pieces.len(), &pieces[0]), (3, &pieces[1]));
    let gate = Gate::closed();
    let (first, third, held) = (pieces[0].clone(), pieces[2].clone(), gate.clone());
    scene.provider.reply_by(move |request| {
        let (_, message) = request.messages().pop().unwrap();
        let piece = piece_of(request);
        if piece == third {
            return Reply::status(500, &[], "boom").before_head(Action::Hold(held.clone()));
        }
        if piece == first && message.contains("part 2") {
            return Reply::tool_cut_by_max_tokens("{\"title\":\"\"}");
        }
        echo(request)
    });
    let (client, key, sent) = (scene.client.clone(), scene.key, text.clone());
    let asked = tokio::spawn(async move { client.parse(key, &sent).await });
    eventually("the first piece and both halves are done", || async {
        scene.database.count(CALLS).await == 3
    })
    .await;
    gate.open();
    assert_eq!(asked.await.unwrap().error(), "provider_failed");
    assert_eq!(scene.provider.count(), 5, "three pieces and two halves");

    scene.provider.reply_by(echo);
    let answer = scene.client.parse(key, &text).await;
    assert_eq!(rows(&answer), everything_in(&text));
    assert_eq!(scene.provider.count(), 6, "one piece was left");
    assert_receipt(&scene.database, 4).await;
    scene.end().await;
}

/// Answers every piece with nothing at first; asked again, with `again`.
fn nothing_at_first(scene: &Scene, again: impl Fn(&str) -> Reply + Send + 'static) {
    scene.provider.reply_by(move |request| {
        let (_, message) = request.messages().pop().unwrap();
        if message.contains("nothing was found") {
            again(&piece_of(request))
        } else {
            Reply::tool_file("empty_dialogue.txt")
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_had_at_the_second_look_does_not_sink_what_was_found() {
    for bad in [Reply::tool("{\"title\": 7"), Reply::tool_cut_by_max_tokens("{\"title\":\"\"}")] {
        let scene = Scene::start(pieces_of(CHARS)).await;
        let text = script(12);
        let pieces = pieces_in(&text, CHARS);
        let longest = pieces.iter().max_by_key(|piece| piece.len()).unwrap().clone();
        let good = longest.clone();
        nothing_at_first(&scene, move |piece| {
            if piece == good { Reply::tool(found_in(piece).to_string()) } else { bad.clone() }
        });
        let answer = scene.client.parse(scene.key, &text).await;
        assert_eq!(rows(&answer), everything_in(&longest));
        assert_eq!(answer.json()["gaps"], json!([]), "what they said first stands");
        let changed = "select count(*) from provider_calls
            where counted and changed = 'feedback, temperature 0.5'";
        assert_eq!(scene.database.count(changed).await, 1);
        assert_receipt(&scene.database, 3).await;
        scene.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_found_at_the_second_look_is_not_paid_for_again() {
    let scene = Scene::start(pieces_of(CHARS).set("ONCEKEY_RETRY__MAX_ATTEMPTS", "1")).await;
    let text = script(12);
    let pieces = pieces_in(&text, CHARS);
    let longest = pieces.iter().max_by_key(|piece| piece.len()).unwrap().clone();
    nothing_at_first(&scene, move |piece| {
        if piece == longest {
            Reply::tool(found_in(piece).to_string())
        } else {
            Reply::status(500, &[], "boom")
        }
    });
    assert_eq!(scene.client.parse(scene.key, &text).await.error(), "provider_failed");
    let before = scene.provider.count();
    scene.provider.reply_by(echo);
    let answer = scene.client.parse(scene.key, &text).await;
    assert_eq!(rows(&answer), everything_in(&text));
    assert_eq!(scene.provider.count() - before, 2, "the two that were not had");
    assert_receipt(&scene.database, 3).await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_over_parse_is_followed_from_another_node_and_told_from_the_record() {
    let mut zombie = Zombie::start().await;
    let client = zombie.second.client("t1").await;
    let body = json!({"text": zombie.text, "stream": true});
    let mut stream = Events::open(client.parse_request(zombie.key, &body)).await;
    let all = json!({"chunks_done": zombie.pieces - 1, "chunks": zombie.pieces});
    let mut events = vec![stream.event().await];
    while events.last().unwrap().data != all {
        events.push(stream.event().await);
    }
    // At the node that lost it.
    let mut along = zombie.first.client("t1").await.events(zombie.key, None).await;
    for event in &events {
        let other = along.event().await;
        assert_eq!((&other.id, &other.data), (&event.id, &event.data));
    }
    zombie.gates[1].open();
    events.extend(stream.rest().await);
    let done = |event: &crate::support::events::Event| event.data["chunks_done"].as_u64();
    let done: Vec<u64> = events.iter().filter_map(done).collect();
    assert!(done.is_sorted() && done.last() == Some(&(zombie.pieces as u64)), "{done:?}");
    assert_eq!(*names_of(&events).last().unwrap(), "completed");
    assert_eq!(along.rest().await.last().unwrap().data, events.last().unwrap().data);

    zombie.gates[0].open();
    let late = patiently("the late run's client", &mut zombie.asked).await.unwrap();
    assert_eq!(late.json(), events.last().unwrap().data);
    zombie.asked = tokio::spawn(async move { late });
    zombie.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_nobody_comes_back_for_is_ended_and_goes_on_from_what_it_had() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let text = script(12);
    let last = pieces_in(&text, CHARS).pop().unwrap();
    let hung = last.clone();
    provider.reply_by(
        move |request| {
            if piece_of(request) == hung { Reply::hang() } else { echo(request) }
        },
    );
    let variables = [
        ("ONCEKEY_PARSE__CHUNK_CHARS", CHARS.to_string()),
        ("ONCEKEY_IDEMPOTENCY__HEARTBEAT", "1s".to_owned()),
        ("ONCEKEY_IDEMPOTENCY__STALE_AFTER", "12s".to_owned()),
    ];
    let quick = variables.each_ref().map(|(name, value)| (*name, &**value));
    let mut first = ProcessNode::on(&database, &provider, &quick).await;
    let quick = quick.iter().fold(NodeOptions::default(), |it, (name, value)| it.set(name, value));
    let second = TestNode::start(&database, &provider, quick).await;
    database.age_epoch().await;
    let client = second.client("t1").await;
    let (asking, key, sent) = (client.at(first.address), Uuid::new_v4(), text.clone());
    let asked = tokio::spawn(async move {
        asking.send(asking.parse_request(key, &json!({"text": sent}))).await.map(drop)
    });
    eventually("two are kept", || async { database.count(KEPT).await == 2 }).await;
    first.kill().await;
    assert!(asked.await.unwrap().is_err());
    let ended = "select count(*) from request_records where state = 'failed' and failure_kind = 'abandoned'";
    // What is known of a dead node need not be waited for.
    eventually("the dead node is known", || async {
        database.count("select count(*) from nodes where dead_at is not null").await > 0
    })
    .await;
    database.age_heartbeats().await;
    eventually("the run is ended", || async { database.count(ended).await == 1 }).await;
    assert_clean(second.store()).await;

    provider.reply_by(echo);
    assert_eq!(rows(&client.parse(key, &text).await), everything_in(&text));
    assert_eq!(provider.count(), 4, "only the last one was asked about again");
    assert_receipt(&database, 3).await;
    assert_clean(second.store()).await;
    assert!(second.shut_down().await);
}
