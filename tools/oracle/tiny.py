#!/usr/bin/env python3
"""Makes the tiny random models under tests/fixtures/tiny and the logits they must give.

    python tools/oracle/tiny.py             all of them
    python tools/oracle/tiny.py gemma3 ...  just these

A model's weights are drawn from a seeded generator, given to the transformers class of its family, and
written in F32 to a GGUF file with the tensor names, layouts and metadata that llama.cpp's converter would
give it. The logits are those of the transformers model, computed in float64 and rounded to f32 once.
tests/fixtures/tiny/README.md describes the files.
"""
import contextlib
import json
import math
import pathlib
import re
import sys

import gguf
import numpy as np
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "tiny"
GREEDY = 12  # tokens of greedy continuation recorded for each sequence

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TURNS = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>{{ message['role'] }}\n{{ message['content'] | trim }}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

# lengths: of the token sequences whose logits are recorded.
MODELS = {
    "llama-untied": dict(
        seed=101, arch="llama", layers=2, hidden=64, ff=96, heads=4, kv_heads=2, head_dim=16,
        tied=False, eps=1e-5, theta=10000.0, context=256, lengths=[1, 9, 40]),
    "llama-tied": dict(
        seed=102, arch="llama", layers=2, hidden=48, ff=96, heads=3, kv_heads=1, head_dim=16,
        tied=True, eps=1e-5, theta=500000.0, context=512, scaling=LLAMA3_SCALING, lengths=[1, 9, 70]),
    "qwen2": dict(
        seed=103, arch="qwen2", layers=2, hidden=64, ff=72, heads=4, kv_heads=2, head_dim=16,
        tied=False, eps=1e-6, theta=1000000.0, context=256, lengths=[1, 9, 40]),
    "qwen2-tied": dict(
        seed=104, arch="qwen2", layers=2, hidden=48, ff=80, heads=3, kv_heads=3, head_dim=16,
        tied=True, eps=1e-6, theta=10000.0, context=256, lengths=[1, 9, 40]),
    "gemma3": dict(
        seed=105, arch="gemma3", layers=7, hidden=48, ff=64, heads=2, kv_heads=1, head_dim=32,
        tied=True, eps=1e-6, theta=1000000.0, context=512, window=16, lengths=[1, 9, 50]),
    "gemma3-linear": dict(
        seed=106, arch="gemma3", layers=6, hidden=32, ff=40, heads=2, kv_heads=1, head_dim=32,
        tied=True, eps=1e-6, theta=1000000.0, context=512, window=8,
        scaling={"rope_type": "linear", "factor": 8.0}, lengths=[1, 9, 40]),
}


# --- tokenizers -------------------------------------------------------------------------------------

def byte_chars():
    """The printable character that byte-level BPE writes for each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    chars = {b: chr(b) for b in plain}
    for i, b in enumerate(b for b in range(256) if b not in chars):
        chars[b] = chr(256 + i)
    return [chars[b] for b in range(256)]


def byte_level_tokenizer(arch):
    space = byte_chars()[0x20]
    merges = [
        f"{space} t", "h e", "i n", f"{space}t he", f"{space} a", "e r", "o n", "r e",
        f"{space}a n", f"{space}an d", f"{space} {space}", "l l", "o u", f"{space} w", "1 2", "e ll",
    ]
    tokens = byte_chars() + [m.replace(" ", "") for m in merges]
    kinds = [gguf.TokenType.NORMAL] * len(tokens)
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    specials = (["<|begin_of_text|>"] if arch == "llama" else []) + specials
    first = len(tokens)
    tokens += specials
    kinds += [gguf.TokenType.CONTROL] * len(specials)
    while len(tokens) % 8:
        tokens.append(f"<|unused_{len(tokens)}|>")
        kinds.append(gguf.TokenType.UNUSED)
    ids = {t: first + i for i, t in enumerate(specials)}
    return dict(
        model="gpt2", pre="llama-bpe" if arch == "llama" else "qwen2", tokens=tokens, kinds=kinds, merges=merges,
        bos=ids.get("<|begin_of_text|>", ids["<|endoftext|>"]), eos=ids["<|im_end|>"], pad=ids["<|endoftext|>"],
        add_bos=arch == "llama", template=CHATML)


def sentencepiece_tokenizer():
    specials = ["<pad>", "<eos>", "<bos>", "<unk>"]
    tokens, scores, kinds = list(specials), [-1000.0] * 4, [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.UNKNOWN]
    for t in ["<start_of_turn>", "<end_of_turn>"]:
        tokens.append(t)
        scores.append(-1000.0)
        kinds.append(gguf.TokenType.CONTROL)
    for b in range(256):
        tokens.append(f"<0x{b:02X}>")
        scores.append(-1000.0)
        kinds.append(gguf.TokenType.BYTE)
    merged = ["▁t", "he", "▁the", "in", "▁a", "an", "▁an", "nd", "▁and", "er", "▁▁"]
    letters = ["▁", *"etaoinsrhldcumfpgwybvk"]
    for rank, piece in enumerate(merged + letters):
        tokens.append(piece)
        scores.append(-float(rank))
        kinds.append(gguf.TokenType.NORMAL)
    while len(tokens) % 8:
        tokens.append(f"<unused{len(tokens)}>")
        scores.append(-1000.0)
        kinds.append(gguf.TokenType.UNUSED)
    return dict(
        model="llama", pre="default", tokens=tokens, kinds=kinds, scores=scores, bos=2, eos=1, pad=0, unk=3,
        add_bos=True, template=TURNS)


# --- the transformers model -------------------------------------------------------------------------

def build(spec, vocab):
    common = dict(
        vocab_size=vocab, hidden_size=spec["hidden"], intermediate_size=spec["ff"],
        num_hidden_layers=spec["layers"], num_attention_heads=spec["heads"],
        num_key_value_heads=spec["kv_heads"], head_dim=spec["head_dim"], rms_norm_eps=spec["eps"],
        rope_theta=spec["theta"], max_position_embeddings=spec["context"], tie_word_embeddings=spec["tied"],
        rope_scaling=spec.get("scaling"), attn_implementation="eager", bos_token_id=None, eos_token_id=None,
        pad_token_id=None)
    if spec["arch"] == "llama":
        model = LlamaForCausalLM(LlamaConfig(**common))
    elif spec["arch"] == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**common))
    else:
        model = Gemma3ForCausalLM(Gemma3TextConfig(
            **common, query_pre_attn_scalar=spec["head_dim"], sliding_window=spec["window"],
            rope_local_base_freq=10000.0))
    model.eval()

    rng = np.random.default_rng(spec["seed"])
    gemma = spec["arch"] == "gemma3"
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            shape = tuple(p.shape)
            if name.endswith("norm.weight"):
                w = rng.uniform(0.4, 1.6, shape)
                if gemma:
                    # A stronger final norm makes up for the weaker embeddings below; the class adds one.
                    w = w * (2.0 if name == "model.norm.weight" else 1.0) - 1.0
            elif name.endswith(".bias"):
                w = rng.normal(0.0, 0.5, shape)
            elif "embed_tokens" in name or "lm_head" in name:
                # Gemma's embeddings are scaled up by √width: as strong as the others', a token would only echo.
                w = rng.normal(0.0, (1.0 if gemma else 2.0) / math.sqrt(shape[1]), shape)
            else:
                gain = 1.6 if "q_proj" in name or "k_proj" in name else 1.0
                w = rng.normal(0.0, gain / math.sqrt(shape[1]), shape)
            p.copy_(torch.from_numpy(w.astype(np.float32)))
    return model


@contextlib.contextmanager
def float64(model):
    """Runs `model` in float64 throughout: transformers asks for float32 by name inside norms, softmax and rope."""
    saved = torch.float32, torch.float, torch.Tensor.float
    model.double()
    try:
        torch.float32 = torch.float = torch.float64
        torch.Tensor.float = torch.Tensor.double
        yield model
    finally:
        torch.float32, torch.float, torch.Tensor.float = saved
        model.float()


@torch.no_grad()
def logits_of(model, tokens):
    return model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()


def greedy(model, tokens):
    """The argmax continuation, and the smallest lead of a winner over the runner-up on the way."""
    out, margin = [], math.inf
    for _ in range(GREEDY):
        row = logits_of(model, tokens + out)[-1]
        second, first = np.sort(row)[-2:]
        margin = min(margin, float(first - second))
        out.append(int(row.argmax()))
    return out, margin


# --- the GGUF file ----------------------------------------------------------------------------------

def interleave(w, heads):
    """Rows of a rotated projection from half-split order (transformers) to pairwise order (llama.cpp's llama)."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(w.shape)


def llama3_factors(spec):
    """What each rotary frequency is divided by, under llama 3's scaling."""
    s, half = spec["scaling"], spec["head_dim"] // 2
    factors = []
    for i in range(half):
        turns = s["original_max_position_embeddings"] * spec["theta"] ** (-i / half) / (2 * math.pi)
        t = (turns - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
        t = min(max(t, 0.0), 1.0)
        factors.append(1.0 / ((1.0 - t) / s["factor"] + t))
    return np.array(factors, dtype=np.float32)


GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
}
GEMMA_NAMES = GGUF_NAMES | {
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
}


def tensors(spec, model):
    names = GEMMA_NAMES if spec["arch"] == "gemma3" else GGUF_NAMES
    for name, p in model.named_parameters():
        w = p.detach().numpy()
        if name.startswith("model.layers."):
            _, _, layer, rest = name.split(".", 3)
            target = f"blk.{layer}.{names[rest]}"
        else:
            target = names[name]
        if spec["arch"] == "llama" and ".attn_q." in target:
            w = interleave(w, spec["heads"])
        if spec["arch"] == "llama" and ".attn_k." in target:
            w = interleave(w, spec["kv_heads"])
        if spec["arch"] == "gemma3" and target.endswith("norm.weight"):
            w = w + np.float32(1.0)
        yield target, np.ascontiguousarray(w, dtype=np.float32)


def write_gguf(path, name, spec, tok, model):
    arch = spec["arch"]
    w = gguf.GGUFWriter(path, arch)
    w.add_type("model")
    w.add_name(f"plainchant tiny {name}")
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    w.add_block_count(spec["layers"])
    w.add_context_length(spec["context"])
    w.add_embedding_length(spec["hidden"])
    w.add_feed_forward_length(spec["ff"])
    w.add_head_count(spec["heads"])
    w.add_head_count_kv(spec["kv_heads"])
    w.add_layer_norm_rms_eps(spec["eps"])
    w.add_rope_freq_base(spec["theta"])
    if arch == "llama":
        w.add_vocab_size(len(tok["tokens"]))
        w.add_rope_dimension_count(spec["head_dim"])
    if arch == "gemma3":
        w.add_key_length(spec["head_dim"])
        w.add_value_length(spec["head_dim"])
        w.add_sliding_window(spec["window"])
    scaling = spec.get("scaling")
    if scaling and scaling["rope_type"] == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(scaling["factor"])

    w.add_tokenizer_model(tok["model"])
    w.add_tokenizer_pre(tok["pre"])
    w.add_token_list(tok["tokens"])
    if "scores" in tok:
        w.add_token_scores(tok["scores"])
    w.add_token_types([int(k) for k in tok["kinds"]])
    if "merges" in tok:
        w.add_token_merges(tok["merges"])
    w.add_bos_token_id(tok["bos"])
    w.add_eos_token_id(tok["eos"])
    w.add_pad_token_id(tok["pad"])
    if "unk" in tok:
        w.add_unk_token_id(tok["unk"])
    w.add_add_bos_token(tok["add_bos"])
    if tok["model"] == "llama":
        w.add_add_eos_token(False)
        w.add_add_space_prefix(False)
    w.add_chat_template(tok["template"])

    if scaling and scaling["rope_type"] == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_factors(spec))
    for target, array in tensors(spec, model):
        w.add_tensor(target, array)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def make(name):
    spec = MODELS[name]
    tok = sentencepiece_tokenizer() if spec["arch"] == "gemma3" else byte_level_tokenizer(spec["arch"])
    vocab = len(tok["tokens"])
    model = build(spec, vocab)
    rng = np.random.default_rng(spec["seed"] + 1000)
    sequences = [[int(t) for t in rng.integers(0, vocab, n)] for n in spec["lengths"]]
    if tok["add_bos"]:
        for s in sequences:
            s[0] = tok["bos"]

    single = [logits_of(model, s) for s in sequences]
    with float64(model):
        double = [logits_of(model, s) for s in sequences]
        continued = [greedy(model, s) for s in sequences]
    assert all(d.dtype == np.float64 for d in double)
    difference = max(float(np.abs(a - b).max()) for a, b in zip(single, double))

    OUT.mkdir(parents=True, exist_ok=True)
    write_gguf(OUT / f"{name}.gguf", name, spec, tok, model)
    rows = np.concatenate(double).astype("<f4")
    rows.tofile(OUT / f"{name}.logits.f32")
    first, entries = 0, []
    for s, (ids, margin) in zip(sequences, continued):
        entries.append({
            "tokens": s, "first_row": first, "greedy": ids, "greedy_margin": round(margin, 6)})
        first += len(s)
    config = {k: v for k, v in spec.items() if k not in ("seed", "lengths")}
    config["vocab"] = vocab
    description = {
        "model": f"{name}.gguf", "logits": f"{name}.logits.f32", "seed": spec["seed"], "config": config,
        "rows": first, "vocab": vocab, "logits_std": round(float(rows.std()), 4),
        "transformers_f32_max_abs_difference": difference, "sequences": entries}
    text = json.dumps(description, indent=1)
    (OUT / f"{name}.json").write_text(compact(text) + "\n")
    print(f"{name}: {first} rows of {vocab}, std {rows.std():.2f}, f32 against f64 {difference:.1e}, "
          f"greedy margins {[e['greedy_margin'] for e in entries]}")


def compact(text):
    """Puts each list of plain numbers on one line."""
    return re.sub(r"\[[\s\d,.-]*\]", lambda m: re.sub(r"\s+", " ", m[0]).replace("[ ", "[").replace(" ]", "]"), text)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for chosen in sys.argv[1:] or MODELS:
        make(chosen)
