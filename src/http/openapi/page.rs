//! The document as a page for people: HTML and a style sheet, no script, nothing from elsewhere.
//!
//! Made here, since the renderers that there are load themselves from another host, or put some megabytes
//! of script into the program; reading needs none of it, and a page without script can forbid all.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use utoipa::openapi::OpenApi;

const STYLE: &str = include_str!("page.css");
const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// The page, and the content security policy that it goes with.
pub struct Page {
    pub html: String,
    pub policy: String,
}

/// Renders a document.
pub fn of(document: &OpenApi) -> Page {
    // Paths have an order there, and none in a value.
    let paths: Vec<_> = document.paths.paths.keys().map(String::as_str).collect();
    let document = serde_json::to_value(document).unwrap_or_default();
    let groups = groups(&document, &paths);
    let title = escaped(string(&document["info"]["title"]));
    let version = escaped(string(&document["info"]["version"]));
    let mut main = format!("<h1>{title} <small>{version}</small></h1>");
    main += &prose(string(&document["info"]["description"]));
    main += "<p class=\"soft\">As a document for programs: <a href=\"/openapi.json\">/openapi.json</a> (OpenAPI 3.1).</p>";
    main += &security(&document);
    let mut nav = String::new();
    for (tag, operations) in &groups {
        nav += &format!("<h2>{}</h2>", escaped(tag));
        main += &format!("<h2>{}</h2>", escaped(tag));
        for operation in operations {
            nav += &operation.link();
            main += &operation.article();
        }
    }
    nav += "<h2>schemas</h2>";
    main += "<h2>schemas</h2>";
    for (name, schema) in members(&document["components"]["schemas"]) {
        nav += &format!("<a href=\"#{0}\">{0}</a>", escaped(name));
        main += &article_of_schema(name, schema);
    }
    let html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><style>{STYLE}</style></head>\
         <body><nav>{nav}</nav><main>{main}</main></body></html>\n"
    );
    let style = STANDARD.encode(Sha256::digest(STYLE));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    Page { html, policy }
}

struct Operation<'a> {
    method: &'a str,
    path: &'a str,
    told: &'a Value,
}

/// The operations by their tag, both in the order of the document.
fn groups<'a>(document: &'a Value, paths: &[&'a str]) -> Vec<(&'a str, Vec<Operation<'a>>)> {
    let tags = document["tags"].as_array().into_iter().flatten();
    let mut groups: Vec<_> = tags.map(|tag| (string(&tag["name"]), Vec::new())).collect();
    for path in paths {
        for (method, told) in
            members(&document["paths"][path]).filter(|(method, _)| METHODS.contains(method))
        {
            let tag = string(&told["tags"][0]);
            if let Some((_, group)) = groups.iter_mut().find(|(name, _)| *name == tag) {
                group.push(Operation { method, path, told });
            }
        }
    }
    groups
}

impl Operation<'_> {
    fn id(&self) -> String {
        escaped(string(&self.told["operationId"]))
    }

    fn head(&self) -> String {
        let Operation { method, path, .. } = self;
        // A long one breaks before a slash.
        let path = escaped(path).replace('/', "<wbr>/");
        format!("<span class=\"method {method}\">{method}</span> <code>{path}</code>")
    }

    fn link(&self) -> String {
        format!("<a href=\"#{}\">{}</a>", self.id(), self.head())
    }

    fn article(&self) -> String {
        let mut text = format!(
            "<article id=\"{}\"><h3>{}</h3><p class=\"path\">{}</p>",
            self.id(),
            escaped(string(&self.told["summary"])),
            self.head()
        );
        text += &prose(string(&self.told["description"]));
        if self.told["security"].as_array().is_some_and(Vec::is_empty) {
            text += "<p class=\"soft\">Needs no API key.</p>";
        }
        text += &parameters(&self.told["parameters"]);
        text += &body(&self.told["requestBody"]);
        text += "<h4>Answers</h4><table>";
        for (status, response) in members(&self.told["responses"]) {
            text += &format!("<tr><td class=\"status\">{}</td><td>", escaped(status));
            text += &prose(string(&response["description"]));
            text += &contents(&response["content"]);
            text += &headers(&response["headers"]);
            text += "</td></tr>";
        }
        text + "</table></article>"
    }
}

fn security(document: &Value) -> String {
    let mut text = String::new();
    for (_, scheme) in members(&document["components"]["securitySchemes"]) {
        let form = escaped(string(&scheme["bearerFormat"]));
        text += &format!("<h4>API key</h4><pre>Authorization: Bearer {form}</pre>");
        text += &prose(string(&scheme["description"]));
    }
    text
}

fn parameters(parameters: &Value) -> String {
    let Some(parameters) = parameters.as_array().filter(|list| !list.is_empty()) else {
        return String::new();
    };
    let mut text = "<h4>Parameters</h4><table>".to_owned();
    for parameter in parameters {
        let (schema, place) = (&parameter["schema"], string(&parameter["in"]));
        let schema = if schema.is_null() {
            &parameter["content"]["application/json"]["schema"]
        } else {
            schema
        };
        let needed = if parameter["required"] == true { ", required" } else { "" };
        text += &format!(
            "<tr><td><code>{}</code><div class=\"soft\">{}{needed}</div></td><td>",
            escaped(string(&parameter["name"])),
            escaped(place),
        );
        text += &format!("<div class=\"soft\">{}</div>", kind(schema));
        text += &prose(string(&parameter["description"]));
        text += "</td></tr>";
    }
    text + "</table>"
}

fn body(body: &Value) -> String {
    if body.is_null() {
        return String::new();
    }
    let about = prose(string(&body["description"]));
    format!("<h4>Body</h4>{about}{}", contents(&body["content"]))
}

/// What a body may be, with its examples folded away.
fn contents(contents: &Value) -> String {
    let mut text = String::new();
    for (media, content) in members(contents) {
        let kind = kind(&content["schema"]);
        text += &format!(
            "<div><code>{}</code> <span class=\"soft\">{kind}</span></div>",
            escaped(media)
        );
        if !content["schema"]["properties"].is_null() {
            text += &properties(&content["schema"]);
        }
        if !content["example"].is_null() {
            text += &folded("example", &shown(&content["example"]));
        }
        for (name, example) in members(&content["examples"]) {
            text += &folded(name, &shown(&example["value"]));
        }
    }
    text
}

fn headers(headers: &Value) -> String {
    let lines: String = members(headers)
        .map(|(name, header)| {
            let about = spans(string(&header["description"]));
            format!("<li><code>{}</code>: {about}</li>", escaped(name))
        })
        .collect();
    if lines.is_empty() {
        lines
    } else {
        format!("<details><summary>headers</summary><ul>{lines}</ul></details>")
    }
}

fn folded(name: &str, text: &str) -> String {
    format!("<details><summary>{}</summary><pre>{text}</pre></details>", escaped(name))
}

fn shown(example: &Value) -> String {
    match example {
        Value::String(text) => escaped(text),
        other => escaped(&serde_json::to_string_pretty(other).unwrap_or_default()),
    }
}

fn article_of_schema(name: &str, schema: &Value) -> String {
    let about = prose(string(&schema["description"]));
    let properties = properties(schema);
    format!("<article id=\"{0}\"><h3>{0}</h3>{about}{properties}</article>", escaped(name))
}

fn properties(schema: &Value) -> String {
    let mut text = "<table>".to_owned();
    let required = |name: &str| {
        schema["required"].as_array().is_some_and(|list| list.iter().any(|it| it == name))
    };
    for (name, property) in members(&schema["properties"]) {
        let needed = if required(name) { "" } else { "<div class=\"soft\">optional</div>" };
        text += &format!("<tr><td><code>{}</code>{needed}</td><td>", escaped(name));
        text += &format!("<div class=\"soft\">{}</div>", kind(property));
        text += &prose(string(&property["description"]));
        text += "</td></tr>";
    }
    text + "</table>"
}

/// A schema in a few words, with links to those that have a name.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return format!("<a href=\"#{0}\">{0}</a>", escaped(name));
    }
    for joined in ["allOf", "oneOf", "anyOf"] {
        if let Some(parts) = schema[joined].as_array() {
            let named = |part: &&Value| joined != "allOf" || part["$ref"].is_string();
            let parts: Vec<_> = parts.iter().filter(named).map(kind).collect();
            return parts.join(" or ");
        }
    }
    let types = match &schema["type"] {
        Value::Array(types) => types.iter().map(string).collect::<Vec<_>>().join(" or "),
        other => string(other).to_owned(),
    };
    let mut words = vec![match string(&schema["format"]) {
        "" => types.clone(),
        format => format!("{types} ({format})"),
    }];
    if types == "array" {
        words = vec![format!("list of {}", kind(&schema["items"]))];
    }
    if let Some(values) = schema["enum"].as_array() {
        let values =
            values.iter().map(|value| format!("<code>{}</code>", escaped(&value.to_string())));
        words.push(format!("one of {}", values.collect::<Vec<_>>().join(", ")));
    }
    for (name, word) in [("minimum", "at least"), ("maximum", "at most"), ("default", "default")] {
        // That a count is not below zero needs no word.
        if !schema[name].is_null() && schema[name] != 0 {
            words.push(format!("{word} {}", escaped(&schema[name].to_string())));
        }
    }
    if let Some(most) = schema["maxLength"].as_u64() {
        words.push(format!("at most {most} characters"));
    }
    words.join(", ")
}

/// Paragraphs, lists of lines that begin with a dash, and words between backticks.
fn prose(text: &str) -> String {
    let mut html = String::new();
    for block in text.split("\n\n").filter(|block| !block.is_empty()) {
        let items: Vec<_> = block.lines().map(|line| line.strip_prefix("- ")).collect();
        if items.iter().all(Option::is_some) {
            let items = items.into_iter().flatten().map(|item| format!("<li>{}</li>", spans(item)));
            html += &format!("<ul>{}</ul>", items.collect::<String>());
        } else {
            html += &format!("<p>{}</p>", spans(block));
        }
    }
    html
}

fn spans(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(place, part)| match place % 2 {
        0 => escaped(part),
        _ => format!("<code>{}</code>", escaped(part)),
    });
    parts.collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn members(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter).map(|(name, value)| (name.as_str(), value))
}
