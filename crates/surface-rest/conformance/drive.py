"""Drives the generated Python client: a session, a turn, its events, a list, an error."""

import os

from meerkat_client.api.session import session_create, session_events, session_list
from meerkat_client.api.turn import turn_start
from meerkat_client.client import AuthenticatedClient
from meerkat_client.models import (
    ErrorBody,
    SessionCreateBody,
    TurnCompleted,
    TurnResult,
    TurnStartBody,
)

client = AuthenticatedClient(base_url=os.environ["MEERKAT_URL"], token=os.environ["MEERKAT_TOKEN"])
created = session_create.sync(client=client, body=SessionCreateBody())
session = created.session_id
turn = turn_start.sync(session_id=session, client=client, body=TurnStartBody(prompt="@say Hello."))
assert isinstance(turn, TurnResult) and turn.text == "Hello.", turn
listed = session_list.sync(client=client)
assert [summary.session_id for summary in listed.items] == [session], listed
page = session_events.sync(session_id=session, client=client)
assert page.next_seq == turn.seq and isinstance(page.items[-1], TurnCompleted), page
refused = turn_start.sync(session_id=session, client=client, body=TurnStartBody(prompt=" "))
assert isinstance(refused, ErrorBody) and refused.code == "INVALID_REQUEST", refused
