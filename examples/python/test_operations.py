"""Calls every operation of the server by its generated method: none is out of reach."""

import time
from typing import Any

import pytest

from meerkat import Meerkat, MeerkatError, Session, tool
from meerkat._sync.operations import ServerOperations, SessionOperations
from meerkat_testing import MeerkatServer


def refused(code: str, call: Any, **arguments: Any) -> None:
    with pytest.raises(MeerkatError) as error:
        call(**arguments)
    assert error.value.code == code


def operations(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_every_operation_on_a_server(meerkat_server: MeerkatServer, meerkat: Meerkat) -> None:
    called: set[str] = set()

    def call(name: str, *arguments: Any, **named: Any) -> Any:
        called.add(name)
        return getattr(meerkat, name)(*arguments, **named)

    session_id = call("create_session", title="All", labels={"a": "b"}, budgets={"steps": 9})["session_id"]
    session = meerkat.session(session_id)
    last = session.run("@say The capital of Chile is Santiago.").data["seq"]
    assert call("capabilities")["build"] == "F"
    assert [row["code"] for row in call("errors", code="SESSION_BUSY")["items"]] == ["SESSION_BUSY"]
    assert [one["session_id"] for one in call("list", labels={"a": "b"}, archived=False)["items"]] == [session_id]
    assert session_id in str(call("changes", limit=1000))
    assert call("approvals")["items"] == []
    assert "test_echo" in [one["name"] for one in call("tools")["items"]]
    assert call("tool_servers")["items"] == []
    assert "findings" in call("diagnose")

    assert call("create_reader", "audit")["reader"] == "audit"
    assert call("fetch_reader", "audit", limit=1)["items"]
    call("acknowledge_reader", "audit", session_id, last)
    assert call("wait_reader", "audit", session_id, last)["reader"] == "audit"
    assert "audit" in [one["reader"] for one in call("list_readers")["items"]]
    call("delete_reader", "audit")

    end = time.monotonic() + 60
    while not call("search_memory", "Chile")["items"] and time.monotonic() < end:
        time.sleep(0.05)
    assert call("search_memory", "Chile", role="assistant")["items"][0]["session_id"] == session_id
    call("forget_memory", session_id=session_id, wait=True)
    assert call("search_memory", "Chile")["items"] == []
    call("reindex_memory")
    # The tests' server writes no files for people.
    refused("INVALID_REQUEST", lambda: call("rebuild_projection"))
    assert call("retain", dry_run=True, max_age_days=1000)["deleted"] == 0
    bundle = session.export_session()
    assert call("import_bundle", bundle, new_ids=True)["sessions"][0]["session_id"] != session_id
    assert called == operations(ServerOperations)


def test_every_operation_on_a_session(meerkat: Meerkat) -> None:
    @tool
    def wait() -> None:
        """Waits for an answer by hand."""

    session: Session = meerkat.session(tools=[wait])
    called: set[str] = set()

    def call(name: str, *arguments: Any, **named: Any) -> Any:
        called.add(name)
        return getattr(session, name)(*arguments, **named)

    turn = call("start_turn", '@call wait @step @call test_ask {"name":"all","line":"a"} @stall', attended=True)["turn"]
    events = session.follow()
    asked = next(event for event in events if event["type"] == "call_requested")
    call_id = call("calls")["items"][0]["call_id"]
    assert asked["call_id"] == call_id
    call("answer_call", call_id, "failed", content=[{"type": "json", "value": [1.5, None]}])
    approval = next(event for event in events if event["type"] == "approval_requested")
    call("decide_approval", approval["call_id"], "deny", reason="no")
    queued = session.start_turn("@say Later.", policy="queue")["turn"]
    call("edit_queued", queued, prompt="@say Sooner.", position=0)
    assert call("queue")["items"][0]["prompt"] == "@say Sooner."
    call("cancel_queued", queued)
    call("interrupt", turn=turn)
    next(event for event in events if event["type"] == "turn_interrupted")
    events.close()
    assert call("resume_turn", prompt="@say Resumed.")["turn"] == 2

    end = time.monotonic() + 60
    while call("read")["state"] != "idle" and time.monotonic() < end:
        time.sleep(0.05)
    kinds = [event["type"] for event in call("events", limit=1000)["items"]]
    assert kinds.count("turn_edited") == kinds.count("turn_dequeued") == 1
    assert {one["turn"] for one in call("turns")["items"]} == {0, 2}
    assert len(call("steps", limit=1)["items"]) == len(call("history", limit=1)["items"]) == 1

    call("remind", "custom:style", "Be short.")
    assert [one["text"] for one in call("reminders")["items"]] == ["Be short."]
    call("clear_reminder", "custom:style")
    pin = call("pin", "Never deploy on Fridays.")["seq"]
    assert [one["text"] for one in call("pins")["items"]] == ["Never deploy on Fridays."]
    call("unpin", pin)
    call("update", title="All of it")
    call("archive")
    assert session.read()["archived"] and session.read()["title"] == "All of it"
    call("unarchive")

    assert "retained" in call("compact", preview=True)
    refused("ITEM_NOT_FOUND", lambda: call("undo_compaction", 1))
    refused("ITEM_NOT_FOUND", lambda: call("blob", "0" * 64))
    assert call("blob", call("put_blob", b"A note.")["blob"]) == b"A note."
    assert "dropped" in call("compact_journal", dry_run=True)
    assert call("export_session", redact=True)[257:262] == b"ustar"
    assert call("fork", turn=0)["session_id"] != session.session_id
    call("delete", force=True)
    refused("SESSION_NOT_FOUND", session.read)
    assert called == operations(SessionOperations)
