//! The names that most programs need: `use meerkat_service::prelude::*;`. Everything else has its module.

pub use crate::{
    Agent, AgentBuildConfig, Capability, ErrorBody, ErrorCode, SessionError, SessionId, SessionService,
    compaction::{CompactionConfig, Compactor},
    follow::{
        Follower,
        turn::{FollowedTurn, TurnStep},
    },
    memory::MemoryOptions,
    model::{ModelAnswer, ModelClient, ModelRequest, ToolSpec},
    service::{
        CreateSession, DecideApproval, Decision, ForkSession, InterruptTurn, Page, ReadEvents, ReadHistory, ResumeTurn,
        SearchMemory, SessionCreated, SessionQuery, SessionView, StartTurn, TurnResult, TurnStatus,
    },
    session::message::RawJson,
    tool::{Approval, Effect, Invocation, OutputSink, Plan, Tool, ToolError},
};
