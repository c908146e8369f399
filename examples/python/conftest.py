"""Every test here may ask for `meerkat_server`, and for a client of it."""

from collections.abc import Iterator

import pytest

from meerkat import Meerkat
from meerkat_testing import MeerkatServer, meerkat_server

__all__ = ["meerkat_server"]


@pytest.fixture
def meerkat(meerkat_server: MeerkatServer) -> Iterator[Meerkat]:
    with Meerkat(meerkat_server.url, meerkat_server.token) as meerkat:
        yield meerkat
