#!/usr/bin/env bash
# Makes the environment in which the reference ids and renderings are made. Nothing of it is needed to
# build or test Plainchant: what it makes is committed under crates/text/tests/fixtures.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=${PLAINCHANT_ORACLE_TEXT_VENV:-$HOME/.cache/plainchant-oracle-text/venv}
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --requirement "$here/requirements.txt"
echo "run the generators with $venv/bin/python"
