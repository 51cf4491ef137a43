#!/usr/bin/env python3
"""Times llama.cpp on one model; prints one JSON object a row, as `plainchant bench --json` does.

A prefill row is one llama_decode of N fixed token ids with the last token's logits read; a decode row is
N calls of one fixed id each, the logits of each read. No sampling, no text. One warm-up of each before.
"""

import argparse
import json
import os
import statistics
import time

import llamacpp


def fixed_ids(model, count):
    """Token ids spread over the vocabulary, the same at every call, with the BOS that the model wants."""
    state, ids = 12345, []
    for _ in range(count):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        ids.append((state >> 8) % model.n_vocab)
    if model.add_bos:
        ids[0] = model.bos
    return ids


def fill(context, ids):
    """Runs `ids` on an empty cache and reads the last logits."""
    for start in range(0, len(ids), context.n_batch):
        part = ids[start : start + context.n_batch]
        context.decode(part, start, len(part) - 1)[0]


def time_prefill(context, ids):
    context.clear()
    start = time.perf_counter()
    fill(context, ids)
    return time.perf_counter() - start


def time_decode(context, ids, depth):
    context.clear()
    fill(context, ids[:depth])
    start = time.perf_counter()
    for position in range(depth, len(ids)):
        context.decode(ids[position : position + 1], position, 0)[0]
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prefill", type=int, default=512, help="tokens of the prefill row (0: no row)")
    parser.add_argument("--decode", type=int, default=64, help="tokens of the decode row (0: no row)")
    parser.add_argument("--depth", type=int, default=0, help="tokens in the cache before the decode row")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--flash-attention", default="on,off", help="settings to time, in this order")
    parser.add_argument("--verbose", action="store_true", help="let llama.cpp log to stderr")
    args = parser.parse_args()

    model = llamacpp.Model(args.model, verbose=args.verbose)
    versions = llamacpp.versions()
    n_ctx = max(args.prefill, args.depth + args.decode)
    for flash_attention in args.flash_attention.split(","):
        context = llamacpp.Context(model, n_ctx, args.threads, flash_attention)

        def row(work, tokens, depth, sample, warm_up):
            warm_up()
            rates = [tokens / sample() for _ in range(args.repeat)]
            print(json.dumps({
                "work": work, "tokens": tokens, "depth": depth, "batch": 1, "threads": args.threads,
                "flash_attention": flash_attention, "samples_tokens_per_second": rates,
                "tokens_per_second": statistics.median(rates),
                "model": os.path.basename(args.model), "isa": versions["system_info"], "versions": versions,
            }), flush=True)

        if args.prefill:
            ids = fixed_ids(model, args.prefill)
            row("prefill", args.prefill, 0, lambda: time_prefill(context, ids), lambda: time_prefill(context, ids))
        if args.decode:
            ids = fixed_ids(model, args.depth + args.decode)
            warm = ids[: args.depth + min(8, args.decode)]
            row("decode", args.decode, args.depth, lambda: time_decode(context, ids, args.depth),
                lambda: time_decode(context, warm, args.depth))
        context.close()


if __name__ == "__main__":
    main()
