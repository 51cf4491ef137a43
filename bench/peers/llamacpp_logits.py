#!/usr/bin/env python3
"""Writes llama.cpp's logits at every position of given token sequences, as little-endian f32.

The JSON file holds [[id, ...], ...], or an object with that under "sequences"; a flat [id, ...] is one
sequence. The output is the sequences' rows one after another, [position][vocabulary], without a header; the
shapes and settings are printed as JSON. Each sequence starts on an empty cache; ids are taken as they are
(no BOS is added). By default: f16 KV, 512 tokens a call (--batch 1: the path of decoding), flash attention
as llama.cpp chooses (on).
"""

import argparse
import json

import llamacpp


def sequences(path):
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    if isinstance(data, dict):
        data = data["sequences"]
    return [data] if data and isinstance(data[0], int) else data


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("tokens", help="JSON file of token id sequences")
    parser.add_argument("output", help="file to write the logits to")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=512, help="tokens a call (n_batch and n_ubatch)")
    parser.add_argument("--kv", choices=llamacpp.KV_TYPES, default="f16")
    parser.add_argument("--flash-attention", choices=llamacpp.FLASH_ATTENTION, default="auto")
    parser.add_argument("--no-repack", action="store_true", help="leave llama.cpp's repacked kernels out")
    parser.add_argument("--verbose", action="store_true", help="let llama.cpp log to stderr")
    args = parser.parse_args()

    todo = sequences(args.tokens)
    model = llamacpp.Model(args.model, repack=not args.no_repack, verbose=args.verbose)
    for ids in todo:
        if not ids or not all(0 <= i < model.n_vocab for i in ids):
            parser.error(f"a sequence is empty or has an id outside 0..{model.n_vocab - 1}")
    context = llamacpp.Context(
        model, max(map(len, todo)), args.threads, args.flash_attention, args.kv, args.batch, args.batch
    )
    with open(args.output, "wb") as file:
        for ids in todo:
            context.logits(ids).astype("<f4", copy=False).tofile(file)
    print(json.dumps({
        "n_vocab": model.n_vocab, "lengths": [len(ids) for ids in todo], "type": "f32le",
        "kv": args.kv, "flash_attention": args.flash_attention, "batch": args.batch,
        "repack": not args.no_repack, "threads": args.threads, **llamacpp.versions(),
    }))


if __name__ == "__main__":
    main()
