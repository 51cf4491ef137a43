"""The table of cases in cases.toml: read, checked, and chosen from."""

import dataclasses
import fnmatch
import itertools
import pathlib
import sys
import tomllib

FILE = pathlib.Path(__file__).resolve().with_name("cases.toml")
WORKS = ("prefill", "decode", "start", "memory")
RIVALS = ("llamacpp", "mistralrs")
# What llama.cpp may choose from where a case names nothing else.
DEFAULT_SETTINGS = {"flash_attention": ["on", "off"], "ubatch": [512]}
KNOWN_SETTINGS = ("flash_attention", "ubatch", "kv_unified", "repack")


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the table of results."""

    name: str
    model: str
    work: str
    tokens: int = 0
    depth: int = 0
    batch: int = 1
    threads: int = 2
    isa: str | None = None
    disturbed: bool = False
    rival: str = "llamacpp"
    settings: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None

    @property
    def id(self):
        return f"{self.name}/{self.model}"

    @property
    def environment(self):
        """Which of the rivals' environments it runs in."""
        return "mistralrs" if self.rival == "mistralrs" else self.isa or "native"

    @property
    def unit(self):
        return {"start": "s", "memory": "MiB"}.get(self.work, "tokens/s")

    @property
    def more_is_better(self):
        return self.unit == "tokens/s"

    def met(self, ratio):
        """Whether a ratio is what we want; None where nothing is asked."""
        if self.at_least is not None:
            return ratio >= self.at_least
        return None if self.at_most is None else ratio <= self.at_most

    def target(self):
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return "" if self.at_most is None else f"≤ {self.at_most:g}"

    def describe(self):
        """What is measured, in a few words."""
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        if self.work in ("start", "memory"):
            what = {"start": "start to first token", "memory": "resident after load"}[self.work]
        else:
            what = f"{self.work} {self.tokens}"
            what += f" at {self.depth}" if self.depth else ""
            what += f", {self.batch} sequences" if self.batch > 1 else ""
        extra = [f", {self.isa} only" if self.isa else "", ", a core taken" if self.disturbed else ""]
        return f"{what}, {threads}{''.join(extra)}"


def combinations(choices):
    """Settings as `key=value,key=value`, all combinations of {key: [values]}."""
    lists = [[f"{key}={value}" for value in values] for key, values in choices.items()]
    return tuple(",".join(combination) for combination in itertools.product(*lists))


def wrong(place, problem):
    sys.exit(f"{FILE.name}: {place}: {problem}")


def expand(entry, known_models):
    """The cases of one entry of the file."""
    fields = {field.name for field in dataclasses.fields(Case)} - {"model"} | {"models"}
    place = f"case {entry.get('name', '?')!r}"
    for key in entry:
        if key not in fields:
            wrong(place, f"unknown key {key!r}; known are {', '.join(sorted(fields))}")
    for key in ("name", "work", "models"):
        if key not in entry:
            wrong(place, f"{key!r} is missing")
    entry = dict(entry)
    models, choices = entry.pop("models"), entry.pop("settings", {})
    if entry["work"] not in WORKS:
        wrong(place, f"work is {entry['work']!r}; use one of {', '.join(WORKS)}")
    if entry.get("rival", RIVALS[0]) not in RIVALS:
        wrong(place, f"rival is {entry['rival']!r}; use one of {', '.join(RIVALS)}")
    if entry.get("isa", "avx2") != "avx2":
        wrong(place, f"isa is {entry['isa']!r}; only avx2 has a llama.cpp built for it")
    if entry["work"] in ("prefill", "decode") and entry.get("tokens", 0) < 1:
        wrong(place, "tokens must be at least 1")
    for key in choices:
        if key not in KNOWN_SETTINGS:
            wrong(place, f"unknown setting {key!r}; known are {', '.join(KNOWN_SETTINGS)}")
    for model in models:
        if model not in known_models:
            wrong(place, f"unknown model {model!r}; known are {', '.join(known_models)}")
    is_llamacpp = entry.get("rival", RIVALS[0]) == "llamacpp"
    settings = combinations(DEFAULT_SETTINGS | choices) if is_llamacpp else ("",)
    return [Case(model=model, settings=settings, **entry) for model in models]


def read(known_models):
    """All cases, and the names of the quick ones."""
    data = tomllib.loads(FILE.read_text(encoding="utf-8"))
    cases = [case for entry in data["case"] for case in expand(entry, known_models)]
    for case in cases:
        if sum(case.id == other.id for other in cases) > 1:
            wrong(f"case {case.id!r}", "it is there twice")
    return cases, data["quick"]


def simple(model, threads):
    """Prefill and decode of one model, outside the table."""
    settings = combinations(DEFAULT_SETTINGS)
    return [
        Case("prefill", model, "prefill", tokens=512, threads=threads, settings=settings),
        Case("decode", model, "decode", tokens=64, threads=threads, settings=settings),
    ]


def choose(cases, patterns):
    """Cases whose id or name matches one of the patterns (`*` is anything), in the file's order."""
    def matches(case, pattern):
        return fnmatch.fnmatchcase(case.id, pattern) or fnmatch.fnmatchcase(case.name, pattern)

    for pattern in patterns:
        if not any(matches(case, pattern) for case in cases):
            sys.exit(f"no case is called {pattern!r}: `bench/peers/run --list` shows them")
    return [case for case in cases if any(matches(case, pattern) for pattern in patterns)]
