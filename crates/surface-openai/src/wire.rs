//! What requests of both protocols share: fields that are taken one by one, and parts of messages. A field that is left
//! over is refused by its name, so that nothing is dropped in silence.
//!
//! JSON that a model reads, such as a schema, stays the text that it was and never becomes a value tree.

use std::{collections::BTreeMap, fmt};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use meerkat_service::{
    SessionError,
    output::OutputSpec,
    service::{ClientTool, PromptBlock},
    session::message::RawJson,
    tool::Effect,
};
use serde::{
    Deserializer as _,
    de::{DeserializeOwned, MapAccess, Visitor},
};
use serde_json::value::RawValue;

pub(crate) const MISSING: &str = "it is missing";

/// An object of a request, whose fields are taken one by one.
pub(crate) struct Fields<'a> {
    /// Its place, such as `input[0]`; empty for the body.
    place: String,
    fields: BTreeMap<String, &'a RawValue>,
}

impl<'a> Fields<'a> {
    pub(crate) fn body(text: &'a str) -> Result<Self, SessionError> {
        RawJson::bounded(text).map_err(|error| match error {
            SessionError::InvalidRequest { message, .. } => SessionError::invalid("body", message),
            error => error,
        })?;
        let raw = serde_json::from_str(text).map_err(|error| SessionError::invalid("body", why(&error)))?;
        Self::of(String::new(), raw)
    }

    /// Reads an object at a place. A field that is `null` counts as missing.
    pub(crate) fn of(place: String, raw: &'a RawValue) -> Result<Self, SessionError> {
        let at = if place.is_empty() { "body" } else { &place };
        let given = serde_json::Deserializer::from_str(raw.get()).deserialize_map(Given);
        let given = given.map_err(|_| SessionError::invalid(at, "it is not an object"))?;
        let mut object = Self { place, fields: BTreeMap::new() };
        for (name, raw) in given {
            if object.fields.insert(name.clone(), raw).is_some() {
                return Err(object.wrong(&name, "it is given twice: send it once"));
            }
        }
        object.fields.retain(|_, raw| raw.get() != "null");
        Ok(object)
    }

    pub(crate) fn at(&self, name: &str) -> String {
        if self.place.is_empty() { name.to_owned() } else { format!("{}.{name}", self.place) }
    }

    pub(crate) fn wrong(&self, name: &str, message: impl Into<String>) -> SessionError {
        SessionError::invalid(self.at(name), message)
    }

    /// Takes a field as it is written.
    pub(crate) fn raw(&mut self, name: &str) -> Option<&'a RawValue> {
        self.fields.remove(name)
    }

    pub(crate) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, SessionError> {
        self.raw(name).map(|raw| read(&self.at(name), raw)).transpose()
    }

    pub(crate) fn need<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, SessionError> {
        self.take(name)?.ok_or_else(|| self.wrong(name, MISSING))
    }

    /// Takes the type, which is empty if it is missing.
    pub(crate) fn kind(&mut self) -> Result<String, SessionError> {
        Ok(self.take("type")?.unwrap_or_default())
    }

    /// Refuses a type, and says which ones are supported.
    pub(crate) fn other_type(&self, kind: &str, known: &str) -> SessionError {
        let why = if kind.is_empty() { MISSING.to_owned() } else { format!("{:?} is not supported", short(kind)) };
        self.wrong("type", format!("{why}; send {known}"))
    }

    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Self>, SessionError> {
        self.raw(name).map(|raw| Self::of(self.at(name), raw)).transpose()
    }

    /// Takes an object of texts.
    pub(crate) fn texts(&mut self, name: &str) -> Result<Option<BTreeMap<String, String>>, SessionError> {
        let Some(object) = self.object(name)? else { return Ok(None) };
        let text = |(name, raw): (&String, &&RawValue)| Ok((name.clone(), read(&object.at(name), raw)?));
        object.fields.iter().map(text).collect::<Result<_, _>>().map(Some)
    }

    /// The fields of an object that chats have at this name; responses have them beside the others.
    pub(crate) fn inner(mut self, name: &str, is_chat: bool) -> Result<Self, SessionError> {
        if !is_chat {
            return Ok(self);
        }
        let inner = self.object(name)?.ok_or_else(|| self.wrong(name, MISSING))?;
        self.finish()?;
        Ok(inner)
    }

    pub(crate) fn list(&mut self, name: &str) -> Result<Vec<(String, &'a RawValue)>, SessionError> {
        self.raw(name).map_or(Ok(Vec::new()), |raw| items(&self.at(name), raw))
    }

    /// Takes a text, or the texts of a list of parts, and its place.
    pub(crate) fn content(&mut self, name: &str) -> Result<Option<(String, Vec<PromptBlock>)>, SessionError> {
        let (at, raw) = (self.at(name), self.raw(name));
        raw.map(|raw| content(&at, raw)).transpose().map(|parts| parts.map(|parts| (at, parts)))
    }

    /// Takes a field that changes nothing here, if it has a value that means so; any text if no value is listed.
    pub(crate) fn allow(&mut self, name: &str, values: &[&str]) -> Result<(), SessionError> {
        let Some(given) = self.raw(name).map(RawValue::get) else { return Ok(()) };
        if values.contains(&given) || (values.is_empty() && given.starts_with('"')) {
            return Ok(());
        }
        let other = if values.is_empty() { "a text".to_owned() } else { values.join(" or ") };
        Err(self.wrong(name, format!("{} is not supported; leave it out, or send {other}", short(given))))
    }

    /// Takes hints, which change nothing here whatever their text is.
    pub(crate) fn hints(&mut self, names: &[&str]) -> Result<(), SessionError> {
        names.iter().try_for_each(|name| self.allow(name, &[]))
    }

    pub(crate) fn finish(self) -> Result<(), SessionError> {
        match self.fields.keys().next() {
            Some(name) => Err(self.wrong(name, "this field is not supported; leave it out")),
            None => Ok(()),
        }
    }
}

/// Reads the fields of an object as they are given, also one that is given twice.
struct Given;

impl<'a> Visitor<'a> for Given {
    type Value = Vec<(String, &'a RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        std::iter::from_fn(|| map.next_entry().transpose()).collect()
    }
}

/// The items of a list, each with its place.
pub(crate) fn items<'a>(place: &str, raw: &'a RawValue) -> Result<Vec<(String, &'a RawValue)>, SessionError> {
    let items: Result<Vec<&RawValue>, _> = serde_json::from_str(raw.get());
    let items = items.map_err(|_| SessionError::invalid(place, "it is not a list"))?;
    Ok(items.into_iter().enumerate().map(|(at, raw)| (format!("{place}[{at}]"), raw)).collect())
}

pub(crate) fn is_text(raw: &RawValue) -> bool {
    raw.get().starts_with('"')
}

pub(crate) fn read<T: DeserializeOwned>(place: &str, raw: &RawValue) -> Result<T, SessionError> {
    serde_json::from_str(raw.get()).map_err(|error| SessionError::invalid(place, why(&error)))
}

/// Why JSON could not be read, without a line and a column of a part of it.
fn why(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or_else(|| text.clone(), |(why, _)| why.to_owned())
}

fn short(text: &str) -> String {
    let mut short: String = text.chars().take(60).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// The list `tools` of a request, with the choice among them. Arguments are checked against the schema in any case.
pub(crate) fn tools(fields: &mut Fields<'_>, is_chat: bool) -> Result<Vec<ClientTool>, SessionError> {
    let mut tools = Vec::new();
    for (place, raw) in fields.list("tools")? {
        let mut tool = Fields::of(place, raw)?;
        let kind = tool.kind()?;
        if kind != "function" {
            return Err(tool.other_type(&kind, "tools of the type \"function\""));
        }
        tool = tool.inner("function", is_chat)?;
        tool.allow("strict", &["true", "false"])?;
        let parameters = tool.raw("parameters").map_or(r#"{"type":"object","properties":{}}"#, RawValue::get);
        tools.push(ClientTool {
            input_schema: json_object(&tool.at("parameters"), parameters)?,
            name: tool.need("name")?,
            description: tool.take("description")?.unwrap_or_default(),
            effect: Effect::Once,
            timeout_ms: None,
        });
        tool.finish()?;
    }
    let is_none = fields.fields.get("tool_choice").is_some_and(|choice| choice.get() == r#""none""#);
    fields.allow("tool_choice", &[r#""auto""#, r#""none""#])?;
    Ok(if is_none { Vec::new() } else { tools })
}

/// Reads JSON that stays the text that it is.
pub(crate) fn json_object(place: &str, text: &str) -> Result<RawJson, SessionError> {
    let object = RawJson::parse(text).ok().filter(|json| json.as_str().starts_with('{'));
    object.ok_or_else(|| SessionError::invalid(place, "it is not the JSON of an object"))
}

/// The format of an answer: text, any object, or an object by a schema.
pub(crate) fn format(mut fields: Fields<'_>, is_chat: bool) -> Result<Option<OutputSpec>, SessionError> {
    let kind = fields.kind()?;
    let output = match kind.as_str() {
        "text" => None,
        "json_object" => Some(OutputSpec::new(RawJson::parse(r#"{"type":"object"}"#)?)),
        "json_schema" => {
            fields = fields.inner("json_schema", is_chat)?;
            let raw = fields.raw("schema").ok_or_else(|| fields.wrong("schema", MISSING))?;
            let schema = json_object(&fields.at("schema"), raw.get())?;
            fields.hints(&["description"])?;
            fields.allow("strict", &["true", "false"])?;
            Some(OutputSpec { name: Some(fields.need("name")?), ..OutputSpec::new(schema) })
        }
        other => return Err(fields.other_type(other, "text, json_object or json_schema")),
    };
    fields.finish()?;
    Ok(output)
}

/// Reads a part of a message: a text, an image or a file. Nothing is fetched, so an address of bytes must hold them.
fn part(place: String, raw: &RawValue) -> Result<PromptBlock, SessionError> {
    let mut fields = Fields::of(place, raw)?;
    let kind = fields.kind()?;
    let block = match kind.as_str() {
        "input_text" | "output_text" | "text" => {
            fields.allow("annotations", &["[]"])?;
            fields.allow("logprobs", &["[]"])?;
            PromptBlock::Text { text: fields.need("text")? }
        }
        "input_image" | "image_url" => {
            let is_chat = kind == "image_url";
            fields = fields.inner("image_url", is_chat)?;
            fields.hints(&["detail"])?;
            let (media_type, bytes) = data(&mut fields, if is_chat { "url" } else { "image_url" })?;
            PromptBlock::image(&media_type, bytes)
        }
        "input_file" | "file" => {
            fields = fields.inner("file", kind == "file")?;
            let name: String = fields.need("filename")?;
            let (media_type, bytes) = data(&mut fields, "file_data")?;
            PromptBlock::file(&name, &media_type, bytes)
        }
        other => return Err(fields.other_type(other, "a text, an image or a file")),
    };
    fields.finish()?;
    Ok(block)
}

/// The type and the bytes of a `data:` address.
fn data(fields: &mut Fields<'_>, name: &str) -> Result<(String, Vec<u8>), SessionError> {
    let url: String = fields.need(name)?;
    let parts = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    let decoded = parts.and_then(|(kind, bytes)| Some((kind.to_owned(), BASE64_STANDARD.decode(bytes).ok()?)));
    decoded.ok_or_else(|| fields.wrong(name, "send the bytes in base64, as data:TYPE;base64,BYTES: nothing is fetched"))
}

/// The parts of a message's content, which is a text or a list.
pub(crate) fn content(place: &str, raw: &RawValue) -> Result<Vec<PromptBlock>, SessionError> {
    if is_text(raw) {
        return Ok(vec![PromptBlock::Text { text: read(place, raw)? }]);
    }
    items(place, raw)?.into_iter().map(|(place, raw)| part(place, raw)).collect()
}

/// The texts of parts, an empty line between two; anything else is refused.
pub(crate) fn texts(place: &str, parts: Vec<PromptBlock>) -> Result<String, SessionError> {
    let text = |part| match part {
        PromptBlock::Text { text } => Ok(text),
        PromptBlock::Image { .. } | PromptBlock::File { .. } => {
            Err(SessionError::invalid(place, "images and files are only supported in the last message of the user"))
        }
    };
    Ok(parts.into_iter().map(text).collect::<Result<Vec<_>, _>>()?.join("\n\n"))
}
