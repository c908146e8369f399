"""A method for each operation of the server."""

# Made by generate.py. Do not edit.

from collections.abc import Sequence
from typing import Any, Literal

from .. import types
from .._wire import new_key, quoted


class AsyncCaller:
    """What the operations need."""

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, Any] | None = None,
        body: dict[str, Any] | None = None,
        content: bytes | None = None,
        key: str | None = None,
        is_waiting: bool = True,
        is_repeatable: bool = False,
    ) -> Any:
        raise NotImplementedError


class AsyncServerOperations(AsyncCaller):
    """The operations on a server."""

    async def create_session(
        self,
        *,
        budgets: types.Budgets | None = None,
        client_tools: Sequence[types.ClientTool] | None = None,
        compaction: types.CompactionConfig | None = None,
        history: Sequence[types.GivenMessage] | None = None,
        labels: dict[str, str] | None = None,
        memory: types.SessionMemory | None = None,
        model: str | None = None,
        options: types.ModelOptions | None = None,
        system_prompt: str | None = None,
        title: str | None = None,
        tools: Sequence[str] | None = None,
        workspace: str | None = None,
        key: str | None = None,
    ) -> types.SessionCreated:
        """Creates a session.

        budgets: Budgets for turns that set none.
        client_tools: Tools that the caller runs; none if `null`.
        compaction: Compaction settings; the configured ones if `null`.
        history: What was said before its first turn, elsewhere. Nothing in it runs.
        labels: Labels.
        memory: Its part in the project's memory.
        model: Model; the configured one if `null`.
        options: How its model is asked in turns that do not say.
        system_prompt: System prompt.
        title: Title; none if `null` or empty.
        tools: Tools that it may use; all if `null`.
        workspace: Name of a folder in `tools.folders`.
        key: The same key with the same request is the same session or turn; a new one if `None`.
        """
        returned: types.SessionCreated = await self._call(
            "POST",
            "/v1/sessions",
            body={
                "budgets": budgets,
                "client_tools": client_tools,
                "compaction": compaction,
                "history": history,
                "labels": labels,
                "memory": memory,
                "model": model,
                "options": options,
                "system_prompt": system_prompt,
                "title": title,
                "tools": tools,
                "workspace": workspace,
            },
            key=key or new_key(),
        )
        return returned

    async def capabilities(self) -> types.CapabilitiesView:
        """Describes this build's capabilities."""
        returned: types.CapabilitiesView = await self._call("GET", "/v1/capabilities", is_repeatable=True)
        return returned

    async def errors(self, *, code: types.ErrorCode | None = None) -> types.ErrorList:
        """Lists the error codes, or shows the page of one.

        code: The one code to answer with, and with its page.
        """
        returned: types.ErrorList = await self._call("GET", "/v1/errors", query={"code": code}, is_repeatable=True)
        return returned

    async def list(
        self,
        *,
        created_after: types.Timestamp | None = None,
        updated_after: types.Timestamp | None = None,
        labels: dict[str, str] | None = None,
        archived: bool | None = None,
        children: bool | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> types.Page[types.SessionSummary]:
        """Lists sessions.

        created_after: Only sessions made after this time.
        updated_after: Only sessions changed after this time.
        labels: Only sessions with all these labels.
        archived: Only archived ones if `true`, only others if `false`; both if `null`.
        children: Sub-agents too.
        cursor: Cursor from the previous page.
        limit: Most sessions to return.
        """
        returned: types.Page[types.SessionSummary] = await self._call(
            "GET",
            "/v1/sessions",
            query={
                "created_after": created_after,
                "updated_after": updated_after,
                "labels": labels,
                "archived": archived,
                "children": children,
                "cursor": cursor,
                "limit": limit,
            },
            is_repeatable=True,
        )
        return returned

    async def changes(
        self, *, cursor: str | None = None, limit: int | None = None, wait_ms: int | None = None
    ) -> types.ChangePage:
        """Reads or follows the changes of the list.

        cursor: Cursor from the previous page; `null` begins with the whole list.
        limit: Most changes to return.
        wait_ms: Milliseconds to wait for the first change. The answer may come earlier and be empty; ask
            again with its cursor.
        """
        returned: types.ChangePage = await self._call(
            "GET",
            "/v1/session-changes",
            query={"cursor": cursor, "limit": limit, "wait_ms": wait_ms},
            is_repeatable=True,
        )
        return returned

    async def approvals(self, *, cursor: str | None = None, limit: int | None = None) -> types.Page[types.OpenApproval]:
        """Lists the calls of all sessions that wait for a person or for their caller.

        cursor: Cursor from the previous page.
        limit: Most calls to return. Those of one session always come together, even if they are more.
        """
        returned: types.Page[types.OpenApproval] = await self._call(
            "GET", "/v1/approvals", query={"cursor": cursor, "limit": limit}, is_repeatable=True
        )
        return returned

    async def import_bundle(
        self, content: bytes, *, new_ids: bool | None = None, keep_scope: bool | None = None
    ) -> types.Imported:
        """Imports sessions from a bundle.

        new_ids: Gives each session a new id. Otherwise a session keeps its own, which must be free.
        keep_scope: Keeps the label of `memory.scope_label`: the sessions join those here that have the same
            value. Otherwise each session that has the label gets a value of its own.
        content: The bytes.
        """
        returned: types.Imported = await self._call(
            "POST", "/v1/bundles", query={"new_ids": new_ids, "keep_scope": keep_scope}, content=content
        )
        return returned

    async def create_reader(self, reader: str) -> types.ReaderView:
        """Registers a reader of the journals.

        reader: Its name: 1 to 64 small letters, digits, `.`, `_` or `-`.
        """
        returned: types.ReaderView = await self._call(
            "POST", "/v1/readers", body={"reader": reader}, is_repeatable=True
        )
        return returned

    async def fetch_reader(
        self, reader: str, *, limit: int | None = None, wait_ms: int | None = None
    ) -> types.FetchReaderAnswer:
        """Hands a reader the records that it is not done with.

        reader: The reader.
        limit: Most records to return.
        wait_ms: Milliseconds to wait for the first record. The answer may come earlier and be empty; ask
            again.
        """
        returned: types.FetchReaderAnswer = await self._call(
            "GET",
            f"/v1/readers/{quoted(reader)}/records",
            query={"limit": limit, "wait_ms": wait_ms},
            is_repeatable=True,
        )
        return returned

    async def acknowledge_reader(self, reader: str, session_id: types.SessionId, seq: int) -> types.Checkpoint:
        """Takes a reader's acknowledgement.

        reader: The reader.
        session_id: The session.
        seq: Last record that it has handled.
        """
        returned: types.Checkpoint = await self._call(
            "PUT", f"/v1/readers/{quoted(reader)}/sessions/{quoted(session_id)}", body={"seq": seq}, is_repeatable=True
        )
        return returned

    async def wait_reader(
        self, reader: str, session_id: types.SessionId, seq: int, *, wait_ms: int | None = None
    ) -> types.Checkpoint:
        """Waits until a reader has handled a record.

        reader: The reader.
        session_id: The session.
        seq: Record that it must have handled.
        wait_ms: Milliseconds to wait at most. The answer may come earlier, with the reader's checkpoint at
            that time; ask again.
        """
        returned: types.Checkpoint = await self._call(
            "GET",
            f"/v1/readers/{quoted(reader)}/sessions/{quoted(session_id)}",
            query={"seq": seq, "wait_ms": wait_ms},
            is_repeatable=True,
        )
        return returned

    async def delete_reader(self, reader: str) -> types.ReaderView:
        """Deletes a reader.

        reader: Its name: 1 to 64 small letters, digits, `.`, `_` or `-`.
        """
        returned: types.ReaderView = await self._call("DELETE", f"/v1/readers/{quoted(reader)}")
        return returned

    async def list_readers(self) -> types.Page[types.ReaderView]:
        """Lists the readers."""
        returned: types.Page[types.ReaderView] = await self._call("GET", "/v1/readers", is_repeatable=True)
        return returned

    async def rebuild_projection(self) -> types.ProjectionRebuilt:
        """Rebuilds the projection."""
        returned: types.ProjectionRebuilt = await self._call("POST", "/v1/projection/rebuild", is_repeatable=True)
        return returned

    async def diagnose(self) -> types.Diagnosis:
        """Examines the data directory."""
        returned: types.Diagnosis = await self._call("GET", "/v1/diagnosis", is_repeatable=True)
        return returned

    async def retain(
        self,
        *,
        dry_run: bool | None = None,
        max_age_days: int | None = None,
        max_bytes: int | None = None,
        max_sessions: int | None = None,
    ) -> types.Retained:
        """Deletes sessions that are too old or too many.

        dry_run: Only lists the sessions that would be deleted.
        max_age_days: Days without a change after which a session is deleted; 0 for no limit.
        max_bytes: Bytes that all sessions may take; the oldest are deleted first; 0 for no limit.
        max_sessions: Sessions to keep; the oldest are deleted first; 0 for no limit.
        """
        returned: types.Retained = await self._call(
            "POST",
            "/v1/retention",
            body={
                "dry_run": dry_run,
                "max_age_days": max_age_days,
                "max_bytes": max_bytes,
                "max_sessions": max_sessions,
            },
        )
        return returned

    async def search_memory(
        self,
        query: str,
        *,
        scope: types.SearchScope | None = None,
        session_id: types.SessionId | None = None,
        role: Literal["user", "assistant", "tool_results"] | None = None,
        labels: dict[str, str] | None = None,
        since: types.Timestamp | None = None,
        until: types.Timestamp | None = None,
        limit: int | None = None,
    ) -> types.Page[types.SearchHit]:
        """Searches the texts of sessions.

        query: Text to search for.
        scope: Scope of the search.
        session_id: The session, if `scope` is `session`.
        role: Only texts of this role.
        labels: Only sessions with all these labels.
        since: Only from this time on.
        until: Only up to this time.
        limit: Most hits to return.
        """
        returned: types.Page[types.SearchHit] = await self._call(
            "GET",
            "/v1/memory/search",
            query={
                "query": query,
                "scope": scope,
                "session_id": session_id,
                "role": role,
                "labels": labels,
                "since": since,
                "until": until,
                "limit": limit,
            },
            is_repeatable=True,
        )
        return returned

    async def forget_memory(
        self,
        *,
        from_seq: int | None = None,
        session_id: types.SessionId | None = None,
        source: str | None = None,
        to_seq: int | None = None,
        wait: bool | None = None,
    ) -> types.Forgotten:
        """Deletes texts from memory.

        from_seq: From this seq on.
        session_id: Only texts of this session.
        source: Only texts from this source.
        to_seq: Up to this seq.
        wait: If true, the answer comes when the texts have left every file.
        """
        returned: types.Forgotten = await self._call(
            "POST",
            "/v1/memory/forget",
            body={"from_seq": from_seq, "session_id": session_id, "source": source, "to_seq": to_seq, "wait": wait},
        )
        return returned

    async def reindex_memory(self) -> types.Reindexed:
        """Rebuilds the memory index."""
        returned: types.Reindexed = await self._call("POST", "/v1/memory/reindex", is_repeatable=True)
        return returned

    async def tools(
        self, *, session_id: types.SessionId | None = None, with_workspace: bool | None = None
    ) -> types.Page[types.ToolView]:
        """Lists the tools that a session's model is offered next.

        session_id: The session; a new one if `null`.
        with_workspace: The new session has a workspace.
        """
        returned: types.Page[types.ToolView] = await self._call(
            "GET", "/v1/tools", query={"session_id": session_id, "with_workspace": with_workspace}, is_repeatable=True
        )
        return returned

    async def tool_servers(self) -> types.Page[types.ToolServerView]:
        """Lists the configured servers of tools."""
        returned: types.Page[types.ToolServerView] = await self._call("GET", "/v1/tool-servers", is_repeatable=True)
        return returned


class AsyncSessionOperations(AsyncCaller):
    """The operations on a session."""

    session_id: str

    async def start_turn(
        self,
        prompt: types.Prompt,
        *,
        access: types.TurnAccess | None = None,
        allow: Sequence[str] | None = None,
        attended: bool | None = None,
        budgets: types.Budgets | None = None,
        client_tools: Sequence[types.ClientTool] | None = None,
        compaction: types.CompactionConfig | None = None,
        model: str | None = None,
        options: types.ModelOptions | None = None,
        output: types.OutputSpec | None = None,
        policy: types.Policy | None = None,
        key: str | None = None,
    ) -> types.TurnAccepted:
        """Runs a turn on a session.

        access: What its calls may do, if that is less than the configuration allows.
        allow: Rules that allow its calls.
        attended: An approver is present.
        budgets: Its budgets.
        client_tools: Tools that the caller runs, in place of the session's for this turn and later ones;
            the session's if `null`.
        compaction: Compaction settings; the session's if `null`.
        model: Model to use instead of the session's.
        options: How the model is asked.
        output: JSON that it is to answer with.
        policy: Policy if a turn is already running.
        prompt: The user's prompt.
        key: The same key with the same request is the same session or turn; a new one if `None`.
        """
        returned: types.TurnAccepted = await self._call(
            "POST",
            f"/v1/sessions/{quoted(self.session_id)}/turns",
            body={
                "access": access,
                "allow": allow,
                "attended": attended,
                "budgets": budgets,
                "client_tools": client_tools,
                "compaction": compaction,
                "model": model,
                "options": options,
                "output": output,
                "policy": policy,
                "prompt": prompt,
            },
            key=key or new_key(),
            is_waiting=False,
        )
        return returned

    async def resume_turn(
        self,
        *,
        access: types.TurnAccess | None = None,
        allow: Sequence[str] | None = None,
        attended: bool | None = None,
        budgets: types.Budgets | None = None,
        client_tools: Sequence[types.ClientTool] | None = None,
        compaction: types.CompactionConfig | None = None,
        model: str | None = None,
        options: types.ModelOptions | None = None,
        output: types.OutputSpec | None = None,
        policy: types.Policy | None = None,
        prompt: types.Prompt | None = None,
        key: str | None = None,
    ) -> types.TurnAccepted:
        """Continues a session that an earlier process left behind.

        access: As for `start_turn`.
        allow: As for `start_turn`.
        attended: As for `start_turn`.
        budgets: As for `start_turn`.
        client_tools: As for `start_turn`.
        compaction: As for `start_turn`.
        model: As for `start_turn`.
        options: As for `start_turn`.
        output: As for `start_turn`.
        policy: As for `start_turn`.
        prompt: As for `start_turn`.
        key: The same key with the same request is the same session or turn; a new one if `None`.
        """
        returned: types.TurnAccepted = await self._call(
            "POST",
            f"/v1/sessions/{quoted(self.session_id)}/resume",
            body={
                "access": access,
                "allow": allow,
                "attended": attended,
                "budgets": budgets,
                "client_tools": client_tools,
                "compaction": compaction,
                "model": model,
                "options": options,
                "output": output,
                "policy": policy,
                "prompt": prompt,
            },
            key=key or new_key(),
            is_waiting=False,
        )
        return returned

    async def interrupt(self, *, turn: int | None = None) -> types.Changed:
        """Ends the running turn.

        turn: The turn; the running one if `null`.
        """
        returned: types.Changed = await self._call(
            "POST",
            f"/v1/sessions/{quoted(self.session_id)}/interrupt",
            body={"turn": turn},
            is_repeatable=turn is not None,
        )
        return returned

    async def decide_approval(
        self,
        call_id: str,
        decision: types.Decision,
        *,
        answer: dict[str, Any] | None = None,
        reason: str | None = None,
        scope: types.Scope | None = None,
    ) -> types.Changed:
        """Answers a call that asks for approval.

        call_id: The call.
        answer: Answer to a server's question, as its form's schema says. Fields that are left out get their
            defaults.
        decision: The decision.
        reason: Reason, for the model to read.
        scope: Extent of an approval. A denial is of one call.
        """
        returned: types.Changed = await self._call(
            "POST",
            f"/v1/sessions/{quoted(self.session_id)}/approvals/{quoted(call_id)}",
            body={"answer": answer, "decision": decision, "reason": reason, "scope": scope},
            is_repeatable=True,
        )
        return returned

    async def answer_call(
        self,
        call_id: str,
        outcome: types.CallOutcome,
        *,
        content: Sequence[types.CallContent] | None = None,
        wait: bool | None = None,
    ) -> types.Changed | types.TurnResult:
        """Answers a call of a tool that the caller runs.

        call_id: The call.
        content: What it returned, for the model.
        outcome: How it went.
        wait: If true, answer with the turn's result, or when the turn waits for a caller again; else at
            once.
        """
        returned: types.Changed | types.TurnResult = await self._call(
            "POST",
            f"/v1/sessions/{quoted(self.session_id)}/calls/{quoted(call_id)}",
            body={"content": content, "outcome": outcome, "wait": wait},
            is_repeatable=True,
        )
        return returned

    async def calls(self) -> types.Page[types.OpenCall]:
        """Lists the calls that wait for their caller."""
        returned: types.Page[types.OpenCall] = await self._call(
            "GET", f"/v1/sessions/{quoted(self.session_id)}/calls", is_repeatable=True
        )
        return returned

    async def queue(self) -> types.Page[types.QueueItem]:
        """Lists the queued turns."""
        returned: types.Page[types.QueueItem] = await self._call(
            "GET", f"/v1/sessions/{quoted(self.session_id)}/queue", is_repeatable=True
        )
        return returned

    async def cancel_queued(self, turn: int) -> types.Changed:
        """Removes a turn from the queue.

        turn: The turn.
        """
        returned: types.Changed = await self._call(
            "DELETE", f"/v1/sessions/{quoted(self.session_id)}/queue/{quoted(turn)}", is_repeatable=True
        )
        return returned

    async def edit_queued(
        self, turn: int, *, position: int | None = None, prompt: types.Prompt | None = None
    ) -> types.Changed:
        """Changes the prompt or the place of a queued turn.

        turn: The turn.
        position: Another place in the queue, from 0; a number past the end is the last place. It keeps its
            own if `null`.
        prompt: Another prompt; the turn keeps its own if `null`.
        """
        returned: types.Changed = await self._call(
            "PATCH",
            f"/v1/sessions/{quoted(self.session_id)}/queue/{quoted(turn)}",
            body={"position": position, "prompt": prompt},
            is_repeatable=True,
        )
        return returned

    async def events(
        self,
        *,
        since_seq: int | None = None,
        limit: int | None = None,
        wait_ms: int | None = None,
        skip_damage: bool | None = None,
    ) -> types.EventsAnswer:
        """Reads or follows a session's events.

        since_seq: The cursor: events after this seq are read.
        limit: Most events to return.
        wait_ms: Milliseconds to wait for the first event. The answer may come earlier and be empty; ask
            again with the same cursor.
        skip_damage: True to go on behind damage with the next good event.
        """
        returned: types.EventsAnswer = await self._call(
            "GET",
            f"/v1/sessions/{quoted(self.session_id)}/events",
            query={"since_seq": since_seq, "limit": limit, "wait_ms": wait_ms, "skip_damage": skip_damage},
            is_repeatable=True,
        )
        return returned

    async def remind(self, kind: types.SystemReminderType, text: str) -> types.Changed:
        """Sets a system reminder.

        kind: Subject of the reminder.
        text: Its text.
        """
        returned: types.Changed = await self._call(
            "PUT",
            f"/v1/sessions/{quoted(self.session_id)}/reminders/{quoted(kind)}",
            body={"text": text},
            is_repeatable=True,
        )
        return returned

    async def reminders(self) -> types.Page[types.Reminder]:
        """Lists the system reminders."""
        returned: types.Page[types.Reminder] = await self._call(
            "GET", f"/v1/sessions/{quoted(self.session_id)}/reminders", is_repeatable=True
        )
        return returned

    async def clear_reminder(self, kind: types.SystemReminderType) -> types.Changed:
        """Removes a system reminder.

        kind: Subject of the reminder.
        """
        returned: types.Changed = await self._call(
            "DELETE", f"/v1/sessions/{quoted(self.session_id)}/reminders/{quoted(kind)}", is_repeatable=True
        )
        return returned

    async def pin(self, text: str) -> types.Changed:
        """Pins a fact.

        text: The fact.
        """
        returned: types.Changed = await self._call(
            "POST", f"/v1/sessions/{quoted(self.session_id)}/pins", body={"text": text}
        )
        return returned

    async def pins(self) -> types.Page[types.Pin]:
        """Lists the pins."""
        returned: types.Page[types.Pin] = await self._call(
            "GET", f"/v1/sessions/{quoted(self.session_id)}/pins", is_repeatable=True
        )
        return returned

    async def unpin(self, pin: int) -> types.Changed:
        """Removes a pin.

        pin: Seq of the event that pinned it.
        """
        returned: types.Changed = await self._call(
            "DELETE", f"/v1/sessions/{quoted(self.session_id)}/pins/{quoted(pin)}", is_repeatable=True
        )
        return returned

    async def read(self) -> types.SessionView:
        """Shows a session."""
        returned: types.SessionView = await self._call(
            "GET", f"/v1/sessions/{quoted(self.session_id)}", is_repeatable=True
        )
        return returned

    async def history(
        self, *, cursor: str | None = None, limit: int | None = None, skip_damage: bool | None = None
    ) -> types.Page[types.HistoryItem]:
        """Pages through the history.

        cursor: Cursor from the previous page.
        limit: Most items to return.
        skip_damage: True to go on behind damage with the next good event.
        """
        returned: types.Page[types.HistoryItem] = await self._call(
            "GET",
            f"/v1/sessions/{quoted(self.session_id)}/messages",
            query={"cursor": cursor, "limit": limit, "skip_damage": skip_damage},
            is_repeatable=True,
        )
        return returned

    async def steps(
        self, *, cursor: str | None = None, limit: int | None = None, skip_damage: bool | None = None
    ) -> types.Page[types.StepView]:
        """Lists a session's model calls and compactions.

        cursor: Cursor from the previous page.
        limit: Most items to return.
        skip_damage: True to go on behind damage with the next good event.
        """
        returned: types.Page[types.StepView] = await self._call(
            "GET",
            f"/v1/sessions/{quoted(self.session_id)}/steps",
            query={"cursor": cursor, "limit": limit, "skip_damage": skip_damage},
            is_repeatable=True,
        )
        return returned

    async def turns(
        self, *, cursor: str | None = None, limit: int | None = None, skip_damage: bool | None = None
    ) -> types.Page[types.TurnView]:
        """Lists a session's turns with their cost.

        cursor: Cursor from the previous page.
        limit: Most items to return.
        skip_damage: True to go on behind damage with the next good event.
        """
        returned: types.Page[types.TurnView] = await self._call(
            "GET",
            f"/v1/sessions/{quoted(self.session_id)}/turns",
            query={"cursor": cursor, "limit": limit, "skip_damage": skip_damage},
            is_repeatable=True,
        )
        return returned

    async def blob(self, blob: str, *, offset: int | None = None, limit: int | None = None) -> bytes:
        """Reads a body from a blob.

        blob: The blob's hash.
        offset: Byte to begin at.
        limit: Most bytes to return.
        """
        returned: bytes = await self._call(
            "GET",
            f"/v1/sessions/{quoted(self.session_id)}/blobs/{quoted(blob)}",
            query={"offset": offset, "limit": limit},
            is_repeatable=True,
        )
        return returned

    async def put_blob(self, content: bytes) -> types.StoredBlob:
        """Stores an image or a file for a prompt of a session.

        content: The bytes.
        """
        returned: types.StoredBlob = await self._call(
            "POST", f"/v1/sessions/{quoted(self.session_id)}/blobs", content=content, is_repeatable=True
        )
        return returned

    async def update(self, *, labels: dict[str, str] | None = None, title: str | None = None) -> types.Changed:
        """Changes a session's title and labels.

        labels: Labels, replacing all earlier ones.
        title: Title; an empty one removes it.
        """
        returned: types.Changed = await self._call(
            "PATCH",
            f"/v1/sessions/{quoted(self.session_id)}",
            body={"labels": labels, "title": title},
            is_repeatable=True,
        )
        return returned

    async def archive(self) -> types.Changed:
        """Archives a session."""
        returned: types.Changed = await self._call(
            "POST", f"/v1/sessions/{quoted(self.session_id)}/archive", is_repeatable=True
        )
        return returned

    async def unarchive(self) -> types.Changed:
        """Restores an archived session."""
        returned: types.Changed = await self._call(
            "POST", f"/v1/sessions/{quoted(self.session_id)}/unarchive", is_repeatable=True
        )
        return returned

    async def delete(self, *, force: bool | None = None) -> types.Changed:
        """Deletes a session.

        force: Deletes the session even if it is running.
        """
        returned: types.Changed = await self._call(
            "DELETE", f"/v1/sessions/{quoted(self.session_id)}", query={"force": force}
        )
        return returned

    async def fork(self, *, turn: int | None = None) -> types.Changed:
        """Creates a session from the beginning of another one.

        turn: Last turn to copy; the last finished one if `null`.
        """
        returned: types.Changed = await self._call(
            "POST", f"/v1/sessions/{quoted(self.session_id)}/fork", query={"turn": turn}
        )
        return returned

    async def export_session(self, *, redact: bool | None = None, skip_damage: bool | None = None) -> bytes:
        """Exports a session as a bundle.

        redact: Replaces texts that look like a key or a secret. Such a bundle is for reading elsewhere.
        skip_damage: True to leave damaged events out. The bundle then says which are missing.
        """
        returned: bytes = await self._call(
            "GET",
            f"/v1/sessions/{quoted(self.session_id)}/bundle",
            query={"redact": redact, "skip_damage": skip_damage},
            is_repeatable=True,
        )
        return returned

    async def compact_journal(
        self,
        *,
        drop_history: bool | None = None,
        dry_run: bool | None = None,
        keep_answered_request_ttl_ms: int | None = None,
        keep_last_replies: int | None = None,
        min_record_age_ms: int | None = None,
    ) -> types.JournalCompactionReport:
        """Drops journal records that nothing depends on.

        drop_history: Also drops history outside the live context and the newest replies.
        dry_run: Only reports what would be dropped.
        keep_answered_request_ttl_ms: Milliseconds to keep a request that has its result.
        keep_last_replies: Newest replies outside the live context to keep. Without `drop_history` all stay,
            whatever this says.
        min_record_age_ms: Milliseconds that every record is kept at least.
        """
        returned: types.JournalCompactionReport = await self._call(
            "POST",
            f"/v1/sessions/{quoted(self.session_id)}/journal-compactions",
            body={
                "drop_history": drop_history,
                "dry_run": dry_run,
                "keep_answered_request_ttl_ms": keep_answered_request_ttl_ms,
                "keep_last_replies": keep_last_replies,
                "min_record_age_ms": min_record_age_ms,
            },
        )
        return returned

    async def compact(
        self, *, preview: bool | None = None, compaction: types.CompactionConfig | None = None
    ) -> types.CompactionReceipt:
        """Compacts the live context.

        preview: Only shows what would happen.
        compaction: Compaction settings; the session's if `null`.
        """
        returned: types.CompactionReceipt = await self._call(
            "POST",
            f"/v1/sessions/{quoted(self.session_id)}/compactions",
            query={"preview": preview},
            body={"compaction": compaction},
        )
        return returned

    async def undo_compaction(self, compaction: int) -> types.Changed:
        """Undoes the latest compaction.

        compaction: Seq of the event that completed the compaction; the latest one if `null`.
        """
        returned: types.Changed = await self._call(
            "DELETE", f"/v1/sessions/{quoted(self.session_id)}/compactions/{quoted(compaction)}"
        )
        return returned
