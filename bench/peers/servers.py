"""Starts the servers that `serve` compares, each on a free port of loopback."""

import contextlib
import hashlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time

import environments
from environments import HERE, VENV, say

NATIVE_BUILD = VENV.parent / "llama-server"
SOURCE = VENV.parent / "sdist"
# Beyond what llama-cpp-python is built with: the server alone, in one file, without its web page.
NATIVE_CMAKE_ARGS = (
    f"{environments.CMAKE_ARGS['native'].replace(' -DLLAVA_BUILD=OFF', '')} -DBUILD_SHARED_LIBS=OFF"
    " -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON"
    " -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF"
)
START_SECONDS = 120
END_SECONDS = 20


def install_python_server():
    """What llama_cpp.server needs, put into llama.cpp's environment."""
    requirements = HERE / "requirements-server.txt"
    stamp = VENV / "server-for"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    pip = [str(environments.python_of("native")), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "-r", str(requirements)], check=True)
    stamp.write_text(wanted)


def source_folder():
    """llama.cpp's sources, those that the pinned llama-cpp-python carries."""
    pin = next(line for line in (HERE / "requirements.txt").read_text().splitlines() if line.startswith("llama-cpp"))
    version = pin.partition("==")[2]
    folder = SOURCE / f"llama_cpp_python-{version}"
    if not folder.is_dir():
        SOURCE.mkdir(parents=True, exist_ok=True)
        download = [str(environments.python_of("native")), "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*download, "--no-build-isolation", "--no-binary", ":all:", "-d", str(SOURCE), pin], check=True)
        with tarfile.open(SOURCE / f"llama_cpp_python-{version}.tar.gz") as archive:
            archive.extractall(SOURCE, filter="data")
    return folder / "vendor/llama.cpp"


def build_native_server():
    """Builds llama-server from the same sources and with the same options as the bindings."""
    stamp = NATIVE_BUILD / "built-for"
    inputs = [
        (HERE / "requirements.txt").read_text(), environments.AMX_FIX.read_text(), NATIVE_CMAKE_ARGS,
        *sorted(environments.cpu_info()[1].split()),
    ]
    wanted = hashlib.sha256("\0".join(inputs).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    say(f"building llama-server in {NATIVE_BUILD} (10 minutes on two idle cores) ...")
    bin_folder = VENV / "bin"
    environment = dict(
        os.environ, PATH=f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        CXXFLAGS=f"-include {environments.AMX_FIX} {os.environ.get('CXXFLAGS', '')}",
    )
    environment.pop("SOURCE_DATE_EPOCH", None)  # would turn native instructions off
    configure = ["cmake", "-G", "Ninja", "-S", str(source_folder()), "-B", str(NATIVE_BUILD)]
    subprocess.run([*configure, *NATIVE_CMAKE_ARGS.split()], check=True, env=environment, stdout=sys.stderr)
    build = ["ninja", "-C", str(NATIVE_BUILD), "llama-server"]
    subprocess.run(build, check=True, env=environment, stdout=sys.stderr)
    stamp.write_text(wanted)


def set_up(rivals):
    """Makes what the rivals need, where it is not there yet."""
    environments.set_up(["native"])
    if "llamacpp-python" in rivals:
        install_python_server()
    if "llama-server" in rivals:
        build_native_server()


def command(engine, path, port, case, setting, binary):
    """How a server is started. `case` has the threads, the streams and the positions of each."""
    if engine == "plainchant":
        return [
            str(binary), "serve", "--host", "127.0.0.1", "--port", str(port), "--model", str(path),
            "--threads", str(case.threads), "--ctx", str(case.context),
        ]
    if engine == "llama-server":
        server = NATIVE_BUILD / "bin/llama-server"
        if not server.exists():
            sys.exit(f"{server} is not there: run without --no-build")
        return [
            str(server), "--host", "127.0.0.1", "--port", str(port), "--model", str(path),
            "--threads", str(case.threads), "--threads-batch", str(case.threads),
            # The context is that of all slots together.
            "--parallel", str(case.slots), "--ctx-size", str(case.context * case.slots), "--cont-batching",
            "--flash-attn", setting["flash_attention"], "--ubatch-size", setting["ubatch"], "--batch-size", "2048",
            "--kv-unified" if setting["kv_unified"] == "on" else "--no-kv-unified",
        ]
    return [
        str(environments.python_of("native")), "-m", "llama_cpp.server", "--host", "127.0.0.1", "--port", str(port),
        "--model", str(path), "--n_ctx", str(case.context), "--n_threads", str(case.threads),
        "--n_threads_batch", str(case.threads), "--flash_attn", str(setting["flash_attention"] == "on"),
        "--n_ubatch", setting["ubatch"], "--n_batch", "2048", "--logits_all", "False", "--verbose", "False",
        # By default a new request cuts off the one before it.
        "--interrupt_requests", "False",
    ]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def is_ready(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/v1/models")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def wait_until_ready(process, port, log, words):
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            log.seek(0)
            sys.exit(f"exit status {process.returncode}: {' '.join(words)}\n{log.read()[-2000:]}")
        # llama-server lists its model before it has loaded it, but then with another status than 200.
        if is_ready(port):
            return
        time.sleep(0.2)
    sys.exit(f"not ready within {START_SECONDS} s: {' '.join(words)}")


@contextlib.contextmanager
def running(engine, path, case, setting, binary):
    """The address and the process of a server that is ready; it is ended at the end."""
    port = free_port()
    words = command(engine, path, port, case, setting, binary)
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_until_ready(process, port, log, words)
            yield f"http://127.0.0.1:{port}", process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
