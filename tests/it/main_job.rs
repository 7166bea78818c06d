//! The main job on real input: conversations about a chapter of a book, over lines that break and on
//! nodes that are killed, each request sent again until it is answered.
//!
//! **How the money is compared.** The provider writes down the tokens of every answer that it sent to
//! its end. Each answer names the request that it was given to, so a turn tells which entry of that
//! ledger it was paid with. The receipts must add up to exactly the entries whose answer stands in
//! `turns`. What the ledger has beside them was paid for in vain, and must be known: as a call in
//! `provider_calls` that is not counted, or as a call that a killed process had begun, of which its
//! log line is all that remains.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::support::node::{NodeOptions, TestNode, assert_clean, new_key, provider_variables};
use crate::support::process::{ProcessNode, run};
use crate::support::provider::{Action, Gate, Reply, Request, ScriptedProvider, Wire, fixture};
use crate::support::proxy::{Mode, Proxy, Target};
use crate::support::{Client, PATIENCE, TestDatabase, eventually};

const QUESTIONS: [&str; 10] = [
    "Who runs past Alice at the beginning, and what does he take out of his pocket?",
    "What is the label on the jar, and what is in it?",
    "How does Alice come to speak of Latitude and Longitude?",
    "Who is Dinah?",
    "Describe the hall in which Alice finds herself.",
    "What does the golden key open?",
    "Why does she hesitate before she drinks from the bottle?",
    "Of what does the drink taste?",
    "Why can she not go into the garden once she is small enough?",
    "Sum up the chapter in one sentence, with what you have told me so far.",
];

fn chapter() -> String {
    String::from_utf8(fixture("texts/alice_chapter_1.txt")).unwrap()
}

/// A call that is held somewhere in its answer.
#[derive(Clone)]
struct Held {
    /// `None`: before anything is sent.
    after: Option<usize>,
    gate: Gate,
}

/// What the model does: it quotes the chapter, and says which request it answers.
struct Reader {
    provider: ScriptedProvider,
    /// Decides by the number of a call whether it is held.
    hold: Decide,
}

type Decide = Arc<Mutex<Box<dyn FnMut(usize) -> Option<Held> + Send>>>;

impl Reader {
    async fn start() -> Self {
        let provider = ScriptedProvider::start().await;
        let hold: Decide = Arc::new(Mutex::new(Box::new(|_| None)));
        let (its_hold, chapter) = (hold.clone(), chapter());
        provider.reply_by(move |request| {
            let paragraphs: Vec<&str> = chapter.split("\n\n").collect();
            let quoted = paragraphs[1 + request.number % (paragraphs.len() - 1)];
            let answer = Reply::text(&format!("Answer {}: {quoted}", request.number));
            match its_hold.lock().unwrap()(request.number) {
                None => answer,
                Some(Held { after: None, gate }) => answer.before_head(Action::Hold(gate)),
                Some(Held { after: Some(deltas), gate }) => {
                    answer.after(deltas, Action::Hold(gate))
                }
            }
        });
        Self { provider, hold }
    }

    fn hold(&self, decide: impl FnMut(usize) -> Option<Held> + Send + 'static) {
        *self.hold.lock().unwrap() = Box::new(decide);
    }

    /// Holds the next call alone.
    fn hold_next(&self, after: Option<usize>) -> Gate {
        let gate = Gate::closed();
        let mut next = Some(Held { after, gate: gate.clone() });
        self.hold(move |_| next.take());
        gate
    }
}

/// The request that an answer was given to.
fn number_of(answer: &str) -> usize {
    let (number, _) = answer.strip_prefix("Answer ").unwrap().split_once(':').unwrap();
    number.parse().unwrap()
}

/// Compares turns, prompts, receipts and the provider's ledger. Returns the requests that were paid
/// for and are in no turn.
async fn balance(database: &TestDatabase, provider: &ScriptedProvider) -> BTreeSet<usize> {
    let turns: Vec<(String, i64, String, String, i64)> = sqlx::query_as(
        "select conversation_id, seq, role, content, based_on_seq from turns
        order by conversation_id, seq",
    )
    .fetch_all(&database.pool)
    .await
    .unwrap();
    let requests: Vec<Request> = provider.requests();
    let mut used = BTreeSet::new();
    for (conversation, seq, role, content, based_on_seq) in &turns {
        if role == "user" {
            continue;
        }
        let number = number_of(content);
        assert!(used.insert(number), "answer {number} stands in two turns");
        let before: Vec<(String, String)> = turns
            .iter()
            .filter(|turn| turn.0 == *conversation && turn.1 < *seq)
            .map(|turn| (turn.2.clone(), turn.3.clone()))
            .collect();
        assert_eq!(*based_on_seq, seq - 2);
        assert_eq!(requests[number - 1].messages(), before, "{conversation} at turn {seq}");
    }
    let ledger = provider.ledger();
    let paid = ledger.iter().filter(|charge| used.contains(&charge.number));
    let (input, output) = paid
        .fold((0, 0), |sum, charge| (sum.0 + charge.tokens.input, sum.1 + charge.tokens.output));
    let sum = |column: &str| format!("select sum({column})::bigint from usage_receipts");
    assert_eq!(database.count(&sum("input_tokens")).await, input);
    assert_eq!(database.count(&sum("output_tokens")).await, output);
    assert_eq!(database.outcomes().await.1, i64::try_from(used.len()).unwrap());
    let charged: BTreeSet<usize> = ledger.iter().map(|charge| charge.number).collect();
    assert_eq!(ledger.len(), charged.len());
    assert!(used.is_subset(&charged));
    charged.difference(&used).copied().collect()
}

/// How a try ends for its client.
#[derive(Debug, Clone, Copy)]
enum Cut {
    Never,
    /// At once: the request may be there or not.
    AtOnce,
    /// While the model thinks, or speaks.
    WhileAnswered(Option<usize>),
    /// The answer was on its way.
    AnswerLost,
}

/// A client behind a line that breaks.
struct OnABadLine<'a> {
    client: Client,
    line: &'a Proxy,
    reader: &'a Reader,
    chance: StdRng,
    swallowed: u64,
}

impl OnABadLine<'_> {
    fn choose(&mut self, first: bool) -> Cut {
        match self.chance.random_range(0..if first { 5 } else { 8 }) {
            0 => Cut::AtOnce,
            1 => Cut::AnswerLost,
            // Only the first try is sure to be followed by a call.
            2 if first => Cut::WhileAnswered(None),
            3 if first => Cut::WhileAnswered(Some(self.chance.random_range(0..12))),
            _ => Cut::Never,
        }
    }

    /// Sends the same request until it is answered; the answer's text.
    async fn ask(&mut self, message: &str) -> String {
        let key = Uuid::new_v4();
        let mut cut = self.choose(true);
        loop {
            if let Some(text) = self.try_once(key, message, cut).await {
                return text;
            }
            cut = self.choose(false);
        }
    }

    async fn try_once(&mut self, key: Uuid, message: &str, cut: Cut) -> Option<String> {
        let (client, text) = (self.client.clone(), message.to_owned());
        let gate = match cut {
            Cut::WhileAnswered(after) => Some(self.reader.hold_next(after)),
            _ => None,
        };
        if matches!(cut, Cut::AnswerLost) {
            self.line.set(Mode::SwallowReplies);
        }
        let sent = tokio::spawn(async move { client.try_chat(key, "alice", &text).await });
        match (cut, &gate) {
            (Cut::AtOnce, _) => self.line.cut(),
            (_, Some(gate)) => {
                gate.until_reached(1).await;
                self.line.cut();
            }
            (Cut::AnswerLost, _) => {
                self.swallowed += 1;
                self.line.until_swallowed(self.swallowed).await;
                self.line.heal();
            }
            _ => {}
        }
        let answer = sent.await.unwrap();
        if let Some(gate) = gate {
            assert!(answer.is_err(), "the line was cut before there was an answer");
            // Sent again while the first is still being answered: told to wait, not run twice.
            // Over a connection that was kept from before the cut it may not arrive at first.
            let again = loop {
                if let Ok(again) = self.client.try_chat(key, "alice", message).await {
                    break again;
                }
            };
            assert_eq!((again.status, again.error().as_str()), (409, "in_progress"));
            gate.open();
        }
        let answer = answer.ok()?;
        match answer.status {
            200 => Some(answer.content()),
            409 => {
                assert!(answer.json()["retry_after_ms"].is_u64());
                tokio::time::sleep(Duration::from_millis(20)).await;
                None
            }
            _ => panic!("{cut:?}: {}", String::from_utf8_lossy(&answer.bytes)),
        }
    }
}

async fn a_conversation_over_a_bad_line(wire: Wire, seed: u64) {
    let database = TestDatabase::new().await;
    let reader = Reader::start().await;
    let variables = provider_variables(&reader.provider, wire);
    let node = TestNode::start_with(&database, variables, NodeOptions::default()).await;
    let line = Proxy::start(Target::Tcp(node.address())).await;
    let client = node.client("t1").await.at(line.address);
    let chance = StdRng::seed_from_u64(seed);
    let mut person = OnABadLine { client, line: &line, reader: &reader, chance, swallowed: 0 };

    let first = format!("Read this chapter, and then I will ask you about it.\n\n{}", chapter());
    let mut told = vec![("user".to_owned(), first.clone())];
    told.push(("assistant".to_owned(), person.ask(&first).await));
    for question in QUESTIONS {
        told.push(("user".to_owned(), question.to_owned()));
        told.push(("assistant".to_owned(), person.ask(question).await));
    }

    // What the client was told is what stands there, and every question cost one call.
    let turns: Vec<(String, String)> =
        sqlx::query_as("select role, content from turns order by seq")
            .fetch_all(&database.pool)
            .await
            .unwrap();
    assert_eq!(turns, told);
    assert_eq!(balance(&database, &reader.provider).await, BTreeSet::new());
    assert_eq!(reader.provider.count(), 1 + QUESTIONS.len());
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chapter_is_talked_about_over_a_line_that_breaks_with_anthropic() {
    for seed in 1..=3 {
        a_conversation_over_a_bad_line(Wire::Anthropic, seed).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chapter_is_talked_about_over_a_line_that_breaks_with_openai() {
    for seed in 1..=3 {
        a_conversation_over_a_bad_line(Wire::OpenAi, seed).await;
    }
}

const CONVERSATIONS: usize = 20;
const TURNS: usize = 5;
/// Calls that are held when one of the nodes is killed.
const HELD: usize = 10;

/// The addresses of the two nodes; one changes with a restart.
type Addresses = Arc<Mutex<[SocketAddr; 2]>>;

/// One of many people who talk about a part of the chapter, at either node, and go away now and then.
async fn one_of_many(place: usize, client: Client, nodes: Addresses, provider: Arc<Reader>) {
    let mut chance = StdRng::seed_from_u64(place as u64);
    let chapter = chapter();
    let paragraph = chapter.split("\n\n").nth(place).unwrap();
    let conversation = format!("reader {place}");
    for turn in 0..TURNS {
        let message = match turn {
            0 => format!("Read this, and then I will ask you about it.\n\n{paragraph}"),
            _ => QUESTIONS[(place + turn) % QUESTIONS.len()].to_owned(),
        };
        let key = Uuid::new_v4();
        let asked = async {
            loop {
                let node = nodes.lock().unwrap()[chance.random_range(0..2)];
                let client = client.at(node);
                let calls = provider.provider.count() + chance.random_range(1..4);
                let goes_away = chance.random_bool(0.3);
                let answer = tokio::select! {
                    answer = client.try_chat(key, &conversation, &message) => answer.ok(),
                    _ = provider.provider.until_requests(calls), if goes_away => None,
                };
                match answer {
                    Some(answer) if answer.status == 200 => return answer.content(),
                    Some(answer) => {
                        let text = String::from_utf8_lossy(&answer.bytes).into_owned();
                        assert!(matches!(answer.status, 409 | 502..=504), "{text}");
                    }
                    None => {}
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let answer = tokio::time::timeout(PATIENCE, asked).await.unwrap();
        assert!(answer.starts_with("Answer "));
    }
}

/// Calls that this process has begun for runs whose end its log does not tell, by run and number.
fn calls_without_an_end(node: &ProcessNode) -> BTreeSet<(String, u64)> {
    let run = |line: &serde_json::Value| line["request_id"].as_str().unwrap_or_default().to_owned();
    let ended = [node.events("committed"), node.events("failed")].concat();
    let ended: BTreeSet<String> = ended.iter().map(run).collect();
    let begun = node.events("provider_call_started");
    let calls = begun.iter().map(|line| (run(line), line["call_no"].as_u64().unwrap()));
    calls.filter(|(run, _)| !ended.contains(run)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_talk_at_once_while_a_node_is_killed_and_restarted() {
    let database = TestDatabase::new().await;
    database.age_epoch().await;
    let reader = Arc::new(Reader::start().await);
    let a = ProcessNode::on(&database, &reader.provider, &[]).await;
    let mut b = ProcessNode::on(&database, &reader.provider, &[]).await;
    let store = database.store();
    let client = Client::new(a.address, &new_key(&store, "t1", "client", None).await);
    let nodes: Addresses = Arc::new(Mutex::new([a.address, b.address]));

    let gate = Gate::closed();
    let held = gate.clone();
    let from = CONVERSATIONS * TURNS / 3;
    reader.hold(move |number| {
        let after = number.is_multiple_of(2).then_some(number % 9);
        (number >= from).then(|| Held { after, gate: held.clone() })
    });
    let mut people = JoinSet::new();
    for place in 0..CONVERSATIONS {
        people.spawn(one_of_many(place, client.clone(), nodes.clone(), reader.clone()));
    }
    gate.until_reached(HELD).await;
    let is_at_work = || async { !calls_without_an_end(&b).is_empty() };
    eventually("node B is at work", is_at_work).await;
    b.kill().await;
    gate.open();
    let killed = b;
    let b = ProcessNode::on(&database, &reader.provider, &[]).await;
    nodes.lock().unwrap()[1] = b.address;
    while let Some(person) = people.join_next().await {
        person.unwrap();
    }

    database.until_settled().await;
    assert_eq!(database.outcomes().await.0, (CONVERSATIONS * TURNS) as i64);
    let in_vain = balance(&database, &reader.provider).await;
    let kept =
        "select count(*) from provider_calls where not counted and output_tokens is not null";
    let of_nobody = in_vain.len() as i64 - database.count(kept).await;
    let lost = calls_without_an_end(&killed).len() as i64;
    assert!((0..=lost).contains(&of_nobody), "{of_nobody} answers for {lost} killed calls");
    let taken_over = a.events("taken_over").len() + b.events("taken_over").len();
    assert!(taken_over > 0, "no run of the killed node was taken over");
    let arguments = ["audit", "--database-url", &database.url];
    let audit = run(&std::env::temp_dir(), &arguments, &[]).await;
    assert_eq!(audit.code, Some(0), "{}{}", audit.stdout, audit.stderr);
}
