//! The clients in Python and TypeScript against a node whose way to them breaks: what holds for the one in
//! Rust holds for them, one durable outcome each.
//!
//! What they decide without a server is in the table that all share; their own tests, run from here too,
//! hold them to it.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::TestDatabase;
use crate::support::languages::{Asking, Language, languages};
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::parse::{echo, script};
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider};
use crate::support::proxy::{Mode, Proxy, Target};

const ANSWER: &str = "Answer to message 1: hello";
const TEXT: &str = "1 2 3 4 5";

struct Scene {
    languages: Vec<Language>,
    database: TestDatabase,
    provider: ScriptedProvider,
    node: TestNode,
    api_key: String,
}

/// One client and its way to the node.
struct Way {
    language: Language,
    proxy: Arc<Proxy>,
    api_key: String,
}

impl Way {
    fn ask(&self, ask: &Value) -> Asking {
        self.language.ask(self.proxy.address, &self.api_key, None, ask)
    }

    /// Each language has a conversation of its own.
    fn hello(&self, form: &str) -> Value {
        json!({"do": form, "chat": [self.language.name(), "hello"], "metadata": {"screen": "k"}})
    }
}

impl Scene {
    async fn start(options: NodeOptions) -> Self {
        let languages = languages().await;
        let database = TestDatabase::new().await;
        let provider = ScriptedProvider::start().await;
        let node = TestNode::start(&database, &provider, options).await;
        let api_key = node.client("t1").await.key;
        Self { languages, database, provider, node, api_key }
    }

    async fn ways(&self) -> Vec<Way> {
        let mut ways = Vec::new();
        for &language in &self.languages {
            let proxy = Arc::new(Proxy::start(Target::Tcp(self.node.address())).await);
            ways.push(Way { language, proxy, api_key: self.api_key.clone() });
        }
        ways
    }

    /// The metadata that stands with the user's turn.
    async fn metadata(&self, language: Language) -> Value {
        let turn = format!(
            "select metadata::text from turns where role = 'user' and conversation_id = '{}'",
            language.name()
        );
        serde_json::from_str(&self.database.text(&turn).await).unwrap()
    }

    /// The provider's next answer, each of whose pieces comes when the gate before it is open.
    fn gated(&self) -> Vec<Gate> {
        let gates: Vec<Gate> = (0..5).map(|_| Gate::closed()).collect();
        self.provider.reply(
            gates.iter().enumerate().fold(Reply::text(TEXT), |reply, (at, gate)| {
                reply.after(at + 1, Action::Hold(gate.clone()))
            }),
        );
        gates
    }

    /// Each language asked one thing, for which one call was made.
    async fn end_with_one_outcome_each(self) {
        let count = self.languages.len();
        assert_eq!(self.provider.count(), count);
        let each = i64::try_from(count).unwrap();
        assert_eq!(self.database.outcomes().await, (each, each, each));
        self.end().await;
    }

    async fn end(self) {
        assert_clean(self.node.store()).await;
        assert!(self.node.shut_down().await, "nothing had to be cut");
    }
}

/// The one reply of a program that ended.
async fn reply(asking: &mut Asking) -> Value {
    let mut replies = asking.rest("reply").await;
    assert_eq!(replies.len(), 1, "{:?}", asking.rest("error").await);
    replies.remove(0)
}

#[track_caller]
fn assert_answer(reply: &Value, text: &str) {
    assert_eq!(reply["answer"]["message"]["content"], text);
    let body: Value = serde_json::from_str(reply["body"].as_str().unwrap()).unwrap();
    assert_eq!(body["message"]["content"], text);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_they_decide_without_a_server() {
    for language in languages().await {
        language.own_tests().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_did_not_arrive_is_sent_again_and_says_so() {
    let scene = Scene::start(NodeOptions::default()).await;
    for way in scene.ways().await {
        way.proxy.set(Mode::Refuse);
        let mut asking = way.ask(&way.hello("send"));
        way.proxy.until_refused(1).await;
        way.proxy.set(Mode::Pass);
        let reply = reply(&mut asking).await;
        assert_answer(&reply, ANSWER);
        assert_eq!(reply["replayed"], false);
        assert_eq!(reply["request_id"], reply["answer"]["request_id"]);
        let metadata = scene.metadata(way.language).await;
        assert!(reply["attempts"].as_u64().unwrap() >= 2);
        assert_eq!((&metadata["attempt"], &metadata["screen"]), (&reply["attempts"], &json!("k")));
        assert!(metadata["sent_at"].as_str().unwrap().ends_with('Z'));
        assert_eq!(metadata.get("resumed"), None);
    }
    scene.end_with_one_outcome_each().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_lost_behind_its_commit_is_replayed() {
    let scene = Scene::start(NodeOptions::default()).await;
    for way in scene.ways().await {
        way.proxy.set(Mode::SwallowReplies);
        let mut asking = way.ask(&way.hello("send"));
        way.proxy.until_swallowed(1).await;
        way.proxy.heal();
        let reply = reply(&mut asking).await;
        assert_answer(&reply, ANSWER);
        assert_eq!((&reply["replayed"], &reply["attempts"]), (&json!(true), &json!(2)));
        assert_ne!(reply["request_id"], reply["answer"]["request_id"], "of an earlier run");
        assert_eq!(scene.metadata(way.language).await["attempt"], 1);
        let lost = asking.rest("repeat").await;
        assert_eq!(lost, [json!({"attempt": 2, "status": null})]);
    }
    scene.end_with_one_outcome_each().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_broke_off_in_its_middle_is_replayed() {
    let scene = Scene::start(NodeOptions::default()).await;
    for way in scene.ways().await {
        way.proxy.set(Mode::CutBehindHead(20));
        let mut asking = way.ask(&way.hello("send"));
        let reply = reply(&mut asking).await;
        assert_answer(&reply, ANSWER);
        assert_eq!((&reply["replayed"], &reply["attempts"]), (&json!(true), &json!(2)));
        let lost = asking.rest("repeat").await;
        assert_eq!(lost, [json!({"attempt": 2, "status": null})]);
    }
    scene.end_with_one_outcome_each().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_connection_was_cut_is_waited_for() {
    let scene = Scene::start(NodeOptions::default()).await;
    for way in scene.ways().await {
        let gates = scene.gated();
        let mut asking = way.ask(&way.hello("send"));
        gates[0].until_reached(1).await;
        way.proxy.cut();
        asking.until_such("repeat", |repeat| repeat["status"].is_null()).await;
        asking.until_such("repeat", |repeat| repeat["status"] == 409).await;
        gates.iter().for_each(Gate::open);
        let reply = reply(&mut asking).await;
        assert_answer(&reply, TEXT);
        assert_eq!(reply["replayed"], true);
    }
    scene.end_with_one_outcome_each().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_cut_again_and_again_goes_on_where_it_was() {
    let scene = Scene::start(NodeOptions::default()).await;
    for way in scene.ways().await {
        let gates = scene.gated();
        let mut asking = way.ask(&way.hello("stream"));
        for (gate, piece) in gates.iter().zip(TEXT.split_inclusive(' ')) {
            asking.until_such("delta", |text| text == piece).await;
            way.proxy.cut();
            // Or the next piece may overtake the cut.
            asking.until("repeat").await;
            gate.open();
        }
        let reply = reply(&mut asking).await;
        assert_answer(&reply, TEXT);
        assert_eq!(reply["attempts"], 1, "the request itself was sent once");
        let text: String =
            asking.rest("delta").await.iter().map(|text| text.as_str().unwrap()).collect();
        assert_eq!(text, TEXT, "each piece once");
        assert_eq!(asking.rest("started").await.len(), 1);
        assert!(asking.rest("restarted").await.is_empty());
    }
    scene.end_with_one_outcome_each().await;
}

/// And by a client in another language, where there is one: what is kept is the same in all.
#[tokio::test(flavor = "multi_thread")]
async fn an_app_that_was_killed_goes_on_with_what_it_kept() {
    let scene = Scene::start(NodeOptions::default()).await;
    let ways = scene.ways().await;
    for (way, next) in ways.iter().zip(ways.iter().cycle().skip(1)) {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!(
            "kept-by-{}-{}",
            way.language.name(),
            std::process::id()
        ));
        std::fs::create_dir_all(&folder).unwrap();
        let ask = |way: &Way, ask: &Value| {
            way.language.ask(way.proxy.address, &way.api_key, Some(&folder), ask)
        };
        let gates = scene.gated();
        let mut killed = ask(way, &way.hello("send"));
        let key = killed.until("began").await;
        gates[0].until_reached(1).await;
        killed.kill().await;

        let mut resumed = ask(next, &json!({"do": "resume"}));
        assert_eq!(resumed.until("began").await, key);
        resumed.until_such("repeat", |repeat| repeat["status"] == 409).await;
        gates.iter().for_each(Gate::open);
        let reply = reply(&mut resumed).await;
        assert_answer(&reply, TEXT);
        assert_eq!(reply["replayed"], true);
        let left = std::fs::read_dir(&folder).unwrap().count();
        assert_eq!(left, 0, "there is nothing more to be had");
        std::fs::remove_dir(&folder).unwrap();
    }
    scene.end_with_one_outcome_each().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_attached_to_cancelled_and_asked_for_again() {
    let options = NodeOptions::default().set("ONCEKEY_IDEMPOTENCY__HEARTBEAT", "200ms");
    let scene = Scene::start(options).await;
    for way in scene.ways().await {
        let calls = scene.provider.count();
        scene.provider.reply(Reply::hang());
        let mut waiting = way.ask(&way.hello("send"));
        let key = waiting.until("began").await;
        scene.provider.until_requests(calls + 1).await;
        let mut attached = way.ask(&json!({"do": "attach", "key": key}));
        attached.until("started").await;

        let mut cancelling = way.ask(&json!({"do": "cancel", "key": key}));
        assert_eq!(cancelling.until("record").await["state"], "failed");
        for asking in [&mut waiting, &mut attached] {
            let told = asking.until("error").await;
            assert_eq!((&told["kind"], &told["status"]), (&json!("your_input"), &json!(409)));
            assert_eq!((&told["error"], &told["again"]), (&json!("cancelled"), &json!(false)));
            assert!(asking.rest("repeat").await.is_empty());
        }

        let mut again = way.hello("send");
        again["key"] = key.clone();
        assert_answer(&reply(&mut way.ask(&again)).await, ANSWER);
        let mut record = way.ask(&json!({"do": "record", "key": key}));
        let record = record.until("record").await;
        assert_eq!((&record["state"], &record["attempts"]), (&json!("committed"), &json!(1)));
        let mut attached = way.ask(&json!({"do": "attach", "key": key}));
        assert_answer(&reply(&mut attached).await, ANSWER);

        again["chat"][1] = json!("something else");
        let told = way.ask(&again).until("error").await;
        assert_eq!(told["error"], "idempotency_key_reuse");
    }
    let each = i64::try_from(scene.languages.len()).unwrap();
    assert_eq!(scene.database.outcomes().await, (each, each, each));
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_is_parsed_with_its_progress_and_a_file_over_a_way_that_breaks() {
    let options = NodeOptions::default().set("ONCEKEY_PARSE__CHUNK_CHARS", "400");
    let scene = Scene::start(options).await;
    scene.provider.reply_by(echo);
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("script-{}.txt", std::process::id()));
    std::fs::write(&file, script(3)).unwrap();
    let rows = |reply: &Value| reply["answer"]["result"]["dialogue"].as_array().unwrap().len();
    for way in scene.ways().await {
        let mut asking = way.ask(&json!({"do": "stream", "text": script(16)}));
        let streamed = reply(&mut asking).await;
        assert_eq!(rows(&streamed), 16);
        let progress = asking.rest("progress").await;
        let [done, chunks] = progress.last().unwrap().as_array().unwrap().as_slice() else {
            panic!("{progress:?}");
        };
        assert_eq!(done, chunks);

        way.proxy.set(Mode::SwallowReplies);
        let mut asking = way.ask(&json!({"do": "send", "file": file}));
        way.proxy.until_swallowed(1).await;
        way.proxy.heal();
        let parsed = reply(&mut asking).await;
        assert_eq!((rows(&parsed), &parsed["replayed"]), (3, &json!(true)));
        assert_eq!(parsed["answer"]["gaps"], json!([]));
    }
    std::fs::remove_file(&file).unwrap();
    let both = 2 * i64::try_from(scene.languages.len()).unwrap();
    assert_eq!(scene.database.count("select count(*) from parse_results").await, both);
    assert_eq!(scene.database.count("select count(*) from usage_receipts").await, both);
    scene.end().await;
}
