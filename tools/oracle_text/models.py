"""Writes the ids that reference tokenizers give for the texts, with the vocabularies of real models.

The references are built from what a GGUF file stores (tokens, types, scores, merges) and from what it only
names: the pre-tokenizer and normalizer that were published with the model.
"""

import json
import os
import re
import sys
from pathlib import Path

import gguf
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from corpus import FIXTURES

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

MODELS = {
    "smollm2": ["SmolLM2-135M-Instruct.Q4_1.gguf"],
    "gemma3": ["gemma-3-270m-q4_k_m.gguf"],
    "qwen2": ["qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"],
}

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split_with(pattern: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])


# As in the tokenizer.json of GPT-2, SmolLM2, Qwen2.5 and Llama 3.
PRE_TOKENIZERS = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "qwen2": split_with(LLAMA3.replace("{1,3}", "")),
    "llama-bpe": split_with(LLAMA3),
}


def byte_level_reference(spec: dict) -> Tokenizer:
    """A `tokenizers` tokenizer from a stored byte-level vocabulary."""
    special = {i for i, kind in enumerate(spec["types"]) if kind in (CONTROL, USER_DEFINED)}
    vocab = {
        token: i
        for i, token in enumerate(spec["tokens"])
        if spec["types"][i] == NORMAL or (i in special and i < max_normal(spec))
    }
    merges = [tuple(merge.split(" ")) for merge in spec["merges"]]
    reference = Tokenizer(models.BPE(vocab, merges, ignore_merges=spec["pre"] == "llama-bpe"))
    reference.pre_tokenizer = PRE_TOKENIZERS[spec["pre"]]
    if spec["pre"] == "qwen2":
        reference.normalizer = normalizers.NFC()
    for i in sorted(special):
        token = spec["tokens"][i]
        added = AddedToken(token, special=spec["types"][i] == CONTROL, normalized=False)
        reference.add_tokens([added])
        assert reference.token_to_id(token) == i, (token, i)
    return reference


def max_normal(spec: dict) -> int:
    return max(i for i, kind in enumerate(spec["types"]) if kind == NORMAL)


def byte_level_encode(reference: Tokenizer, text: str, parse_special: bool) -> list[int]:
    reference.encode_special_tokens = not parse_special
    return reference.encode(text, add_special_tokens=False).ids


def sentencepiece_reference(spec: dict) -> sentencepiece.SentencePieceProcessor:
    """A `sentencepiece` processor from a stored vocabulary."""
    proto = sentencepiece_model_pb2.ModelProto()
    for i, (token, score, kind) in enumerate(zip(spec["tokens"], spec["scores"], spec["types"])):
        if i == spec["unk"]:
            kind = UNKNOWN
        if kind == USER_DEFINED:
            # Files store user-defined pieces with plain spaces.
            token = token.replace(" ", "\u2581")
        proto.pieces.add(piece=token, score=score, type=kind)
    trainer = proto.trainer_spec
    trainer.model_type = sentencepiece_model_pb2.TrainerSpec.BPE
    trainer.byte_fallback = BYTE in spec["types"]
    trainer.vocab_size = len(spec["tokens"])
    trainer.unk_id, trainer.bos_id, trainer.eos_id = spec["unk"], spec["bos"], spec["eos"]
    trainer.unk_piece = spec["tokens"][spec["unk"]]
    trainer.bos_piece, trainer.eos_piece = spec["tokens"][spec["bos"]], spec["tokens"][spec["eos"]]
    trainer.pad_id = -1
    normalizer = proto.normalizer_spec
    normalizer.name = "identity"
    normalizer.add_dummy_prefix = spec["add_space_prefix"]
    normalizer.remove_extra_whitespaces = False
    normalizer.escape_whitespaces = True
    reference = sentencepiece.SentencePieceProcessor()
    reference.LoadFromSerializedProto(proto.SerializeToString())
    return reference


def sentencepiece_encoder(spec: dict):
    """A function from (text, parse_special) to ids.

    Control tokens are cut out before, for `sentencepiece` never reads them from text.
    """
    reference = sentencepiece_reference(spec)
    ids = {t: i for i, t in enumerate(spec["tokens"]) if spec["types"][i] in (CONTROL, UNKNOWN)}
    control = re.compile("(" + "|".join(re.escape(t) for t in sorted(ids, key=len, reverse=True)) + ")")

    def encode(text: str, parse_special: bool) -> list[int]:
        if not parse_special:
            return reference.EncodeAsIds(text)
        out = []
        for part in control.split(text):
            out += [ids[part]] if part in ids else reference.EncodeAsIds(part)
        return out

    return encode


def read_spec(path: Path) -> dict:
    """The tokenizer keys of a GGUF file."""
    fields = gguf.GGUFReader(path).fields

    def get(name, default=None):
        return fields[name].contents() if name in fields else default

    return {
        "model": get("tokenizer.ggml.model"),
        "pre": get("tokenizer.ggml.pre"),
        "tokens": get("tokenizer.ggml.tokens"),
        "types": get("tokenizer.ggml.token_type"),
        "scores": get("tokenizer.ggml.scores"),
        "merges": get("tokenizer.ggml.merges"),
        "bos": get("tokenizer.ggml.bos_token_id"),
        "eos": get("tokenizer.ggml.eos_token_id"),
        "unk": get("tokenizer.ggml.unknown_token_id"),
        "add_space_prefix": get("tokenizer.ggml.add_space_prefix", True),
    }


def encoder(spec: dict):
    """A function from (text, parse_special) to ids."""
    if spec["model"] == "gpt2":
        reference = byte_level_reference(spec)
        return lambda text, special: byte_level_encode(reference, text, special)
    return sentencepiece_encoder(spec)


def expectations(encode, texts: list[str]) -> list[dict]:
    """Per text: ids without control tokens and, where they differ, ids with them."""
    cases = []
    for text in texts:
        plain, special = encode(text, False), encode(text, True)
        cases.append([plain] if plain == special else [plain, special])
    return cases


def write(path: Path, head: dict, cases: list) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    top = "".join(f"{json.dumps(k)}: {json.dumps(v)},\n" for k, v in head.items())
    path.write_text(f'{{\n{top}"cases": [\n{lines}\n]\n}}\n')


def texts_in(folder: Path) -> list[str]:
    return json.loads((folder / "corpus.json").read_text()) + json.loads((folder / "fuzz.json").read_text())


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FIXTURES
    default = Path.home() / ".cache/plainchant-dev-models"
    models_folder = Path(os.environ.get("PLAINCHANT_DEV_MODELS", default))
    texts = texts_in(folder)
    for name, files in MODELS.items():
        results = [expectations(encoder(read_spec(models_folder / f)), texts) for f in files]
        assert all(result == results[0] for result in results), name
        write(folder / f"ids/{name}.json", {"files": files}, results[0])
        print(name, sum(len(case[0]) for case in results[0]), "ids")


if __name__ == "__main__":
    main()
