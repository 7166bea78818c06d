//! How much one file may cost. Whoever needs other numbers says so in code and says why; nobody has
//! yet had to configure them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;

/// What reading one file may use. What exceeds a limit that lies in the file is `too_complex`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadLimits {
    /// Of a processor, in whole seconds. It lies in the file alone: it is the same on a busy machine.
    pub cpu: Duration,
    /// On the wall, from the start of the child to its end. A child that is given no processor is
    /// no fault of its file: when this is over before [`ReadLimits::cpu`], the refusal is passing.
    pub wall: Duration,
    /// Address space of the child, in bytes, program and libraries included.
    pub memory_bytes: u64,
    /// Text that comes out, in bytes.
    pub text_bytes: u64,
    /// Pictures that come out, all together, in bytes.
    pub pictures_bytes: u64,
    /// Pages of a document that is read as pictures.
    pub max_pages: usize,
    /// Pages of a document that are looked at for text.
    pub max_text_pages: usize,
    /// Width times height of a picture, as its head says, before it is decoded.
    pub max_pixels: u64,
    /// The longer side of a picture that goes to a model, in pixels; longer ones are scaled down.
    pub max_side: u32,
    /// One picture that goes to a model, in bytes; larger ones are encoded anew.
    pub picture_bytes: u64,
}

impl Default for ReadLimits {
    fn default() -> Self {
        ReadLimits {
            // A hundred pages of A4 scanned at 300 dots to the inch took 23 s on a busy machine of
            // two cores, 10 MB of text 3 s.
            cpu: Duration::from_secs(60),
            wall: Duration::from_secs(300),
            // A page of A4 scanned at 600 dots to the inch and in colour is 100 MB of pixels, and
            // is held several times while it is decoded and painted.
            memory_bytes: 1024 * MIB,
            // A long play has 250 KB. What goes over this would be 700 calls of a model.
            text_bytes: 8 * MIB,
            // The vendors take requests of 32 MB (Anthropic) to 50 MB (OpenAI); several are made
            // where the pages need them.
            pictures_bytes: 64 * MIB,
            // As many pictures as Anthropic takes in one request.
            max_pages: 100,
            max_text_pages: 5_000,
            // The largest that common phones make is 50 million.
            max_pixels: 64_000_000,
            // What Anthropic takes where a request has more than 20 pictures; both vendors scale
            // what is larger than about this down themselves.
            max_side: 2_000,
            // Anthropic takes 5 MB a picture, counted in base64: three quarters of that.
            picture_bytes: 3_750_000,
        }
    }
}
