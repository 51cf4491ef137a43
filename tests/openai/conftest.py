"""A server for the whole run, and the official client."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import urllib.request

import openai
import pytest

sys.dont_write_bytecode = True

MODEL = "smollm2-135m-instruct"
KEY = "0123456789abcdef-e2e"


class Server:
    """`plainchant serve` on a free loopback port, with its log."""

    def __init__(self, *flags):
        command = [os.environ["PLAINCHANT_BIN"], "serve", "--model", MODEL, "--port", "0", "--log-format", "json"]
        self.process = subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True)
        self.lines = []
        self.url = None
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        if not self.ready.wait(300) or self.url is None:
            self.process.kill()
            raise RuntimeError("the server did not start: " + "".join(self.lines))

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"listening at (http://[0-9.:]+)", line)
            if found:
                self.url = found.group(1)
                self.ready.set()
        self.ready.set()

    def records(self):
        """The lines of requests in the log."""
        parsed = [json.loads(line) for line in list(self.lines) if line.startswith("{")]
        return [line for line in parsed if line.get("message") == "request"]

    def client(self, key=KEY, **options):
        return openai.OpenAI(base_url=self.url + "/v1", api_key=key, max_retries=0, **options)

    def fetch(self, path, body=None):
        """Asks without the official client: the text at `path`, or its answer to a JSON body."""
        headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()

    def tokens(self, text, **more):
        return json.loads(self.fetch("/tokenize", {"prompt": text, **more}))["tokens"]

    def end(self, patience=60):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(patience)
        self.reader.join(10)
        return status


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    path: pathlib.Path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"e2e {KEY}\nother {KEY}-other\n")
    return path


@pytest.fixture(scope="session")
def server(keys):
    server = Server("--api-key-file", str(keys), "--ctx", "2048", "--sequences", "8", "--drain-seconds", "5")
    yield server
    assert server.end() == 0, "".join(server.lines[-20:])


@pytest.fixture(scope="session")
def client(server):
    return server.client()
