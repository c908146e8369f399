"""A session: its turns, its events, and the calls of its tools."""

# Made by generate.py. Do not edit.

from __future__ import annotations

import math
from collections.abc import Generator, Callable, Mapping
from contextlib import closing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, overload

from .. import types
from .._shape import Load
from .._tools import Call, Prompt, Result, Tool, Tools, cleaned, content_of, plain, prompt_of, wanted
from .._wire import MeerkatError, Shown, closed, log, new_key, quoted
from .operations import SessionOperations

if TYPE_CHECKING:
    from .client import Meerkat

Output = TypeVar("Output")
Event = types.AnyEvent
# What `on_approval` returns, or what may be awaited for it.
Decided = types.Decision | Mapping[str, Any]
OnApproval = Callable[[types.ApprovalRequestedEvent], Decided]
OnText = Callable[[str], object]
ENDS = ("turn_completed", "turn_failed", "turn_interrupted", "turn_dequeued")
# After one of these, no work of the session may be left.
IDLE = (*ENDS, "compaction_completed", "compaction_failed")
# Another program was quicker, or the call is over: its outcome is known.
KNOWN = ("ITEM_NOT_FOUND", "IDEMPOTENCY_CONFLICT", "SESSION_NOT_FOUND")
# It will never be taken as it is.
REFUSED = ("INVALID_REQUEST", "PAYLOAD_TOO_LARGE")


class Session(SessionOperations):
    """A session of a server. It has a method for each operation on a session; `run` and `stream` begin a turn."""

    def __init__(self, meerkat: Meerkat, session_id: str, tools: list[Tool[..., Any]], patience: float | None = None):
        self.meerkat, self.session_id, self.tools, self.patience = meerkat, session_id, tools, patience

    def _call(self, method: str, path: str, **request: Any) -> Any:
        return self.meerkat._call(method, path, **{"patience": self.patience} | request)

    @overload
    def run(
        self, prompt: Prompt, *, tools: Tools | None = None, output: type[Output], key: str | None = None,
        on_text: OnText | None = None, on_approval: OnApproval | None = None, **fields: Unpack[types.TurnFields],
    ) -> Result[Output]: ...  # fmt: skip
    @overload
    def run(
        self, prompt: Prompt, *, tools: Tools | None = None, output: Mapping[str, Any] | None = None,
        key: str | None = None, on_text: OnText | None = None, on_approval: OnApproval | None = None,
        **fields: Unpack[types.TurnFields],
    ) -> Result[Any]: ...  # fmt: skip
    def run(self, prompt: Prompt, **options: Any) -> Result[Any]:
        """Runs a turn to its end, and answers its calls. It takes what `stream` takes."""
        return self.stream(prompt, **options).wait()

    @overload
    def stream(
        self, prompt: Prompt, *, tools: Tools | None = None, output: type[Output], key: str | None = None,
        on_text: OnText | None = None, on_approval: OnApproval | None = None, **fields: Unpack[types.TurnFields],
    ) -> Turn[Output]: ...  # fmt: skip
    @overload
    def stream(
        self, prompt: Prompt, *, tools: Tools | None = None, output: Mapping[str, Any] | None = None,
        key: str | None = None, on_text: OnText | None = None, on_approval: OnApproval | None = None,
        **fields: Unpack[types.TurnFields],
    ) -> Turn[Any]: ...  # fmt: skip
    def stream(self, prompt: Prompt, **options: Any) -> Turn[Any]:
        """Runs a turn: the events come as they happen, and with the last one `result` is there.

        tools: Functions that the model may call, in place of the session's for this turn and later ones.
        output: A type or a JSON Schema for the answer, which is then in the result's `output`.
        key: With the same key and the same request, a program that starts again follows the turn that it has begun.
        on_text: Gets each piece of the answer's text once.
        on_approval: Gets the event `approval_requested`, and returns `approve`, `deny` or the fields of a decision.
        """
        return self._begin("turns", {"prompt": prompt_of(prompt)}, **options)

    def resume(self, prompt: Prompt | None = None, **options: Any) -> Result[Any]:
        """Continues a turn that was cut off, to its end. It takes what `stream` takes."""
        fields = {} if prompt is None else {"prompt": prompt_of(prompt)}
        return self._begin("resume", fields, **options).wait()

    def _begin(
        self,
        kind: str,
        body: dict[str, Any],
        *,
        tools: Tools | None = None,
        output: Any = None,
        key: str | None = None,
        on_text: OnText | None = None,
        on_approval: OnApproval | None = None,
        **fields: Any,
    ) -> Turn[Any]:
        spec, load = wanted(output)
        body |= {"output": spec, "attended": True if on_approval else None} | fields
        if tools is not None:
            # As at the server: they are the session's from now on.
            self.tools = self.meerkat.tasks.tools(tools)
            body["client_tools"] = [tool.definition for tool in self.tools]
        path = f"/v1/sessions/{quoted(self.session_id)}/{kind}"
        return Turn(_Answers(self, self.tools), path, body, key or new_key(), load, on_text, on_approval)

    def follow(self, after: int = 0) -> Generator[Event, None, None]:
        """Yields the session's events after a cursor: the stored ones first, and then new ones as they happen. A lost
        connection is made again; no stored event is lost, and none comes twice."""
        return self.meerkat._stream(f"/v1/sessions/{quoted(self.session_id)}/events", after, self.patience)

    def answer_calls(self, tools: Tools | None = None, *, until_idle: bool = False) -> None:
        """Runs the calls of the session's tools and answers them, until the session is deleted or the client is
        closed: those that wait, and those that come. It waits for a server that is down as long as that takes.

        until_idle: Only until no turn runs or waits.
        """
        own = self.tools if tools is None else self.meerkat.tasks.tools(tools)
        session = Session(self.meerkat, self.session_id, own, math.inf)
        answers = _Answers(session, own)
        try:
            # First: what comes later is seen, and what came before is in the list of calls.
            view = session._view()
            answers.begin()
            if until_idle and view and view["state"] == "idle":
                return
            with closing(session.follow(view["last_seq"] if view else 0)) as events:
                for event in events:
                    answers.saw(event)
                    if until_idle and event["type"] in IDLE and (session.read())["state"] == "idle":
                        return
        except MeerkatError as error:
            if error.code != "CLIENT_CLOSED":
                raise

    def _settle(self, path: str, body: Mapping[str, Any], refused: Callable[[str], Mapping[str, Any]]) -> None:
        """Sends an answer until it is received, for as long as the client is open. If it is refused for what is in it,
        then one that says so, and at last one that has nothing in it but a code."""
        path = f"/v1/sessions/{quoted(self.session_id)}/{path}"
        for text in ("message", "code", None):
            try:
                self._call("POST", path, body=body, is_repeatable=True, patience=math.inf)
            except MeerkatError as error:
                if text and error.code in REFUSED:
                    log.warning("the answer to %s was refused: %s", path, error)
                    body = refused(cleaned(getattr(error, text)))
                    continue
                if error.code == "CLIENT_CLOSED":
                    log.warning("%s was not answered: the client was closed", path)
                elif error.code not in KNOWN:
                    raise
            return

    def _view(self) -> types.SessionView | None:
        """The session, or `None` at a server that stores none: what happened there is short."""
        try:
            return self.read()
        except MeerkatError as error:
            if error.code != "SESSION_PERSISTENCE_DISABLED":
                raise
            return None

    def text(self, body: types.Body) -> str:
        """Returns a text of an event. One that is too large for an event is read from its blob."""
        if isinstance(body, str):
            return body
        whole = b""
        while len(whole) < body["bytes"]:
            whole += self.blob(body["blob"], offset=len(whole))
        return whole.decode()


class _Answers:
    """Runs the calls of a session's tools."""

    def __init__(self, session: Session, tools: list[Tool[..., Any]]):
        self.session, self.tools = session, {tool.name: tool for tool in tools}

    def saw(self, event: Event) -> None:
        """Looks at an event: does it ask for a call?"""
        if event["type"] == "call_requested":
            self.begin()

    def begin(self) -> None:
        """Begins every open call of these tools. An event may be old; the list says which calls still wait."""
        meerkat, session_id = self.session.meerkat, self.session.session_id
        for call in (self.session.calls())["items"]:
            tool = self.tools.get(call["name"])
            if tool is None:
                if meerkat.begun.add("other", session_id, call["call_id"]):
                    log.warning("%s waits for a program that has the tool %s", call["call_id"], call["name"])
            elif meerkat.begun.add("call", session_id, call["call_id"]):
                made = Call(session_id, call["turn"], call["call_id"], call["name"], call["arguments"])
                meerkat.tasks.start(self.run, tool, made)

    def run(self, tool: Tool[..., Any], call: Call) -> None:
        """Runs a call and answers it."""

        def failed(why: str) -> dict[str, Any]:
            return {"outcome": "failed", "content": [{"type": "text", "text": why}]}

        tasks = self.session.meerkat.tasks
        try:
            returned = tasks.run(tool.function, **tool.named(call))
            answer: dict[str, Any] = {"outcome": "succeeded", "content": content_of(returned)}
        except BaseException as error:
            if tasks.is_end(error):
                raise
            log.warning("the tool %s failed (%s)", call.name, call.call_id, exc_info=True)
            answer = failed(cleaned(str(error) or type(error).__name__))
        # Not within `try`: the function has done its work, whatever happens to its answer.
        path = f"calls/{quoted(call.call_id)}"
        self.session._settle(path, answer, lambda why: failed(f"The tool ran; its answer was refused: {why}"))


class Turn(Generic[Output]):
    """A turn that runs: an iterator of its events. To leave it early, use it by `with`; the turn goes on."""

    def __init__(
        self,
        answers: _Answers,
        path: str,
        body: dict[str, Any],
        key: str,
        load: Load,
        on_text: OnText | None,
        on_approval: OnApproval | None,
    ):
        self.session, self.answers = answers.session, answers
        self.path, self.body, self.key, self.load = path, body, key, load
        self.on_text, self.on_approval = on_text, on_approval
        self.ended: Result[Output] | None = None
        self.shown = Shown()
        self.events = self._events()

    @property
    def result(self) -> Result[Output]:
        """How the turn ended. Read its events to the last one before."""
        if self.ended is None:
            raise RuntimeError("the turn has no result yet: read its events to the last one")
        return self.ended

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        return self.events.__next__()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. The turn goes on, and so do functions that run for it."""
        self.events.close()

    def wait(self) -> Result[Output]:
        """Reads the events to the last one, and returns the result."""
        with self:
            for _ in self:
                pass
        return self.result

    def texts(self) -> Generator[str, None, None]:
        """Yields the answer's text in pieces, as the model says it: each character once."""
        with self:
            for event in self:
                for piece in self._fresh(event):
                    yield piece

    def _events(self) -> Generator[Event, None, None]:
        # The turn belongs to the server: it is begun, and then followed by a cursor like everything else. The same
        # request under the same key has its result.
        request = {"body": self.body, "key": self.key}
        begun: types.TurnAccepted = self.session._call("POST", self.path, **request, is_waiting=False)
        meerkat = self.session.meerkat
        with closing(self.session.follow(begun["seq"] - 1)) as events:
            for event in events:
                if event["turn"] != begun["turn"]:
                    continue
                self.answers.saw(event)
                if self.on_approval and event["type"] == "approval_requested":
                    if meerkat.begun.add("approval", self.session.session_id, event["call_id"]):
                        meerkat.tasks.start(self._decide, self.on_approval, event)
                if self.on_text:
                    for piece in self._fresh(event):
                        meerkat.tasks.call(self.on_text, piece)
                if event["type"] in ENDS:
                    self.ended = Result.of(self.session._call("POST", self.path, **request), self.load)
                yield event
                if event["type"] in ENDS:
                    return
        if meerkat.http.is_closed:
            raise closed()
        raise MeerkatError("SESSION_NOT_FOUND", "The session was deleted while the turn ran.")

    def _decide(self, on_approval: OnApproval, event: types.ApprovalRequestedEvent) -> None:
        """Asks the program about a call that still waits, and sends its decision."""
        view = self.session._view()
        if view and all(one["call_id"] != event["call_id"] for one in view["pending_approvals"]):
            return

        def denied(why: str) -> dict[str, Any]:
            return {"decision": "deny", "reason": f"The program could not decide: {why}"}

        tasks = self.session.meerkat.tasks
        try:
            decided = tasks.run(on_approval, event)
            fields = plain({"decision": decided} if isinstance(decided, str) else decided)
            if not isinstance(fields, dict) or fields.get("decision") not in ("approve", "deny"):
                raise TypeError(
                    f"on_approval returned {decided!r}: return 'approve', 'deny' or a dictionary with the `decision`"
                )
        except BaseException as error:
            if tasks.is_end(error):
                raise
            # A turn that waits for a decision would not end.
            log.warning("on_approval failed, so %s is denied", event["call_id"], exc_info=True)
            fields = denied(cleaned(str(error) or type(error).__name__))
        self.session._settle(f"approvals/{quoted(event['call_id'])}", fields, denied)

    def _fresh(self, event: Event) -> list[str]:
        """The pieces of an event's texts that were not shown. A stored message has the whole of each text, so what was
        missed of its live pieces comes with it."""
        if event["type"] == "text_delta":
            piece = self.shown.fresh(event["step"], event["block"], event["offset"], event["text"])
            return [piece] if piece else []
        pieces = []
        if event["type"] == "assistant_message":
            # Live pieces count runs: neighbours of one kind are one, whatever calls are between them.
            number, offset, last = -1, 0, ""
            for block in event["blocks"]:
                if block["type"] not in ("text", "reasoning") or not (body := block.get("text")):
                    continue
                if block["type"] != last:
                    number, offset, last = number + 1, 0, block["type"]
                if block["type"] == "text":
                    whole = self.session.text(body)
                    pieces.append(self.shown.fresh(event["step"], number, offset, whole))
                    offset += len(whole.encode())
        return [piece for piece in pieces if piece]
