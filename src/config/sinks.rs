//! `[outbox]` and its sinks: which members belong to which kind, and what each sink is called.

use std::collections::BTreeSet;
use std::time::Duration;

use sha2::{Digest, Sha256};
use url::Url;

use super::file::{OutboxSection, SinkEntry, SinkKind};
use super::wrong::{Wrong, address, at_least_one, given, longer_than_zero, wrong};
use super::{Environment, Outbox, SecretVariable, Sink, SinkPlace};

/// The longest name: it stands in every row that the sink has taken.
const LONGEST_NAME: usize = 64;
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT_SUBJECT: &str = "oncekey.{type}";

pub(super) fn check(section: &OutboxSection, environment: &Environment) -> Result<Outbox, Wrong> {
    longer_than_zero("outbox.poll", section.poll)?;
    at_least_one("outbox.batch", section.batch)?;
    at_least_one("outbox.max_attempts", section.max_attempts)?;
    let mut names = BTreeSet::new();
    let mut sinks = Vec::new();
    for (number, entry) in section.sinks.iter().enumerate() {
        let sink = sink(number, entry, environment)?;
        if !names.insert(sink.name.clone()) {
            let message = format!("another sink is called {:?} already", sink.name);
            return Err(wrong(at(number, "name"), message));
        }
        sinks.push(sink);
    }
    Ok(Outbox {
        relay: section.relay,
        poll: section.poll,
        batch: section.batch,
        max_attempts: section.max_attempts,
        give_up_after: section.give_up_after,
        sinks,
    })
}

fn at(number: usize, field: &str) -> String {
    format!("outbox.sinks[{number}].{field}")
}

fn sink(number: usize, entry: &SinkEntry, environment: &Environment) -> Result<Sink, Wrong> {
    let at = |field: &str| at(number, field);
    foreign(number, entry)?;
    let url = |schemes: &[&str]| match given(entry.url.as_deref()) {
        Some(url) => plain_address(&at("url"), url, schemes),
        None => Err(wrong(at("url"), "it is missing")),
    };
    let secret = given(entry.secret_env.as_deref())
        .map(|name| SecretVariable::look_up(name, "the secret of an event sink", environment));
    let timeout = entry.timeout.unwrap_or(DEFAULT_TIMEOUT);
    longer_than_zero(at("timeout"), timeout)?;
    let (kind, place) = match entry.kind {
        SinkKind::Webhook => {
            let place = SinkPlace::Webhook {
                url: url(&["http", "https"])?,
                secret: secret.ok_or_else(|| {
                    wrong(at("secret_env"), "it is missing: deliveries are signed")
                })?,
                allow_private: entry.allow_private.unwrap_or(false),
                timeout,
            };
            ("webhook", place)
        }
        SinkKind::Nats => {
            let subject = subject(&at("subject"), entry.subject.as_deref())?;
            ("nats", SinkPlace::Nats { url: url(&["nats", "tls"])?, secret, subject, timeout })
        }
        SinkKind::Stdout => ("stdout", SinkPlace::Stdout),
    };
    let name = match given(entry.name.as_deref()) {
        Some(name) => checked_name(&at("name"), name)?,
        None => made_name(kind, entry),
    };
    Ok(Sink { name, place })
}

/// An address as it was written: a slash at its end may be what the receiver goes by. Credentials in it
/// would be shown with it.
fn plain_address(setting: &str, text: &str, schemes: &[&str]) -> Result<String, Wrong> {
    address(setting, text, schemes)?;
    match Url::parse(text) {
        Ok(url) if url.username().is_empty() && url.password().is_none() => Ok(text.to_owned()),
        _ => Err(wrong(
            setting,
            "a user or a password may not stand in it: secret_env names a secret",
        )),
    }
}

/// A member that the kind has no use for is a mistake of the one who wrote it.
fn foreign(number: usize, entry: &SinkEntry) -> Result<(), Wrong> {
    use SinkKind::{Nats, Webhook};
    let members = [
        ("url", entry.url.is_some(), &[Webhook, Nats][..], "webhook or nats"),
        ("secret_env", entry.secret_env.is_some(), &[Webhook, Nats], "webhook or nats"),
        ("timeout", entry.timeout.is_some(), &[Webhook, Nats], "webhook or nats"),
        ("allow_private", entry.allow_private.is_some(), &[Webhook], "webhook"),
        ("subject", entry.subject.is_some(), &[Nats], "nats"),
    ];
    match members.iter().find(|(_, is_set, kinds, _)| *is_set && !kinds.contains(&entry.kind)) {
        Some((field, _, _, kinds)) => {
            Err(wrong(at(number, field), format!("only a sink of the kind {kinds} has it")))
        }
        None => Ok(()),
    }
}

fn subject(setting: &str, text: Option<&str>) -> Result<String, Wrong> {
    let text = given(text).unwrap_or(DEFAULT_SUBJECT);
    let plain = text.replace("{type}", "type");
    let token = |token: &str| {
        let odd = |letter: char| !letter.is_ascii_graphic() || "*>{}".contains(letter);
        !token.is_empty() && !token.contains(odd)
    };
    if plain.split('.').all(token) {
        Ok(text.to_owned())
    } else {
        let message = format!("{text:?} is no subject: write it like oncekey.{{type}}");
        Err(wrong(setting, message))
    }
}

fn checked_name(setting: &str, name: &str) -> Result<String, Wrong> {
    let usual = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    if name.len() <= LONGEST_NAME && name.chars().all(usual) {
        Ok(name.to_owned())
    } else {
        let message = format!(
            "{name:?} is no name: at most {LONGEST_NAME} letters, digits, hyphens, dots and underscores"
        );
        Err(wrong(setting, message))
    }
}

/// A name that stays the same when the list is put in another order. The address itself may hold what
/// is nobody's business, so a part of its hash stands for it.
fn made_name(kind: &str, entry: &SinkEntry) -> String {
    let mut place = entry.url.clone().unwrap_or_default();
    place.push('\0');
    place.push_str(entry.subject.as_deref().unwrap_or_default());
    if entry.url.is_none() {
        return kind.to_owned();
    }
    let hash = Sha256::digest(place.as_bytes());
    let short: String = hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("{kind}-{short}")
}
