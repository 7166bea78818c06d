//! Who asks: the API key, its role, and the end user on whose behalf.

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use uuid::Uuid;

use super::Http;
use super::answer::ProblemResponse;
use crate::domain::api_key::{ApiKey, Bearer};
use crate::domain::ids::{RequestId, Subject};
use crate::domain::problem::{ErrorCode, Problem};
use crate::domain::record::Record;
use crate::operation::database_problem;

const END_USER: &str = "x-end-user";
const MAX_SUBJECT_CHARS: usize = 255;

/// An authenticated arrival.
#[derive(Debug)]
pub struct Caller {
    pub request_id: RequestId,
    pub bearer: Bearer,
    /// The key's own subject, or the one that the tenant's server names.
    pub subject: Option<Subject>,
}

impl Caller {
    /// Refuses a role that may not start operations.
    pub fn may_run(self) -> Result<Self, ProblemResponse> {
        let allowed = self.bearer.role.may_run();
        self.allowed_if(allowed, "start operations")
    }

    /// Refuses a role that may not read requests and conversations.
    pub fn may_read(self) -> Result<Self, ProblemResponse> {
        let allowed = self.bearer.role.may_read();
        self.allowed_if(allowed, "read requests and conversations")
    }

    /// Refuses a role that may not read usage.
    pub fn may_read_usage(self) -> Result<Self, ProblemResponse> {
        let allowed = self.bearer.role.may_read_usage();
        self.allowed_if(allowed, "read usage")
    }

    fn allowed_if(self, allowed: bool, what: &str) -> Result<Self, ProblemResponse> {
        if allowed {
            return Ok(self);
        }
        let detail = format!("A key of role {} may not {what}.", self.bearer.role.as_str());
        Err(Problem::new(ErrorCode::Forbidden, self.request_id, detail).into())
    }
}

/// The id that the outermost layer gave this arrival.
pub fn request_id(parts: &Parts) -> RequestId {
    parts.extensions.get::<RequestId>().copied().unwrap_or(RequestId(Uuid::nil()))
}

impl FromRequestParts<Http> for Caller {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, http: &Http) -> Result<Self, ProblemResponse> {
        let request_id = request_id(parts);
        let known = match sent_key(&parts.headers, request_id)? {
            None => None,
            Some(key) => (http.operations.bearer(&key).await)
                .map_err(|error| database_problem(request_id, &error))?,
        };
        Ok(Self::of(known, &parts.headers, request_id)?)
    }
}

impl Caller {
    /// Authenticates an arrival of an operation; with what is known of that one, if it is done.
    pub async fn of_operation(
        http: &Http,
        headers: &HeaderMap,
        request_id: RequestId,
        operation: Uuid,
    ) -> Result<(Self, Option<Box<Record>>), ProblemResponse> {
        let known = match sent_key(headers, request_id)? {
            None => None,
            Some(key) => (http.operations.bearer_and_verdict(&key, operation).await)
                .map_err(|error| database_problem(request_id, &error))?,
        };
        let (bearer, verdict) = known.unzip();
        Ok((Self::of(bearer, headers, request_id)?, verdict.flatten()))
    }

    fn of(
        known: Option<Bearer>,
        headers: &HeaderMap,
        request_id: RequestId,
    ) -> Result<Self, Problem> {
        let Some(bearer) = known else {
            let detail = "This API key is not known here, or was revoked.";
            return Err(Problem::new(ErrorCode::Unauthorized, request_id, detail));
        };
        let named = end_user(headers, request_id)?;
        let subject = match (&bearer.subject, named) {
            (Some(own), Some(named)) if *own != named => {
                let detail = "X-End-User is not the subject that this API key is bound to.";
                return Err(Problem::new(ErrorCode::Forbidden, request_id, detail));
            }
            (Some(own), _) => Some(own.clone()),
            (None, named) => named,
        };
        Ok(Self { request_id, bearer, subject })
    }
}

/// The API key as it was sent. `None`: it cannot be one of ours.
fn sent_key(headers: &HeaderMap, request_id: RequestId) -> Result<Option<ApiKey>, Problem> {
    let mut headers = headers.get_all(AUTHORIZATION).iter();
    let (Some(header), None) = (headers.next(), headers.next()) else {
        let detail = "Send one header Authorization: Bearer ok_….";
        return Err(Problem::new(ErrorCode::Unauthorized, request_id, detail));
    };
    let text = header.to_str().ok().and_then(|text| text.split_once(' '));
    Ok(text
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .and_then(|(_, key)| ApiKey::parse(key.trim())))
}

fn end_user(headers: &HeaderMap, request_id: RequestId) -> Result<Option<Subject>, Problem> {
    let mut values = headers.get_all(END_USER).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let invalid = |detail: &str| Problem::new(ErrorCode::InvalidRequest, request_id, detail);
    if values.next().is_some() {
        return Err(invalid("X-End-User was sent more than once."));
    }
    let text = std::str::from_utf8(value.as_bytes())
        .map_err(|_| invalid("X-End-User is not UTF-8."))?
        .trim();
    let characters = text.chars().count();
    if characters == 0 || characters > MAX_SUBJECT_CHARS {
        return Err(invalid("X-End-User must have 1 to 255 characters."));
    }
    Ok(Some(Subject::new(text)))
}
