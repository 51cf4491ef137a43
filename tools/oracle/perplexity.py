#!/usr/bin/env python3
"""Makes tests/fixtures/logits/perplexity.json and the token ids beside it: perplexity of the real models.

    python tools/oracle/perplexity.py                   all models, f32 and with int8 activations
    python tools/oracle/perplexity.py smollm2 ...       just these; the others' results are kept
    python tools/oracle/perplexity.py --f32-only ...    leave out the runs with int8 activations
    python tools/oracle/perplexity.py --int8-only ...   leave out the runs without
    python tools/oracle/perplexity.py --again ...       don't take windows from an earlier, interrupted run

Each window's figure is kept as soon as it is there.

The definition is that of llama.cpp's llama-perplexity without a stride: the text is tokenised once and cut
into windows of n_ctx tokens, of which the first 20 are used; each window is run from an empty cache, with BOS in place of its first token if
the model adds BOS; the tokens at n_ctx/2+1 .. n_ctx-1 of each window are scored. The figure is
exp(mean negative log likelihood).
"""
import contextlib
import hashlib
import json
import math
import os
import sys
import time

import numpy as np
import torch

import reference
from tiny import compact

N_CTX = 512
WINDOWS = 20        # at most
FIRST = N_CTX // 2  # the first position whose prediction is scored
TEXT = reference.FIXTURES / "perplexity.txt"
RESULT = reference.FIXTURES / "perplexity.json"


def windows_of(tok):
    # A last newline is not part of the text.
    ids = tok.encode(TEXT.read_text().removesuffix("\n"))
    if tok.add_bos:
        ids = [tok.bos] + ids
    count = min(len(ids) // N_CTX, WINDOWS)
    windows = np.array(ids[:count * N_CTX], dtype="<u4").reshape(count, N_CTX)
    if tok.add_bos:
        windows[:, 0] = tok.bos
    return windows


def window_nll(model, window):
    """Negative log likelihoods of the scored tokens."""
    rows = reference.logits(model, [int(t) for t in window], FIRST, N_CTX - 1)
    targets = window[FIRST + 1:].astype(np.int64)
    chosen = rows[np.arange(len(rows)), targets].astype(np.float64)
    return np.concatenate([reference.logsumexp(part) for part in np.array_split(rows, 8)]) - chosen


def score(model, windows, known, save):
    """Scores the windows that `known` lacks, calling `save` with the figures so far after each."""
    means = list(known.get("window_mean_nll", []))
    result = known
    for w in windows[len(means):]:
        start = time.time()
        means.append(round(float(window_nll(model, w).mean()), 6))
        nll = sum(means) / len(means)
        result = {"windows": len(means), "mean_nll": round(nll, 6), "perplexity": round(math.exp(nll), 5),
                  "window_mean_nll": means}
        save(result)
        print(f"  {len(means)} windows: {result['perplexity']}  {time.time() - start:.0f} s", flush=True)
    return result


def main():
    options = {a for a in sys.argv[1:] if a.startswith("--")}
    chosen = [a for a in sys.argv[1:] if a not in options] or list(reference.MODELS)
    result = {
        "text": TEXT.name, "text_sha256": hashlib.sha256(TEXT.read_bytes()).hexdigest(), "n_ctx": N_CTX,
        "first_scored_position": FIRST, "scored_per_window": N_CTX - 1 - FIRST, "models": {}}
    if RESULT.exists():
        result["models"] = json.loads(RESULT.read_text())["models"]

    def save(name, entry):
        models = result["models"] | {name: entry}
        result["models"] = {k: models[k] for k in reference.MODELS if k in models}
        RESULT.write_text(compact(json.dumps(result, indent=1)) + "\n")

    for name in chosen:
        path = reference.model_path(name)
        reader, kv = reference.open_gguf(path)
        tok = reference.Tokenizer(kv)
        windows = windows_of(tok)
        ids_file = f"perplexity.{'qwen2.5-coder' if name.startswith('qwen2.5-coder') else name}.u32"
        windows.tofile(reference.FIXTURES / ids_file)
        entry = {
            "model": path.name, "model_sha256": reference.file_sha256(path), "add_bos": tok.add_bos,
            "bos": tok.bos if tok.add_bos else None, "tokens": ids_file,
            "tokens_sha256": hashlib.sha256(windows.tobytes()).hexdigest(), "windows": len(windows)}
        known = {}
        if "--again" not in options:
            before = result["models"].get(name, {})
            if all(before.get(k) == v for k, v in entry.items()):
                known = before
        entry |= {k: known[k] for k in ("f32", "int8_activations") if k in known}
        model, _ = reference.load(reader, kv)
        for kind, skip, rounding in [
            ("f32", "--int8-only", contextlib.nullcontext),
            ("int8_activations", "--f32-only", lambda: reference.int8_activations(model)),
        ]:
            if skip in options:
                continue
            print(f"{name}: {kind}", flush=True)
            with rounding():
                entry[kind] = score(model, windows, known.get(kind, {}), lambda r: save(name, entry | {kind: r}))
        save(name, entry)
        del model


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("ORACLE_THREADS", "1")))
    main()
