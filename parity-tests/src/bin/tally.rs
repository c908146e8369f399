//! A server of the Model Context Protocol for the tests, of the official library. Its tool `add` writes a line into a file
//! and says how many there are, so that a call that runs twice is seen.
//!
//! The one argument is its folder. It notes each of its starts there.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    path::PathBuf,
    sync::Arc,
};

use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt as _,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, InitializeResult, ListToolsResult,
        PaginatedRequestParams, ServerCapabilities, Tool,
    },
    service::RequestContext,
};
use serde_json::{Value, json};

/// File of the lines that were added, which the test tools have too.
const LINES: &str = "effects";
/// File with a line for each start.
const STARTS: &str = "starts";

struct Tally {
    folder: PathBuf,
}

impl Tally {
    /// Adds a line to a file, and returns how many it has.
    fn add(&self, file: &str, line: &str) -> std::io::Result<usize> {
        let path = self.folder.join(file);
        OpenOptions::new().append(true).create(true).open(&path)?.write_all(format!("{line}\n").as_bytes())?;
        Ok(fs::read_to_string(path)?.lines().count())
    }
}

impl ServerHandler for Tally {
    fn get_info(&self) -> InitializeResult {
        InitializeResult::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = json!({
            "type": "object", "properties": { "line": { "type": "string" } }, "required": ["line"],
            "additionalProperties": false,
        });
        let schema = schema.as_object().cloned().unwrap_or_default();
        let add = Tool::new("add", "Adds a line and returns how many there are.", Arc::new(schema));
        Ok(ListToolsResult::with_all_items(vec![add]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let line = request.arguments.as_ref().and_then(|arguments| arguments.get("line")).and_then(Value::as_str);
        let Some(line) = line.filter(|_| request.name == "add") else {
            return Err(ErrorData::invalid_params("the one tool is add, and takes a line", None));
        };
        let lines = self.add(LINES, line).map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        Ok(CallToolResult::success(vec![ContentBlock::text(format!("lines: {lines}"))]).into())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tally = Tally { folder: std::env::args_os().nth(1).ok_or("name a folder")?.into() };
    tally.add(STARTS, &std::process::id().to_string())?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        tally.serve(rmcp::transport::stdio()).await?.waiting().await?;
        Ok(())
    })
}
