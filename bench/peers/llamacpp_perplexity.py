#!/usr/bin/env python3
"""Perplexity of a text under llama.cpp, by the definition of its own llama-perplexity.

The tokens are cut into whole windows of --window (512); what is left over is not used. Each window runs on an
empty cache with its first token replaced by BOS if the model adds one. Scored are the predictions made at
positions window/2 .. window-2 (256..510) of the tokens that follow them. A text file (.json: a list of token
ids, used as they are) is tokenized whole with the model's special tokens, less one newline at its end.
Logits come, by default, from an f16 KV cache, one call of 512 tokens a window, and flash attention as
llama.cpp chooses (on). llama-perplexity runs four windows in a call: same definition, other rounding.
"""

import argparse
import json
import math

import llamacpp
import numpy


def tokens_of(model, path):
    with open(path, "rb") as file:
        data = file.read()
    if path.endswith(".json"):
        ids = json.loads(data)
        return ids["tokens"] if isinstance(ids, dict) else ids
    return model.tokenize(data.removesuffix(b"\n"))


def losses(logits, targets):
    """-log softmax(row)[target] of each row, in f64, a row at a time to keep wide vocabularies small."""
    result = numpy.empty(len(targets))
    for i, (row, target) in enumerate(zip(logits, targets)):
        shifted = row.astype(numpy.float64) - row.max()
        result[i] = numpy.log(numpy.exp(shifted).sum()) - shifted[target]
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", help="text file, or .json with a list of token ids")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--windows", type=int, help="stop after this many")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=512, help="tokens a call (n_batch and n_ubatch)")
    parser.add_argument("--kv", choices=llamacpp.KV_TYPES, default="f16")
    parser.add_argument("--flash-attention", choices=llamacpp.FLASH_ATTENTION, default="auto")
    parser.add_argument("--no-repack", action="store_true", help="leave llama.cpp's repacked kernels out")
    parser.add_argument("--tokens-out", help="also write the token ids, as JSON")
    parser.add_argument("--verbose", action="store_true", help="let llama.cpp log to stderr")
    args = parser.parse_args()

    model = llamacpp.Model(args.model, repack=not args.no_repack, verbose=args.verbose)
    tokens = tokens_of(model, args.text)
    if args.tokens_out:
        with open(args.tokens_out, "w", encoding="utf-8") as file:
            json.dump(tokens, file)
    available = len(tokens) // args.window
    windows = available if args.windows is None else min(args.windows, available)
    if windows == 0:
        parser.error(f"{len(tokens)} tokens are less than one window of {args.window}")

    context = llamacpp.Context(
        model, args.window, args.threads, args.flash_attention, args.kv, args.batch, args.batch
    )
    first = args.window // 2
    scored = []
    for start in range(0, windows * args.window, args.window):
        window = tokens[start : start + args.window]
        targets = window[first + 1 :]
        if model.add_bos:
            window = [model.bos, *window[1:]]
        scored.append(losses(context.logits(window, first)[:-1], targets))
    all_losses = numpy.concatenate(scored)
    nll = float(all_losses.mean())
    error = float(all_losses.std() / math.sqrt(len(all_losses) - 1))
    print(json.dumps({
        "nll": nll, "nll_error": error, "ppl": math.exp(nll), "ppl_error": error * math.exp(nll),
        "tokens": len(tokens), "windows": windows, "window": args.window, "scored": len(all_losses),
        "add_bos": bool(model.add_bos), "window_nll": [float(part.mean()) for part in scored],
        "kv": args.kv, "flash_attention": args.flash_attention, "batch": args.batch,
        "repack": not args.no_repack, "threads": args.threads, **llamacpp.versions(),
    }))


if __name__ == "__main__":
    main()
