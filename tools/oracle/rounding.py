#!/usr/bin/env python3
"""What rounding the inputs of matmuls costs: of all, of each kind alone, in other blocks, to more bits.

    python tools/oracle/rounding.py            all models (half an hour on one core)
    python tools/oracle/rounding.py smollm2    just these

Prints a Markdown table. Definitions as in distance.py, over the whole vocabulary for the divergence, the 64 best for
the error; all prompts but the longest.
"""
import json
import os
import sys

import numpy as np
import torch

import reference

EXPERIMENTS = {
    "int8 in blocks of 32": {},
    "only queries, keys, values": {"only": ("q_proj", "k_proj", "v_proj")},
    "only attention's output": {"only": ("o_proj",)},
    "only gate and up": {"only": ("gate_proj", "up_proj")},
    "only down": {"only": ("down_proj",)},
    "only the head": {"only": ("lm_head",)},
    "int8 in blocks of 16": {"block": 16},
    "int16 in blocks of 32": {"most": 32767.0},
}


def main():
    print("| model | rounded | RMS error | divergence | at first positions | at the others |\n" + "|---" * 6 + "|")
    for name in sys.argv[1:] or reference.MODELS:
        model, _ = reference.load(*reference.open_gguf(reference.model_path(name)))
        fixture = json.loads((reference.FIXTURES / f"{name}.json").read_text())
        prompts = [p["tokens"] for p in fixture["prompts"] if p["first_position"] == 0]
        exact = [reference.logits(model, tokens) for tokens in prompts]
        first = np.concatenate([np.arange(len(tokens)) == 0 for tokens in prompts])
        for label, options in EXPERIMENTS.items():
            squares, divergences = [], []
            for tokens, expected in zip(prompts, exact):
                with reference.int8_activations(model, **options):
                    rounded = reference.logits(model, tokens).astype(np.float64)
                best = np.argsort(-expected, axis=-1, kind="stable")[:, :reference.TOP]
                squares.append(np.take_along_axis(rounded - expected, best, -1).var(-1))
                p = expected - reference.logsumexp(expected)[:, None]
                q = rounded - reference.logsumexp(rounded)[:, None]
                divergences.append((np.exp(p) * (p - q)).sum(-1))
            rms, kl = np.sqrt(np.concatenate(squares).mean()), np.concatenate(divergences)
            print(f"| {name} | {label} | {rms:.4f} | {kl.mean():.5f} | {kl[first].mean():.5f} | "
                  f"{kl[~first].mean():.5f} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("ORACLE_THREADS", "1")))
    main()
