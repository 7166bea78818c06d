//! `GET /v1/usage`: sums for finance, as JSON or CSV.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::http::header::ACCEPT;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Http;
use super::answer::{ProblemResponse, csv, ok};
use super::auth::Caller;
use crate::domain::problem::{ErrorCode, Problem};
use crate::domain::usage_report::{Bound, UsageQuery, UsageRow};
use crate::operation::database_problem;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Asked {
    /// A day, or a time as of RFC 3339, UTC.
    #[param(inline, nullable = false, required, value_type = Bound, example = "2026-08-01")]
    from: Option<String>,
    /// Not included, and later than `from`.
    #[param(inline, nullable = false, required, value_type = Bound, example = "2026-09-01")]
    to: Option<String>,
    /// What makes a row: `day`, `model`, both with a comma between, or nothing for one total.
    #[param(
        nullable = false,
        default = "day,model",
        pattern = "^(day|model|day,model|model,day|)$"
    )]
    group_by: Option<String>,
}

/// Sums of receipts.
#[derive(Serialize, ToSchema)]
#[schema(as = UsageReport)]
pub struct UsageBody {
    #[schema(inline)]
    from: Bound,
    #[schema(inline)]
    to: Bound,
    rows: Vec<UsageRow>,
}

/// Sums of the tenant's receipts; of one end user where the key or `X-End-User` names one.
pub async fn get_usage(
    State(http): State<Http>,
    caller: Caller,
    query: Result<Query<Asked>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, ProblemResponse> {
    let caller = caller.may_read_usage()?;
    let id = caller.request_id;
    let invalid = |detail: String| Problem::new(ErrorCode::InvalidRequest, id, detail);
    let Query(asked) = query.map_err(|error| invalid(error.body_text()))?;
    let [from, to, group_by] = [&asked.from, &asked.to, &asked.group_by].map(Option::as_deref);
    let query =
        UsageQuery::parse(from, to, group_by).map_err(|error| invalid(format!("{error}.")))?;
    let rows = http
        .operations
        .usage(caller.bearer.tenant, caller.subject, query)
        .await
        .map_err(|error| database_problem(id, &error))?;
    if prefers_csv(&headers) {
        return csv(id, &UsageRow::COLUMNS, rows.iter().map(UsageRow::cells));
    }
    ok(id, &UsageBody { from: query.from, to: query.to, rows })
}

/// Whether CSV is asked for, and more than JSON is. JSON is what everybody else gets.
fn prefers_csv(headers: &HeaderMap) -> bool {
    let listed = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(','));
    let (mut csv, mut json) = (0.0_f32, 0.0_f32);
    for range in listed {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let quality = parts.find_map(|part| {
            let (name, value) = part.split_once('=')?;
            name.trim().eq_ignore_ascii_case("q").then(|| value.trim().parse().unwrap_or(0.0))
        });
        match kind.as_str() {
            "text/csv" => csv = csv.max(quality.unwrap_or(1.0)),
            "application/json" => json = json.max(quality.unwrap_or(1.0)),
            _ => {}
        }
    }
    csv > json
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn csv_is_for_those_who_prefer_it_to_json() {
        for (accept, expected) in [
            (&[][..], false),
            (&["*/*"], false),
            (&["text/csv"], true),
            (&["Text/CSV; charset=utf-8"], true),
            (&["text/csv, */*;q=0.1"], true),
            (&["text/html", "text/csv"], true),
            (&["application/json, text/csv"], false),
            (&["application/json;q=0.5, text/csv"], true),
            (&["text/csv;q=0.5, application/json"], false),
            (&["text/csv;q=0"], false),
            (&["text/csv;q=much"], false),
        ] {
            let mut headers = HeaderMap::new();
            for value in accept {
                headers.append(ACCEPT, HeaderValue::from_static(value));
            }
            assert_eq!(prefers_csv(&headers), expected, "{accept:?}");
        }
    }
}
