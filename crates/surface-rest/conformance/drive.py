"""Drives the generated Python client: a session, a turn, its events by cursor, a retry, an approval, an interrupt, a
fork, a search, a list, errors by code."""

import os
from uuid import UUID

from meerkat_client.api.memory import memory_search
from meerkat_client.api.session import session_create, session_events, session_fork, session_list, session_read
from meerkat_client.api.turn import turn_approve, turn_interrupt, turn_start
from meerkat_client.client import AuthenticatedClient
from meerkat_client.models import (
    ApprovalRequested,
    Decision,
    ErrorBody,
    MemorySearchRole,
    SessionCreateBody,
    ToolFinished,
    ToolStarted,
    TurnAccepted,
    TurnApproveBody,
    TurnCompleted,
    TurnInterruptBody,
    TurnInterrupted,
    TurnResult,
    TurnStartBody,
)

client = AuthenticatedClient(base_url=os.environ["MEERKAT_URL"], token=os.environ["MEERKAT_TOKEN"])
ENDS = (TurnCompleted, TurnInterrupted)


def begin(prompt: str, key: str, **options) -> TurnAccepted:
    """Starts a turn and does not wait for its end."""
    body = TurnStartBody(prompt=prompt, **options)
    turn = turn_start.sync(session_id=session, client=client, body=body, idempotency_key=key, prefer="respond-async")
    assert isinstance(turn, TurnAccepted), turn
    return turn


def follow(turn: TurnAccepted):
    """Yields a turn's events by a cursor, as they happen."""
    cursor = turn.seq - 1
    while True:
        page = session_events.sync(session_id=session, client=client, since_seq=cursor, wait_ms=5_000)
        assert not isinstance(page, ErrorBody), page
        for event in page.items:
            yield event
            if isinstance(event, ENDS):
                return
        cursor = page.next_seq


created = session_create.sync(client=client, body=SessionCreateBody())
session = created.session_id
turn = turn_start.sync(session_id=session, client=client, body=TurnStartBody(prompt="@say Hello to Lima."))
assert isinstance(turn, TurnResult) and turn.text == "Hello to Lima.", turn
listed = session_list.sync(client=client)
assert [summary.session_id for summary in listed.items] == [session], listed
page = session_events.sync(session_id=session, client=client)
assert page.next_seq == turn.seq and isinstance(page.items[-1], TurnCompleted), page

once = begin("@say Once.", "a key")
assert begin("@say Once.", "a key") == once
seqs = [event.seq for event in follow(once)]
assert seqs == list(range(once.seq, once.seq + 3)), seqs

outcomes = []
for event in follow(begin('@call test_ask {"name":"a","line":"b"}', "asks", attended=True)):
    if isinstance(event, ApprovalRequested):
        body = TurnApproveBody(decision=Decision.APPROVE)
        turn_approve.sync(session_id=session, call_id=event.call_id, client=client, body=body)
    if isinstance(event, ToolFinished):
        outcomes.append(event.outcome)
assert outcomes == ["succeeded"], outcomes

for event in follow(begin('@call test_sleep {"ms":600000}', "sleeps")):
    if isinstance(event, ToolStarted):
        busy = turn_start.sync(session_id=session, client=client, body=TurnStartBody(prompt="hello"))
        assert isinstance(busy, ErrorBody) and busy.code == "SESSION_BUSY", busy
        turn_interrupt.sync(session_id=session, client=client, body=TurnInterruptBody(turn=event.turn))
assert isinstance(event, TurnInterrupted) and event.reason == "requested", event

forked = session_fork.sync(session_id=session, client=client, turn=0)
assert session_read.sync(session_id=forked.session_id, client=client).turn_count == 1, forked
found = memory_search.sync(client=client, query="Lima", role=MemorySearchRole.ASSISTANT)
assert found.items[0].text == "Hello to Lima.", found

refused = turn_start.sync(session_id=session, client=client, body=TurnStartBody(prompt=" "))
assert isinstance(refused, ErrorBody) and refused.code == "INVALID_REQUEST", refused
missing = session_read.sync(session_id=UUID(int=0), client=client)
assert isinstance(missing, ErrorBody) and missing.code == "SESSION_NOT_FOUND", missing
