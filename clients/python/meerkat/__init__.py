"""Runs agent sessions on a meerkat server. `Meerkat` is the client, `AsyncMeerkat` the one for `async` programs."""

from . import types
from ._async.client import AsyncMeerkat
from ._async.session import AsyncSession, AsyncTurn
from ._sync.client import Meerkat
from ._sync.session import Session, Turn
from ._tools import Call, Result, Tool, file, image, tool
from ._wire import MeerkatError

__version__ = "0.1.0"
__all__ = [
    "AsyncMeerkat",
    "AsyncSession",
    "AsyncTurn",
    "Call",
    "Meerkat",
    "MeerkatError",
    "Result",
    "Session",
    "Tool",
    "Turn",
    "file",
    "image",
    "tool",
    "types",
]
