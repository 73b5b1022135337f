//! From text to tables: where each key was written, overrides, unknown keys, and types.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};

use super::error::{PlanError, RecipeError};
use super::tables::{Drafter, Eagle3, Table};

/// Where each key of a recipe was set. Two recipes that say the same are equal wherever they were written.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    /// The recipe's file.
    origin: String,
    /// `table.key` → `file:line`, or the override that set it.
    set: BTreeMap<String, String>,
}

impl PartialEq for Places {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Places {
    /// The place of `key`: its own; of a default, its table's; of a table that only overrides made, the first of
    /// them; else the file.
    pub(super) fn of(&self, key: &str) -> &str {
        let table = key.split('.').next().unwrap_or(key);
        let inside = || {
            let prefix = format!("{key}.");
            self.set.iter().find(|(set, _)| set.starts_with(&prefix)).map(|(_, place)| place)
        };
        self.set.get(key).or_else(|| self.set.get(table)).or_else(inside).unwrap_or(&self.origin)
    }

    /// An error about the value of `key`.
    pub(super) fn fault(&self, key: &str, message: String) -> PlanError {
        PlanError { place: self.of(key).to_owned(), key: key.to_owned(), message }
    }

    /// Notes the line of every key of `table`; `prefix` is empty or ends in a dot.
    fn note(&mut self, text: &str, prefix: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let path = format!("{prefix}{}", key.get_ref());
            let place = format!("{}:{}", self.origin, line(text, key.span().start));
            self.set.insert(path.clone(), place);
            if let DeValue::Table(inner) = value.get_ref() {
                self.note(text, &format!("{path}."), inner);
            }
        }
    }
}

/// A recipe's text as TOML, overrides merged, not yet checked.
pub(super) struct Source {
    root: toml::Table,
    pub(super) places: Places,
}

impl Source {
    /// Reads TOML and merges the overrides.
    pub(super) fn parse(text: &str, origin: &str, sets: &[String]) -> Result<Self, RecipeError> {
        let syntax = |error: toml::de::Error| {
            let at = error.span().map(|span| format!(":{}", line(text, span.start)));
            RecipeError::Syntax {
                place: format!("{origin}{}", at.unwrap_or_default()),
                message: error.message().replace('\n', "; "),
            }
        };
        let mut places = Places { origin: origin.to_owned(), ..Places::default() };
        places.note(text, "", DeTable::parse(text).map_err(syntax)?.get_ref());
        let mut source = Self { root: text.parse().map_err(syntax)?, places };
        sets.iter().try_for_each(|set| source.merge(set))?;
        Ok(source)
    }

    /// The whole recipe as a table.
    pub(super) fn root(&self) -> &toml::Table {
        &self.root
    }

    /// Merges one override `key=value` or `table.key=value`.
    fn merge(&mut self, set: &str) -> Result<(), RecipeError> {
        let refused = |message: &str| RecipeError::Set { set: set.to_owned(), message: message.to_owned() };
        let (key, value) = set
            .split_once('=')
            .map(|(key, value)| (key.trim(), value.trim()))
            .ok_or_else(|| refused("it must be of the form table.key=value"))?;
        let value =
            override_value(value).ok_or_else(|| refused("the value is neither a TOML value nor a bare word"))?;
        match key.split('.').collect::<Vec<_>>()[..] {
            [name] if !name.is_empty() && !value.is_table() => self.root.insert(name.to_owned(), value),
            [table, name] if !table.is_empty() && !name.is_empty() => self
                .root
                .entry(table)
                .or_insert_with(|| toml::Table::new().into())
                .as_table_mut()
                .ok_or_else(|| refused(&format!("{table} is no table")))?
                .insert(name.to_owned(), value),
            _ => return Err(refused("the key must be of the form table.key")),
        };
        self.places.set.insert(key.to_owned(), format!("--set {set}"));
        Ok(())
    }

    /// Refuses a key of `table` that is not among `keys`; `name` is the table's, or none at the top.
    pub(super) fn known(
        &self,
        table: &toml::Table,
        name: Option<&str>,
        keys: &[&'static str],
    ) -> Result<(), RecipeError> {
        let Some(key) = table.keys().find(|key| !keys.contains(&key.as_str())) else {
            return Ok(());
        };
        let path = name.map_or_else(|| key.clone(), |name| format!("{name}.{key}"));
        let nearest = keys.iter().copied().max_by(|a, b| {
            strsim::normalized_damerau_levenshtein(key, a).total_cmp(&strsim::normalized_damerau_levenshtein(key, b))
        });
        Err(RecipeError::UnknownKey {
            place: self.places.of(&path).to_owned(),
            key: path,
            table: name.map_or_else(|| "a recipe".to_owned(), |name| format!("[{name}]")),
            nearest: nearest.expect("every table has keys"),
        })
    }

    /// The error of a required key that is not there.
    pub(super) fn missing(&self, key: &'static str, right: &'static str) -> RecipeError {
        RecipeError::Missing { origin: self.places.origin.clone(), key, right }
    }

    /// The value of a key at the top, if it is there.
    pub(super) fn top<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, RecipeError> {
        self.root.get(key).map(|value| self.value(key, value)).transpose()
    }

    /// The table `name`, with defaults for what is not there.
    pub(super) fn table<T: Table>(&self, name: &str) -> Result<T, RecipeError> {
        let table = self.raw(name)?;
        self.known(&table, Some(name), T::KEYS)?;
        self.decode(name, table)
    }

    /// The table `[drafter]`, whose keys depend on `kind`.
    pub(super) fn drafter(&self) -> Result<Drafter, RecipeError> {
        let mut table = self.raw("drafter")?;
        let keys: Vec<_> = ["kind"].iter().chain(Eagle3::KEYS).copied().collect();
        self.known(&table, Some("drafter"), &keys)?;
        let kind: Option<String> = table.remove("kind").map(|kind| self.value("drafter.kind", &kind)).transpose()?;
        match kind.as_deref().unwrap_or(Drafter::KINDS[0]) {
            "eagle3" => Ok(Drafter::Eagle3(self.decode("drafter", table)?)),
            other => {
                let message = format!("is {other:?}; it must be one of {:?}", Drafter::KINDS);
                Err(self.places.fault("drafter.kind", message).into())
            }
        }
    }

    /// The table `name` as it stands; empty if it is not there.
    fn raw(&self, name: &str) -> Result<toml::Table, RecipeError> {
        match self.root.get(name) {
            None => Ok(toml::Table::new()),
            Some(toml::Value::Table(table)) => Ok(table.clone()),
            Some(other) => {
                let message = format!("is of type {}; it must be a table, [{name}]", other.type_str());
                Err(self.places.fault(name, message).into())
            }
        }
    }

    /// Decodes a table key by key, so that an error has its key.
    fn decode<T: Table>(&self, name: &str, table: toml::Table) -> Result<T, RecipeError> {
        for (key, value) in &table {
            let alone: toml::Table = [(key.clone(), value.clone())].into_iter().collect();
            alone.try_into::<T>().map_err(|error| self.mistyped(&format!("{name}.{key}"), value, &error))?;
        }
        let whole = toml::Value::Table(table.clone());
        table.try_into().map_err(|error| self.mistyped(name, &whole, &error))
    }

    /// Decodes one value.
    fn value<T: DeserializeOwned>(&self, key: &str, value: &toml::Value) -> Result<T, RecipeError> {
        value.clone().try_into().map_err(|error| self.mistyped(key, value, &error))
    }

    fn mistyped(&self, key: &str, value: &toml::Value, error: &toml::de::Error) -> RecipeError {
        self.places.fault(key, plain(error.message(), value)).into()
    }
}

/// The line, from 1, of a byte offset.
fn line(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

/// The value of an override: TOML if it reads as one value, else a string unless it is broken TOML. No key takes a
/// date, so that what looks like one is a string.
fn override_value(text: &str) -> Option<toml::Value> {
    let read = format!("value = {text}").parse::<toml::Table>().ok();
    let single = read.filter(|table| table.len() == 1).and_then(|mut table| table.remove("value"));
    let single = single.filter(|value| !value.is_datetime());
    let bare = || (!text.starts_with(['[', '{', '"', '\''])).then(|| text.to_owned().into());
    single.or_else(bare)
}

/// A decoding message about `value` in the words of a recipe's writer.
fn plain(message: &str, value: &toml::Value) -> String {
    let Some((found, expected)) = message.trim().split_once(", expected ") else {
        return format!("cannot be read: {}", message.trim());
    };
    if expected == "string only" {
        return format!("is of type {}; it must be a word, in quotes", value.type_str());
    }
    let kind = ["invalid type: ", "invalid value: ", "unknown variant "];
    let found = kind.iter().find_map(|kind| found.strip_prefix(kind)).unwrap_or(found);
    let found = found.replace("floating point", "number").replace("invalid length", "a list of length");
    let found = match found.as_str() {
        "sequence" => "a list",
        "map" => "a table",
        other => other,
    };
    let expected = match expected {
        "usize" | "u64" => "a whole number, 0 or more",
        "f64" => "a number",
        "a boolean" => "true or false",
        "path string" => "a path, in quotes",
        "a sequence" => "a list",
        "an array of length 2" => "a list of 2 numbers",
        other => other,
    };
    let element = value.is_array() && !found.starts_with("a list");
    let (found, expected) = (found.replace('`', ""), expected.replace('`', "\""));
    match element {
        true => format!("holds {found}; each element must be {expected}"),
        false => format!("is {found}; it must be {expected}"),
    }
}
