#!/usr/bin/env python3
"""Rounds a GGUF file's matrices to another type with llama.cpp's quantizer, for files that only speed is measured of."""

import argparse
import ctypes
import os
import sys

import llamacpp
from llamacpp import api

# name: (llama_ftype, ggml_type)
TYPES = {"f16": (1, 1), "q4_0": (2, 2), "q4_1": (3, 3), "q8_0": (7, 8)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--matrices", choices=TYPES, required=True)
    parser.add_argument("--embedding", choices=TYPES, required=True, help="type of the embedding and the output head")
    args = parser.parse_args()

    llamacpp.silence()
    api.llama_backend_init()
    params = api.llama_model_quantize_default_params()
    params.ftype = TYPES[args.matrices][0]
    params.token_embedding_type = params.output_tensor_type = TYPES[args.embedding][1]
    params.allow_requantize = True
    params.nthread = len(os.sched_getaffinity(0))
    status = api.llama_model_quantize(os.fsencode(args.source), os.fsencode(args.target), ctypes.byref(params))
    if status != 0:
        sys.exit(f"llama.cpp could not make {args.target} from {args.source} (status {status})")


if __name__ == "__main__":
    main()
