"""A bad network for the tests: a program between a client and a server, which breaks connections."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from meerkat import Meerkat, Session
from meerkat_testing import MeerkatServer


class Proxy:
    """Passes bytes on to a server, whose address may change, but only so many of each answer: `limits` has a number for
    each next connection, and then it passes on everything. With a number below zero the request does not arrive
    either."""

    def __init__(self, address: str = "127.0.0.1:0"):
        self.address = address
        self.limits: Iterator[int] = iter(())
        self.connections = 0
        self.client: socket.socket | None = None
        self.muted: socket.socket | None = None
        self.left = threading.Event()
        # A connection came while the server was not there.
        self.missed = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.url = f"http://{self.host}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            self.client = client
            limit = next(self.limits, None)
            if limit is not None and limit < 0:
                client.close()
                continue
            host, port = self.address.split(":")
            try:
                server = socket.create_connection((host, int(port)))
            except OSError:
                client.close()
                self.missed.set()
                continue
            threading.Thread(target=self.forward, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self.forward, args=(server, client, limit), daemon=True).start()

    def forward(self, source: socket.socket, target: socket.socket, limit: int | None) -> None:
        """Passes bytes on up to the limit, and then breaks both connections."""
        try:
            while data := source.recv(4096):
                if target is self.muted:
                    continue
                target.sendall(data if limit is None else data[:limit])
                if limit is not None and (limit := limit - len(data)) <= 0:
                    break
            else:
                self.left.set()
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self) -> None:
        """Breaks the newest connection."""
        if self.client:
            self.client.shutdown(socket.SHUT_RDWR)

    def mute(self) -> None:
        """Keeps the newest connection open, and passes nothing more to its client."""
        self.muted = self.client

    def close(self) -> None:
        self.listener.close()


class SteadyServer(MeerkatServer):
    """A server for a test that kills it: its proxy's address stays, and each start has a free port."""

    def __init__(self, folder: Path):
        self.front = Proxy()
        super().__init__(folder, [self.front.host])

    def start(self) -> None:
        super().start()
        self.front.address, self.url = self.address, self.front.url


@pytest.fixture
def steady_server(tmp_path: Path) -> Iterator[SteadyServer]:
    server = SteadyServer(tmp_path)
    yield server
    server.kill()
    server.front.close()


@pytest.fixture
def proxy(meerkat_server: MeerkatServer) -> Iterator[Proxy]:
    proxy = Proxy(meerkat_server.address)
    yield proxy
    proxy.close()


def through(proxy: Proxy, server: MeerkatServer, session: Session) -> Session:
    """The session over the bad network."""
    meerkat = Meerkat(proxy.url, server.token)
    # The server answers only to its own name, or to one that it was given.
    meerkat.http.headers["Host"] = server.address
    return meerkat.session(session.session_id)
