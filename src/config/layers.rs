//! The file, the variables and the flags laid over each other, before anything is checked but
//! names. What is remembered for each value is who said it: an error must name the variable that
//! somebody exported last week, and not the file that is right.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::file::File;
use super::{ConfigError, Environment, Overrides};

const PREFIX: &str = "ONCEKEY_";

/// All settings by their dotted names, and who said each.
pub(super) struct Layers {
    file_name: Option<String>,
    table: Table,
    /// Dotted name to the variable or flag; what is not here stands in the file.
    said_by: BTreeMap<String, String>,
}

/// A setting: the parts of its name and a value of its type. In the list of all settings a part is
/// `*` where the operator chooses a name, and where an entry of a list is counted.
pub(super) struct Setting {
    pub path: Vec<String>,
    pub sample: Value,
    /// Within a list, which a variable says as a whole.
    pub in_list: bool,
}

impl Layers {
    pub(super) fn merge(
        file_name: Option<String>,
        text: &str,
        environment: &Environment,
        overrides: &Overrides,
    ) -> Result<Layers, ConfigError> {
        let table = text.parse::<Table>().map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            let file = file_name.as_deref().unwrap_or("the configuration");
            ConfigError::Syntax {
                at: format!("{file}: line {line}"),
                message: one_line(error.message()),
            }
        })?;
        let settings = settings();
        let mut layers = Layers { file_name, table, said_by: BTreeMap::new() };
        for (name, text) in &environment.0 {
            layers.lay_variable(name, text, &settings)?;
        }
        let flags = [
            ("--listen", "listen", overrides.listen.as_deref()),
            ("--database-url", "database_url", overrides.database_url.as_deref()),
        ];
        for (flag, setting, text) in flags {
            if let Some(text) = text {
                layers.set(&[setting], Value::String(text.to_owned()), flag);
            }
        }
        if layers.text("database_url").is_none_or(str::is_empty)
            && let Some(url) = environment.get("DATABASE_URL")
        {
            layers.set(&["database_url"], Value::String(url.to_owned()), "DATABASE_URL");
        }
        layers.refuse_unknown(&settings)?;
        Ok(layers)
    }

    /// The settings in their types; an error names the value that does not fit.
    pub(super) fn read(&self) -> Result<File, ConfigError> {
        serde_path_to_error::deserialize(self.table.clone())
            .map_err(|error| self.invalid(&error.path().to_string(), error.inner().message()))
    }

    /// Where the file lies, for what lies beside it; the current folder without one.
    pub(super) fn folder(&self) -> PathBuf {
        let parent = self.file_name.as_deref().and_then(|name| Path::new(name).parent());
        parent.unwrap_or(Path::new("")).to_owned()
    }

    /// The error for the setting of this dotted name.
    pub(super) fn invalid(&self, setting: &str, message: impl AsRef<str>) -> ConfigError {
        ConfigError::Invalid { at: self.at(setting), message: one_line(message.as_ref()) }
    }

    fn at(&self, setting: &str) -> String {
        let list = setting.split('[').next().unwrap_or(setting); // a variable says a list as a whole
        match (self.said_by.get(setting).or(self.said_by.get(list)), &self.file_name) {
            (Some(said_by), _) if list != setting => format!("{said_by}: {setting}"),
            (Some(said_by), _) => said_by.clone(),
            (None, Some(file)) => format!("{file}: {setting}"),
            (None, None) => setting.to_owned(),
        }
    }

    fn text(&self, setting: &str) -> Option<&str> {
        self.table.get(setting).and_then(Value::as_str)
    }

    #[cfg(test)]
    pub(super) fn value(&self, path: &[String]) -> Option<&Value> {
        let (first, rest) = path.split_first()?;
        rest.iter().try_fold(self.table.get(first)?, |value, part| value.get(part))
    }

    fn refuse_unknown(&self, settings: &[Setting]) -> Result<(), ConfigError> {
        let mut leaves = Vec::new();
        flatten(&Value::Table(self.table.clone()), &mut Vec::new(), false, &mut leaves);
        for Setting { path, .. } in &leaves {
            // A section where a value stands is left to the types, which say it better.
            // Below a table of the operator's own names everything is one.
            let known = |setting: &Setting| {
                (path.len() <= setting.path.len() || setting.sample.is_table())
                    && fits(path, setting)
            };
            if !settings.iter().any(known) {
                let name = dotted(path);
                let nearest = nearest(&name, path, settings.iter(), dotted);
                return Err(ConfigError::Unknown { at: self.at(&name), nearest });
            }
        }
        Ok(())
    }

    fn lay_variable(
        &mut self,
        name: &str,
        text: &str,
        settings: &[Setting],
    ) -> Result<(), ConfigError> {
        let Some(rest) = name.strip_prefix(PREFIX) else { return Ok(()) };
        let path = self.path_of(rest);
        let single = settings.iter().filter(|setting| !setting.in_list);
        let same = |setting: &&Setting| setting.path.len() == path.len() && fits(&path, setting);
        let Some(setting) = single.clone().find(same) else {
            if !rest.contains("__") {
                return Ok(()); // a variable for something else, such as ONCEKEY_LOG
            }
            let nearest = nearest(name, &path, single, variable_of);
            return Err(ConfigError::Unknown { at: name.to_owned(), nearest });
        };
        let value = typed(text, &setting.sample)
            .map_err(|message| ConfigError::Invalid { at: name.to_owned(), message })?;
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        self.set(&path, value, name);
        Ok(())
    }

    /// `IDEMPOTENCY__STALE_AFTER` to its parts. A name of the operator's (`MAIN` in
    /// `PROVIDERS__MAIN__KIND`) is the one in the file that it spells, or else taken in lower case.
    fn path_of(&self, rest: &str) -> Vec<String> {
        if rest == "DATA_DIR" {
            return vec!["database".to_owned(), "data_dir".to_owned()];
        }
        let Some((section, rest)) = rest.split_once("__") else { return vec![rest.to_lowercase()] };
        let section = section.to_lowercase();
        let Some((name, field)) = rest.rsplit_once("__") else {
            return vec![section, rest.to_lowercase()];
        };
        let names = self.table.get(&section).and_then(Value::as_table);
        let spelled = names.and_then(|names| names.keys().find(|known| spell(known) == name));
        let name = spelled.cloned().unwrap_or_else(|| name.to_lowercase());
        vec![section, name, field.to_lowercase()]
    }

    fn set(&mut self, path: &[&str], value: Value, said_by: &str) {
        let Some((last, sections)) = path.split_last() else { return };
        let mut table = &mut self.table;
        for section in sections {
            let entry = table.entry(*section).or_insert_with(|| Value::Table(Table::new()));
            let Value::Table(inner) = entry else { return }; // a value where a section belongs
            table = inner;
        }
        table.insert((*last).to_owned(), value);
        self.said_by.insert(path.join("."), said_by.to_owned());
    }
}

/// Every setting there is. Those inside the entries of a list are part of it.
pub(super) fn settings() -> Vec<Setting> {
    let mut settings = Vec::new();
    // Text, numbers and tables under text names: all of it is TOML.
    if let Ok(everything) = Value::try_from(File::with_everything()) {
        flatten(&everything, &mut Vec::new(), false, &mut settings);
        for setting in &mut settings {
            let parts = setting.path.iter_mut();
            parts.filter(|part| *part == "0").for_each(|part| *part = "*".to_owned());
        }
    }
    settings
}

/// The name of a setting as errors show it; what is counted in a list stands in brackets.
fn dotted(path: &[String]) -> String {
    let mut name = String::new();
    for part in path {
        match part.parse::<usize>() {
            Ok(number) => name.push_str(&format!("[{number}]")),
            Err(_) if name.is_empty() => name.push_str(part),
            Err(_) => name.push_str(&format!(".{part}")),
        }
    }
    name
}

/// The variable of a setting.
pub(super) fn variable_of(path: &[String]) -> String {
    let parts: Vec<String> = path.iter().map(|part| spell(part)).collect();
    format!("{PREFIX}{}", parts.join("__"))
}

fn spell(part: &str) -> String {
    part.replace(['-', '.'], "_").to_uppercase()
}

fn flatten(value: &Value, path: &mut Vec<String>, in_list: bool, into: &mut Vec<Setting>) {
    let mut descend = |name: String, value: &Value, in_list: bool| {
        path.push(name);
        flatten(value, path, in_list, into);
        path.pop();
    };
    match value {
        Value::Table(table) if !table.is_empty() => {
            for (name, value) in table {
                descend(name.clone(), value, in_list);
            }
            return;
        }
        Value::Array(entries) => {
            for (number, entry) in entries.iter().enumerate() {
                descend(number.to_string(), entry, true);
            }
        }
        _ => {}
    }
    into.push(Setting { path: path.clone(), sample: value.clone(), in_list });
}

/// Whether a name is that of the setting, as far as it goes.
fn fits(path: &[String], setting: &Setting) -> bool {
    path.iter().zip(&setting.path).all(|(part, known)| known == "*" || part == known)
}

/// The text of a variable as the type that its setting has.
fn typed(text: &str, sample: &Value) -> Result<Value, String> {
    match sample {
        Value::Integer(_) => text
            .trim()
            .parse()
            .map(Value::Integer)
            .map_err(|_| format!("{text:?} is no whole number")),
        Value::Boolean(_) => text
            .trim()
            .parse()
            .map(Value::Boolean)
            .map_err(|_| format!("{text:?} is neither true nor false")),
        Value::Array(_) => match format!("value = {text}").parse::<Table>() {
            Ok(mut table) => table.remove("value").ok_or_else(|| "it is empty".to_owned()),
            Err(error) => Err(format!(
                "no list as it would stand in the file ({}): write it like [{{ name = \"value\" }}]",
                one_line(error.message())
            )),
        },
        // As it would stand in the file; other text is left to the one who checks it.
        Value::Table(_) => {
            let table = format!("value = {text}").parse::<Table>();
            let value = table.ok().and_then(|mut table| table.remove("value"));
            let value = value.filter(Value::is_table);
            Ok(value.unwrap_or_else(|| Value::String(text.to_owned())))
        }
        _ => Ok(Value::String(text.to_owned())),
    }
}

/// The existing name that takes the fewest edits to reach.
fn nearest<'a>(
    name: &str,
    path: &[String],
    settings: impl Iterator<Item = &'a Setting>,
    shown: impl Fn(&[String]) -> String,
) -> String {
    settings
        .map(|setting| {
            let parts = setting.path.iter().enumerate().map(|(at, part)| match path.get(at) {
                Some(chosen) if part == "*" => chosen.clone(),
                _ => part.clone(),
            });
            shown(&parts.collect::<Vec<_>>())
        })
        .min_by_key(|known| strsim::osa_distance(name, known))
        .unwrap_or_default()
}

fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}
