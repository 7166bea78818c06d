//! More readers of one run: each assembles exactly the text that is stored, whenever and wherever it
//! joins, and nobody else gets a word of it.

use uuid::Uuid;

use crate::support::events::{Event, names_of, text_of};
use crate::support::node::{NodeOptions, TestNode, assert_clean, new_key};
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider};
use crate::support::{Answer, Client, Events, TestDatabase, eventually};

const TEXT: &str = "1 2 3 4 5 6 7 8 9 10";

struct Scene {
    database: TestDatabase,
    provider: ScriptedProvider,
    node: TestNode,
    client: Client,
    key: Uuid,
    gates: Vec<Gate>,
}

impl Scene {
    /// The provider says ten pieces, each only when the gate behind it is open.
    async fn start() -> Self {
        Self::with(NodeOptions::default()).await
    }

    async fn with(options: NodeOptions) -> Self {
        let database = TestDatabase::new().await;
        let provider = ScriptedProvider::start().await;
        let gates: Vec<Gate> = (0..10).map(|_| Gate::closed()).collect();
        let reply = gates.iter().enumerate().fold(Reply::text(TEXT), |reply, (at, gate)| {
            reply.after(at + 1, Action::Hold(gate.clone()))
        });
        provider.reply(reply);
        let node = TestNode::start(&database, &provider, options).await;
        let client = node.client("t1").await;
        Self { database, provider, node, client, key: Uuid::new_v4(), gates }
    }

    fn open(&self, gates: std::ops::Range<usize>) {
        self.gates[gates].iter().for_each(Gate::open);
    }

    async fn assert_one_outcome(&self, readers: &[&[Event]]) {
        let answer = self.client.chat(self.key, "c1", "hello").await;
        assert_eq!(answer.content(), TEXT);
        for events in readers {
            assert_eq!(text_of(events), TEXT, "{events:?}");
            let last = events.last().unwrap();
            assert_eq!((last.name.as_str(), &last.data), ("completed", &answer.json()));
        }
        assert_eq!(self.provider.count(), 1);
        assert_eq!(self.database.outcomes().await, (1, 1, 1));
    }

    async fn end(self) {
        assert_clean(self.node.store()).await;
        assert!(self.node.shut_down().await, "nothing had to be cut");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_join_late_have_the_whole_text() {
    let scene = Scene::start().await;
    let (client, key) = (&scene.client, scene.key);
    let mut a = client.stream(key, "c1", "hello").await;
    let mut of_a = vec![a.event().await, a.event().await];
    // Each piece is read before the next is said, and so is an event of its own.
    for gate in 0..3 {
        scene.open(gate..gate + 1);
        of_a.push(a.event().await);
    }
    assert_eq!(of_a[4].text(), "4 ");

    // With nothing in hand; with the id of the third piece; with one of a run that never was.
    let mut b = client.stream(key, "c1", "hello").await;
    let third = of_a.iter().find(|event| event.name == "delta" && event.text() == "3 ").unwrap();
    let mut c = client.events(key, third.id.as_deref()).await;
    let mut d = client.events(key, Some("7-3")).await;
    let mut of_b = b.until_text("4 ").await;
    let mut of_c = vec![c.event().await];
    assert_eq!(of_c[0].text(), "4 ", "what it has is not said again");
    let mut of_d = d.until_text("4 ").await;
    assert_eq!(names_of(&of_d), ["restarted", "started", "delta"]);
    assert_eq!(of_d[0].id, None);
    assert_eq!(of_d[0].data, of_d[1].data);

    // B loses its connection and comes back twice before anything new is said.
    for _ in 0..2 {
        let last_id = b.last_id.clone();
        drop(b);
        b = client.events(key, last_id.as_deref()).await;
        b.last_id = last_id;
    }
    scene.open(3..10);
    for (reader, events) in
        [(&mut a, &mut of_a), (&mut b, &mut of_b), (&mut c, &mut of_c), (&mut d, &mut of_d)]
    {
        events.extend(reader.rest().await);
    }
    let three = of_a.iter().filter(|event| event.name == "delta").take(3).cloned();
    let of_c: Vec<Event> = three.chain(of_c).collect();
    scene.assert_one_outcome(&[&of_a, &of_b, &of_c, &of_d]).await;
    assert_eq!(of_b, of_a, "the same events under the same ids");

    // Afterwards too, from the start and from any place.
    let again = client.stream(key, "c1", "hello").await.rest().await;
    assert_eq!(again, of_a);
    let (last, others) = of_a.split_last().unwrap();
    client.assert_over(key, last.id.as_deref()).await;
    for (at, event) in others.iter().enumerate() {
        let rest = client.events(key, event.id.as_deref()).await.rest().await;
        assert_eq!(rest, of_a[at + 1..], "behind {:?}", event.id);
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_joins_a_run_that_was_begun_plainly() {
    let scene = Scene::start().await;
    let (client, key) = (scene.client.clone(), scene.key);
    let plain = tokio::spawn(async move { client.chat(key, "c1", "hello").await });
    scene.gates[0].until_reached(1).await;
    scene.open(0..4);
    scene.gates[4].until_reached(1).await;
    let mut stream = scene.client.stream(key, "c1", "hello").await;
    let mut events = stream.until_text("5 ").await;
    scene.open(4..10);
    events.extend(stream.rest().await);
    assert_eq!(plain.await.unwrap().json(), events.last().unwrap().data);
    scene.assert_one_outcome(&[&events]).await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_else_hears_of_it() {
    let scene = Scene::start().await;
    let store = scene.node.store();
    let stranger = scene.node.client("t2").await;
    let bound = scene.client.with_key(&new_key(store, "t1", "client", Some("ann")).await);
    let finance = scene.client.with_key(&new_key(store, "t1", "finance", None).await);
    let operator = scene.client.with_key(&new_key(store, "t1", "operator", None).await);
    let mut stream = scene.client.stream(scene.key, "c1", "hello").await;
    stream.until_text("1 ").await;
    for running in [true, false] {
        for client in [&stranger, &bound] {
            let none = client.get(&format!("/v1/requests/{}/events", Uuid::new_v4())).await;
            let theirs = client.get(&format!("/v1/requests/{}/events", scene.key)).await;
            assert_eq!((theirs.status, theirs.error().as_str()), (404, "not_found"));
            let without_id = |answer: &crate::support::Answer| {
                let mut body = answer.json();
                body["request_id"] = "".into();
                body
            };
            assert_eq!(without_id(&theirs), without_id(&none));
        }
        let answer = finance.get(&format!("/v1/requests/{}/events", scene.key)).await;
        assert_eq!((answer.status, answer.error().as_str()), (403, "forbidden"));
        let mut read = operator.events(scene.key, None).await;
        assert_eq!(read.event().await.name, "started");
        if running {
            scene.open(0..10);
            assert_eq!(names_of(&stream.rest().await).last(), Some(&"completed"));
        }
    }
    // Under its own tenant the same key is another operation.
    let own = stranger.stream(scene.key, "c1", "hello").await.rest().await;
    assert_eq!(text_of(&own), "Answer to message 1: hello");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_long_over_is_told_from_its_record() {
    let scene = Scene::start().await;
    scene.open(0..10);
    let answer = scene.client.chat(scene.key, "c1", "hello").await;
    // Another node has never had the run's stream, and its own node is gone.
    let Scene { database, provider, node, client, key, .. } = scene;
    assert!(node.shut_down().await);
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let client = client.at(node.address());
    for events in [
        client.stream(key, "c1", "hello").await.rest().await,
        client.events(key, None).await.rest().await,
        // An id of the run as it happened leads nowhere any more.
        client.events(key, Some("1-3")).await.rest().await,
    ] {
        let told: Vec<Event> =
            events.into_iter().filter(|event| event.name != "restarted").collect();
        let ids: Vec<&str> = told.iter().map(|event| event.id.as_deref().unwrap()).collect();
        assert_eq!(ids, ["1-r1", "1-r2", "1-r3"]);
        assert_eq!(names_of(&told), ["started", "delta", "completed"]);
        assert_eq!(text_of(&told), TEXT);
        assert_eq!(told[0].data["request_id"], answer.json()["request_id"]);
        assert_eq!(told[2].data, answer.json());
    }
    let restarted = client.events(key, Some("1-3")).await.event().await;
    assert_eq!((restarted.name.as_str(), &restarted.id), ("restarted", &None));
    let behind = client.events(key, Some("1-r2")).await.rest().await;
    assert_eq!(names_of(&behind), ["completed"]);
    client.assert_over(key, Some("1-r3")).await;
    // The same behind a repeat, which is answered from the record as well.
    let repeat = client.stream_request(key, "c1", "hello").header("last-event-id", "1-r3");
    let repeat = client.send(repeat).await.unwrap();
    assert_eq!((repeat.status, repeat.replayed()), (204, true));
    assert_eq!(provider.count(), 1);
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_final_failure_is_told_as_it_is_stored() {
    let scene = Scene::start().await;
    scene.provider.reply_by(|_| {
        Reply::status(
            400,
            &[("content-type", "application/json")],
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"no"}}"#,
        )
    });
    scene.open(0..10);
    scene.client.chat(scene.key, "c1", "hello").await;
    let key = Uuid::new_v4();
    let live = scene.client.stream(key, "c2", "hello").await.rest().await;
    assert_eq!(names_of(&live), ["started", "failed"]);
    let plain = scene.client.chat(key, "c2", "hello").await;
    assert_eq!(plain.status, 422);
    assert!(plain.replayed());
    assert_eq!(live[1].data, plain.json());
    assert_eq!(live[1].data["retryable"], false);
    let again = scene.client.stream(key, "c2", "hello").await;
    assert_eq!(
        (again.status, &again.headers["idempotency-replayed"]),
        (200, &"true".parse().unwrap())
    );
    let Scene { database, provider, node, client, .. } = scene;
    assert!(node.shut_down().await);
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let client = client.at(node.address());
    let told = client.events(key, None).await.rest().await;
    assert_eq!(names_of(&told), ["failed"]);
    client.assert_over(key, told[0].id.as_deref()).await;
    assert_eq!((told[0].id.as_deref(), &told[0].data), (Some("1-r1"), &plain.json()));
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_has_so_many_readers_and_no_more() {
    let options = NodeOptions::default().set("ONCEKEY_LIMITS__MAX_READERS", "3");
    let scene = Scene::with(options).await;
    let (client, key) = (&scene.client, scene.key);
    let mut first = client.stream(key, "c1", "hello").await;
    first.event().await;
    let mut readers = Vec::new();
    for _ in 0..3 {
        readers.push(client.events(key, None).await);
    }
    // By either way in. The run and those who read it do not notice.
    let refused = |answer: Answer| {
        assert_eq!((answer.status, answer.error().as_str()), (503, "slot_timeout"));
        assert_eq!(answer.header("retry-after"), Some("5"));
        assert_eq!(answer.json()["retryable"], true);
    };
    refused(client.send(client.events_request(key, None)).await.unwrap());
    refused(client.send(client.stream_request(key, "c1", "hello")).await.unwrap());
    // Another operation has places of its own, and who goes makes room.
    let other = Uuid::new_v4();
    let mut of_other = client.stream(other, "c2", "hello").await;
    of_other.event().await;
    drop(client.events(other, None).await);
    drop(readers.pop());
    eventually("there is a place", || async {
        let request = client.events_request(key, None);
        Events::try_open(request).await.is_ok()
    })
    .await;
    scene.open(0..10);
    assert_eq!(text_of(&first.rest().await), TEXT);
    for mut reader in readers {
        assert_eq!(text_of(&reader.rest().await), TEXT);
    }
    of_other.rest().await;
    assert!(scene.node.shut_down().await);
}
