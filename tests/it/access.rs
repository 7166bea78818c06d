//! Who may do what: an API key decides the tenant, the role and sometimes the subject, and what is not
//! its own does not exist for it.

use serde_json::json;
use uuid::Uuid;

use crate::support::node::{NodeOptions, TestNode, assert_clean, new_key};
use crate::support::provider::ScriptedProvider;
use crate::support::{Answer, Client, TestDatabase};

struct Scene {
    database: TestDatabase,
    provider: ScriptedProvider,
    node: TestNode,
}

impl Scene {
    async fn start() -> Self {
        let database = TestDatabase::new().await;
        let provider = ScriptedProvider::start().await;
        let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
        Self { database, provider, node }
    }

    async fn client(&self, tenant: &str, role: &str, subject: Option<&str>) -> Client {
        Client::new(self.node.address(), &new_key(self.node.store(), tenant, role, subject).await)
    }

    async fn end(self, operations: i64) {
        assert_eq!(self.database.outcomes().await, (operations, operations, operations));
        assert_eq!(self.provider.count(), usize::try_from(operations).unwrap());
        let records = self.database.count("select count(*) from request_records").await;
        assert_eq!(records, operations);
        assert_clean(self.node.store()).await;
        assert!(self.node.shut_down().await);
    }
}

fn is_problem(answer: &Answer, status: u16, error: &str) {
    let text = String::from_utf8_lossy(&answer.bytes);
    assert_eq!((answer.status, answer.error().as_str()), (status, error), "{text}");
    assert_eq!(answer.json()["request_id"].as_str(), answer.header("x-request-id"));
    assert_eq!(answer.json()["retryable"], false);
}

/// A chat on behalf of an end user.
async fn chat_for(client: &Client, user: &str, key: Uuid, conversation: &str) -> Answer {
    let body = json!({"conversation_id": conversation, "message": "hello"});
    client.send(client.chat_request(key, &body).header("x-end-user", user)).await.unwrap()
}

async fn get_for(client: &Client, user: &str, path: &str) -> Answer {
    client.send(client.request("GET", path).header("x-end-user", user)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_known_key_everything_is_refused_alike() {
    let scene = Scene::start().await;
    let known = scene.client("t1", "client", None).await;
    let revoked = scene.client("t1", "client", None).await;
    let id = scene
        .database
        .text("select key_id::text from api_keys order by created_at desc limit 1")
        .await;
    let id = oncekey::domain::ids::ApiKeyId(id.parse().unwrap());
    assert!(scene.node.store().revoke_api_key(id).await.unwrap());
    let unknown = {
        let last = if known.key.ends_with('A') { 'B' } else { 'A' };
        let mut key = known.key.clone();
        key.pop();
        key + &last.to_string()
    };
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut details = std::collections::BTreeSet::new();
    for path in [
        "/v1/chat",
        "/v1/requests/k",
        "/v1/requests/k/cancel",
        "/v1/conversations/c1/turns",
        "/v1/conversations/c1",
        "/v1/nope",
        "/v1",
    ] {
        for headers in [
            &[][..],
            &[""],
            &["Bearer"],
            &["Bearer "],
            &["Bearer ok_"],
            &["Bearer secret"],
            &[known.key.as_str()],
            &[&format!("Basic {}", known.key)],
            &[&format!("Bearer {unknown}")],
            &[&format!("Bearer {}", revoked.key)],
            &[&format!("Bearer {}x", known.key)],
            &[&format!("Bearer {}", known.key), &format!("Bearer {}", known.key)],
        ] {
            for method in ["GET", "POST", "DELETE"] {
                let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
                let mut request = http
                    .request(method, format!("{}{path}", known.base))
                    .header("content-type", "application/json")
                    .body(r#"{"conversation_id":"c1","message":"hello"}"#);
                for header in headers {
                    request = request.header("authorization", *header);
                }
                let answer = known.send(request).await.unwrap();
                is_problem(&answer, 401, "unauthorized");
                assert_eq!(answer.header("www-authenticate"), Some("Bearer"), "{path}");
                details.insert(answer.json()["detail"].as_str().unwrap().to_owned());
            }
        }
    }
    assert!(details.len() <= 2, "a revoked key is not told from an unknown one: {details:?}");
    assert!(!details.iter().any(|detail| detail.contains(&known.key)));

    // The scheme is a word in either case.
    let body = json!({"conversation_id": "c1", "message": "hello"});
    let request = http
        .post(format!("{}/v1/chat", known.base))
        .header("authorization", format!("bearer {}", known.key))
        .json_body(&body);
    assert_eq!(known.send(request).await.unwrap().status, 200);
    for path in ["/healthz", "/readyz", "/metrics"] {
        let answer = known.send(http.get(format!("{}{path}", known.base))).await.unwrap();
        assert_eq!(answer.status, 200, "{path} needs no key");
    }
    scene.end(1).await;
}

/// `reqwest` is built without its own JSON.
trait JsonBody {
    fn json_body(self, body: &serde_json::Value) -> Self;
}

impl JsonBody for reqwest::RequestBuilder {
    fn json_body(self, body: &serde_json::Value) -> Self {
        self.header("content-type", "application/json").body(body.to_string())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_may_do_its_part_and_no_more() {
    let scene = Scene::start().await;
    let client = scene.client("t1", "client", None).await;
    let finance = scene.client("t1", "finance", None).await;
    let operator = scene.client("t1", "operator", None).await;
    let key = Uuid::new_v4();
    assert_eq!(client.chat(key, "c1", "hello").await.status, 200);
    let (record, turns) = (format!("/v1/requests/{key}"), "/v1/conversations/c1/turns");
    for reader in [&client, &operator] {
        assert_eq!(reader.get(&record).await.json()["state"], "committed");
        assert_eq!(reader.get(turns).await.json()["turns"].as_array().unwrap().len(), 2);
    }
    // Also where a replay would cost nothing.
    for other in [&finance, &operator] {
        is_problem(&other.chat(key, "c1", "hello").await, 403, "forbidden");
        is_problem(&other.chat(Uuid::new_v4(), "c2", "hello").await, 403, "forbidden");
    }
    is_problem(&finance.get(&record).await, 403, "forbidden");
    is_problem(&finance.get(turns).await, 403, "forbidden");
    for (method, path) in
        [("POST", format!("{record}/cancel")), ("DELETE", "/v1/conversations/c1".to_owned())]
    {
        let answer = finance.send(finance.request(method, &path)).await.unwrap();
        is_problem(&answer, 403, "forbidden");
    }
    assert_eq!(client.get(turns).await.json()["turns"].as_array().unwrap().len(), 2);
    scene.end(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_one_tenant_never_sees_a_row_of_another() {
    let scene = Scene::start().await;
    let one = scene.client("t1", "client", None).await;
    let two = scene.client("t2", "client", None).await;
    let operator = scene.client("t2", "operator", None).await;
    let key = Uuid::new_v4();
    let first = one.chat(key, "c1", "hello").await;
    for other in [&two, &operator] {
        is_problem(&other.get(&format!("/v1/requests/{key}")).await, 404, "not_found");
        is_problem(&other.get("/v1/conversations/c1/turns").await, 404, "not_found");
        let cancel = other.request("POST", &format!("/v1/requests/{key}/cancel"));
        is_problem(&other.send(cancel).await.unwrap(), 404, "not_found");
        let delete = other.request("DELETE", "/v1/conversations/c1");
        is_problem(&other.send(delete).await.unwrap(), 404, "not_found");
    }
    // The same key and conversation are another operation, another conversation.
    let second = two.chat(key, "c1", "hello").await;
    assert_eq!(second.content(), "Answer to message 1: hello");
    assert!(!second.replayed());
    assert_ne!(second.json()["request_id"], first.json()["request_id"]);
    let other = two.chat(key, "c1", "something else").await;
    is_problem(&other, 422, "idempotency_key_reuse");
    assert_eq!(one.chat(key, "c1", "hello").await.bytes, first.bytes);
    assert_eq!(two.chat(key, "c1", "hello").await.bytes, second.bytes);
    scene.end(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_bound_to_a_subject_is_that_subject() {
    let scene = Scene::start().await;
    let server = scene.client("t1", "client", None).await;
    let ann = scene.client("t1", "client", Some("ann")).await;
    let bob = scene.client("t1", "client", Some("bob")).await;
    let key = Uuid::new_v4();
    assert_eq!(ann.chat(key, "hers", "hello").await.status, 200);
    // With or without saying so, by her own key or by her tenant's server.
    assert!(chat_for(&ann, "ann", key, "hers").await.replayed());
    assert!(chat_for(&server, "ann", key, "hers").await.replayed());
    is_problem(&chat_for(&ann, "bob", Uuid::new_v4(), "hers").await, 403, "forbidden");
    is_problem(&get_for(&ann, "bob", "/v1/conversations/hers/turns").await, 403, "forbidden");

    let record = format!("/v1/requests/{key}");
    assert_eq!(ann.get(&record).await.status, 200);
    assert_eq!(server.get(&record).await.status, 200);
    assert_eq!(server.get("/v1/conversations/hers/turns").await.status, 200);
    assert_eq!(get_for(&server, "ann", &record).await.status, 200);
    for answer in [
        bob.get(&record).await,
        bob.get("/v1/conversations/hers/turns").await,
        get_for(&server, "bob", &record).await,
        get_for(&server, "bob", "/v1/conversations/hers/turns").await,
        bob.send(bob.request("POST", &format!("{record}/cancel"))).await.unwrap(),
        bob.send(bob.request("DELETE", "/v1/conversations/hers")).await.unwrap(),
    ] {
        is_problem(&answer, 404, "not_found");
    }
    // Her conversation does not exist for anybody else, and the hash is compared first.
    is_problem(&bob.chat(Uuid::new_v4(), "hers", "hello").await, 404, "not_found");
    is_problem(&server.chat(Uuid::new_v4(), "hers", "hello").await, 404, "not_found");
    is_problem(&bob.chat(key, "hers", "hello").await, 422, "idempotency_key_reuse");
    is_problem(&server.chat(key, "hers", "hello").await, 422, "idempotency_key_reuse");
    assert_eq!(ann.get("/v1/conversations/hers/turns").await.status, 200);
    // What was refused took nothing: the conversation goes on.
    assert_eq!(
        ann.chat(Uuid::new_v4(), "hers", "again").await.content(),
        "Answer to message 3: again"
    );
    scene.end(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_user_is_named_once_and_shortly() {
    let scene = Scene::start().await;
    let client = scene.client("t1", "client", None).await;
    let (longest, too_long) = ("u".repeat(255), "u".repeat(256));
    let body = json!({"conversation_id": "c1", "message": "hello"});
    let ask = async |users: &[&[u8]]| {
        let mut request = client.chat_request(Uuid::new_v4(), &body);
        for user in users {
            let value = reqwest::header::HeaderValue::from_bytes(user).unwrap();
            request = request.header("x-end-user", value);
        }
        client.send(request).await.unwrap()
    };
    for users in [
        &[&b""[..]][..],
        &[b"  "],
        &[too_long.as_bytes()],
        &[b"ann", b"ann"],
        &[b"ann", b"bob"],
        &[b"\xff\xfe"],
    ] {
        is_problem(&ask(users).await, 400, "invalid_request");
    }
    assert_eq!(ask(&[longest.as_bytes()]).await.status, 200);
    // Characters, not bytes.
    let answer = chat_for(&client, "ann", Uuid::new_v4(), "c2").await;
    assert_eq!(answer.status, 200);
    let wide = "é".repeat(255);
    let mut request =
        client.chat_request(Uuid::new_v4(), &json!({"conversation_id": "c3", "message": "hello"}));
    request = request
        .header("x-end-user", reqwest::header::HeaderValue::from_bytes(wide.as_bytes()).unwrap());
    assert_eq!(client.send(request).await.unwrap().status, 200);
    scene.end(3).await;
}
