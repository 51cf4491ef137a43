#!/usr/bin/env python3
"""How far an engine's logits are from the reference on the prompts of tests/fixtures/logits.

    python tools/oracle/distance.py smollm2 --ids IDS.json       writes the prompts' token ids
    python tools/oracle/distance.py smollm2 FILE.f32 ...         a table with a row for each file
    python tools/oracle/distance.py smollm2 --full FILE.f32 ...  the same, and over the whole vocabulary (minutes)

A file holds logits of every position of every prompt as little-endian f32, as these write them:

    cargo run --release -p plainchant-engine --example logits -- MODEL.gguf IDS.json FILE.f32
    bench/peers/llamacpp_logits.py MODEL.gguf IDS.json FILE.f32

Definitions (crates/engine/tests/oracle.rs has the same), all over the recorded positions:
- error of a logit: its difference from the reference's less the mean difference of the position's candidates, since
  softmax doesn't see what all logits have in common; the candidates are the reference's 64 best (--full: all);
- clear: the reference's two best are more than 5 root-mean-square errors apart;
- divergence: Kullback-Leibler, in nats, mean of positions, over 65 classes: the 64 best and the rest together. It can't
  exceed that over the whole vocabulary, which --full shows.
"""
import argparse
import json
import pathlib

import numpy as np

import reference

CLEAR = 5.0


def recorded(fixture):
    """Indices, among the rows of all positions of all prompts, of the recorded ones; and how many rows there are."""
    rows, start = [], 0
    for prompt in fixture["prompts"]:
        end = start + len(prompt["tokens"])
        rows.append(np.arange(start + prompt["first_position"], end))
        start = end
    return np.concatenate(rows), start


def of_best(record, row):
    """Variance of the errors of the 64 best and divergence over 65 classes at one position."""
    row = row.astype(np.float64)
    lse = reference.logsumexp(row)
    logits = record["logits"].astype(np.float64)
    p = np.append(logits, record["lse_rest"]) - record["lse"]
    q = row[record["ids"]] - lse
    q = np.append(q, np.log(max(1.0 - np.exp(q).sum(), 1e-30)))
    return (row[record["ids"]] - logits).var(), (np.exp(p) * (p - q)).sum()


def of_all(expected, row):
    """Variance of the errors and divergence over the whole vocabulary at one position."""
    expected, row = expected.astype(np.float64), row.astype(np.float64)
    p, q = expected - reference.logsumexp(expected), row - reference.logsumexp(row)
    return (row - expected).var(), (np.exp(p) * (p - q)).sum()


def summary(margins, same, values):
    """RMS error, share of clear positions, share of those where the first choice is kept, divergence."""
    variances, divergences = np.array(values).T
    rms = np.sqrt(variances.mean())
    clear = margins > CLEAR * rms
    return f"{rms:.5f} | {clear.mean():.1%} | {same[clear].mean():.2%} | {divergences.mean():.5f} | {divergences.max():.3f}"


def expected_rows(name, fixture):
    """The reference's logits of the recorded positions, one after another."""
    model, _ = reference.load(*reference.open_gguf(reference.model_path(name)))
    for prompt in fixture["prompts"]:
        yield from reference.logits(model, prompt["tokens"], prompt["first_position"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=reference.MODELS)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--ids", type=pathlib.Path, help="write the token ids of the prompts here")
    parser.add_argument("--full", action="store_true", help="run the reference again, for the whole vocabulary")
    args = parser.parse_intermixed_args()

    fixture = json.loads((reference.FIXTURES / f"{args.name}.json").read_text())
    if args.ids:
        args.ids.write_text(json.dumps([p["tokens"] for p in fixture["prompts"]]))
    records = np.fromfile(reference.FIXTURES / fixture["records"], dtype=reference.RECORD)
    at, total = recorded(fixture)
    vocabulary = fixture["config"]["vocab"]
    found = []
    for file in args.files:
        rows = np.memmap(file, dtype="<f4", mode="r")
        if rows.size != total * vocabulary:
            parser.error(f"{file} has {rows.size} numbers instead of {total} positions × {vocabulary}")
        found.append(rows.reshape(total, vocabulary))

    margins = records["logits"][:, 0].astype(np.float64) - records["logits"][:, 1]
    whole = [[] for _ in found]
    if args.full and found:
        for i, expected in zip(at, expected_rows(args.name, fixture), strict=True):
            for values, rows in zip(whole, found):
                values.append(of_all(expected, rows[i]))
    if found:
        columns = ["RMS error", "clear", "kept there", "divergence", "greatest"]
        heads = ["file", "first choice kept", *columns, *(f"{c}, whole" for c in columns if args.full)]
        print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for file, rows, values in zip(args.files, found, whole):
        same = np.array([rows[i].argmax() for i in at]) == records["ids"][:, 0]
        best = [of_best(record, rows[i]) for i, record in zip(at, records)]
        cells = [file.name, f"{same.mean():.1%}", summary(margins, same, best)]
        if args.full:
            cells.append(summary(margins, same, values))
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
