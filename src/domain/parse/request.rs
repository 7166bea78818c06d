//! A parse request: its forms on the wire, what makes it valid, and what it means.

use bytes::Bytes;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::profile::SCRIPT;
use crate::domain::chat::DEFAULT_MODEL;
use crate::domain::hash::{MeaningHasher, RequestHash};
use crate::domain::ids::Subject;
use crate::domain::json;

/// The name in records, receipts and metrics.
pub const ENDPOINT: &str = "parse";

/// What is to be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Given as JSON text.
    Text(String),
    /// Given as a file, whatever its name or label.
    File(Bytes),
}

impl Input {
    /// Its bytes: a text's as UTF-8.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Input::Text(text) => text.as_bytes(),
            Input::File(bytes) => bytes,
        }
    }
}

/// A valid request. Whether its profile and model exist is not known here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseRequest {
    pub input: Input,
    /// Of the input's bytes, taken once.
    pub sha256: [u8; 32],
    pub profile: String,
    /// Whether a result with gaps is better than none.
    pub allow_gaps: bool,
    pub model: String,
    pub stream: bool,
    /// A JSON object in the client's own text; stored, no part of the meaning.
    pub metadata: Option<String>,
}

/// What is wrong with a request; the text goes to the client.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidParse(pub String);

/// One of `text` and `capture_id`, and the options. Unknown members and members given twice are errors
/// that name them.
#[derive(serde::Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ParseRequest)]
pub struct JsonBody<'a> {
    /// What is to be parsed, without U+0000.
    #[schema(pattern = r"^[^\x00]*$", example = "MARA: Is it boiling?")]
    text: Option<String>,
    /// An input that was stored before, parsed once more as a new operation.
    capture_id: Option<Uuid>,
    /// What is looked for: a profile of this service's configuration.
    #[schema(default = "script")]
    profile: Option<String>,
    /// Whether a result with gaps is better than none.
    #[schema(default = false)]
    allow_gaps: Option<bool>,
    /// A model of this service's configuration.
    #[schema(default = "default")]
    model: Option<String>,
    /// Server-sent events instead of one answer; so does `Accept: text/event-stream`.
    #[schema(default = false)]
    stream: Option<bool>,
    /// Anything of the client's own; stored, and no part of what the request means.
    #[serde(borrow)]
    #[schema(value_type = Option<Object>)]
    metadata: Option<&'a RawValue>,
}

/// A JSON body.
#[derive(Debug)]
pub enum JsonRequest {
    /// With its text.
    Ready(ParseRequest),
    /// About an input that was stored before.
    Stored(StoredRequest),
}

/// A request whose input must be fetched first.
#[derive(Debug)]
pub struct StoredRequest {
    pub capture: Uuid,
    options: Options,
}

impl StoredRequest {
    /// The request, once its input is there.
    pub fn with(self, input: Input) -> ParseRequest {
        ParseRequest::with(input, self.options)
    }
}

/// What may stand beside a file. `None`: not given.
#[derive(Debug, Default, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Options {
    /// What is looked for: a profile of this service's configuration.
    #[param(default = "script", nullable = false)]
    profile: Option<String>,
    /// Whether a result with gaps is better than none.
    #[param(default = false, nullable = false)]
    allow_gaps: Option<bool>,
    /// A model of this service's configuration.
    #[param(default = "default", nullable = false)]
    model: Option<String>,
    /// Server-sent events instead of one answer.
    #[param(default = false, nullable = false)]
    stream: Option<bool>,
    /// A JSON object of the client's own; stored, and no part of what the request
    /// means.
    #[param(nullable = false, value_type = Option<Object>)]
    metadata: Option<String>,
}

const OPTION_NAMES: &str = "profile, allow_gaps, model, stream, metadata";

impl ParseRequest {
    /// A request for this input with every option at its default.
    pub fn new(input: Input) -> ParseRequest {
        ParseRequest::with(input, Options::default())
    }

    /// Reads a JSON body.
    ///
    /// # Errors
    /// [`InvalidParse`] names what is wrong and where. An empty text is none: what cannot be read is told
    /// by whoever reads it, the same for every form.
    pub fn read_json(text: &str) -> Result<JsonRequest, InvalidParse> {
        let body = json::object::<JsonBody<'_>>("The body", text).map_err(InvalidParse)?;
        let metadata = body.metadata.map(|raw| json::metadata(raw.get())).transpose();
        let options = Options {
            profile: body.profile,
            allow_gaps: body.allow_gaps,
            model: body.model,
            stream: body.stream,
            metadata: metadata.map_err(InvalidParse)?.flatten(),
        };
        match (body.text, body.capture_id) {
            (Some(text), None) if text.contains('\0') => {
                Err(InvalidParse("text holds the character U+0000.".to_owned()))
            }
            (Some(text), None) => {
                Ok(JsonRequest::Ready(ParseRequest::with(Input::Text(text), options)))
            }
            (None, Some(capture)) => Ok(JsonRequest::Stored(StoredRequest { capture, options })),
            _ => Err(InvalidParse("Give one of text and capture_id.".to_owned())),
        }
    }

    /// Reads what stands beside a file: the fields of a form without `file`, or the query of an address.
    /// Names are those of the JSON body, truth is `true` or `false`, metadata JSON text.
    ///
    /// # Errors
    /// [`InvalidParse`] names what is unknown, given twice, or none of its kind.
    pub fn from_options<N, V>(
        options: impl IntoIterator<Item = (N, V)>,
        file: Bytes,
    ) -> Result<ParseRequest, InvalidParse>
    where
        N: AsRef<str>,
        V: AsRef<str>,
    {
        let mut told = Options::default();
        for (name, value) in options {
            let (name, value) = (name.as_ref(), value.as_ref());
            let new = match name {
                "profile" => told.profile.replace(value.to_owned()).is_none(),
                "model" => told.model.replace(value.to_owned()).is_none(),
                "allow_gaps" => told.allow_gaps.replace(truth(name, value)?).is_none(),
                "stream" => told.stream.replace(truth(name, value)?).is_none(),
                "metadata" => {
                    let metadata = json::metadata(value.trim()).map_err(InvalidParse)?;
                    told.metadata.replace(metadata.unwrap_or_default()).is_none()
                }
                _ => {
                    let known = format!("unknown option {name:?}, expected one of {OPTION_NAMES}.");
                    return Err(InvalidParse(known));
                }
            };
            if !new {
                return Err(InvalidParse(format!("duplicate option {name:?}.")));
            }
        }
        told.metadata = told.metadata.filter(|metadata| !metadata.is_empty());
        Ok(ParseRequest::with(Input::File(file), told))
    }

    fn with(input: Input, options: Options) -> ParseRequest {
        ParseRequest {
            sha256: Sha256::digest(input.bytes()).into(),
            input,
            profile: options.profile.unwrap_or_else(|| SCRIPT.to_owned()),
            allow_gaps: options.allow_gaps.unwrap_or(false),
            model: options.model.unwrap_or_else(|| DEFAULT_MODEL.to_owned()),
            stream: options.stream.unwrap_or(false),
            metadata: options.metadata,
        }
    }

    /// The hash of the meaning. A text and a file of the same bytes are two requests: a file's encoding is
    /// for us to find out, a text's is known.
    pub fn meaning(&self, subject: Option<&Subject>) -> RequestHash {
        let kind = match &self.input {
            Input::Text(_) => "text_sha256",
            Input::File(_) => "file_sha256",
        };
        let digest: String = self.sha256.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut hasher = MeaningHasher::new(ENDPOINT);
        hasher
            .text_if("subject", subject.map(Subject::as_str))
            .text(kind, &digest)
            .text("profile", &self.profile)
            .text("allow_gaps", if self.allow_gaps { "true" } else { "false" })
            .text("model", &self.model);
        hasher.finish()
    }
}

fn truth(name: &str, value: &str) -> Result<bool, InvalidParse> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(InvalidParse(format!("{name} must be true or false."))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ParseRequest, String> {
        match ParseRequest::read_json(text).map_err(|error| error.to_string())? {
            JsonRequest::Ready(request) => Ok(request),
            JsonRequest::Stored(stored) => Err(format!("{stored:?}")),
        }
    }

    fn meaning(text: &str) -> RequestHash {
        read(text).unwrap().meaning(None)
    }

    fn file(options: &[(&str, &str)], bytes: &'static [u8]) -> Result<ParseRequest, String> {
        let options = options.iter().copied();
        let read = ParseRequest::from_options(options, Bytes::from_static(bytes));
        read.map_err(|error| error.to_string())
    }

    #[test]
    fn one_meaning_has_one_hash() {
        let first = meaning(r#"{"text":"MARA: yes"}"#);
        for same in [
            r#"{ "profile" : "script", "text" : "MARA\u003a yes" }"#,
            r#"{"text":"MARA: yes","allow_gaps":false,"model":"default","stream":true,"metadata":{"a":1}}"#,
            r#"{"text":"MARA: yes","profile":null,"metadata":null}"#,
        ] {
            assert_eq!(meaning(same), first, "{same}");
        }
        for other in [
            r#"{"text":"MARA: no"}"#,
            r#"{"text":"MARA: yes","profile":"receipts"}"#,
            r#"{"text":"MARA: yes","allow_gaps":true}"#,
            r#"{"text":"MARA: yes","model":"other"}"#,
        ] {
            assert_ne!(meaning(other), first, "{other}");
        }
        let request = read(r#"{"text":"MARA: yes"}"#).unwrap();
        assert_ne!(request.meaning(Some(&Subject::new("ann"))), first);

        let upload = file(&[], b"MARA: yes").unwrap();
        assert_ne!(upload.meaning(None), first, "a file is no text");
        assert_eq!(upload, ParseRequest::new(Input::File(Bytes::from_static(b"MARA: yes"))));
        let told =
            file(&[("model", "default"), ("stream", "true"), ("profile", "script")], b"MARA: yes");
        assert_eq!(told.unwrap().meaning(None), upload.meaning(None));
        assert_ne!(file(&[], b"MARA: no").unwrap().meaning(None), upload.meaning(None));
    }

    #[test]
    fn options_beside_a_file() {
        let all = [
            ("metadata", r#" {"a": 1} "#),
            ("allow_gaps", "true"),
            ("stream", "false"),
            ("model", "m"),
            ("profile", "p"),
        ];
        let request = file(&all, b"x").unwrap();
        assert_eq!((request.profile.as_str(), request.model.as_str()), ("p", "m"));
        assert_eq!((request.allow_gaps, request.stream), (true, false));
        assert_eq!(request.metadata.as_deref(), Some(r#"{"a": 1}"#));
        assert_eq!(file(&[("metadata", "null")], b"x").unwrap().metadata, None);
        for (options, part) in [
            (&[("profil", "x")][..], "\"profil\""),
            (&[("text", "x")], "\"text\""),
            (&[("model", "a"), ("model", "a")], "duplicate option \"model\""),
            (&[("metadata", "null"), ("metadata", "null")], "duplicate option \"metadata\""),
            (&[("allow_gaps", "True")], "allow_gaps must be true or false"),
            (&[("stream", "")], "stream must be"),
            (&[("metadata", "[1]")], "metadata must be an object"),
            (&[("metadata", r#"{"x":1,"x":2}"#)], "x"),
        ] {
            let error = file(options, b"x").unwrap_err();
            assert!(error.contains(part), "{options:?} said {error:?}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_body_is_named() {
        for (body, part) in [
            (r#"{"text":"a","text":"b"}"#, "text"),
            (r#"{"text":"a","profil":"b"}"#, "profil"),
            (r#"{"profile":"script"}"#, "text"),
            (r#"["a"]"#, "object"),
            (r#"{"text":"a"} x"#, "trailing"),
            (r#"{"text":1}"#, "string"),
            (r#"{"text":"a","allow_gaps":"true"}"#, "boolean"),
            (r#"{"text":"a\u0000b"}"#, "U+0000"),
            (r#"{"text":"Tea \ud83e"}"#, "hex escape"),
            (r#"{"text":"a","metadata":[1]}"#, "metadata"),
            (r#"{"text":"a","metadata":{"x":1,"x":2}}"#, "x"),
        ] {
            let error = read(body).unwrap_err();
            assert!(error.contains(part), "{body} said {error:?}");
        }
        assert_eq!(read(r#"{"text":""}"#).unwrap().input, Input::Text(String::new()));
    }
}
