"""Drives `meerkat acp` with the protocol's official client for Python, as an editor does."""

import asyncio
import base64
import json
import os
import signal
import struct
import subprocess
import tempfile
import time
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from acp import (
    PROTOCOL_VERSION,
    Client,
    RequestError,
    connect_to_agent,
    embedded_text_resource,
    image_block,
    resource_block,
    spawn_agent_process,
    text_block,
)
from acp.schema import (
    AcceptElicitationResponse,
    AllowedOutcome,
    ClientCapabilities,
    DeniedOutcome,
    ElicitationCapabilities,
    ElicitationFormCapabilities,
    RequestPermissionResponse,
)
from acp.ws.client import create_websocket_stream

PATIENCE = 60

# Longest time of a whole trial, so that a lost answer fails it.
TRIAL = 3 * PATIENCE
MEERKAT = os.environ["MEERKAT"]


class Editor(Client):
    """Notes what it is shown, and answers questions as it is told."""

    def __init__(self, answer: str | None = "once") -> None:
        self.answer = answer
        self.shown: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.forms: list[Any] = []
        self.news = asyncio.Event()

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.shown.append(update.model_dump(mode="json", by_alias=True, exclude_none=True))
        self.news.set()

    async def request_permission(
        self, session_id: str, tool_call: Any, options: Any, **_: Any
    ) -> RequestPermissionResponse:
        self.asked.append(
            {
                "call": tool_call.model_dump(mode="json", by_alias=True, exclude_none=True),
                "options": [(option.option_id, option.kind) for option in options],
            }
        )
        self.news.set()
        if self.answer is None:
            await asyncio.Event().wait()
        if self.answer == "cancelled":
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=self.answer))

    async def create_elicitation(self, message: str, mode: Any, **_: Any) -> AcceptElicitationResponse:
        self.forms.append((message, mode))
        return AcceptElicitationResponse(action="accept", content={"name": "Ann"})

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not holds():
                self.news.clear()
                await self.news.wait()

    def texts(self, kind: str) -> str:
        return "".join(
            update["content"].get("text", "") for update in self.shown if update["sessionUpdate"] == kind
        )

    def calls(self) -> list[dict[str, Any]]:
        return [each[1] for each in self.transcript() if each[0] == "call"]

    def transcript(self) -> list[Any]:
        """What a person sees of the agent: texts joined, and each call in its last state."""
        seen: list[Any] = []
        calls: dict[str, dict[str, Any]] = {}
        for update in self.shown:
            kind = update["sessionUpdate"]
            if kind == "tool_call":
                calls[update["toolCallId"]] = dict(update)
                seen.append(["call", calls[update["toolCallId"]]])
            elif kind == "tool_call_update":
                fields = {name: value for name, value in update.items() if name != "sessionUpdate"}
                calls[update["toolCallId"]].update(fields)
            elif kind.endswith("_chunk") and kind != "user_message_chunk":
                content = update["content"]
                if content["type"] == "text" and seen and seen[-1][:2] == [kind, "text"]:
                    seen[-1][2] += content["text"]
                elif content["type"] == "text":
                    seen.append([kind, "text", content["text"]])
                else:
                    seen.append([kind, content["type"], content])
        return seen


class Place:
    """A data directory and a workspace of their own."""

    def __init__(self, folder: Path) -> None:
        self.data, self.work, self.home = folder / "data", folder / "work", folder / "home"
        self.work.mkdir()
        self.home.mkdir()
        # The address of a server, if the clients are to come over WebSockets.
        self.url: str | None = None
        self.env = {
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "MEERKAT_MODEL__NAME": "scripted",
            "MEERKAT_SERVE__DRAIN_MS": "100",
            "MEERKAT_TOKEN": "a-token-of-16-characters-or-more",
        }

    @asynccontextmanager
    async def editor(self, answer: str | None = "once") -> AsyncIterator[tuple[Any, Editor, Any]]:
        editor = Editor(answer)
        if self.url:
            headers = {"Authorization": f"Bearer {self.env['MEERKAT_TOKEN']}"}
            stream = await create_websocket_stream(f"{self.url}/acp", headers=headers)
            async with connect_to_agent(editor, stream, use_unstable_protocol=True) as agent:
                await self.meet(agent)
                yield agent, editor, None
            return
        args = ["--data-dir", str(self.data), "acp"]
        started = spawn_agent_process(
            editor, MEERKAT, *args, env=self.env, cwd=self.work, use_unstable_protocol=True
        )
        async with started as (agent, process):
            await self.meet(agent)
            yield agent, editor, process

    async def meet(self, agent: Any) -> None:
        forms = ElicitationCapabilities(form=ElicitationFormCapabilities())
        async with asyncio.timeout(PATIENCE):
            met = await agent.initialize(
                protocol_version=PROTOCOL_VERSION, client_capabilities=ClientCapabilities(elicitation=forms)
            )
        assert met.protocol_version == 1, met
        assert met.agent_capabilities.load_session, met

    @asynccontextmanager
    async def server(self, surface: str) -> AsyncIterator[None]:
        """A server that owns the data directory."""
        server = subprocess.Popen(
            [MEERKAT, "serve", surface, "--data-dir", str(self.data), "--listen", "127.0.0.1:0", "--json"],
            env=self.env,
            cwd=self.work,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert server.stdout
            # A thread, so that the trial's patience holds for the first line too.
            ready = json.loads(await asyncio.to_thread(server.stdout.readline))
            if surface == "--acp":
                self.url = ready["listening"].replace("http:", "ws:")
            yield
        finally:
            server.terminate()
            server.wait(PATIENCE)

    async def session(self, agent: Any) -> str:
        return (await agent.new_session(cwd=str(self.work), mcp_servers=[])).session_id

    async def load(self, session: str) -> Editor:
        """What a new process shows of a session."""
        async with self.editor() as (agent, editor, _):
            await agent.load_session(cwd=str(self.work), session_id=session, mcp_servers=[])
            return editor


def png() -> str:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    image = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")) + chunk(b"IEND", b"")
    return base64.b64encode(image).decode()


def value(options: Any, name: str) -> str:
    [option] = [option for option in options.config_options if option.id == name]
    return option.current_value


async def talk(place: Place) -> None:
    """A text, a thought, an option, a picture and a file."""
    async with place.editor() as (agent, editor, _):
        session = await place.session(agent)
        ended = await agent.prompt(session_id=session, prompt=[text_block("@think Hm. @say Hello there.")])
        assert ended.stop_reason == "end_turn", ended
        assert editor.texts("agent_message_chunk") == "Hello there.", editor.shown
        assert editor.texts("agent_thought_chunk") == "Hm.", editor.shown
        assert not editor.texts("user_message_chunk"), editor.shown

        options = await agent.set_config_option(config_id="effort", session_id=session, value="high")
        assert value(options, "effort") == "high", options
        editor.shown.clear()
        await agent.prompt(session_id=session, prompt=[text_block("@echo options")])
        assert '"effort":"high"' in editor.texts("agent_message_chunk"), editor.shown

        editor.shown.clear()
        file = resource_block(embedded_text_resource("file:///src/note.txt", "A note.", mime_type="text/x-any"))
        blocks = [text_block("@echo blocks @note See "), image_block(png(), "image/png"), file]
        await agent.prompt(session_id=session, prompt=blocks)
        said = editor.texts("agent_message_chunk")
        assert "image/png" in said and "note.txt" in said and "A note." in said, said

        for name, params in [("stop", "max_tokens"), ("stop", "refusal")]:
            ended = await agent.prompt(session_id=session, prompt=[text_block(f"@say A @{name} {params}")])
            assert ended.stop_reason == params, ended


async def change(place: Place) -> None:
    """A call that asks: allowed, refused, allowed for the session; and the same shown by another process."""
    async with place.editor() as (agent, editor, _):
        session = await place.session(agent)
        call = '@call write {"path":"a.txt","content":"one\\n"} @say Written.'
        await agent.prompt(session_id=session, prompt=[text_block(call)])
        path = str(place.work / "a.txt")
        assert Path(path).read_text() == "one\n"
        [asked] = editor.asked
        assert asked["options"] == [("once", "allow_once"), ("session", "allow_always"), ("reject", "reject_once")], asked
        assert asked["call"]["locations"] == [{"path": path}], asked
        [shown] = editor.calls()
        assert (shown["status"], shown["kind"]) == ("completed", "edit"), shown
        assert shown["content"] == [{"type": "diff", "path": path, "newText": "one\n"}], shown

        editor.answer = "reject"
        call = '@call edit {"path":"a.txt","old":"one","new":"two"} @say Not changed.'
        await agent.prompt(session_id=session, prompt=[text_block(call)])
        assert Path(path).read_text() == "one\n"
        asked = editor.asked[-1]
        assert asked["call"]["content"][0] == {"type": "diff", "path": path, "oldText": "one", "newText": "two"}, asked
        assert editor.calls()[-1]["status"] == "failed"

        editor.answer = "session"
        for now, then in [("one", "two"), ("two", "three")]:
            call = f'@call edit {{"path":"a.txt","old":"{now}","new":"{then}"}} @say Changed.'
            await agent.prompt(session_id=session, prompt=[text_block(call)])
        assert Path(path).read_text() == "three\n"
        assert len(editor.asked) == 3, editor.asked
        seen = editor.transcript()
    replayed = await place.load(session)
    assert replayed.transcript() == seen, (replayed.transcript(), seen)
    assert sum(update["sessionUpdate"] == "user_message_chunk" for update in replayed.shown) == 4, replayed.shown


async def mode(place: Place) -> None:
    """What a session may do, its model and a compaction; the modes end at what the configuration allows."""
    place.env["MEERKAT_TOOLS__ASK"] = "never"
    write = [text_block('@call write {"path":"m.txt","content":"m"} @echo last_result')]
    async with place.editor() as (agent, editor, _):
        opened = await agent.new_session(cwd=str(place.work), mcp_servers=[])
        session = opened.session_id
        assert [mode.id for mode in opened.modes.available_modes] == ["read", "edit", "full"], opened
        assert opened.modes.current_mode_id == value(opened, "mode") == "full", opened
        await agent.set_session_mode(mode_id="read", session_id=session)
        await editor.until(lambda: any(shown["sessionUpdate"] == "config_option_update" for shown in editor.shown))
        await agent.prompt(session_id=session, prompt=write)
        assert "This turn may change nothing" in editor.texts("agent_message_chunk"), editor.shown
        assert not (place.work / "m.txt").exists() and not editor.asked

        options = await agent.set_config_option(config_id="mode", session_id=session, value="edit")
        assert value(options, "mode") == "edit", options
        await editor.until(lambda: any(shown.get("currentModeId") == "edit" for shown in editor.shown))
        await agent.prompt(session_id=session, prompt=write)
        assert len(editor.asked) == 1 and (place.work / "m.txt").exists()
        options = await agent.set_config_option(config_id="model", session_id=session, value=value(options, "model"))
        assert value(options, "model") == "scripted", options
        for _ in range(6):
            await agent.prompt(session_id=session, prompt=[text_block("@long 4000")])
        await agent.prompt(session_id=session, prompt=[text_block("/compact")])
        assert "compacted" in editor.texts("agent_message_chunk"), editor.shown[-1]
    async with place.editor() as (agent, _, _process):
        loaded = await agent.load_session(cwd=str(place.work), session_id=session, mcp_servers=[])
        assert loaded.modes.current_mode_id == "edit", loaded


async def form(place: Place) -> None:
    """What a tool asks during its call is a form."""
    place.env["MEERKAT_TOOLS__TEST_DIR"] = str(place.home)
    async with place.editor() as (agent, editor, _):
        session = await place.session(agent)
        call = '@call test_form {"message":"Who are you?"} @echo last_result'
        await agent.prompt(session_id=session, prompt=[text_block(call)])
        [(message, mode)] = editor.forms
        assert "Who are you?" in message and "name" in mode.requested_schema.properties, (message, mode)
        assert 'accepted {"count":3,"name":"Ann"}' in editor.texts("agent_message_chunk"), editor.shown


async def cancel(place: Place) -> None:
    async with place.editor(answer=None) as (agent, editor, _):
        session = await place.session(agent)
        prompt = asyncio.create_task(agent.prompt(session_id=session, prompt=[text_block("@say Wait @stall")]))
        await editor.until(lambda: "Wait" in editor.texts("agent_message_chunk"))
        await agent.cancel(session_id=session)
        async with asyncio.timeout(PATIENCE):
            assert (await prompt).stop_reason == "cancelled"

        call = '@call write {"path":"b.txt","content":"x"} @say Done.'
        prompt = asyncio.create_task(agent.prompt(session_id=session, prompt=[text_block(call)]))
        await editor.until(lambda: bool(editor.asked))
        await agent.cancel(session_id=session)
        async with asyncio.timeout(PATIENCE):
            assert (await prompt).stop_reason == "cancelled"
        assert not (place.work / "b.txt").exists()


async def killed(place: Place) -> None:
    """A process that is killed while a call waits leaves it to the next one, which asks again."""
    async with place.editor(answer=None) as (agent, editor, process):
        session = await place.session(agent)
        await agent.prompt(session_id=session, prompt=[text_block("@think Once. @say First.")])
        call = '@say Next. @call write {"path":"k.txt","content":"kept"} @say Done.'
        prompt = asyncio.create_task(agent.prompt(session_id=session, prompt=[text_block(call)]))
        await editor.until(lambda: bool(editor.asked))
        seen = editor.transcript()
        process.send_signal(signal.SIGKILL)
        await process.wait()
        prompt.cancel()
    async with place.editor() as (agent, editor, _):
        await agent.load_session(cwd=str(place.work), session_id=session, mcp_servers=[])
        await editor.until(lambda: "Done." in editor.texts("agent_message_chunk"))
        assert (place.work / "k.txt").read_text() == "kept"
        replayed = editor.transcript()
        assert replayed[:2] == seen[:2], (replayed, seen)
        assert replayed[2][1]["status"] == "completed" and replayed[3][2] == "Done.", replayed
    async with place.editor() as (agent, editor, _):
        await agent.resume_session(cwd=str(place.work), session_id=session, mcp_servers=[])
        assert not editor.transcript(), editor.shown
        await agent.prompt(session_id=session, prompt=[text_block("@echo messages")])
        assert "messages: " in editor.texts("agent_message_chunk"), editor.shown


async def listed(place: Place) -> None:
    async with place.editor() as (agent, _, _process):
        session = await place.session(agent)
        await agent.prompt(session_id=session, prompt=[text_block("@say To be listed.")])
        await agent.close_session(session_id=session)
        page = await agent.list_sessions(cwd=str(place.work))
        assert session in [info.session_id for info in page.sessions], page
        assert all(info.cwd == str(place.work) for info in page.sessions), page
        assert not (await agent.list_sessions(cwd="/elsewhere")).sessions
        # The package has no method for it.
        await agent._conn.send_request("session/delete", {"sessionId": session})
        page = await agent.list_sessions(cwd=str(place.work))
        assert session not in [info.session_id for info in page.sessions], page


async def refused(place: Place) -> None:
    """Bad input has the protocol's shape, and nothing is changed."""
    async with place.editor() as (agent, _, _process):
        for work, code in [
            (agent.new_session(cwd="/", mcp_servers=[]), "INVALID_REQUEST"),
            (agent.new_session(cwd="here", mcp_servers=[]), "INVALID_REQUEST"),
            (agent.load_session(cwd="/", session_id="x", mcp_servers=[]), "INVALID_REQUEST"),
            (
                agent.load_session(cwd="/", session_id="01900000-0000-7000-8000-000000000001", mcp_servers=[]),
                "SESSION_NOT_FOUND",
            ),
            (agent._conn.send_request("session/none", {}), "UNKNOWN_OPERATION"),
        ]:
            try:
                await work
            except RequestError as error:
                assert error.data["code"] == code, error.data
            else:
                raise AssertionError(code)


async def attached(place: Place) -> None:
    """Beside a server that owns the data directory, a client that disappears leaves its turn to another one."""
    async with place.server("--rpc"):
        await talk(place)
        async with place.editor(answer=None) as (agent, editor, process):
            session = await place.session(agent)
            call = '@call write {"path":"left.txt","content":"left"} @say Done.'
            prompt = asyncio.create_task(agent.prompt(session_id=session, prompt=[text_block(call)]))
            await editor.until(lambda: bool(editor.asked))
            process.kill()
            await process.wait()
            prompt.cancel()
        async with place.editor() as (agent, editor, _):
            await agent.load_session(cwd=str(place.work), session_id=session, mcp_servers=[])
            await editor.until(lambda: "Done." in editor.texts("agent_message_chunk"))
            assert (place.work / "left.txt").read_text() == "left"


async def websocket(place: Place) -> None:
    """The same over WebSockets, in a folder that is configured."""
    place.env["MEERKAT_TOOLS__FOLDERS"] = f'{{ work = "{place.work}" }}'
    async with place.server("--acp"):
        for trial in [talk, change, cancel, listed, refused]:
            await trial(place)


async def main() -> None:
    for trial in [talk, change, mode, form, cancel, killed, listed, refused, attached, websocket]:
        with tempfile.TemporaryDirectory() as folder:
            since = time.monotonic()
            async with asyncio.timeout(TRIAL):
                await trial(Place(Path(folder).resolve()))
            print(f"{trial.__name__}: good ({time.monotonic() - since:.1f} s)")


asyncio.run(main())
