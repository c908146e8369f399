"""Every request, answer, event and error of the server, as the dictionary that its JSON is."""

# Made by generate.py. Do not edit.

from __future__ import annotations

from typing import Any, Generic, Literal, NotRequired, TypeAlias, TypedDict, TypeVar, final

Item = TypeVar("Item")


class Page(TypedDict, Generic[Item]):
    """Page of a list. `next_cursor` is `None` at the end."""

    items: list[Item]
    next_cursor: str | None


@final
class Agent(TypedDict):
    """Agent that a person described in a file."""

    model: NotRequired[str | None]
    name: str
    prompt: str
    tools: NotRequired[list[str] | None]


@final
class ApprovalDecidedEvent(TypedDict):
    """A call was decided."""

    answer: NotRequired[Any]
    call_id: str
    decision: Decision
    reason: str | None
    scope: NotRequired[Scope]
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["approval_decided"]
    v: Literal[1]


@final
class ApprovalRequestedEvent(TypedDict):
    """A call waits for a decision."""

    arguments: str
    call_id: str
    form: NotRequired[Form | None]
    name: str
    preview: NotRequired[str | None]
    rule: NotRequired[str | None]
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["approval_requested"]
    v: Literal[1]


@final
class AssistantMessageEvent(TypedDict):
    """The model answered a step."""

    blocks: list[Block]
    context: NotRequired[ContextTokens | None]
    cost: NotRequired[Cost | None]
    model: str
    seq: int
    session_id: str
    step: int
    stop_reason: StopReason
    time: str
    tools: NotRequired[str | None]
    turn: int | None
    type: Literal["assistant_message"]
    usage: Usage
    v: Literal[1]


@final
class AttachedFile(TypedDict):
    """File of a prompt. Its bytes are in a blob of the session."""

    blob: str
    bytes: int
    media_type: str
    name: str
    pages: NotRequired[int | None]


@final
class BlobRef(TypedDict):
    """Reference to a text in a blob, with the text's beginning and end."""

    blob: str
    bytes: int
    head: str
    tail: str


@final
class Block(TypedDict):
    """A part of an assistant message."""

    arguments: NotRequired[Any]
    call_id: NotRequired[str | None]
    name: NotRequired[str | None]
    opaque: NotRequired[Any]
    text: NotRequired[Body | None]
    type: BlockKind
    vendor: NotRequired[str | None]


@final
class BudgetWarningEvent(TypedDict):
    """A budget of the turn is nearly used up."""

    budget: Budget
    limit: Amount
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["budget_warning"]
    used: Amount
    v: Literal[1]


@final
class Budgets(TypedDict):
    """Limits of one turn; those left out come from its session, then from the engine."""

    agents: NotRequired[int | None]
    cost: NotRequired[Cost | None]
    steps: NotRequired[int | None]
    tokens: NotRequired[int | None]
    tool_calls: NotRequired[int | None]
    wall_ms: NotRequired[int | None]


@final
class CallAnsweredEvent(TypedDict):
    """A caller answered a call. The `tool_finished` that follows at once has the content."""

    answer_hash: str
    call_id: str
    outcome: CallOutcome
    seq: int
    session_id: str
    started: int
    time: str
    turn: int | None
    type: Literal["call_answered"]
    v: Literal[1]


@final
class CallContent(TypedDict):
    """Part of an answer to a call."""

    data: NotRequired[str | None]
    media_type: NotRequired[str | None]
    text: NotRequired[str | None]
    type: ContentKind
    value: NotRequired[Any]


@final
class CallRequestedEvent(TypedDict):
    """A call waits for its caller."""

    arguments: Any
    call_id: str
    deadline: Timestamp
    effect: Effect
    name: str
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["call_requested"]
    v: Literal[1]


@final
class ChangePage(TypedDict):
    """Changes of the list of sessions, the oldest first. A change may be returned more than once."""

    is_current: bool
    items: list[SessionChange]
    next_cursor: str
    restarts: bool


@final
class Changed(TypedDict):
    """Answer of every other change: the event that recorded it."""

    seq: int
    session_id: SessionId


@final
class ChangedFile(TypedDict):
    """File that a call made or replaced; if the outcome is unknown, the call may have been about to."""

    after_sha256: str
    before: FileBefore | None
    order: int
    path: str


@final
class ClientTool(TypedDict):
    """Tool that the caller runs."""

    description: str
    effect: NotRequired[Effect]
    input_schema: dict[str, Any]
    name: str
    timeout_ms: NotRequired[int | None]


@final
class ClientToolsChangedEvent(TypedDict):
    """The session has other tools that its caller runs, or a turn in its queue brings them."""

    defined: NotRequired[int | None]
    hash: str
    queued: NotRequired[bool]
    seq: int
    session_id: str
    time: str
    tools: list[ClientTool] | None
    turn: int | None
    type: Literal["client_tools_changed"]
    v: Literal[1]


@final
class CompactionAttempt(TypedDict):
    """Attempt or undo of a compaction."""

    step: int
    turn: int


@final
class CompactionCompletedEvent(TypedDict):
    """A compaction is whole. Its messages are those of the live context."""

    messages_after: int
    messages_before: int
    seq: int
    session_id: str
    summary_tokens: int
    time: str
    turn: int | None
    type: Literal["compaction_completed"]
    v: Literal[1]


@final
class CompactionConfig(TypedDict):
    """Settings of the default compactor."""

    auto_compact_threshold: NotRequired[int]
    enabled: NotRequired[bool]
    mask_tool_results: NotRequired[bool]
    max_request_bytes: NotRequired[int]
    max_summary_tokens: NotRequired[int]
    min_turns_between_compactions: NotRequired[int]
    prefer_anchors: NotRequired[bool]
    recent_turn_budget: NotRequired[int]


@final
class CompactionCounters(TypedDict):
    """Counters for the next compaction. They belong to the session and are durable."""

    last_attempt: CompactionAttempt | None
    last_input_tokens: int
    started_turns: int


@final
class CompactionFailedEvent(TypedDict):
    """A compaction failed. The live context is unchanged."""

    code: ErrorCode
    message: str
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["compaction_failed"]
    v: Literal[1]


@final
class CompactionReceipt(TypedDict):
    """Report of a compaction: kept, discarded, cost."""

    anchor: int | None
    compaction: int | None
    cost: NotRequired[Cost | None]
    discarded: int
    masked: int
    mode: CompactionMode
    pins: int
    reminders: int
    retained: int
    rounds: NotRequired[int]
    tokens_after: int
    tokens_before: int
    unread: NotRequired[int]
    usage: Usage


@final
class CompactionStartedEvent(TypedDict):
    """A compaction began. Its sizes are those of the live context."""

    estimated_history_tokens: int
    input_tokens: int
    message_count: int
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["compaction_started"]
    v: Literal[1]


@final
class CompactionUndoneEvent(TypedDict):
    """A compaction was undone: the discarded messages are in the live context again, before all later ones."""

    compaction: int
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["compaction_undone"]
    v: Literal[1]


@final
class ContextRebuiltEvent(TypedDict):
    """The live context was rebuilt; retained messages are referenced. The events of the others stay."""

    compaction: int
    masked: list[int]
    receipt: CompactionReceipt
    retained: list[list[Any]]
    seq: int
    session_id: str
    summary: Body | None
    time: str
    turn: int | None
    type: Literal["context_rebuilt"]
    v: Literal[1]


@final
class ContextTokens(TypedDict):
    """Estimated tokens of a request, by what they are for. Together with `free` they are the model's window."""

    free: int | None
    history: int
    pins: int
    reminders: int
    system: int
    tool_results: int
    tools: int


@final
class ContextView(TypedDict):
    """Size of a session's live context."""

    estimated_tokens: int
    messages: int
    window_tokens: int


@final
class Cost(TypedDict):
    """Amount of money."""

    amount: Decimal
    currency: Currency


@final
class DelegateStartedEvent(TypedDict):
    """A call starts a sub-agent. It is recorded before anything of the sub-agent is."""

    agent: NotRequired[Agent | None]
    call_id: str
    child: SessionId
    reserved: Budgets
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["delegate_started"]
    v: Literal[1]


@final
class Delegated(TypedDict):
    """What sub-agents used, together with theirs."""

    agents: int
    cost: NotRequired[Cost | None]
    steps: int
    tokens: int
    tool_calls: int


@final
class Descent(TypedDict):
    """Place of a session in a tree of sessions."""

    depth: int
    parent: Parent
    root: SessionId


@final
class ErrorBody(TypedDict):
    """An error as it is sent: `{"code", "message", "retryable", "details"}`."""

    code: ErrorCode
    details: dict[str, Any]
    message: str
    retryable: bool


@final
class ErrorRow(TypedDict):
    """Row of the error table."""

    code: ErrorCode
    exit_code: int
    http_status: int
    message: str
    page: NotRequired[str | None]
    retryable: bool
    rpc_code: int


@final
class FileBefore(TypedDict):
    """File before a change."""

    bytes: int
    copy: NotRequired[str | None]
    sha256: str


@final
class Finding(TypedDict):
    """Fault in a data directory."""

    check: Check
    mended: bool
    remedy: str
    session_id: SessionId | None
    severity: Severity
    what: str


@final
class Form(TypedDict):
    """Question of a tool server to a person, asked while its call runs."""

    call_id: str
    message: str
    schema: Any
    server: str


@final
class GivenBlockText(TypedDict):
    """A text."""

    text: str
    type: Literal["text"]


@final
class GivenBlockToolCall(TypedDict):
    """A call of a tool, which need not be there any more."""

    arguments: Any
    call_id: str
    name: str
    type: Literal["tool_call"]


@final
class GivenMessageUser(TypedDict):
    """What the user said. The first message of a history is one."""

    content: str
    role: Literal["user"]


@final
class GivenMessageAssistant(TypedDict):
    """What the model answered."""

    blocks: NotRequired[list[GivenBlock]]
    content: NotRequired[str | None]
    role: Literal["assistant"]


@final
class GivenMessageToolResults(TypedDict):
    """The results of the calls in the message before: one for each."""

    results: list[GivenResult]
    role: Literal["tool_results"]


@final
class GivenResult(TypedDict):
    """Result of a call that is given."""

    call_id: str
    content: str
    is_error: NotRequired[bool]


@final
class HistoryGivenEvent(TypedDict):
    """The session was given a message from elsewhere, from before its first turn."""

    exchange: int
    message: Message
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["history_given"]
    v: Literal[1]


@final
class HistoryItem(TypedDict):
    """Message of a session's history."""

    message: Message
    role: str
    seq: int
    turn: int | None


@final
class HistorySnapshotEvent(TypedDict):
    """Facts from older events that journal compaction is about to drop, for readers of the journal from its
    beginning. A session that has applied them all learns nothing new."""

    context: list[list[Any]]
    cost: NotRequired[Cost | None]
    counters: NotRequired[CompactionCounters | None]
    first_line: NotRequired[str | None]
    found_tools: NotRequired[list[str]]
    keys_up_to: Timestamp
    message_count: int
    next_turn: int
    pruned_to: int
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["history_snapshot"]
    undoable_after: NotRequired[int | None]
    usage: Usage
    v: Literal[1]


@final
class Image(TypedDict):
    """Image of a prompt, or that a call returned. Its bytes are in a blob of the session."""

    blob: str
    bytes: int
    height: int
    media_type: str
    width: int


@final
class ImportedSession(TypedDict):
    """Imported session."""

    imported_from: SessionId
    last_seq: int
    lost: NotRequired[list[list[Any]]]
    session_id: SessionId


@final
class Key(TypedDict):
    """An idempotency key and the hash of its request."""

    key: str
    request: str


@final
class LogTailRepairedEvent(TypedDict):
    """The end of the journal was cut off: it had not been written whole when the process ended."""

    bytes: int
    quarantine: str
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["log_tail_repaired"]
    v: Literal[1]


@final
class LostKey(TypedDict):
    """Idempotency key of a lost turn."""

    key: Key
    seq: int
    time: Timestamp
    turn: int


@final
class MessageSystem(TypedDict):
    """The system prompt."""

    content: Body
    role: Literal["system"]


@final
class MessageUser(TypedDict):
    """A user's prompt."""

    blocks: NotRequired[list[Attached]]
    content: Body
    role: Literal["user"]


@final
class MessageAssistant(TypedDict):
    """A plain text of the model."""

    content: Body
    role: Literal["assistant"]


@final
class MessageBlockAssistant(TypedDict):
    """An answer of the model in blocks: text, reasoning, tool calls."""

    blocks: list[Block]
    model: str
    role: Literal["block_assistant"]


@final
class MessageSystemReminder(TypedDict):
    """A system reminder. Its type is a field, which no text can forge; it is never a turn."""

    content: Body
    kind: SystemReminderType
    role: Literal["system_reminder"]


@final
class MessagePin(TypedDict):
    """A fact that is kept to the letter."""

    content: Body
    n: int
    role: Literal["pin"]


@final
class MessageToolResults(TypedDict):
    """The results of the tool calls of the message before, in call order."""

    results: list[ToolResult]
    role: Literal["tool_results"]


@final
class ModelOptions(TypedDict):
    """How a model is asked. What a turn leaves out comes from its session, and what is left out there from the
    vendor."""

    cache: NotRequired[CacheTime | None]
    effort: NotRequired[Effort | None]
    max_output_tokens: NotRequired[int | None]
    seed: NotRequired[int | None]
    stop: NotRequired[list[str] | None]
    temperature: NotRequired[float | None]
    top_p: NotRequired[float | None]


@final
class OpenApproval(TypedDict):
    """Call that waits for a person or for its caller, with its session."""

    approval: PendingApproval
    kind: OpenKind
    root: NotRequired[SessionId | None]
    session_id: SessionId
    title: str | None
    waits_since: Timestamp
    workspace: NotRequired[str | None]


@final
class OpenCall(TypedDict):
    """Call that waits for its caller."""

    arguments: dict[str, Any]
    call_id: str
    deadline: Timestamp
    effect: Effect
    name: str
    seq: int
    turn: int


@final
class OutputError(TypedDict):
    """Error in an answer, at one place."""

    message: str
    path: str


@final
class OutputRefusedEvent(TypedDict):
    """The last answer does not fit the turn's schema, and goes back to the model."""

    errors: list[OutputError]
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["output_refused"]
    v: Literal[1]


@final
class OutputSpec(TypedDict):
    """Schema that a turn's answer must fit."""

    name: NotRequired[str | None]
    repairs: NotRequired[int]
    schema: dict[str, Any]


@final
class Parent(TypedDict):
    """Call of another session by which a session was started."""

    call_id: str
    session_id: SessionId
    turn: int


@final
class PartialTextEvent(TypedDict):
    """Part of an answer that was cut off. With the end of its turn it becomes a message that ends with `[cut
    off]`."""

    seq: int
    session_id: str
    step: int
    text: Body
    time: str
    turn: int | None
    type: Literal["partial_text"]
    v: Literal[1]


@final
class PendingApproval(TypedDict):
    """Call that waits for a decision."""

    arguments: str
    call_id: str
    form: NotRequired[Form | None]
    name: str
    preview: NotRequired[str | None]
    rule: NotRequired[str | None]
    seq: int
    turn: int


@final
class Pin(TypedDict):
    """Fact that is kept to the letter."""

    seq: int
    text: str


@final
class PinnedEvent(TypedDict):
    """A fact was pinned. The pin is named by the seq of this event."""

    seq: int
    session_id: str
    text: str
    time: str
    turn: int | None
    type: Literal["pinned"]
    v: Literal[1]


@final
class PromptBlockText(TypedDict):
    """A text."""

    text: str
    type: Literal["text"]


@final
class PromptBlockImage(TypedDict):
    """An image. It has either `data` or `blob`."""

    blob: NotRequired[str | None]
    data: NotRequired[str | None]
    media_type: str
    type: Literal["image"]


@final
class PromptBlockFile(TypedDict):
    """A text file or a PDF. It has either `data` or `blob`."""

    blob: NotRequired[str | None]
    data: NotRequired[str | None]
    media_type: str
    name: str
    type: Literal["file"]


@final
class PrunedEvent(TypedDict):
    """Events were dropped, or cannot be read."""

    after: int
    reason: NotRequired[PrunedReason | None]
    session_id: str
    time: str
    to: int
    turn: int | None
    type: Literal["pruned"]
    v: Literal[1]


@final
class QueueItem(TypedDict):
    """Turn in the queue."""

    blocks: NotRequired[list[Attached]]
    prompt: Body
    queued_at: Timestamp
    seq: int
    turn: int


@final
class ReaderView(TypedDict):
    """Reader in a list."""

    built_in: bool
    created_at: Timestamp
    reader: str
    records_behind: int
    sessions_behind: int


@final
class ReasoningDeltaEvent(TypedDict):
    """More of the model's reasoning."""

    after: int
    block: int
    offset: int
    session_id: str
    step: int
    text: str
    time: str
    turn: int | None
    type: Literal["reasoning_delta"]
    v: Literal[1]


@final
class RecordsLostEvent(TypedDict):
    """Events were lost to damage. A turn or call that they ended, or in which they began, has ended."""

    keys: NotRequired[list[LostKey]]
    keys_unknown: bool
    ranges: list[list[Any]]
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["records_lost"]
    v: Literal[1]


@final
class Reminder(TypedDict):
    """Reminder in force."""

    automatic: NotRequired[bool]
    kind: SystemReminderType
    seq: int
    text: str


@final
class ReminderClearedEvent(TypedDict):
    """A system reminder was removed."""

    kind: SystemReminderType
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["reminder_cleared"]
    v: Literal[1]


@final
class ReminderSetEvent(TypedDict):
    """A system reminder was set."""

    automatic: NotRequired[bool]
    kind: SystemReminderType
    seq: int
    session_id: str
    text: str
    time: str
    turn: int | None
    type: Literal["reminder_set"]
    v: Literal[1]


@final
class RetentionFailure(TypedDict):
    """Session that retention could not delete."""

    code: str
    message: str
    session_id: SessionId


@final
class RetentionItem(TypedDict):
    """Session that retention deletes."""

    bytes: int
    reason: RetentionReason
    session_id: SessionId
    title: str | None
    updated_at: Timestamp


@final
class RetryingEvent(TypedDict):
    """A model call failed and will be tried again."""

    after: int
    attempt: int
    error: ErrorBody
    session_id: str
    step: int
    time: str
    turn: int | None
    type: Literal["retrying"]
    v: Literal[1]
    wait_ms: int


@final
class SearchHit(TypedDict):
    """Indexed piece of text."""

    from_seq: int
    lanes: dict[str, float]
    role: str
    score: float
    session_id: SessionId
    text: str
    time: Timestamp
    to_seq: int


@final
class SessionArchivedEvent(TypedDict):
    """The session was put away: it can be read, and takes no turn."""

    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["session_archived"]
    v: Literal[1]


@final
class SessionChange(TypedDict):
    """Session that has changed."""

    session: SessionSummary | None
    session_id: SessionId


@final
class SessionCreatedEvent(TypedDict):
    """A session was made."""

    budgets: Budgets
    compaction: NotRequired[CompactionConfig | None]
    descent: NotRequired[Descent | None]
    key: Key | None
    labels: dict[str, str]
    memory: NotRequired[SessionMemory]
    model: str
    options: NotRequired[ModelOptions]
    seq: int
    session_id: str
    system_prompt: Body | None
    time: str
    title: NotRequired[str | None]
    tools: list[str] | None
    turn: int | None
    type: Literal["session_created"]
    v: Literal[1]
    workspace: NotRequired[str | None]


@final
class SessionDeletedEvent(TypedDict):
    """The session is deleted; nothing follows."""

    after: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["session_deleted"]
    v: Literal[1]


@final
class SessionForkedEvent(TypedDict):
    """The session began as a copy of another's beginning. Everything before happened to that session."""

    at: int
    key: Key | None
    parent: SessionId
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["session_forked"]
    v: Literal[1]


@final
class SessionImportedEvent(TypedDict):
    """The session came here in a bundle, which may be anybody's: it has no workspace, no tools that its caller
    runs, no rules that allow calls, and no call that a person decided on."""

    descent: NotRequired[Descent | None]
    had_client_tools: NotRequired[bool]
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["session_imported"]
    v: Literal[1]


@final
class SessionMemory(TypedDict):
    """What a session's model finds in memory, and whether memory takes the session in."""

    index: NotRequired[bool]
    scope: NotRequired[MemoryScope]


@final
class SessionSummary(TypedDict):
    """Session in a list."""

    archived: bool
    cost: Cost | None
    created_at: Timestamp
    forked_from: SessionId | None
    labels: dict[str, str]
    last_error: NotRequired[ErrorCode | None]
    last_seq: int
    message_count: int
    model: str
    parent: NotRequired[Parent | None]
    session_id: SessionId
    state: SessionState
    title: str | None
    turn_count: int
    updated_at: Timestamp
    usage: Usage


@final
class SessionUnarchivedEvent(TypedDict):
    """The session was taken out again."""

    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["session_unarchived"]
    v: Literal[1]


@final
class SessionUpdatedEvent(TypedDict):
    """The session has another title or other labels. Both are complete, even if only one has changed."""

    labels: dict[str, str]
    seq: int
    session_id: str
    time: str
    title: str | None
    turn: int | None
    type: Literal["session_updated"]
    v: Literal[1]


@final
class SteeringEnteredEvent(TypedDict):
    """A steered text is in the context from here on, as the user's message."""

    seq: int
    session_id: str
    steered: int
    time: str
    turn: int | None
    type: Literal["steering_entered"]
    v: Literal[1]


@final
class StepView(TypedDict):
    """Model call with the window that it saw, or a compaction between two of them."""

    compaction: int | None
    context: ContextTokens | None
    cost: Cost | None
    error: ErrorBody | None
    kind: StepKind
    receipt: CompactionReceipt | None
    seq: int
    step: int | None
    time: Timestamp
    turn: int | None
    usage: Usage | None


@final
class SummaryUnusedEvent(TypedDict):
    """A summary was paid for and not used, because its compaction failed."""

    cost: NotRequired[Cost | None]
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["summary_unused"]
    usage: Usage
    v: Literal[1]


@final
class TextDeltaEvent(TypedDict):
    """More of the model's text."""

    after: int
    block: int
    offset: int
    session_id: str
    step: int
    text: str
    time: str
    turn: int | None
    type: Literal["text_delta"]
    v: Literal[1]


@final
class ToolAllowedEvent(TypedDict):
    """A rule allows calls of the session from here on. It stays when the turn ends."""

    call_id: str
    rule: str
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["tool_allowed"]
    v: Literal[1]


@final
class ToolFinishedEvent(TypedDict):
    """A call has its result."""

    call_id: str
    confinement: NotRequired[str | None]
    delegated: NotRequired[Delegated | None]
    duration_ms: int
    error: ErrorBody | None
    files: NotRequired[list[ChangedFile]]
    images: NotRequired[list[Image]]
    name: str
    outcome: ToolOutcome
    output: Body
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["tool_finished"]
    v: Literal[1]


@final
class ToolProgressEvent(TypedDict):
    """A tool reports progress."""

    after: int
    call_id: str
    session_id: str
    text: str
    time: str
    turn: int | None
    type: Literal["tool_progress"]
    v: Literal[1]


@final
class ToolResult(TypedDict):
    """The result of one call, as the model sees it."""

    call_id: str
    content: Body
    images: NotRequired[list[Image]]
    is_error: bool
    name: str


@final
class ToolServerView(TypedDict):
    """Configured server of tools."""

    error: str | None
    kind: str
    name: str
    state: ToolServerState
    tokens: int
    tools: int


@final
class ToolStartedEvent(TypedDict):
    """A tool is about to run."""

    call_id: str
    effect: Effect
    files: NotRequired[list[ChangedFile]]
    name: str
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["tool_started"]
    v: Literal[1]


@final
class ToolView(TypedDict):
    """Tool that a model is offered, or that is left out."""

    approval: NotRequired[Approval | None]
    description: NotRequired[str | None]
    effect: NotRequired[Effect | None]
    left_out: NotRequired[str | None]
    name: str
    source: str
    tokens: int


@final
class TurnAccepted(TypedDict):
    """Answer of a turn that is not waited for."""

    seq: int
    session_id: SessionId
    turn: int


@final
class TurnCompletedEvent(TypedDict):
    """The turn completed."""

    seq: int
    session_id: str
    stop_reason: StopReason
    time: str
    totals: TurnTotals
    turn: int | None
    type: Literal["turn_completed"]
    v: Literal[1]


@final
class TurnDequeuedEvent(TypedDict):
    """A waiting turn left the queue without starting."""

    reason: str
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["turn_dequeued"]
    v: Literal[1]


@final
class TurnEditedEvent(TypedDict):
    """A waiting turn has another prompt or another place in the queue."""

    blocks: NotRequired[list[Attached]]
    position: int | None
    prompt: Body | None
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["turn_edited"]
    v: Literal[1]


@final
class TurnFailedEvent(TypedDict):
    """The turn failed."""

    error: ErrorBody
    seq: int
    session_id: str
    time: str
    totals: TurnTotals
    turn: int | None
    type: Literal["turn_failed"]
    v: Literal[1]


@final
class TurnInterruptedEvent(TypedDict):
    """The turn was interrupted."""

    reason: str
    seq: int
    session_id: str
    time: str
    totals: TurnTotals
    turn: int | None
    type: Literal["turn_interrupted"]
    v: Literal[1]


@final
class TurnQueuedEvent(TypedDict):
    """A turn was accepted and waits."""

    access: NotRequired[TurnAccess | None]
    allow: NotRequired[list[str]]
    attended: NotRequired[bool]
    blocks: NotRequired[list[Attached]]
    budgets: Budgets
    client_tools: NotRequired[str | None]
    compaction: NotRequired[CompactionConfig | None]
    key: Key | None
    model: str | None
    options: NotRequired[ModelOptions]
    output: NotRequired[OutputSpec | None]
    policy: Policy
    prompt: Body
    search_path: NotRequired[str | None]
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["turn_queued"]
    v: Literal[1]


@final
class TurnResult(TypedDict):
    """Answer of a turn that has ended, or that waits for its caller."""

    calls: NotRequired[list[OpenCall]]
    compactions: int
    cost: Cost | None
    delegated: NotRequired[Delegated | None]
    error: ErrorBody | None
    model: str
    output: Any
    seq: int
    session_id: SessionId
    status: TurnStatus
    steps: int
    stop_reason: StopReason | None
    text: str
    tool_calls: int
    turn: int
    usage: Usage


@final
class TurnStartedEvent(TypedDict):
    """A turn started."""

    access: NotRequired[TurnAccess | None]
    allow: NotRequired[list[str]]
    attended: NotRequired[bool]
    blocks: NotRequired[list[Attached]]
    budgets: Budgets
    client_tools: NotRequired[str | None]
    compaction: NotRequired[CompactionConfig | None]
    continues: int | None
    key: Key | None
    model: str
    options: NotRequired[ModelOptions]
    output: NotRequired[OutputSpec | None]
    prompt: Body | None
    queued: int | None
    search_path: NotRequired[str | None]
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["turn_started"]
    v: Literal[1]


@final
class TurnSteeredEvent(TypedDict):
    """The running turn got another text of the user. It waits until the model has answered and its calls have
    results."""

    blocks: NotRequired[list[Attached]]
    key: Key | None
    prompt: Body
    seq: int
    session_id: str
    started: int
    time: str
    turn: int | None
    type: Literal["turn_steered"]
    v: Literal[1]


@final
class TurnTotals(TypedDict):
    """Counts and cost of a turn, in each event that ends one."""

    compactions: int
    cost: NotRequired[Cost | None]
    delegated: NotRequired[Delegated | None]
    steps: int
    tool_calls: int
    usage: Usage


@final
class TurnView(TypedDict):
    """Turn with its cost."""

    budgets: TurnViewBudgets
    cost: Cost | None
    ended_at: Timestamp | None
    model: str
    options: NotRequired[TurnViewOptions]
    output: NotRequired[TurnViewOutput]
    seq: int
    started_at: Timestamp
    status: TurnStatus | None
    steps: int
    tool_calls: int
    turn: int
    usage: Usage


@final
class TurnViewBudgets(TypedDict):
    """Its budgets."""

    agents: NotRequired[int | None]
    cost: NotRequired[Cost | None]
    steps: NotRequired[int | None]
    tokens: NotRequired[int | None]
    tool_calls: NotRequired[int | None]
    wall_ms: NotRequired[int | None]


@final
class TurnViewOptions(TypedDict):
    """How its model was asked."""

    cache: NotRequired[CacheTime | None]
    effort: NotRequired[Effort | None]
    max_output_tokens: NotRequired[int | None]
    seed: NotRequired[int | None]
    stop: NotRequired[list[str] | None]
    temperature: NotRequired[float | None]
    top_p: NotRequired[float | None]


@final
class TurnViewOutput(TypedDict):
    """What its answer has to fit; left out if that was not asked for."""

    name: NotRequired[str | None]
    repairs: int
    schema: dict[str, Any]


@final
class UnpinnedEvent(TypedDict):
    """A pin was removed."""

    pin: int
    seq: int
    session_id: str
    time: str
    turn: int | None
    type: Literal["unpinned"]
    v: Literal[1]


@final
class Usage(TypedDict):
    """Tokens of one call, a turn, or a session, counted in one way whatever the vendor's bill looks like. The
    parts that are 0 in most bills are written only if they are not."""

    cache_write_tokens: NotRequired[int]
    cached_tokens: int
    input_tokens: int
    output_tokens: int
    reasoning_tokens: NotRequired[int]


@final
class SessionFields(TypedDict):
    """Further fields of `create_session`."""

    budgets: NotRequired[Budgets]
    compaction: NotRequired[CompactionConfig | None]
    history: NotRequired[list[GivenMessage]]
    labels: NotRequired[dict[str, str]]
    memory: NotRequired[SessionMemory]
    model: NotRequired[str | None]
    options: NotRequired[ModelOptions]
    system_prompt: NotRequired[str | None]
    title: NotRequired[str | None]
    workspace: NotRequired[str | None]


@final
class SessionCreated(TypedDict):
    """Answer of `create_session`."""

    created_at: Timestamp
    seq: int
    session_id: SessionId


@final
class TurnFields(TypedDict):
    """Further fields of `start_turn`."""

    access: NotRequired[TurnAccess | None]
    allow: NotRequired[list[str]]
    attended: NotRequired[bool]
    budgets: NotRequired[Budgets]
    compaction: NotRequired[CompactionConfig | None]
    model: NotRequired[str | None]
    options: NotRequired[ModelOptions]
    policy: NotRequired[Policy]


@final
class CapabilitiesView(TypedDict):
    """The answer of `capabilities`."""

    build: str
    keeps_rules: bool
    memory_store: bool
    not_set: NotRequired[list[str]]
    session_compaction: bool
    session_store: bool
    version: str


@final
class ErrorList(TypedDict):
    """Answer of `errors`."""

    items: list[ErrorRow]


@final
class EventsAnswer(TypedDict):
    """A page of events, each as its line in the journal."""

    items: list[Event]
    next_seq: int


@final
class SessionView(TypedDict):
    """Answer of `read`."""

    allowed_rules: NotRequired[list[str]]
    archived: bool
    context: ContextView
    cost: Cost | None
    created_at: Timestamp
    forked_from: SessionId | None
    labels: dict[str, str]
    last_error: NotRequired[ErrorCode | None]
    last_seq: int
    memory: NotRequired[SessionMemory]
    message_count: int
    model: str
    options: NotRequired[SessionViewOptions]
    parent: NotRequired[Parent | None]
    pending_approvals: list[PendingApproval]
    pins: list[Pin]
    queue: list[QueueItem]
    reminders: list[Reminder]
    session_id: SessionId
    state: SessionState
    title: str | None
    turn_count: int
    updated_at: Timestamp
    usage: Usage
    workspace: NotRequired[str | None]


@final
class SessionViewOptions(TypedDict):
    """How its turns ask the model, unless they say it themselves; left out if nothing is said."""

    cache: NotRequired[CacheTime | None]
    effort: NotRequired[Effort | None]
    max_output_tokens: NotRequired[int | None]
    seed: NotRequired[int | None]
    stop: NotRequired[list[str] | None]
    temperature: NotRequired[float | None]
    top_p: NotRequired[float | None]


@final
class StoredBlob(TypedDict):
    """Answer of `put_blob`."""

    blob: str
    bytes: int


@final
class Imported(TypedDict):
    """Answer of `import_bundle`."""

    next_offset: int
    sessions: list[ImportedSession]
    skipped: NotRequired[list[ImportedSession]]
    upload: str | None


@final
class FetchReaderAnswer(TypedDict):
    """Records that the reader has not handled, each session's in order."""

    items: list[FetchReaderAnswerItemsItem]


@final
class FetchReaderAnswerItemsItem(TypedDict):
    event: Event
    idempotency_key: str


@final
class Checkpoint(TypedDict):
    """Position of a reader in a session."""

    reader: str
    seq: int
    session_id: SessionId


@final
class JournalCompactionReport(TypedDict):
    """Answer of `compact_journal`."""

    dropped: int
    kept: int
    safe_up_to: int
    scanned: int
    skipped: CompactionSkipped | None


@final
class ProjectionRebuilt(TypedDict):
    """Answer of `rebuild_projection`."""

    events: int
    sessions: int


@final
class Diagnosis(TypedDict):
    """Answer of `diagnose`: the report of an examination."""

    findings: list[Finding]
    owner_pid: int | None
    records: int
    sessions: int


@final
class Retained(TypedDict):
    """Answer of `retain`."""

    deleted: int
    failed: NotRequired[list[RetentionFailure]]
    items: list[RetentionItem]


@final
class Forgotten(TypedDict):
    """Answer of `forget_memory`."""

    erased: bool
    forgotten: int


@final
class Reindexed(TypedDict):
    """Answer of `reindex_memory`."""

    indexed: int


Amount: TypeAlias = int | Cost
Approval: TypeAlias = Literal["allow", "ask", "deny"]
Attached: TypeAlias = Image | AttachedFile
BlockKind: TypeAlias = Literal["text", "reasoning", "tool_call"]
Body: TypeAlias = str | BlobRef
Budget: TypeAlias = Literal["tokens", "steps", "tool_calls", "wall_ms", "cost", "agents"]
CacheTime: TypeAlias = Literal["short", "long"]
CallOutcome: TypeAlias = Literal["succeeded", "failed"]
Check: TypeAlias = Literal[
    "configuration",
    "permissions",
    "disk_space",
    "store",
    "journal",
    "tool_call",
    "blob",
    "index",
    "memory",
    "readers",
    "projection",
    "database",
]
CompactionMode: TypeAlias = Literal["summary", "mechanical", "mask"]
CompactionSkipped: TypeAlias = Literal["no_reader", "no_pruner"]
ContentKind: TypeAlias = Literal["text", "image", "json"]
Currency: TypeAlias = Literal["USD"]
Decimal: TypeAlias = str
Decision: TypeAlias = Literal["approve", "deny"]
Effect: TypeAlias = Literal["read_only", "idempotent", "once"]
Effort: TypeAlias = Literal["none", "low", "medium", "high"]
ErrorCode: TypeAlias = Literal[
    "SESSION_PERSISTENCE_DISABLED",
    "SESSION_COMPACTION_DISABLED",
    "MEMORY_STORE_DISABLED",
    "SESSION_NOT_FOUND",
    "SESSION_BUSY",
    "SESSION_NOT_RUNNING",
    "SESSION_ARCHIVED",
    "SESSION_LIMIT",
    "SESSION_CORRUPTED",
    "SESSION_FORMAT_NEWER",
    "SESSION_MONOTONICITY_VIOLATION",
    "HISTORY_PRUNED",
    "ITEM_NOT_FOUND",
    "TURN_INTERRUPTED",
    "TURN_FAILED",
    "BUDGET_EXHAUSTED",
    "LOOP_DETECTED",
    "QUEUE_FULL",
    "CONTEXT_OVERFLOW",
    "OUTPUT_INVALID",
    "IDEMPOTENCY_CONFLICT",
    "INVALID_REQUEST",
    "UNKNOWN_OPERATION",
    "METHOD_NOT_ALLOWED",
    "CONFIG_INVALID",
    "UNAUTHENTICATED",
    "FORBIDDEN_ORIGIN",
    "PAYLOAD_TOO_LARGE",
    "TOO_MANY_CONNECTIONS",
    "SUBSCRIBER_LAGGED",
    "CURSOR_OUT_OF_RANGE",
    "READER_NOT_FOUND",
    "BUNDLE_INVALID",
    "STORE_LOCKED",
    "STORE_FULL",
    "STORE_FAILED",
    "STORE_NOT_WRITABLE",
    "STORE_FORMAT_UNSUPPORTED",
    "SHUTTING_DOWN",
    "MODEL_NOT_CONFIGURED",
    "MODEL_UNAUTHORIZED",
    "MODEL_RATE_LIMITED",
    "MODEL_OVERLOADED",
    "MODEL_TIMEOUT",
    "MODEL_STREAM_INCOMPLETE",
    "MODEL_CONTEXT_EXCEEDED",
    "MODEL_REJECTED",
    "TOOL_NOT_FOUND",
    "TOOL_FAILED",
    "APPROVAL_DENIED",
    "COMPACTION_NO_PROGRESS",
    "COMPACTION_PIN_LOST",
    "MEMORY_INDEX_UNAVAILABLE",
    "INTERNAL",
]
Event: TypeAlias = (
    SessionCreatedEvent
    | SessionForkedEvent
    | SessionImportedEvent
    | SessionUpdatedEvent
    | SessionArchivedEvent
    | SessionUnarchivedEvent
    | ClientToolsChangedEvent
    | HistoryGivenEvent
    | TurnQueuedEvent
    | TurnEditedEvent
    | TurnDequeuedEvent
    | TurnStartedEvent
    | TurnSteeredEvent
    | SteeringEnteredEvent
    | AssistantMessageEvent
    | OutputRefusedEvent
    | ToolStartedEvent
    | ToolFinishedEvent
    | ApprovalRequestedEvent
    | ApprovalDecidedEvent
    | CallRequestedEvent
    | CallAnsweredEvent
    | DelegateStartedEvent
    | ToolAllowedEvent
    | ReminderSetEvent
    | ReminderClearedEvent
    | PinnedEvent
    | UnpinnedEvent
    | BudgetWarningEvent
    | PartialTextEvent
    | TurnCompletedEvent
    | TurnFailedEvent
    | TurnInterruptedEvent
    | LogTailRepairedEvent
    | RecordsLostEvent
    | HistorySnapshotEvent
    | CompactionStartedEvent
    | ContextRebuiltEvent
    | CompactionCompletedEvent
    | SummaryUnusedEvent
    | CompactionFailedEvent
    | CompactionUndoneEvent
)
GivenBlock: TypeAlias = GivenBlockText | GivenBlockToolCall
GivenMessage: TypeAlias = GivenMessageUser | GivenMessageAssistant | GivenMessageToolResults
ListStreamData: TypeAlias = ChangePage | ErrorBody
LiveEvent: TypeAlias = (
    TextDeltaEvent | ReasoningDeltaEvent | ToolProgressEvent | RetryingEvent | PrunedEvent | SessionDeletedEvent
)
MemoryScope: TypeAlias = Literal["project", "session", "none"]
Message: TypeAlias = (
    MessageSystem
    | MessageUser
    | MessageAssistant
    | MessageBlockAssistant
    | MessageSystemReminder
    | MessagePin
    | MessageToolResults
)
OpenKind: TypeAlias = Literal["approval", "question", "call"]
Policy: TypeAlias = Literal["reject", "queue", "interrupt", "steer"]
PromptBlock: TypeAlias = PromptBlockText | PromptBlockImage | PromptBlockFile
Prompt: TypeAlias = str | list[PromptBlock]
PrunedReason: TypeAlias = Literal["damage"]
RetentionReason: TypeAlias = Literal["age", "bytes", "count"]
Scope: TypeAlias = Literal["once", "session", "always"]
SearchScope: TypeAlias = Literal["session", "project"]
SessionId: TypeAlias = str
SessionState: TypeAlias = Literal["idle", "running", "queued", "waiting"]
SessionStreamData: TypeAlias = Event | LiveEvent | ErrorBody
Severity: TypeAlias = Literal["error", "warning"]
StepKind: TypeAlias = Literal["model_call", "compaction", "compaction_failed", "compaction_undone"]
StopReason: TypeAlias = Literal["end_turn", "tool_use", "max_tokens", "refusal", "content_filter", "empty"]
SystemReminderType: TypeAlias = str
Timestamp: TypeAlias = str
ToolOutcome: TypeAlias = Literal["succeeded", "failed", "not_run", "unknown"]
ToolServerState: TypeAlias = Literal["configured", "listed", "running", "login_needed", "failed"]
TurnAccess: TypeAlias = Literal["read", "ask"]
TurnStatus: TypeAlias = Literal["completed", "interrupted", "failed", "waiting"]
TurnStreamData: TypeAlias = Event | LiveEvent | TurnResult | ErrorBody
AnyEvent: TypeAlias = (
    SessionCreatedEvent
    | SessionForkedEvent
    | SessionImportedEvent
    | SessionUpdatedEvent
    | SessionArchivedEvent
    | SessionUnarchivedEvent
    | ClientToolsChangedEvent
    | HistoryGivenEvent
    | TurnQueuedEvent
    | TurnEditedEvent
    | TurnDequeuedEvent
    | TurnStartedEvent
    | TurnSteeredEvent
    | SteeringEnteredEvent
    | AssistantMessageEvent
    | OutputRefusedEvent
    | ToolStartedEvent
    | ToolFinishedEvent
    | ApprovalRequestedEvent
    | ApprovalDecidedEvent
    | CallRequestedEvent
    | CallAnsweredEvent
    | DelegateStartedEvent
    | ToolAllowedEvent
    | ReminderSetEvent
    | ReminderClearedEvent
    | PinnedEvent
    | UnpinnedEvent
    | BudgetWarningEvent
    | PartialTextEvent
    | TurnCompletedEvent
    | TurnFailedEvent
    | TurnInterruptedEvent
    | LogTailRepairedEvent
    | RecordsLostEvent
    | HistorySnapshotEvent
    | CompactionStartedEvent
    | ContextRebuiltEvent
    | CompactionCompletedEvent
    | SummaryUnusedEvent
    | CompactionFailedEvent
    | CompactionUndoneEvent
    | TextDeltaEvent
    | ReasoningDeltaEvent
    | ToolProgressEvent
    | RetryingEvent
    | PrunedEvent
    | SessionDeletedEvent
)
