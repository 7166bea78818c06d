//! A model provider that speaks at an even pace, in OpenAI's form, and says when: every piece of its
//! text is the time at which it was sent, which whoever reads it at the other end takes off his own.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::serve::ListenerExt;
use axum::{Json, Router};
use futures_util::stream;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::BenchError;
use crate::clock::{Clock, Moment};

/// What a model is called here is how it speaks: fifty pieces a second until it is told to end.
pub const STEADY: &str = "steady";
pub const STEADY_PER_SECOND: u32 = 50;
/// The same faster, for what is divided among few pieces otherwise.
pub const FAST: &str = "fast";
pub const FAST_PER_SECOND: u32 = 200;
/// One piece, at once, and the end.
pub const ONCE: &str = "once";

/// The provider; it ends when this is dropped.
pub struct Paced {
    pub address: SocketAddr,
    pub times: Times,
    speaking: Arc<watch::Sender<bool>>,
    _serving: JoinSet<()>,
}

/// The clock of both ends, in microseconds since a zero of its own.
#[derive(Debug, Clone)]
pub struct Times {
    clock: Clock,
    zero: Moment,
}

impl Times {
    pub fn now(&self) -> u64 {
        u64::try_from(self.clock.now().since(self.zero).as_micros()).unwrap_or(u64::MAX)
    }
}

#[derive(Clone)]
struct Provider {
    times: Times,
    speaking: Arc<watch::Sender<bool>>,
}

#[derive(Deserialize)]
struct Asked {
    model: String,
}

impl Paced {
    pub async fn start(clock: &Clock) -> Result<Self, BenchError> {
        let times = Times { clock: clock.clone(), zero: clock.now() };
        let speaking = Arc::new(watch::Sender::new(true));
        let provider = Provider { times: times.clone(), speaking: speaking.clone() };
        let router =
            Router::new().route("/v1/chat/completions", post(complete)).with_state(provider);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            // Ends with the set that it is in; whoever calls notices.
            drop(axum::serve(listener.tap_io(prompt), router).await);
        });
        Ok(Self { address, times, speaking, _serving: serving })
    }

    /// From now on streams go on until [`Paced::end`].
    pub fn speak(&self) {
        self.speaking.send_replace(true);
    }

    /// Ends every stream.
    pub fn end(&self) {
        self.speaking.send_replace(false);
    }
}

/// Each piece is a small write; waiting to fill a packet would be measured, and is nobody's.
pub fn prompt(socket: &mut tokio::net::TcpStream) {
    drop(socket.set_nodelay(true));
}

/// A stream on its way.
struct Speech {
    times: Times,
    speaking: watch::Receiver<bool>,
    /// Between two pieces; `None`: there is one.
    pause: Option<Duration>,
    begun: Moment,
    said: u32,
    over: bool,
}

async fn complete(State(provider): State<Provider>, Json(asked): Json<Asked>) -> Response {
    let second = Duration::from_secs(1);
    let pause = match asked.model.as_str() {
        STEADY => Some(second / STEADY_PER_SECOND),
        FAST => Some(second / FAST_PER_SECOND),
        _ => None,
    };
    let begun = provider.times.clock.now();
    let speaking = provider.speaking.subscribe();
    let speech = Speech { times: provider.times, speaking, pause, begun, said: 0, over: false };
    let pieces = stream::unfold(speech, async |mut speech| {
        let piece = speech.next().await?;
        Some((Ok::<_, Infallible>(piece), speech))
    });
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(Box::pin(pieces))).into_response()
}

impl Speech {
    async fn next(&mut self) -> Option<Bytes> {
        if self.over {
            return None;
        }
        let goes_on = match self.pause {
            None => self.said == 0,
            Some(pause) => {
                // Counted from the beginning, so that being late once makes none of the others late.
                let due = self.times.clock.sleep_until(self.begun + pause * self.said);
                tokio::select! {
                    biased;
                    _ = self.speaking.wait_for(|speaking| !speaking) => false,
                    () = due => true,
                }
            }
        };
        if goes_on {
            self.said += 1;
            return Some(piece(self.times.now()).into());
        }
        self.over = true;
        Some(end(self.said).into())
    }
}

/// A piece as the vendor sends it, with all that stands around the text.
fn piece(time: u64) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1800000000,\
         \"model\":\"paced\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"@{time} \"}},\
         \"logprobs\":null,\"finish_reason\":null}}]}}\n\n"
    )
}

fn end(said: u32) -> String {
    format!(
        "data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"stop\"}}]}}\n\n\
         data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":16,\"completion_tokens\":{said}}}}}\n\n\
         data: [DONE]\n\n"
    )
}

/// Finds the times in a text that comes in pieces of any kind.
#[derive(Debug, Default)]
pub struct Stamps {
    /// What was read of one.
    number: Option<u64>,
}

impl Stamps {
    pub fn read(&mut self, bytes: &[u8], mut found: impl FnMut(u64)) {
        for byte in bytes {
            match (*byte, self.number) {
                (b'@', _) => self.number = Some(0),
                (digit @ b'0'..=b'9', Some(number)) => {
                    self.number = Some(number.wrapping_mul(10).wrapping_add((digit - b'0').into()));
                }
                (_, Some(number)) => {
                    found(number);
                    self.number = None;
                }
                (_, None) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_however_the_text_is_cut() {
        let text = [piece(7), piece(1_234_567), end(2), piece(89)].concat();
        for length in 1..text.len() {
            let (mut stamps, mut found) = (Stamps::default(), Vec::new());
            for piece in text.as_bytes().chunks(length) {
                stamps.read(piece, |time| found.push(time));
            }
            assert_eq!(found, [7, 1_234_567, 89]);
        }
    }
}
