#!/usr/bin/env python3
"""Times mistral.rs on one GGUF file and one kind of work; prints one JSON object, as llamacpp_bench.py does.

Its Python interface takes text and tells its own times. A prefill sample is a prompt of about N tokens, a decode
sample N tokens generated after a prompt of one word; the first of each is to warm up.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import sys


def runner_of(path):
    import mistralrs  # after the number of threads is set

    path = pathlib.Path(path).resolve()
    which = mistralrs.Which.GGUF(quantized_model_id=str(path.parent), quantized_filename=path.name)
    try:
        runner = mistralrs.Runner(which=which, no_paged_attn=True, prefix_cache_n=0)
    except ValueError as error:
        sys.exit(f"mistral.rs could not load {path.name}: {str(error).splitlines()[0]}")
    return mistralrs, runner


def text_of(runner, tokens):
    """A text of about so many tokens."""
    words = " ".join(f"number {i * 7919 % 1000}" for i in range(tokens))
    ids = runner.tokenize_text(words, False, None)
    return runner.detokenize_text(ids[:tokens], True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--work", choices=("prefill", "decode"), required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(args.threads)
    os.environ.setdefault("RUST_LOG", "error")

    mistralrs, runner = runner_of(args.model)
    is_prefill = args.work == "prefill"
    prompt = text_of(runner, args.tokens) if is_prefill else "Once"
    rates = []
    for _ in range(args.repeat + 1):
        usage = runner.send_completion_request(mistralrs.CompletionRequest(
            model="default", prompt=prompt, max_tokens=1 if is_prefill else args.tokens, temperature=0.0,
            ignore_eos=True,
        )).usage
        if not is_prefill and usage.completion_tokens != args.tokens:
            sys.exit(f"mistral.rs generated {usage.completion_tokens} tokens instead of {args.tokens}")
        rates.append(usage.avg_prompt_tok_per_sec if is_prefill else usage.avg_compl_tok_per_sec)
    print(json.dumps({
        "setting": "", "samples": rates[1:], "versions": {"mistralrs": importlib.metadata.version("mistralrs")},
    }), flush=True)


if __name__ == "__main__":
    main()
