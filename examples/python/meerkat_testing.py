"""A meerkat for tests: the scripted model, a free port, an empty home. Copy this file into your own tests."""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

TOKEN = "the-token-of-every-test"


class MeerkatServer:
    """A `meerkat serve` with a folder of its own. Its sessions survive `kill` and `start`; its port does not.

    hosts: Further addresses under which it is called, such as that of a proxy.
    """

    def __init__(self, folder: Path, hosts: Sequence[str] = ()):
        self.folder, self.token, self.hosts = folder, TOKEN, [*hosts]
        (folder / "tools").mkdir()
        self.start()

    def start(self) -> None:
        """Starts the server and waits until it listens."""
        # Nothing else of this environment: a vendor's key in it would make the tests cost money.
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "MEERKAT_MODEL__NAME": "scripted",
            "MEERKAT_TOKEN": self.token,
            "MEERKAT_TOOLS__TEST_DIR": str(self.folder / "tools"),
            "MEERKAT_SERVE__ALLOWED_HOSTS": json.dumps(self.hosts),
        }
        command = [os.environ.get("MEERKAT", "meerkat"), "serve", "--rest", "--json", "--listen", "127.0.0.1:0"]
        command += ["--data-dir", str(self.folder / "data")]
        with open(self.folder / "log", "a") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        # Its first line says where it listens. If it ends before, there is none.
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError((self.folder / "log").read_text())
        self.url = json.loads(line)["listening"]
        self.address = self.url.removeprefix("http://")

    def kill(self) -> None:
        """Ends it like a power failure: no signal handler runs."""
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def meerkat_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeerkatServer]:
    """A server for the tests of a file. Each test makes a session of its own."""
    server = MeerkatServer(tmp_path_factory.mktemp("meerkat"))
    yield server
    server.kill()
