//! The profiles of parses: the built-in one, and those of the file, each checked as a whole so that no
//! request meets one that cannot work.

use std::collections::BTreeMap;
use std::path::Path;

use toml::Value;

use super::file::ProfileSection;
use super::wrong::{Wrong, given, wrong};
use crate::domain::parse::{Profile, ProfileSettings, SCRIPT};

/// The longest name; it stands in addresses and columns.
const MAX_NAME: usize = 64;

/// All profiles by name. Files are looked for beside the configuration file, in `folder`.
pub(super) fn check(
    sections: BTreeMap<String, ProfileSection>,
    folder: &Path,
) -> Result<BTreeMap<String, Profile>, Wrong> {
    let mut profiles = BTreeMap::from([(SCRIPT.to_owned(), Profile::script())]);
    for (name, section) in sections {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(allowed) {
            return Err(wrong(
                format!("profiles.{name}"),
                format!("its name must have 1 to {MAX_NAME} letters of A to Z, digits, _, - and ."),
            ));
        }
        if name == SCRIPT {
            return Err(wrong(
                format!("profiles.{name}"),
                "it is built in, and its result is promised to clients: take another name",
            ));
        }
        let settings = ProfileSettings {
            schema: schema(&name, &section, folder)?,
            tool_name: section.tool_name.unwrap_or_default(),
            tool_description: section.tool_description.unwrap_or_default(),
            instructions: section.instructions.unwrap_or_default(),
            merge: section.merge.unwrap_or_default(),
            content: section.content.unwrap_or_default(),
            noun: section.noun.unwrap_or_default(),
        };
        let profile = Profile::from_settings(&name, settings)
            .map_err(|fault| wrong(format!("profiles.{name}.{}", fault.setting), fault.message))?;
        profiles.insert(name, profile);
    }
    Ok(profiles)
}

/// The schema as JSON text: from a table, from text, or from a file.
fn schema(name: &str, section: &ProfileSection, folder: &Path) -> Result<String, Wrong> {
    let at = |field: &str| format!("profiles.{name}.{field}");
    let file = given(section.schema_file.as_deref());
    let stands_here = section.schema.as_ref().filter(|schema| schema.as_str() != Some(""));
    match (stands_here, file) {
        (Some(_), Some(_)) => {
            Err(wrong(at("schema_file"), "there is a schema beside it: one of them"))
        }
        (None, None) => Err(wrong(
            at("schema"),
            "it is missing: a JSON Schema as a table or as text, or a schema_file",
        )),
        (Some(Value::String(text)), None) => Ok(text.clone()),
        (Some(table @ Value::Table(_)), None) => {
            let json = serde_json::to_string(table);
            json.map_err(|error| wrong(at("schema"), error.to_string()))
        }
        (Some(_), None) => Err(wrong(at("schema"), "it is neither a table nor text")),
        (None, Some(file)) => {
            let path = folder.join(file);
            std::fs::read_to_string(&path)
                .map_err(|error| wrong(at("schema_file"), format!("{}: {error}", path.display())))
        }
    }
}
