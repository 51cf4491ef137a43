"""Runs the engines on the cases and collects samples, with what other processes did meanwhile."""

import contextlib
import json
import mmap
import os
import pathlib
import statistics
import subprocess
import sys
import time

import environments
import models
from environments import HERE, say

PROMPT = "The capital of France is"
# Positions that `start` and `memory` make room for, in all engines.
CONTEXT = 4096
# Above this many cores that others had, other processes here or the host, a sample is called disturbed.
DISTURBED = 0.10
# Memory that is taken and given back before each start: a virtual machine's host takes back what is unused for a while,
# and whoever needs it next would pay for getting it again.
CLAIMED_BYTES = 4 << 30
# After each round the rival keeps the settings that reached this share of its best one, and those that were disturbed.
KEPT = 0.7


class Meter:
    """CPU time that the machine spent outside one process (and outside this one), since the last reading."""

    TICK = os.sysconf("SC_CLK_TCK")

    def __init__(self, pid=None):
        self.pid = pid
        self.last = self.now()

    def now(self):
        with open("/proc/stat") as file:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
        times = os.times()
        own = times.user + times.system
        if self.pid is not None:
            # Of the whole process, its threads included; a process that has ended keeps it until it is waited for.
            after_name = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            own += (int(after_name[11]) + int(after_name[12])) / self.TICK
        busy = (user + nice + system + irq + softirq) / self.TICK
        return time.monotonic(), busy - own, steal / self.TICK

    def read(self):
        """(seconds, busy cores of others, cores stolen by the host) since the last call."""
        then, self.last = self.last, self.now()
        seconds, others, stolen = (b - a for a, b in zip(then, self.last))
        seconds = max(seconds, 1e-9)
        return round(seconds, 3), round(max(others, 0.0) / seconds, 3), round(max(stolen, 0.0) / seconds, 3)


def wait_for_quiet(limit):
    """Waits until others used little CPU for a second, `limit` seconds at most."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        meter = Meter()
        time.sleep(1)
        if meter.read()[1] <= DISTURBED:
            return


def is_disturbed(row):
    """Whether others had more than a little of the CPU during a sample."""
    return row["other_cpu"] + row["steal"] > DISTURBED


def claim_memory():
    """Takes as much memory as a start may need, and gives it back, so that all engines find it at hand."""
    with mmap.mmap(-1, CLAIMED_BYTES) as claimed:
        for offset in range(0, CLAIMED_BYTES, mmap.PAGESIZE):
            claimed[offset] = 1


@contextlib.contextmanager
def company(wanted):
    """Another process that keeps a core busy, if wanted."""
    if not wanted:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


# ---- Processes ---------------------------------------------------------------------------------------------------


def set_priority(nice):
    """Priority of this process and, where the kernel schedules in groups, of its group."""
    os.setsid()
    group = pathlib.Path("/proc/self/autogroup")
    if group.exists():
        group.write_text(str(nice))
    os.setpriority(os.PRIO_PROCESS, 0, nice)


@contextlib.contextmanager
def started(command, priority, environment=None, ends_alone=True):
    """A running process whose output is read; killed if reading fails.

    An error if it ends in one, or for a process that doesn't end alone, before the block does.
    """
    prepare = (lambda: set_priority(priority)) if priority else None
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, preexec_fn=prepare, env=os.environ | (environment or {}),
    ) as process:
        try:
            yield process
            if not ends_alone and process.poll() is None:
                process.kill()
                return
        except BaseException:
            process.kill()  # with a priority of its own it is not in the terminal's group
            raise
    if process.returncode != 0:
        sys.exit(f"exit status {process.returncode}: {' '.join(map(str, command))}")


def rows_of(command, priority, environment=None):
    """The JSON rows that a process prints, each with the CPU others used since the row before it (or the start)."""
    rows = []
    with started(command, priority, environment) as process:
        meter = Meter(process.pid)
        for line in process.stdout:
            row = json.loads(line)
            row["seconds_of_row"], row["other_cpu"], row["steal"] = meter.read()
            rows.append(row)
    if not rows:
        sys.exit(f"no row was printed by: {' '.join(map(str, command))}")
    return rows


# ---- Plainchant --------------------------------------------------------------------------------------------------


def plainchant_bench(case, path, binary, repeat, priority):
    """Samples of a prefill or decode case."""
    is_prefill = case.work == "prefill"
    command = [
        str(binary), "bench", "--model", str(path), "--threads", str(case.threads), "--repeat", str(repeat),
        "--prefill", str(case.tokens if is_prefill else 0), "--decode", str(0 if is_prefill else case.tokens),
        "--depth", str(case.depth), "--batch", str(case.batch), "--json",
    ]
    row, = rows_of(command, priority, {"PLAINCHANT_ISA": case.isa} if case.isa else None)
    return [{
        "setting": "", "samples": row["samples_tokens_per_second"], "isa": row["isa"],
        "bandwidth_share": row.get("bandwidth_share"), "multiply_adds_share": row.get("multiply_adds_share"),
        "other_cpu": row["other_cpu"], "steal": row["steal"],
    }]


def resident_bytes(pid):
    """(all, anonymous) bytes of a process in memory."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return tuple(int(fields[key].split()[0]) * 1024 for key in ("VmRSS", "RssAnon"))


def plainchant_start(case, path, binary, priority):
    """One sample of a start: the process from nothing to the first byte of its answer, and what it holds then."""
    command = [
        str(binary), "run", "--model", str(path), "--raw", "--ignore-eos", "--max-tokens", "512",
        "--ctx", str(CONTEXT), "--threads", str(case.threads), PROMPT,
    ]
    start = time.perf_counter()
    with started(command, priority, ends_alone=False) as process:
        meter = Meter(process.pid)
        first = process.stdout.read(1)
        seconds = time.perf_counter() - start
        if not first:
            sys.exit(f"no text was printed by: {' '.join(map(str, command))}")
        resident, anonymous = resident_bytes(process.pid)
        _, other_cpu, steal = meter.read()
    row = {"setting": "", "seconds": seconds, "resident_bytes": resident, "anonymous_bytes": anonymous}
    return row | {"other_cpu": other_cpu, "steal": steal}


# ---- Rivals ------------------------------------------------------------------------------------------------------


def rival_bench(case, path, settings, repeat, priority):
    """Samples of a prefill or decode case for each of the settings."""
    common = [
        "--model", str(path), "--work", case.work, "--tokens", str(case.tokens), "--threads", str(case.threads),
        "--repeat", str(repeat),
    ]
    python, script = environments.python_of(case.environment), f"{case.rival}_bench.py"
    if case.rival == "llamacpp":
        common += ["--depth", str(case.depth), "--batch", str(case.batch)]
        common += [word for setting in settings for word in ("--settings", setting)]
    return rows_of([str(python), str(HERE / script), *common], priority)


def rival_start(case, path, setting, priority):
    """One sample of a start of llama.cpp."""
    row, = rows_of([
        str(environments.python_of(case.environment)), str(HERE / "llamacpp_start.py"), "--model", str(path),
        "--prompt", PROMPT, "--ctx", str(CONTEXT), "--threads", str(case.threads), "--settings", setting,
    ], priority)
    return row


# ---- A case ------------------------------------------------------------------------------------------------------


def start_samples(case, path, engine, settings, args, binary):
    """Rows of a start or memory case, as the other works have them: one for each setting."""
    rows = []
    for setting in settings:
        runs = []
        for _ in range(args.repeat):
            models.warm(path)
            claim_memory()
            if engine == "plainchant":
                runs.append(plainchant_start(case, path, binary, args.nice))
            else:
                runs.append(rival_start(case, path, setting, args.nice))
        value = (lambda run: run["seconds"]) if case.work == "start" else (lambda run: run["resident_bytes"] / 2**20)
        rows.append(runs[-1] | {
            "samples": [value(run) for run in runs], "other_cpu": max(run["other_cpu"] for run in runs),
            "steal": max(run["steal"] for run in runs),
        })
    return rows


def run_engine(case, path, engine, settings, args, binary):
    """Rows of one engine in one round."""
    wait_for_quiet(args.quiet_wait)
    with company(case.disturbed):
        if case.work in ("start", "memory"):
            return start_samples(case, path, engine, settings if engine != "plainchant" else [""], args, binary)
        if engine == "plainchant":
            return plainchant_bench(case, path, binary, args.repeat, args.nice)
        return rival_bench(case, path, settings, args.repeat, args.nice)


def kept_settings(case, rows):
    """The settings that stay in the race after a round."""
    medians = {row["setting"]: statistics.median(row["samples"]) for row in rows}
    best = max(medians.values()) if case.more_is_better else min(medians.values())

    def stays(row):
        value = medians[row["setting"]]
        share = value / best if case.more_is_better else best / value
        return share >= KEPT or is_disturbed(row)

    return tuple(row["setting"] for row in rows if stays(row))


def measure_case(case, path, engines, args, binary):
    """All samples of a case, round by round, the engines in turn: A B A B ..."""
    samples, settings = [], case.settings
    for round_number in range(1, args.rounds + 1):
        for engine in engines:
            rows = run_engine(case, path, engine, settings, args, binary)
            samples += [{"round": round_number, "engine": engine, **row} for row in rows]
            say(f"{case.id} {round_number}/{args.rounds} {engine}: " + "; ".join(
                f"{statistics.median(row['samples']):.4g} {case.unit}"
                f"{' with ' + row['setting'] if row['setting'] else ''} (others {row['other_cpu']:.2f})"
                for row in rows
            ))
            if engine != "plainchant":
                settings = kept_settings(case, rows)
    return samples
