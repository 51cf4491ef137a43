"""What the race needs before it starts: builds of llama.cpp, a mistral.rs, our own binary, and model files."""

import contextlib
import hashlib
import json
import os
import pathlib
import platform
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
VENV = pathlib.Path(os.environ.get("PLAINCHANT_PEERS_VENV") or pathlib.Path.home() / ".cache/plainchant-peers/venv")
# Makes the AMX kernels work when an older GCC builds them; empty for every other compiler and CPU.
AMX_FIX = HERE / "amx_gcc12.h"

COMMON_CMAKE_ARGS = (
    "-DCMAKE_BUILD_TYPE=Release -DGGML_OPENMP=ON -DGGML_CPU_REPACK=ON -DGGML_LLAMAFILE=ON"
    " -DLLAMA_OPENSSL=OFF -DLLAVA_BUILD=OFF"
)
# Everything that AVX2 machines have; whatever else there is stays off by default where GGML_NATIVE is, and is named
# here all the same, so that a later llama.cpp with other defaults is built alike.
AVX2_CMAKE_ARGS = (
    "-DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_BMI2=ON -DGGML_FMA=ON -DGGML_F16C=ON"
    " -DGGML_AVX_VNNI=OFF -DGGML_AVX512=OFF -DGGML_AVX512_VBMI=OFF -DGGML_AVX512_VNNI=OFF -DGGML_AVX512_BF16=OFF"
    " -DGGML_AMX_TILE=OFF -DGGML_AMX_INT8=OFF -DGGML_AMX_BF16=OFF"
)
CMAKE_ARGS = {
    "native": f"-DGGML_NATIVE=ON {COMMON_CMAKE_ARGS}",
    "avx2": f"{AVX2_CMAKE_ARGS} {COMMON_CMAKE_ARGS}",
}


def say(*words):
    print(*words, file=sys.stderr, flush=True)


def output_of(*command, cwd=ROOT):
    """First line of what a command prints, or "unknown"."""
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return (done.stdout.strip().splitlines() or ["unknown"])[0]


def cpu_info():
    """Name and instruction sets of the first CPU in /proc/cpuinfo."""
    fields = {}
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    name = fields.get("model name") or platform.machine()
    if "cpu family" in fields:
        name += f" (family {fields['cpu family']}, model {fields.get('model')})"
    return name, fields.get("flags") or fields.get("Features") or ""


# ---- Rivals ------------------------------------------------------------------------------------------------------


def venv_of(kind):
    """Folder of an environment: llama.cpp's `native` and `avx2` builds, and `mistralrs`."""
    return VENV if kind == "native" else VENV.with_name(f"{VENV.name}-{kind}")


def python_of(kind):
    """The environment's Python, or an error that says how to get one."""
    python = venv_of(kind) / "bin/python"
    if not python.exists():
        flag = "" if kind == "native" else f" --with-{kind}"
        sys.exit(f"{python} is not there: `bench/peers/run --setup-only{flag}` builds it")
    return python


@contextlib.contextmanager
def fresh_venv(kind, inputs):
    """Yields an empty environment to fill, or None if one is there that was made from the same inputs."""
    venv = venv_of(kind)
    stamp = venv / "built-for"
    wanted = hashlib.sha256("\0".join(inputs).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        yield None
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
    yield venv
    stamp.write_text(wanted)


def build_llamacpp(kind):
    """Builds llama.cpp, `native` or for `avx2` alone, unless that was done on a CPU of the same instructions."""
    requirements = [HERE / "requirements-build.txt", HERE / "requirements.txt"]
    texts = [path.read_text() for path in [*requirements, AMX_FIX]]
    instructions = sorted(cpu_info()[1].split()) if kind == "native" else [platform.machine()]
    with fresh_venv(kind, [*texts, CMAKE_ARGS[kind], *instructions]) as venv:
        if venv is None:
            return
        say(f"building llama-cpp-python ({kind}) from source in {venv} (6 minutes on two idle cores) ...")
        environment = dict(
            os.environ, CMAKE_ARGS=CMAKE_ARGS[kind], PATH=f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
        )
        environment.pop("SOURCE_DATE_EPOCH", None)  # would turn native instructions off
        environment.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count()))
        environment["CXXFLAGS"] = f"-include {AMX_FIX} {environment.get('CXXFLAGS', '')}"
        # --no-cache-dir: a wheel that pip kept may have been built for another machine.
        install = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
        subprocess.run([*install, "-r", str(requirements[0])], check=True)
        subprocess.run([*install, "--no-build-isolation", "-r", str(requirements[1])], check=True, env=environment)


def install_mistralrs():
    """Installs mistral.rs as it is published."""
    requirements = HERE / "requirements-mistralrs.txt"
    with fresh_venv("mistralrs", [requirements.read_text()]) as venv:
        if venv is not None:
            say(f"installing mistral.rs in {venv} ...")
            pip = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet"]
            subprocess.run([*pip, "-r", str(requirements)], check=True)


def set_up(kinds):
    """Makes the environments of these kinds, where they are not there yet."""
    for kind in kinds:
        if kind == "mistralrs":
            install_mistralrs()
        else:
            build_llamacpp(kind)


def plainchant_binary(build):
    """Path of the release binary, built first if asked."""
    if build:
        subprocess.run(["cargo", "build", "--release", "--bin", "plainchant"], cwd=ROOT, check=True)
    metadata = subprocess.run(
        ["cargo", "metadata", "--format-version", "1", "--no-deps"],
        cwd=ROOT, check=True, stdout=subprocess.PIPE,
    )
    binary = pathlib.Path(json.loads(metadata.stdout)["target_directory"]) / "release/plainchant"
    if not binary.exists():
        sys.exit(f"{binary} is not there: run without --no-build")
    return binary
