#!/usr/bin/env python3
"""Loads a model with llama.cpp and generates one token; prints how long that took and what it holds then, as JSON.

The clock starts, and memory is counted, after Python and the libraries are there: a native program would pay for its
own start too, but less than Python does.
"""

import argparse
import json
import time

import llamacpp
import llamacpp_bench
import numpy


def resident_bytes():
    """(all, anonymous) bytes of this process in memory."""
    with open("/proc/self/status", encoding="ascii") as file:
        fields = dict(line.split(":", 1) for line in file)
    return tuple(int(fields[key].split()[0]) * 1024 for key in ("VmRSS", "RssAnon"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--ctx", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--settings", default="", metavar="KEY=VALUE,…")
    args = parser.parse_args()
    settings = llamacpp_bench.settings_of(args.settings)
    versions = llamacpp.versions()
    before = resident_bytes()

    start = time.perf_counter()
    model = llamacpp.Model(args.model, repack=settings["repack"] == "on")
    context = llamacpp.Context(model, args.ctx, args.threads, settings["flash_attention"],
                               n_ubatch=int(settings["ubatch"]))
    ids = model.tokenize(args.prompt.encode())
    batch, = context.batches_of(ids, len(ids) - 1)
    logits = context.run(batch)
    token = int(numpy.ctypeslib.as_array(logits, (model.n_vocab,)).argmax())
    text = model.text_of(token).decode(errors="replace")
    seconds = time.perf_counter() - start

    resident, anonymous = (after - then for after, then in zip(resident_bytes(), before))
    print(json.dumps({
        "setting": args.settings, "seconds": seconds, "resident_bytes": resident, "anonymous_bytes": anonymous,
        "text": text, "versions": versions,
    }))


if __name__ == "__main__":
    main()
