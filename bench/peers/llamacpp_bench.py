#!/usr/bin/env python3
"""Times llama.cpp on one model and one kind of work; prints one JSON object for each of its settings.

A prefill sample is one fill of an empty cache with N fixed token ids, the last one's logits read; a decode sample
is N steps of one fixed id for each sequence, the logits of each read. No sampling, no text. One warm-up of each.
"""

import argparse
import json
import time

import llamacpp

DEFAULTS = {"flash_attention": "auto", "ubatch": "512", "kv_unified": "off", "repack": "on"}


def settings_of(text):
    """`key=value,key=value` as a dict, with the defaults of what it doesn't name."""
    pairs = dict(pair.split("=", 1) for pair in text.split(",")) if text else {}
    unknown = set(pairs) - set(DEFAULTS)
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown setting {', '.join(unknown)}; known are {', '.join(DEFAULTS)}")
    return DEFAULTS | pairs


def fixed_ids(model, count, seed):
    """Token ids spread over the vocabulary, the same at every call, with the BOS that the model wants."""
    state, ids = 12345 + seed, []
    for _ in range(count):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        ids.append((state >> 8) % model.n_vocab)
    if model.add_bos:
        ids[0] = model.bos
    return ids


class Bench:
    """One context and what runs in it."""

    def __init__(self, model, args, settings):
        n_ubatch = int(settings["ubatch"])
        self.model, self.args = model, args
        self.context = llamacpp.Context(
            model, args.depth + args.tokens, args.threads, settings["flash_attention"],
            n_batch=max(2048, n_ubatch), n_ubatch=n_ubatch,
            sequences=args.batch, kv_unified=settings["kv_unified"] == "on",
        )
        prompts = [fixed_ids(model, args.depth + args.tokens, seed) for seed in range(args.batch)]
        # All that is Python's is done before the clock starts.
        filled = args.tokens if args.work == "prefill" else args.depth
        self.fill_batches = [
            batch for sequence, ids in enumerate(prompts)
            for batch in self.context.batches_of(ids[:filled], filled - 1, sequence)
        ]
        self.step_batches = [] if args.work == "prefill" else [
            self.context.batch([(ids[position], position, sequence, True) for sequence, ids in enumerate(prompts)])
            for position in range(args.depth, args.depth + args.tokens)
        ]

    def fill(self):
        """Runs each sequence on an empty cache and reads its last logits."""
        self.context.clear()
        for batch in self.fill_batches:
            self.context.run(batch)[0]

    def prefill(self):
        start = time.perf_counter()
        self.fill()
        return time.perf_counter() - start

    def decode(self):
        start = time.perf_counter()
        for batch in self.step_batches:
            self.context.run(batch)[0]
        return time.perf_counter() - start

    def cut_back(self):
        """The cache as it was before decoding."""
        if self.model.has_windows() or not self.context.cut(self.args.batch, self.args.depth):
            self.fill()

    def samples(self):
        """Seconds of each sample, after one to warm up."""
        if self.args.work == "prefill":
            return [self.prefill() for _ in range(self.args.repeat + 1)][1:]
        seconds = []
        self.fill()
        self.decode()
        for _ in range(self.args.repeat):
            self.cut_back()
            seconds.append(self.decode())
        return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--work", choices=("prefill", "decode"), required=True)
    parser.add_argument("--tokens", type=int, required=True, help="of each sequence and sample")
    parser.add_argument("--depth", type=int, default=0, help="tokens in the cache before decoding")
    parser.add_argument("--batch", type=int, default=1, help="sequences together")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5, help="samples of each setting")
    parser.add_argument("--settings", action="append", default=[], metavar="KEY=VALUE,…",
                        help=f"one to measure with (repeatable); keys: {', '.join(DEFAULTS)}")
    parser.add_argument("--verbose", action="store_true", help="let llama.cpp log to stderr")
    args = parser.parse_args()
    if args.work == "prefill" and args.depth:
        parser.error("--depth is for decoding only")

    model, repack = None, None
    for name in args.settings or [""]:
        settings = settings_of(name)
        if settings["repack"] != repack:
            repack = settings["repack"]
            model = llamacpp.Model(args.model, repack=repack == "on", verbose=args.verbose)
        bench = Bench(model, args, settings)
        rates = [args.tokens * args.batch / seconds for seconds in bench.samples()]
        print(json.dumps({"setting": name, "samples": rates, "versions": llamacpp.versions()}), flush=True)
        bench.context.close()


if __name__ == "__main__":
    main()
