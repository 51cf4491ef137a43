"""The model files of the race: those fetched for development, and others made from them."""

import hashlib
import os
import pathlib
import subprocess
import sys

import environments

FETCHED_DIR = pathlib.Path(
    os.environ.get("PLAINCHANT_DEV_MODELS") or pathlib.Path.home() / ".cache/plainchant-dev-models"
)
MADE_DIR = environments.VENV.parent / "models"
FETCHED = {
    "smollm2-q4_1": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma3": "gemma-3-270m-q4_k_m.gguf",
    "qwen2.5-coder-0.5b": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "qwen2.5-coder-1.5b": "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
}
# Made by llama.cpp from the Q4_1 file, whose embedding is Q8_0: name: (type of matrices, of the embedding). They
# say nothing about quality, having been rounded twice; their speed is that of any file of these types.
MADE_FROM = "smollm2-q4_1"
MADE = {
    "smollm2-q4_0": ("q4_0", "q8_0"),
    "smollm2-q8_0": ("q8_0", "q8_0"),
    "smollm2-f16": ("f16", "f16"),
}
NAMES = (*FETCHED, *MADE)
# Files that were given by their path: name: path.
given = {}


def register(name):
    """The name of a model that is given by name or by path."""
    path = pathlib.Path(name)
    if name in NAMES:
        return name
    if not path.is_file():
        sys.exit(f"there is no file {name}, and no model of that name: known are {', '.join(NAMES)}")
    given[path.stem] = path
    return path.stem


def made(name):
    """Path of a file made from another; makes it if it is not there."""
    path = MADE_DIR / f"{name}.gguf"
    if not path.is_file():
        MADE_DIR.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        matrices, embedding = MADE[name]
        environments.say(f"making {path.name} from {FETCHED[MADE_FROM]} ...")
        subprocess.run([
            str(environments.python_of("native")), str(environments.HERE / "llamacpp_requantize.py"),
            str(find(MADE_FROM)), str(partial), "--matrices", matrices, "--embedding", embedding,
        ], check=True)
        partial.rename(path)
    return path


def find(name):
    """Path of a model by its name."""
    if name in given:
        return given[name]
    if name in MADE:
        return made(name)
    path = FETCHED_DIR / FETCHED[name]
    if not path.is_file():
        sys.exit(f"no model at {path}: put it there, or set PLAINCHANT_DEV_MODELS to the folder that has it")
    return path


def sha256_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe(name, path):
    return {
        "file": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path),
        "made_from": FETCHED[MADE_FROM] if name in MADE else None,
    }


def warm(path):
    """Reads a file, so that it is in the page cache."""
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 24):
            pass
