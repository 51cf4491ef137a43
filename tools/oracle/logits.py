#!/usr/bin/env python3
"""Makes tests/fixtures/logits/NAME.{json,bin}: what real models say after fixed prompts.

    python tools/oracle/logits.py            all models
    python tools/oracle/logits.py smollm2    just these

tests/fixtures/logits/README.md describes the files.
"""
import json
import os
import sys

import numpy as np
import torch

import reference
from reference import RECORD, TOP
from tiny import compact

LONG = 700       # tokens of the long prompt, more than gemma's window
LONG_TAIL = 64   # how many of its last positions are recorded

PROMPTS = {
    "english-short": "The old lighthouse keeper climbed the stairs every evening to",
    "english-medium": (
        "A glacier is not a block of ice but a slow river. Snow that fell a century ago is pressed into its upper "
        "reaches, loses its air, and begins to creep downhill under its own weight, a hand's breadth a day, carrying "
        "boulders the size of houses without the least effort. Where the valley floor drops, the surface cracks into "
        "crevasses; where it rises, they close again. At the lower end the ice melts as fast as it arrives, so the "
        "glacier seems to stand still, although every part of it is always"),
    "facts": "The capital of France is Paris. The capital of Italy is Rome. The capital of Japan is Tokyo. The capital of Egypt is",
    "rust": (
        "/// Returns the n-th Fibonacci number.\nfn fibonacci(n: u32) -> u64 {\n    let (mut a, mut b) = (0u64, 1u64);\n"
        "    for _ in 0..n {\n        let next = a + b;\n        a = b;\n        b = next;\n    }\n    a\n}\n\n#[test]\nfn "),
    "python": (
        "import csv\n\n\ndef total_by_customer(path):\n    \"\"\"Sums the amount column for each customer.\"\"\"\n"
        "    totals = {}\n    with open(path, newline=\"\") as f:\n        for row in csv.DictReader(f):\n            "),
    "sql": "SELECT customer.name, SUM(invoice.amount) AS total\nFROM customer\nJOIN invoice ON invoice.customer_id =",
    "json": '{"name": "Ada", "born": 1815, "fields": ["mathematics", "computing"], "address": {"city": "London", "country":',
    "german": (
        "Der Zug nach Hamburg hatte fast eine Stunde Verspätung, und auf dem Bahnsteig standen die Leute dicht gedrängt "
        "unter dem schmalen Dach, denn es regnete seit dem frühen Morgen. Eine ältere Dame fragte den Schaffner, ob"),
    "french": "Il était une fois, dans un petit village au bord de la mer, un pêcheur qui",
    "chinese": "春天来了，公园里的樱花都开了。小明和妹妹一起去公园散步，他们看到",
    "mixed": "Temperature: −12.5 °C → 9.5 °F ✓  naïve café, Привет мир, こんにちは, 🙂🚀 and\ttabs\n\n\n   3.14159 × 2 =",
    "counting": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,",
    "repeated": "red green blue yellow red green blue yellow red green blue yellow red green blue",
}
CHAT = [
    {"role": "user", "content": "Why is the sky blue? Answer in one sentence."},
]


def prompts(tok):
    for name, text in PROMPTS.items():
        yield name, text, tok.encode(text), False, 0
    text = tok.chat(CHAT)
    yield "chat", text, tok.encode(text, special=True), True, 0
    text = (reference.FIXTURES / "perplexity.txt").read_text()
    ids = tok.encode(text)[:LONG - tok.add_bos]
    yield "long", None, ids, False, LONG - LONG_TAIL


def top_of(rows):
    """Ids and logits of the TOP largest of each row, by (logit descending, id ascending); and the rest's logsumexp."""
    order = np.argsort(-rows, axis=-1, kind="stable")
    ids = order[:, :TOP]
    rest = np.take_along_axis(rows, order[:, TOP:], -1)
    return ids, np.take_along_axis(rows, ids, -1), reference.logsumexp(rest)


def make(name):
    path = reference.model_path(name)
    reader, kv = reference.open_gguf(path)
    tok = reference.Tokenizer(kv)
    model, config = reference.load(reader, kv)
    records, entries, moved, divergence, same = [], [], [], [], 0
    for prompt, text, ids, special, first in prompts(tok):
        if tok.add_bos:
            ids = [tok.bos] + ids
        rows = reference.logits(model, ids, first)
        best, values, rest = top_of(rows)
        out = np.empty(len(rows), dtype=RECORD)
        out["ids"], out["logits"], out["lse"], out["lse_rest"] = best, values, reference.logsumexp(rows), rest
        entry = {"name": prompt, "text": text, "special": special, "tokens": ids, "first_position": first,
                 "first_record": sum(map(len, records))}
        entries.append(entry)
        records.append(out)

        with reference.int8_activations(model):
            rounded = reference.logits(model, ids, first)
        p, q = (r.astype(np.float64) - reference.logsumexp(r)[:, None] for r in (rows, rounded))
        moved.append(np.abs(np.take_along_axis(q - p, best, -1)))
        divergence.append((np.exp(p) * (p - q)).sum(-1))
        same += int((rounded.argmax(-1) == rows.argmax(-1)).sum())
        top = [tok.tokens[i] for i in best[-1][:3]]
        print(f"  {prompt}: {len(ids)} tokens, next {top}", flush=True)
    data = np.concatenate(records)
    data.tofile(reference.FIXTURES / f"{name}.bin")
    moved, divergence = np.concatenate(moved), np.concatenate(divergence)
    description = {
        "model": path.name, "model_sha256": reference.file_sha256(path), "config": config,
        "records": f"{name}.bin", "record_count": len(data), "record_bytes": RECORD.itemsize, "top": TOP,
        "int8_activations": {
            "top64_logprob_mean_abs_difference": float(moved.mean()),
            "top64_logprob_max_abs_difference": float(moved.max()),
            "kl_mean": float(divergence.mean()), "kl_max": float(divergence.max()),
            "same_argmax": same / len(data)},
        "prompts": entries}
    text = json.dumps(description, indent=1, ensure_ascii=False)
    (reference.FIXTURES / f"{name}.json").write_text(compact(text) + "\n")
    print(f"{name}: {len(data)} records; with int8 activations {description['int8_activations']}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("ORACLE_THREADS", "1")))
    for chosen in sys.argv[1:] or reference.MODELS:
        make(chosen)
