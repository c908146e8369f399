//! A tool that returns images.

use std::sync::Arc;

use async_trait::async_trait;
use meerkat_service::{
    model::ToolSpec,
    session::message::RawJson,
    tool::{Invocation, OutputSink, Plan, Tool, ToolError},
};

/// The beginning of a PNG of 640 x 480 pixels; each has another last byte.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x02\x80\0\0\x01\xe0\x08\x02\0\0";

/// An image with this number.
pub(crate) fn png(number: u8) -> Vec<u8> {
    [PNG, &[number]].concat()
}

/// Returns the images with these numbers, made as long as `bytes` says.
struct Camera(ToolSpec);

/// Makes the tool `camera`.
pub(crate) fn camera() -> Arc<dyn Tool> {
    let schema = RawJson::empty_object();
    Arc::new(Camera(ToolSpec { name: "camera".into(), description: "Takes.".into(), schema }))
}

#[async_trait]
impl Tool for Camera {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn plan(&self, _: &Invocation) -> Result<Plan, ToolError> {
        Ok(Plan::read_only())
    }

    async fn call(&self, invocation: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        let arguments: serde_json::Value = ToolError::decode(&invocation.arguments)?;
        for number in arguments["take"].as_array().unwrap() {
            let mut image = png(u8::try_from(number.as_u64().unwrap()).unwrap());
            let bytes = arguments["bytes"].as_u64().map_or(0, |bytes| usize::try_from(bytes).unwrap());
            image.resize(image.len().max(bytes), 0);
            output.image(&image).await?;
        }
        Ok(())
    }
}
