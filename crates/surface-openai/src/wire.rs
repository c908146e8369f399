//! What requests of both protocols share: fields that are taken one by one, and parts of messages. A field that is left
//! over is refused by its name, so that nothing is dropped in silence.
//!
//! JSON that a model reads, such as a schema, stays the text that it was and never becomes a value tree.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use meerkat_service::{
    SessionError,
    options::Effort,
    output::OutputSpec,
    service::{ClientTool, PromptBlock},
    session::message::RawJson,
    tool::Effect,
};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::asked::Asked;

/// An object of a request, whose fields are taken one by one.
pub(crate) struct Fields<'a> {
    /// Its place, such as `input[0]`; empty for the body.
    path: String,
    fields: BTreeMap<String, &'a RawValue>,
}

impl<'a> Fields<'a> {
    /// Reads a body.
    pub(crate) fn body(text: &'a str) -> Result<Self, SessionError> {
        RawJson::bounded(text).map_err(|error| match error {
            SessionError::InvalidRequest { message, .. } => SessionError::invalid("body", message),
            error => error,
        })?;
        let raw = serde_json::from_str(text).map_err(|error| SessionError::invalid("body", why(&error)))?;
        Self::of(String::new(), raw)
    }

    /// Reads an object at a place.
    pub(crate) fn of(path: String, raw: &'a RawValue) -> Result<Self, SessionError> {
        match serde_json::from_str(raw.get()) {
            Ok(fields) => Ok(Self { path, fields }),
            Err(_) if path.is_empty() => Err(SessionError::invalid("body", "it is not a JSON object")),
            Err(_) => Err(SessionError::invalid(path, "it is not an object")),
        }
    }

    /// The place of a field.
    pub(crate) fn at(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Refuses a field.
    pub(crate) fn wrong(&self, name: &str, message: impl Into<String>) -> SessionError {
        SessionError::invalid(self.at(name), message)
    }

    /// Takes a field as it is written; `null` counts as missing.
    pub(crate) fn raw(&mut self, name: &str) -> Option<&'a RawValue> {
        self.fields.remove(name).filter(|raw| raw.get() != "null")
    }

    /// Takes a field of a type.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, SessionError> {
        let raw = self.raw(name);
        raw.map(|raw| serde_json::from_str(raw.get()).map_err(|error| self.wrong(name, why(&error)))).transpose()
    }

    /// Takes a field that must be there.
    pub(crate) fn need<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, SessionError> {
        self.take(name)?.ok_or_else(|| self.wrong(name, "it is missing"))
    }

    /// Takes an object.
    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Self>, SessionError> {
        let path = self.at(name);
        self.raw(name).map(|raw| Self::of(path, raw)).transpose()
    }

    /// The fields of an object that chats have at this name; responses have them beside the others.
    pub(crate) fn inner(mut self, name: &str, is_chat: bool) -> Result<Self, SessionError> {
        if !is_chat {
            return Ok(self);
        }
        let inner = self.object(name)?.ok_or_else(|| self.wrong(name, "it is missing"))?;
        self.finish()?;
        Ok(inner)
    }

    /// Takes a list, each item with its place.
    pub(crate) fn list(&mut self, name: &str) -> Result<Option<Vec<(String, &'a RawValue)>>, SessionError> {
        let path = self.at(name);
        self.raw(name).map(|raw| items(&path, raw)).transpose()
    }

    /// Takes fields that change nothing here, if they have a value that means so.
    pub(crate) fn allow(&mut self, name: &str, values: &[&str]) -> Result<(), SessionError> {
        let Some(raw) = self.raw(name) else { return Ok(()) };
        if values.contains(&raw.get()) {
            return Ok(());
        }
        let message = format!("{} is not supported; leave it out, or send {}", short(raw.get()), values.join(" or "));
        Err(self.wrong(name, message))
    }

    /// Takes hints, which change nothing here whatever their text is.
    pub(crate) fn hints(&mut self, names: &[&str]) -> Result<(), SessionError> {
        names.iter().try_for_each(|name| self.take::<String>(name).map(drop))
    }

    /// Refuses what is left over.
    pub(crate) fn finish(self) -> Result<(), SessionError> {
        match self.fields.iter().find(|(_, raw)| raw.get() != "null") {
            Some((name, _)) => Err(self.wrong(name, "this field is not supported; leave it out")),
            None => Ok(()),
        }
    }
}

/// The items of a list, each with its place.
pub(crate) fn items<'a>(path: &str, raw: &'a RawValue) -> Result<Vec<(String, &'a RawValue)>, SessionError> {
    let items: Vec<&RawValue> =
        serde_json::from_str(raw.get()).map_err(|_| SessionError::invalid(path, "it is not a list"))?;
    Ok(items.into_iter().enumerate().map(|(at, raw)| (format!("{path}[{at}]"), raw)).collect())
}

/// Returns true if a value is a text.
pub(crate) fn is_text(raw: &RawValue) -> bool {
    raw.get().starts_with('"')
}

/// Reads a text.
pub(crate) fn text(path: &str, raw: &RawValue) -> Result<String, SessionError> {
    serde_json::from_str(raw.get()).map_err(|error| SessionError::invalid(path, why(&error)))
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

/// Takes what both protocols have by the same names.
pub(crate) fn common(body: &mut Fields<'_>, asked: &mut Asked) -> Result<(), SessionError> {
    asked.is_stream = body.take("stream")?.unwrap_or(false);
    if let Some(mut options) = body.object("stream_options")? {
        if let Some(chat) = &mut asked.chat {
            chat.has_usage = options.take("include_usage")?.unwrap_or(false);
        }
        options.allow("include_obfuscation", &["true", "false"])?;
        options.finish()?;
    }
    asked.user = body.take("user")?;
    asked.metadata = body.take("metadata")?.unwrap_or_default();
    (asked.options.temperature, asked.options.top_p) = (body.take("temperature")?, body.take("top_p")?);
    body.allow("parallel_tool_calls", &["true"])?;
    body.allow("service_tier", &[r#""auto""#, r#""default""#])?;
    body.allow("top_logprobs", &["0"])?;
    body.hints(&["safety_identifier", "prompt_cache_key", "prompt_cache_retention"])
}

/// The list `tools` of a request, with the choice among them.
pub(crate) fn tools(fields: &mut Fields<'_>, is_chat: bool) -> Result<Vec<ClientTool>, SessionError> {
    let mut tools = Vec::new();
    for (path, raw) in fields.list("tools")?.unwrap_or_default() {
        let mut tool = Fields::of(path, raw)?;
        let kind: String = tool.need("type")?;
        if kind != "function" {
            return Err(tool.wrong("type", format!("{kind:?} is not supported; send tools of the type \"function\"")));
        }
        tools.push(function(tool.inner("function", is_chat)?)?);
    }
    let is_none = fields.raw("tool_choice").map(|raw| match raw.get() {
        r#""auto""# => Ok(false),
        r#""none""# => Ok(true),
        other => {
            let message = format!("{} is not supported; send \"auto\" or \"none\"", short(other));
            Err(fields.wrong("tool_choice", message))
        }
    });
    Ok(if is_none.transpose()?.unwrap_or(false) { Vec::new() } else { tools })
}

fn function(mut fields: Fields<'_>) -> Result<ClientTool, SessionError> {
    let parameters = fields.raw("parameters").map_or(r#"{"type":"object","properties":{}}"#, RawValue::get);
    let tool = ClientTool {
        input_schema: RawJson::parse(parameters).map_err(|_| fields.wrong("parameters", "it is not an object"))?,
        name: fields.need("name")?,
        description: fields.take("description")?.unwrap_or_default(),
        effect: Effect::Once,
        timeout_ms: None,
    };
    // Arguments are checked against the schema in any case.
    fields.take::<bool>("strict")?;
    fields.finish()?;
    Ok(tool)
}

/// The format of an answer: text, any object, or an object by a schema.
pub(crate) fn format(mut fields: Fields<'_>, is_chat: bool) -> Result<Option<OutputSpec>, SessionError> {
    let kind: String = fields.need("type")?;
    let output = match kind.as_str() {
        "text" => None,
        "json_object" => Some(OutputSpec::new(RawJson::parse(r#"{"type":"object"}"#)?)),
        "json_schema" => {
            fields = fields.inner("json_schema", is_chat)?;
            let raw = fields.raw("schema").ok_or_else(|| fields.wrong("schema", "it is missing"))?;
            let schema = RawJson::parse(raw.get()).map_err(|_| fields.wrong("schema", "it is not an object"))?;
            let name = Some(fields.need("name")?);
            fields.take::<String>("description")?;
            fields.take::<bool>("strict")?;
            Some(OutputSpec { name, ..OutputSpec::new(schema) })
        }
        _ => {
            let message = format!("{kind:?} is not supported; send \"text\", \"json_object\" or \"json_schema\"");
            return Err(fields.wrong("type", message));
        }
    };
    fields.finish()?;
    Ok(output)
}

/// How long the model thinks.
pub(crate) fn effort(fields: &mut Fields<'_>, name: &str) -> Result<Option<Effort>, SessionError> {
    let Some(effort) = fields.take::<String>(name)? else { return Ok(None) };
    let known = [Effort::None, Effort::Low, Effort::Medium, Effort::High];
    let found = known.into_iter().find(|known| known.name() == effort);
    let message = format!("{effort:?} is not supported; send \"none\", \"low\", \"medium\" or \"high\"");
    found.map(Some).ok_or_else(|| fields.wrong(name, message))
}

/// Reads a part of a message: a text, an image or a file. Nothing is fetched, so an address of bytes must hold them.
pub(crate) fn part(path: String, raw: &RawValue) -> Result<PromptBlock, SessionError> {
    let mut fields = Fields::of(path, raw)?;
    let kind: String = fields.need("type")?;
    let block = match kind.as_str() {
        "input_text" | "output_text" | "text" => {
            let text: String = fields.need("text")?;
            fields.allow("annotations", &["[]"])?;
            fields.allow("logprobs", &["[]"])?;
            PromptBlock::Text { text }
        }
        "input_image" | "image_url" => {
            let is_chat = kind == "image_url";
            fields = fields.inner("image_url", is_chat)?;
            fields.hints(&["detail"])?;
            let name = if is_chat { "url" } else { "image_url" };
            let (media_type, bytes) = data(&mut fields, name)?;
            PromptBlock::image(&media_type, bytes)
        }
        "input_file" | "file" => {
            fields = fields.inner("file", kind == "file")?;
            let name: String = fields.need("filename")?;
            let (media_type, bytes) = data(&mut fields, "file_data")?;
            PromptBlock::file(&name, &media_type, bytes)
        }
        _ => return Err(fields.wrong("type", format!("{kind:?} is not supported"))),
    };
    fields.finish()?;
    Ok(block)
}

/// The type and the bytes of a `data:` address.
fn data(fields: &mut Fields<'_>, name: &str) -> Result<(String, Vec<u8>), SessionError> {
    let url: String = fields.need(name)?;
    let Some(rest) = url.strip_prefix("data:") else {
        return Err(fields.wrong(name, "nothing is fetched: send the bytes as data:TYPE;base64,BYTES"));
    };
    let (media_type, bytes) =
        rest.split_once(";base64,").ok_or_else(|| fields.wrong(name, "it is not written as data:TYPE;base64,BYTES"))?;
    let bytes = BASE64_STANDARD.decode(bytes).map_err(|_| fields.wrong(name, "its bytes are not base64"))?;
    Ok((media_type.to_owned(), bytes))
}

/// The parts of a message's content, which is a text or a list.
pub(crate) fn content(path: &str, raw: &RawValue) -> Result<Vec<PromptBlock>, SessionError> {
    if is_text(raw) {
        return Ok(vec![PromptBlock::Text { text: text(path, raw)? }]);
    }
    items(path, raw)?.into_iter().map(|(path, raw)| part(path, raw)).collect()
}

/// The texts of parts, an empty line between two; anything else is refused.
pub(crate) fn texts(path: &str, parts: Vec<PromptBlock>) -> Result<String, SessionError> {
    let text = |part| match part {
        PromptBlock::Text { text } => Ok(text),
        PromptBlock::Image { .. } | PromptBlock::File { .. } => {
            Err(SessionError::invalid(path, "images and files are only supported in the last message of the user"))
        }
    };
    Ok(parts.into_iter().map(text).collect::<Result<Vec<_>, _>>()?.join("\n\n"))
}
