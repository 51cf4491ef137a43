#!/usr/bin/env python3
"""Recomputes the logits of tests/fixtures/tiny from the GGUF files alone, in numpy and float64.

    python tools/oracle/check_tiny.py             agreement of each fixture
    python tools/oracle/check_tiny.py --mutate    also how far each deliberate mistake moves the logits

It shares no code with tiny.py and doesn't use transformers, so that a mistake in the files (a missing
permutation, a norm off by one) shows. --mutate shows that the fixtures would notice such mistakes.
"""
import json
import pathlib
import sys

import numpy as np
from gguf import GGUFReader

DIR = pathlib.Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "tiny"
LIMIT = 2e-5

MUTATIONS = {
    "llama": ["rope-halves", "no-rope", "no-rope-factors", "eps", "swap-gate-up", "group-heads"],
    "qwen2": ["rope-pairs", "no-rope", "no-bias", "eps", "group-heads"],
    "gemma3": ["no-window", "window+1", "no-qk-norm", "one-rope-base", "no-embed-scale", "no-linear-scaling",
               "no-post-norm", "silu", "gelu-exact", "all-local", "eps", "group-heads"],
}


class Model:
    def __init__(self, path, mutation=None):
        r = GGUFReader(path)
        kv = {k: f.contents() for k, f in r.fields.items()}
        self.arch = a = kv["general.architecture"]
        self.mutation = mutation
        self.t = {t.name: np.array(t.data, dtype=np.float64) for t in r.tensors}
        self.blocks = kv[f"{a}.block_count"]
        self.heads = kv[f"{a}.attention.head_count"]
        self.kv_heads = kv[f"{a}.attention.head_count_kv"]
        self.width = kv[f"{a}.embedding_length"]
        self.dim = kv.get(f"{a}.attention.key_length", self.width // self.heads)
        self.eps = kv[f"{a}.attention.layer_norm_rms_epsilon"]
        if mutation == "eps":
            self.eps = 1e-3
        self.base = kv[f"{a}.rope.freq_base"]
        self.window = kv.get(f"{a}.attention.sliding_window")
        self.linear = kv.get(f"{a}.rope.scaling.factor", 1.0)
        if mutation == "no-linear-scaling":
            self.linear = 1.0

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.t[name + ".weight"]

    def linear_map(self, x, name):
        y = x @ self.t[name + ".weight"].T
        if name + ".bias" in self.t and self.mutation != "no-bias":
            y = y + self.t[name + ".bias"]
        return y

    def is_local(self, block):
        if self.window is None:
            return False
        return self.mutation == "all-local" or (block + 1) % 6 != 0

    def rope(self, x, local):
        """x: heads × positions × dim"""
        half = self.dim // 2
        base = 10000.0 if local and self.mutation != "one-rope-base" else self.base
        freq = base ** (-np.arange(half) / half)
        if not local:
            freq = freq / self.linear
        if "rope_freqs.weight" in self.t and self.mutation != "no-rope-factors":
            freq = freq / self.t["rope_freqs.weight"]
        if self.mutation == "no-rope":
            freq = freq * 0.0
        angle = np.arange(x.shape[1])[:, None] * freq
        pairs = self.arch == "llama"
        if self.mutation in ("rope-halves", "rope-pairs"):
            pairs = not pairs
        u, v = (x[..., 0::2], x[..., 1::2]) if pairs else (x[..., :half], x[..., half:])
        out = np.empty_like(x)
        ru, rv = u * np.cos(angle) - v * np.sin(angle), v * np.cos(angle) + u * np.sin(angle)
        if pairs:
            out[..., 0::2], out[..., 1::2] = ru, rv
        else:
            out[..., :half], out[..., half:] = ru, rv
        return out

    def attention(self, x, block):
        p, n, local = f"blk.{block}.", len(x), self.is_local(block)
        split = lambda y, h: y.reshape(n, h, self.dim).swapaxes(0, 1)
        q = split(self.linear_map(x, p + "attn_q"), self.heads)
        k = split(self.linear_map(x, p + "attn_k"), self.kv_heads)
        v = split(self.linear_map(x, p + "attn_v"), self.kv_heads)
        if p + "attn_q_norm.weight" in self.t and self.mutation != "no-qk-norm":
            q, k = self.norm(q, p + "attn_q_norm"), self.norm(k, p + "attn_k_norm")
        q, k = self.rope(q, local), self.rope(k, local)
        share = self.heads // self.kv_heads
        order = [h // share if self.mutation != "group-heads" else h % self.kv_heads for h in range(self.heads)]
        k, v = k[order], v[order]
        scores = q @ k.swapaxes(1, 2) / np.sqrt(self.dim)
        back = np.arange(n)[:, None] - np.arange(n)[None, :]
        seen = back >= 0
        if local and self.mutation != "no-window":
            seen &= back < self.window + (self.mutation == "window+1")
        scores = np.where(seen, scores, -np.inf)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (e / e.sum(-1, keepdims=True)) @ v
        return self.linear_map(mixed.swapaxes(0, 1).reshape(n, -1), p + "attn_output")

    def ffn(self, x, block):
        p = f"blk.{block}.ffn_"
        gate, up = self.linear_map(x, p + "gate"), self.linear_map(x, p + "up")
        if self.mutation == "swap-gate-up":
            gate, up = up, gate
        if self.arch != "gemma3" or self.mutation == "silu":
            act = gate / (1 + np.exp(-gate))
        elif self.mutation == "gelu-exact":
            from math import erf
            act = gate * 0.5 * (1 + np.vectorize(erf)(gate / np.sqrt(2)))
        else:
            act = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        return self.linear_map(act * up, p + "down")

    def logits(self, tokens):
        x = self.t["token_embd.weight"][tokens]
        if self.arch == "gemma3" and self.mutation != "no-embed-scale":
            x = x * np.sqrt(self.width)
        post = self.arch == "gemma3" and self.mutation != "no-post-norm"
        for b in range(self.blocks):
            y = self.attention(self.norm(x, f"blk.{b}.attn_norm"), b)
            x = x + (self.norm(y, f"blk.{b}.post_attention_norm") if post else y)
            y = self.ffn(self.norm(x, f"blk.{b}.ffn_norm"), b)
            x = x + (self.norm(y, f"blk.{b}.post_ffw_norm") if post else y)
        head = self.t.get("output.weight", self.t["token_embd.weight"])
        return self.norm(x, "output_norm") @ head.T


def differences(description, mutation=None):
    model = Model(DIR / description["model"], mutation)
    rows = np.fromfile(DIR / description["logits"], dtype="<f4").reshape(description["rows"], description["vocab"])
    worst, greedy_ok = [], True
    for s in description["sequences"]:
        want = rows[s["first_row"]:s["first_row"] + len(s["tokens"])]
        worst.append(float(np.abs(model.logits(s["tokens"]) - want).max()))
        if mutation is None:
            tokens = list(s["tokens"])
            for t in s["greedy"]:
                greedy_ok &= int(model.logits(tokens)[-1].argmax()) == t
                tokens.append(t)
    return worst, greedy_ok, model.arch


def main():
    failed = False
    for path in sorted(DIR.glob("*.json")):
        description = json.loads(path.read_text())
        worst, greedy_ok, arch = differences(description)
        good = max(worst) < LIMIT and greedy_ok
        failed |= not good
        print(f"{path.stem}: {'ok' if good else 'FAILED'}: largest difference {max(worst):.1e}, greedy {'same' if greedy_ok else 'DIFFERS'}")
        if "--mutate" in sys.argv:
            for mutation in MUTATIONS[arch]:
                print(f"    {mutation:18} {max(differences(description, mutation)[0]):.1e}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
