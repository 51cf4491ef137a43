"""llama.cpp through llama-cpp-python's low-level bindings: the little that the tools beside this file share.

A script that imports this from a Python without llama_cpp starts again under the environment that `run` made.
"""

import ctypes
import os
import pathlib
import sys

try:
    import llama_cpp as api
    import numpy
except ImportError:
    venv = os.environ.get("PLAINCHANT_PEERS_VENV") or pathlib.Path.home() / ".cache/plainchant-peers/venv"
    python = pathlib.Path(venv) / "bin/python"
    if pathlib.Path(sys.prefix) == pathlib.Path(venv).resolve() or not python.exists():
        sys.exit("llama_cpp is not installed: `bench/peers/run --setup-only` builds it")
    os.execv(python, [str(python), *sys.argv])

FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
KV_TYPES = {"f32": 0, "f16": 1, "q8_0": 8}


@api.llama_log_callback
def _silent(_level, _text, _user_data):
    pass


def silence():
    """Keeps llama.cpp from logging to stderr."""
    api.llama_log_set(_silent, ctypes.c_void_p(0))


class Model:
    """One GGUF file, loaded as llama.cpp does by itself: mmap, weights repacked where it has a kernel for that."""

    def __init__(self, path, repack=True, verbose=False):
        if not verbose:
            silence()
        api.llama_backend_init()
        params = api.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_extra_bufts = repack
        self.handle = api.llama_model_load_from_file(os.fsencode(path), params)
        if not self.handle:
            sys.exit(f"llama.cpp could not load {path}")
        self.vocab = api.llama_model_get_vocab(self.handle)
        self.n_vocab = api.llama_vocab_n_tokens(self.vocab)
        self.add_bos = api.llama_vocab_get_add_bos(self.vocab)
        self.bos = api.llama_vocab_bos(self.vocab)

    def tokenize(self, text):
        """Token ids of `text` (bytes), with the model's own special tokens around it and none read from within."""
        room = len(text) + 16
        ids = (api.llama_token * room)()
        count = api.llama_tokenize(self.vocab, text, len(text), ids, room, True, False)
        if count < 0:
            sys.exit(f"llama.cpp could not tokenize the text ({count})")
        return list(ids[:count])

    def text_of(self, token):
        """The bytes of one token."""
        room = ctypes.create_string_buffer(256)
        return room[: max(api.llama_token_to_piece(self.vocab, token, room, len(room), 0, False), 0)]

    def has_windows(self):
        """Whether layers forget what is too long ago, so that a cache can't be cut back."""
        return api.llama_model_n_swa(self.handle) > 0


class Context:
    """A KV cache and the buffers around it, for `sequences` of at most `n_ctx` positions each."""

    def __init__(self, model, n_ctx, threads, flash_attention="auto", kv="f16", n_batch=2048, n_ubatch=512,
                 sequences=1, kv_unified=False):
        params = api.llama_context_default_params()
        params.n_ctx = (n_ctx + 255) // 256 * 256 * sequences
        params.n_batch = n_batch
        params.n_ubatch = min(n_ubatch, n_batch)
        params.n_seq_max = sequences
        params.kv_unified = kv_unified
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = FLASH_ATTENTION[flash_attention]
        params.type_k = params.type_v = KV_TYPES[kv]
        params.swa_full = False
        params.no_perf = True
        self.model = model
        self.n_batch = n_batch
        self.handle = api.llama_init_from_model(model.handle, params)
        if not self.handle:
            sys.exit("llama.cpp could not make a context with these settings")
        self.batches = []

    def close(self):
        self.forget_batches()
        api.llama_free(self.handle)

    def clear(self):
        """Forgets all positions; what they held stays in memory, where nobody sees it."""
        api.llama_memory_clear(api.llama_get_memory(self.handle), False)

    def cut(self, sequences, length):
        """Cuts the first `sequences` back to `length` positions; False if llama.cpp can't."""
        memory = api.llama_get_memory(self.handle)
        return all([api.llama_memory_seq_rm(memory, sequence, length, -1) for sequence in range(sequences)])

    def batch(self, rows):
        """A batch of (token, position, sequence, whether its logits are wanted); it lives as long as the context."""
        assert 0 < len(rows) <= self.n_batch
        batch = api.llama_batch_init(len(rows), 0, 1)
        self.batches.append(batch)
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, is_wanted) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = is_wanted
        return batch

    def batches_of(self, tokens, first_output, sequence=0):
        """The tokens of a sequence from its beginning in as few batches as may be; logits come out from number
        `first_output` on."""
        rows = [(token, at, sequence, at >= first_output) for at, token in enumerate(tokens)]
        return [self.batch(rows[start : start + self.n_batch]) for start in range(0, len(rows), self.n_batch)]

    def run(self, batch):
        """Runs a batch.

        Returns llama.cpp's buffer of the wanted logits, [outputs][n_vocab], good until the next call. Touching its
        first value waits for the work to end.
        """
        status = api.llama_decode(self.handle, batch)
        if status != 0:
            sys.exit(f"llama_decode failed: {status}")
        return api.llama_get_logits(self.handle)

    def logits(self, tokens, first=0):
        """Logits of `tokens` on an empty cache for positions `first` on, as f32 [positions][n_vocab]."""
        self.clear()
        rows = numpy.empty((len(tokens) - first, self.model.n_vocab), dtype=numpy.float32)
        done = 0
        for number, batch in enumerate(self.batches_of(tokens, first)):
            out = self.run(batch)
            end = min((number + 1) * self.n_batch, len(tokens))
            count = max(end - max(number * self.n_batch, first), 0)
            if count:
                rows[done : done + count] = numpy.ctypeslib.as_array(out, (count, self.model.n_vocab))
                done += count
        self.forget_batches()
        return rows

    def forget_batches(self):
        """Frees the batches made so far."""
        for batch in self.batches:
            api.llama_batch_free(batch)
        self.batches = []


def versions():
    """What was built: the binding's version, ggml's, and the instruction sets llama.cpp says it uses."""
    library = next((pathlib.Path(api.__file__).parent / "lib").glob("libggml-base.*"))
    ggml = ctypes.CDLL(str(library))
    ggml.ggml_version.restype = ctypes.c_char_p
    return {
        "llama_cpp_python": api.__version__,
        "ggml": ggml.ggml_version().decode(),
        "system_info": " ".join(api.llama_print_system_info().decode().split()),
    }
