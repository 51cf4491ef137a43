"""schemathesis reads the server's own description and tries what it can think of: no answer may be a 5xx."""

import os
import pathlib
import subprocess
import sys

from conftest import KEY


def test_nothing_described_makes_the_server_fail(server, tmp_path):
    examples = os.environ.get("PLAINCHANT_SCHEMA_EXAMPLES", "40")
    st = pathlib.Path(sys.executable).with_name("st")
    command = [str(st), "run", server.url + "/openapi.json",
               "--header", f"Authorization: Bearer {KEY}", "--checks", "not_a_server_error",
               "--max-examples", examples, "--seed", "1", "--request-timeout", "60", "--generation-database", "none"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1800)
    print(done.stdout[-6000:], done.stderr[-2000:])
    assert done.returncode == 0, done.stdout[-6000:]
    assert server.fetch("/health")
