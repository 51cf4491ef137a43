"""Real GGUF models as transformers models in float32, and tokenizers made from their metadata.

Every tensor is dequantised exactly as its format says; nothing is rounded again. The model files are those
of the developers' model folder, $PLAINCHANT_DEV_MODELS (default ~/.cache/plainchant-dev-models).
"""
import contextlib
import hashlib
import heapq
import os
import pathlib
import re

import gguf
import jinja2
import jinja2.sandbox
import numpy as np
import tokenizers
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.modeling_utils import no_init_weights

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "logits"

MODELS = {
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma3": "gemma-3-270m-q4_k_m.gguf",
    "qwen2.5-coder-0.5b": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "qwen2.5-coder-1.5b": "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
}

# How many of a position's best logits the fixtures hold, and how.
TOP = 64
RECORD = np.dtype([("ids", "<u4", TOP), ("logits", "<f4", TOP), ("lse", "<f4"), ("lse_rest", "<f4")])


def model_path(name):
    folder = os.environ.get("PLAINCHANT_DEV_MODELS") or "~/.cache/plainchant-dev-models"
    return pathlib.Path(folder).expanduser() / MODELS[name]


def file_sha256(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def open_gguf(path):
    reader = gguf.GGUFReader(path)
    return reader, {k: f.contents() for k, f in reader.fields.items()}


# --- weights ----------------------------------------------------------------------------------------

LAYER_TENSORS = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_v.bias": "self_attn.v_proj.bias",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
}
GEMMA_LAYER_TENSORS = LAYER_TENSORS | {
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
}


def parameter_name(arch, tensor):
    table = GEMMA_LAYER_TENSORS if arch == "gemma3" else LAYER_TENSORS
    if tensor.startswith("blk."):
        _, layer, rest = tensor.split(".", 2)
        return f"model.layers.{layer}.{table[rest]}"
    return {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }[tensor]


def halves(w, heads):
    """Rows of a rotated projection from pairwise order to the half-split order that transformers wants."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)


def config_of(kv):
    arch = kv["general.architecture"]
    get = lambda key, default=None: kv.get(f"{arch}.{key}", default)
    heads, width = get("attention.head_count"), get("embedding_length")
    for key in kv:
        if key.startswith(f"{arch}.rope.scaling"):
            raise NotImplementedError(f"rope scaling ({key})")
    return dict(
        arch=arch, vocab=len(kv["tokenizer.ggml.tokens"]), hidden=width, ff=get("feed_forward_length"),
        layers=get("block_count"), heads=heads, kv_heads=get("attention.head_count_kv", heads),
        head_dim=get("attention.key_length", width // heads), eps=get("attention.layer_norm_rms_epsilon"),
        theta=get("rope.freq_base", 10000.0), context=get("context_length"),
        window=get("attention.sliding_window"))


def load(reader, kv):
    """The model, ready to run, and its configuration."""
    c = config_of(kv)
    names = {t.name for t in reader.tensors}
    if "rope_freqs.weight" in names:
        raise NotImplementedError("rope factors")
    c["tied"] = "output.weight" not in names
    common = dict(
        vocab_size=c["vocab"], hidden_size=c["hidden"], intermediate_size=c["ff"], num_hidden_layers=c["layers"],
        num_attention_heads=c["heads"], num_key_value_heads=c["kv_heads"], head_dim=c["head_dim"],
        rms_norm_eps=c["eps"], rope_theta=c["theta"], max_position_embeddings=c["context"],
        tie_word_embeddings=c["tied"], attn_implementation="eager", bos_token_id=None, eos_token_id=None,
        pad_token_id=None)
    with no_init_weights():
        if c["arch"] == "llama":
            model = LlamaForCausalLM(LlamaConfig(**common))
        elif c["arch"] == "qwen2":
            model = Qwen2ForCausalLM(Qwen2Config(**common))
        elif c["arch"] == "gemma3":
            model = Gemma3ForCausalLM(Gemma3TextConfig(
                **common, query_pre_attn_scalar=c["head_dim"], sliding_window=c["window"],
                rope_local_base_freq=10000.0))
        else:
            raise NotImplementedError(c["arch"])
    model.tie_weights()
    parameters = dict(model.named_parameters())
    left = set(parameters)
    with torch.no_grad():
        for t in reader.tensors:
            w = gguf.dequantize(t.data, t.tensor_type)
            if c["arch"] == "llama" and t.name.endswith("attn_q.weight"):
                w = halves(w, c["heads"])
            if c["arch"] == "llama" and t.name.endswith("attn_k.weight"):
                w = halves(w, c["kv_heads"])
            if c["arch"] == "gemma3" and t.name.endswith("norm.weight"):
                w = w - np.float32(1.0)
            name = parameter_name(c["arch"], t.name)
            p = parameters[name]
            assert tuple(p.shape) == w.shape, (t.name, w.shape, tuple(p.shape))
            p.data = torch.from_numpy(np.array(w, dtype=np.float32, copy=True))
            left.remove(name)
    assert not left, f"not in the file: {sorted(left)}"
    return model.eval(), c


@torch.no_grad()
def logits(model, tokens, first=0, last=None):
    """Logits (numpy) at positions first..last of a sequence run from its start."""
    hidden = model.model(input_ids=torch.tensor([tokens]), use_cache=False).last_hidden_state[0]
    return model.lm_head(hidden[first:last]).numpy()


@contextlib.contextmanager
def int8_activations(model, block=32, most=127.0, only=("",)):
    """Rounds the input of every matmul as the engine's kernels do: int8 in blocks of 32 with an f32 scale.

    What remains between this and the engine is the order of sums, and rounding flips that follow from it.
    Other blocks and ranges (`most` is the greatest integer), and `only` the matmuls whose names end so, serve
    experiments.
    """
    def rounded(module, args):
        x = args[0]
        blocks = x.reshape(*x.shape[:-1], -1, block)
        amax = blocks.abs().amax(-1, keepdim=True)
        zero = amax < 2.0**-100
        q = torch.round(blocks * (most / amax)).clamp(-most, most)
        return (torch.where(zero, 0.0, q * (amax / most)).reshape(x.shape),)

    hooks = [
        m.register_forward_pre_hook(rounded) for name, m in model.named_modules()
        if isinstance(m, torch.nn.Linear) and name.endswith(tuple(only))]
    try:
        yield model
    finally:
        for h in hooks:
            h.remove()


def logsumexp(rows):
    """In float64, over the last axis."""
    rows = rows.astype(np.float64)
    top = rows.max(-1, keepdims=True)
    return (top + np.log(np.exp(rows - top).sum(-1, keepdims=True)))[..., 0]


# --- text -------------------------------------------------------------------------------------------

GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
               r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SPLITS = {"smollm": [r"\p{N}", GPT2_SPLIT], "qwen2": [QWEN2_SPLIT]}


class Tokenizer:
    """encode(text, special): token ids without BOS; with `special`, control tokens in the text are recognised."""

    def __init__(self, kv):
        g = lambda key, default=None: kv.get(f"tokenizer.ggml.{key}", default)
        self.tokens, kinds = g("tokens"), g("token_type")
        self.bos, self.eos, self.add_bos = g("bos_token_id"), g("eos_token_id"), bool(g("add_bos_token", False))
        self.template = kv.get("tokenizer.chat_template")
        ids = {t: i for i, t in enumerate(self.tokens)}
        of_kind = lambda kind: {t: i for i, (t, k) in enumerate(zip(self.tokens, kinds)) if k == kind and t}
        self.control = of_kind(gguf.TokenType.CONTROL)
        self.always = of_kind(gguf.TokenType.USER_DEFINED)
        if g("model") == "gpt2":
            bpe = tokenizers.models.BPE(ids, [tuple(m.split(" ")) for m in g("merges")])
            self.bpe = tokenizers.Tokenizer(bpe)
            split = [tokenizers.pre_tokenizers.Split(tokenizers.Regex(r), "isolated") for r in SPLITS[g("pre")]]
            self.bpe.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
                split + [tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
            self.plain = lambda text: self.bpe.encode(text, add_special_tokens=False).ids
        else:
            assert g("model") == "llama" and not g("add_space_prefix", True)
            self.ids, self.scores = ids, g("scores")
            self.plain = self.sentencepiece

    def encode(self, text, special=False):
        known = self.always | self.control if special else self.always
        if not known:
            return self.plain(text)
        pattern = "|".join(re.escape(t) for t in sorted(known, key=len, reverse=True))
        out = []
        for i, part in enumerate(re.split(f"({pattern})", text)):
            out += [known[part]] if i % 2 else self.plain(part) if part else []
        return out

    def sentencepiece(self, text):
        """Joins the best-scored neighbours, leftmost first, until none is in the vocabulary."""
        parts = list(text.replace(" ", "▁"))
        after = list(range(1, len(parts))) + [None]
        before = [None] + list(range(len(parts) - 1))
        heap = []

        def offer(i):
            j = after[i] if i is not None else None
            if j is not None and (t := self.ids.get(parts[i] + parts[j])) is not None:
                heapq.heappush(heap, (-self.scores[t], i, j, parts[i], parts[j]))

        for i in range(len(parts)):
            offer(i)
        while heap:
            _, i, j, left, right = heapq.heappop(heap)
            if parts[i] != left or parts[j] != right or after[i] != j:
                continue
            parts[i], parts[j] = left + right, None
            after[i] = after[j]
            if after[j] is not None:
                before[after[j]] = i
            offer(before[i])
            offer(i)
        out = []
        for p in parts:
            if p is None:
                continue
            if p in self.ids:
                out.append(self.ids[p])
            else:
                out += [self.ids[f"<0x{b:02X}>"] for b in p.encode()]
        return out

    def chat(self, messages):
        """Rendered with the model's own template, or in gemma's turns if it has none."""
        if self.template is None:
            return "".join(f"<start_of_turn>{m['role']}\n{m['content']}<end_of_turn>\n" for m in messages) + "<start_of_turn>model\n"
        env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        bos, eos = self.tokens[self.bos], self.tokens[self.eos]
        return env.from_string(self.template).render(
            messages=messages, add_generation_prompt=True, bos_token=bos, eos_token=eos, tools=None)
