//! The table: one row per code. A released row never changes its meaning or its numbers.
//!
//! Columns: name on the wire, HTTP status, JSON-RPC number, exit code, retry, message.

use crate::table::error_codes;

error_codes! {
    // Capabilities that this build or this configuration does not have.
    /// The operation needs `session-store`. If the store is there but fails, see [`Self::StoreFailed`].
    SessionPersistenceDisabled = "SESSION_PERSISTENCE_DISABLED", 501, -32030, 10, Never, "Session persistence is disabled (build without 'session-store').";
    /// Compaction was requested without `session-compaction`.
    SessionCompactionDisabled = "SESSION_COMPACTION_DISABLED", 501, -32031, 11, Never, "Session compaction is disabled (build without 'session-compaction').";
    /// The operation needs `memory-store`.
    MemoryStoreDisabled = "MEMORY_STORE_DISABLED", 501, -32032, 12, Never, "Semantic memory is disabled (build without 'memory-store').";

    // Sessions and their content.
    /// No such session. For a thing inside a session that exists, use [`Self::ItemNotFound`].
    SessionNotFound = "SESSION_NOT_FOUND", 404, -32033, 13, Never, "No such session.";
    /// The session runs a turn or a compaction that excludes this request.
    SessionBusy = "SESSION_BUSY", 409, -32034, 14, Later, "The session is running.";
    /// An interrupt found no such turn running.
    SessionNotRunning = "SESSION_NOT_RUNNING", 409, -32035, 15, Never, "The session is not running that turn.";
    /// An archived session cannot be changed.
    SessionArchived = "SESSION_ARCHIVED", 409, -32036, 16, Never, "The session is archived.";
    /// The service holds as many sessions, or bytes, as it may.
    SessionLimit = "SESSION_LIMIT", 429, -32037, 17, Later, "The service holds as many sessions as it may.";
    /// The session's journal holds a record that cannot be trusted; it can be read up to that record.
    SessionCorrupted = "SESSION_CORRUPTED", 500, -32038, 18, Never, "The session is damaged and read-only.";
    /// The session was written by a newer version, with records that this one must not ignore.
    SessionFormatNewer = "SESSION_FORMAT_NEWER", 500, -32039, 19, Never, "The session was written by a newer version.";
    /// A snapshot would shrink a session's history.
    SessionMonotonicityViolation = "SESSION_MONOTONICITY_VIOLATION", 409, -32040, 20, Never, "A session's history never shrinks.";
    /// The requested data was removed by journal compaction or by the store's limit.
    HistoryPruned = "HISTORY_PRUNED", 409, -32041, 21, Never, "That part of the history was pruned.";
    /// The session has no such turn, call, pin, reminder, blob or compaction.
    ItemNotFound = "ITEM_NOT_FOUND", 404, -32042, 22, Never, "The session has no such item.";

    // Outcomes and refusals of a turn.
    /// The turn was interrupted, or left the queue without starting.
    TurnInterrupted = "TURN_INTERRUPTED", 409, -32043, 130, Never, "The turn was interrupted.";
    /// The turn failed for a reason that has no code of its own.
    TurnFailed = "TURN_FAILED", 500, -32044, 23, Never, "The turn failed.";
    /// A budget of the turn is used up.
    BudgetExhausted = "BUDGET_EXHAUSTED", 429, -32045, 24, Never, "A budget of the turn is used up.";
    /// The model repeated the same calls to no effect.
    LoopDetected = "LOOP_DETECTED", 500, -32046, 25, Never, "The model repeats itself.";
    /// The session's turn queue is full.
    QueueFull = "QUEUE_FULL", 429, -32047, 26, Later, "The session's queue is full.";
    /// The next request would not fit the model's window. See [`Self::ModelContextExceeded`] for the vendor's own refusal.
    ContextOverflow = "CONTEXT_OVERFLOW", 409, -32048, 27, Never, "The context does not fit the model's window.";
    /// The model's answer did not fit the turn's schema, also after its repairs.
    OutputInvalid = "OUTPUT_INVALID", 502, -32081, 61, Never, "The model's answer does not fit the schema.";
    /// The idempotency key was used for another request, or the call has another decision.
    IdempotencyConflict = "IDEMPOTENCY_CONFLICT", 409, -32049, 28, Never, "The same key came with another request.";

    // Mistakes of the caller.
    /// The request's shape or a value in it is not allowed.
    InvalidRequest = "INVALID_REQUEST", 400, -32602, 2, Never, "The request is not valid.";
    /// No such operation, route, method, tool or command.
    UnknownOperation = "UNKNOWN_OPERATION", 404, -32601, 29, Never, "There is no such operation.";
    /// The route exists, but for another method.
    MethodNotAllowed = "METHOD_NOT_ALLOWED", 405, -32050, 30, Never, "The route does not take this method.";
    /// A key or value of the configuration is not allowed.
    ConfigInvalid = "CONFIG_INVALID", 500, -32051, 31, Never, "The configuration is not valid.";
    /// The request carries no token, or a wrong one.
    Unauthenticated = "UNAUTHENTICATED", 401, -32052, 32, Never, "A valid token is needed.";
    /// The request's Host or Origin is not one that this server answers.
    ForbiddenOrigin = "FORBIDDEN_ORIGIN", 403, -32053, 33, Never, "This Host or Origin is not allowed.";
    /// A body, prompt or item is over its limit.
    PayloadTooLarge = "PAYLOAD_TOO_LARGE", 413, -32054, 34, Never, "The payload is too large.";
    /// The limit of open connections or streams is reached.
    TooManyConnections = "TOO_MANY_CONNECTIONS", 429, -32055, 35, Later, "Too many connections.";

    // Streams and readers.
    /// The subscriber read nothing for the stall limit and was closed.
    SubscriberLagged = "SUBSCRIBER_LAGGED", 429, -32056, 36, Later, "The subscriber fell behind and was closed.";
    /// The cursor lies beyond the last event.
    CursorOutOfRange = "CURSOR_OUT_OF_RANGE", 409, -32057, 37, Never, "The cursor lies beyond the last event.";
    /// No reader of that name is registered.
    ReaderNotFound = "READER_NOT_FOUND", 404, -32058, 38, Never, "No such reader.";
    /// The bundle is damaged, or does not match its manifest.
    BundleInvalid = "BUNDLE_INVALID", 409, -32059, 39, Never, "The bundle is not valid.";

    // The store.
    /// Another process owns the data directory and cannot be reached.
    StoreLocked = "STORE_LOCKED", 503, -32060, 40, Later, "Another process owns the data directory.";
    /// The disk is full; stored data can still be read.
    StoreFull = "STORE_FULL", 507, -32061, 41, Later, "The disk is full.";
    /// A write or sync failed; its outcome is unknown.
    StoreFailed = "STORE_FAILED", 503, -32062, 42, Later, "The store failed; the outcome is unknown.";
    /// The data directory cannot be written.
    StoreNotWritable = "STORE_NOT_WRITABLE", 500, -32063, 43, Never, "The data directory cannot be written.";
    /// The data directory holds a format this version does not know.
    StoreFormatUnsupported = "STORE_FORMAT_UNSUPPORTED", 500, -32064, 44, Never, "The data directory's format is not supported.";
    /// The service is shutting down and takes no new work.
    ShuttingDown = "SHUTTING_DOWN", 503, -32065, 45, Later, "The service is shutting down.";

    // Models.
    /// The model is unknown, or the key it needs is not set.
    ModelNotConfigured = "MODEL_NOT_CONFIGURED", 409, -32066, 46, Never, "The model is not configured.";
    /// The vendor refused the key.
    ModelUnauthorized = "MODEL_UNAUTHORIZED", 502, -32067, 47, Never, "The model's vendor refused the key.";
    /// The vendor's rate limit is reached.
    ModelRateLimited = "MODEL_RATE_LIMITED", 429, -32068, 48, Later, "The model's rate limit is reached.";
    /// The vendor is overloaded or failed.
    ModelOverloaded = "MODEL_OVERLOADED", 503, -32069, 49, Later, "The model is overloaded.";
    /// The model sent nothing for the idle timeout, or there is no server at its address.
    ModelTimeout = "MODEL_TIMEOUT", 504, -32070, 50, Later, "The model did not answer in time.";
    /// The model's stream ended before its end.
    ModelStreamIncomplete = "MODEL_STREAM_INCOMPLETE", 502, -32071, 51, Later, "The model's answer was cut off.";
    /// The vendor says that the request does not fit the model's window.
    ModelContextExceeded = "MODEL_CONTEXT_EXCEEDED", 409, -32072, 52, Never, "The model's vendor says the request does not fit its window.";
    /// The vendor refused the request.
    ModelRejected = "MODEL_REJECTED", 502, -32073, 53, Never, "The model's vendor refused the request.";

    // Tools.
    /// The model called a tool that is not there.
    ToolNotFound = "TOOL_NOT_FOUND", 404, -32074, 54, Never, "There is no such tool.";
    /// A tool failed, timed out, or was called with arguments it cannot take.
    ToolFailed = "TOOL_FAILED", 500, -32075, 55, Never, "The tool failed.";
    /// A person or the configuration denied a call.
    ApprovalDenied = "APPROVAL_DENIED", 409, -32076, 56, Never, "The call was not approved.";

    // Compaction and memory.
    /// A compaction would not have made the context smaller.
    CompactionNoProgress = "COMPACTION_NO_PROGRESS", 409, -32077, 57, Never, "Compaction would not make the context smaller.";
    /// A compaction would have lost a reminder or a pin.
    CompactionPinLost = "COMPACTION_PIN_LOST", 500, -32078, 58, Never, "Compaction would have lost a reminder or a pin.";
    /// The memory's index is being rebuilt or cannot be opened.
    MemoryIndexUnavailable = "MEMORY_INDEX_UNAVAILABLE", 503, -32079, 59, Later, "The memory's index is not available.";

    /// A fault of meerkat's own. The session and the process go on.
    Internal = "INTERNAL", 500, -32080, 60, Never, "An internal error occurred.";
}
