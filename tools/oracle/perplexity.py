#!/usr/bin/env python3
"""Makes tests/fixtures/logits/perplexity.json and the token ids beside it: perplexity of the real models.

    python tools/oracle/perplexity.py                       all models, f32 and with int8 activations
    python tools/oracle/perplexity.py smollm2 ...           just these; the others' results are kept
    python tools/oracle/perplexity.py --f32-only ...        leave out the run with int8 activations
    python tools/oracle/perplexity.py --int8-only ...       keep the f32 figures that are there

The definition is that of llama.cpp's llama-perplexity without a stride: the text is tokenised once and cut
into windows of n_ctx tokens, of which the first 20 are used; each window is run from an empty cache, with BOS in place of its first token if
the model adds BOS; the tokens at n_ctx/2+1 .. n_ctx-1 of each window are scored. The figure is
exp(mean negative log likelihood).
"""
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


def score(model, windows):
    start = time.time()
    sums = []
    for i, w in enumerate(windows):
        sums.append(float(window_nll(model, w).sum()))
        print(f"  window {i}: {math.exp(sum(sums) / len(sums) / (N_CTX - 1 - FIRST)):.4f}  {time.time() - start:.0f} s", flush=True)
    nll = sum(sums) / (len(windows) * (N_CTX - 1 - FIRST))
    return {"mean_nll": round(nll, 7), "perplexity": round(math.exp(nll), 6),
            "window_mean_nll": [round(s / (N_CTX - 1 - FIRST), 6) for s in sums]}


def main():
    chosen = [a for a in sys.argv[1:] if not a.startswith("--")] or list(reference.MODELS)
    result = json.loads(RESULT.read_text()) if RESULT.exists() else {"models": {}}
    result = {
        "text": TEXT.name, "text_sha256": hashlib.sha256(TEXT.read_bytes()).hexdigest(), "n_ctx": N_CTX,
        "first_scored_position": FIRST, "scored_per_window": N_CTX - 1 - FIRST, "models": result["models"]}
    for name in chosen:
        path = reference.model_path(name)
        reader, kv = reference.open_gguf(path)
        tok = reference.Tokenizer(kv)
        windows = windows_of(tok)
        ids_file = f"perplexity.{'qwen2.5-coder' if name.startswith('qwen2.5-coder') else name}.u32"
        windows.tofile(reference.FIXTURES / ids_file)
        model, _ = reference.load(reader, kv)
        print(f"{name}: {len(windows)} windows", flush=True)
        entry = {
            "model": path.name, "model_sha256": reference.file_sha256(path), "add_bos": tok.add_bos,
            "bos": tok.bos if tok.add_bos else None, "tokens": ids_file,
            "tokens_sha256": hashlib.sha256(windows.tobytes()).hexdigest(), "windows": len(windows),
            "scored": windows.shape[0] * (N_CTX - 1 - FIRST)}
        if "--int8-only" in sys.argv:
            entry["f32"] = result["models"][name]["f32"]
            assert entry["tokens_sha256"] == result["models"][name]["tokens_sha256"]
        else:
            entry["f32"] = score(model, windows)
        if "--f32-only" not in sys.argv:
            print("  with int8 activations", flush=True)
            with reference.int8_activations(model):
                entry["int8_activations"] = score(model, windows)
        result["models"][name] = entry
        result["models"] = {k: result["models"][k] for k in reference.MODELS if k in result["models"]}
        RESULT.write_text(compact(json.dumps(result, indent=1)) + "\n")
        print(f"{name}: f32 {entry['f32']['perplexity']}, int8 {entry.get('int8_activations', {}).get('perplexity')}", flush=True)
        del model


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("ORACLE_THREADS", "1")))
    main()
