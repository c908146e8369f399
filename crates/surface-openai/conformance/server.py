"""A server of meerkat, whose sessions outlive it."""

import json
import os
import subprocess
import sys

from openai import OpenAI

PROGRAM, DATA = sys.argv[1:]
TOKEN = os.environ["MEERKAT_TOKEN"]


class Server:
    """A server over the same sessions, whenever it starts."""

    def __enter__(self):
        command = [PROGRAM, "--json", "serve", "--rest", "--data-dir", DATA, "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        ready = json.loads(self.process.stdout.readline())
        assert "openai" in ready["surfaces"], ready
        return OpenAI(base_url=ready["listening"] + "/v1", api_key=TOKEN, max_retries=0)

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
