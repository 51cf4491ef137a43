#!/bin/sh
# Makes the Python environment that the oracle scripts run in, outside the repository.
# Usage: tools/oracle/setup.sh    (prints the path of its python)
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
venv=${PLAINCHANT_ORACLE_VENV:-$HOME/.cache/plainchant-oracle/venv}
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --requirement "$here/requirements.txt" >&2
"$venv/bin/python" -c 'import gguf, numpy, tokenizers, torch, transformers' >&2
echo "$venv/bin/python"
