"""Writes tiny vocabularies, trained on the corpus, with the ids that the reference libraries give.

They need no model files, so every algorithm is compared wherever the tests run.
"""

import io
import json

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from corpus import FIXTURES
from models import (
    CONTROL,
    NORMAL,
    PRE_TOKENIZERS,
    UNUSED,
    USER_DEFINED,
    encoder,
    expectations,
    sentencepiece_reference,
    texts_in,
    write,
)

SPECIALS = [("<|endoftext|>", CONTROL), ("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL), ("<tool_call>", USER_DEFINED)]


def byte_level(pre: str, texts: list[str], merges: int) -> dict:
    """A byte-level vocabulary whose merges are learned with that pre-tokenizer."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = PRE_TOKENIZERS[pre]
    if pre == "qwen2":
        trained.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + merges,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=2,
    )
    trained.train_from_iterator(texts, trainer)
    model = json.loads(trained.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    # A word that no merge makes: taken whole by Llama 3's rule only.
    tokens += ["\u0120unmergeable", "unmergeable"]
    types = [NORMAL] * len(tokens) + [kind for _, kind in SPECIALS] + [UNUSED]
    tokens += [text for text, _ in SPECIALS] + ["[PAD]"]
    pairs = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "types": types,
        "merges": pairs,
        "bos": tokens.index("<|endoftext|>"),
        "eos": tokens.index("<|im_end|>"),
    }


def sentence_pieces(texts: list[str], size: int, byte_fallback: bool, add_space_prefix: bool) -> dict:
    """A SentencePiece BPE vocabulary."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter([t for t in texts if t.strip()]),
        model_writer=out,
        vocab_size=size,
        model_type="bpe",
        byte_fallback=byte_fallback,
        character_coverage=0.98,
        normalization_rule_name="identity",
        add_dummy_prefix=add_space_prefix,
        remove_extra_whitespaces=False,
        user_defined_symbols=["\n\n", "\n", "\u2581\u2581", "\u2581\u2581\u2581\u2581", "<table>", "<b>"],
        control_symbols=["<|im_start|>", "<|im_end|>"],
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(out.getvalue())
    pieces = list(proto.pieces)
    if not byte_fallback:
        # Some longer pieces fall out of use, so that they are taken apart again.
        for piece in [p for p in pieces if p.type == NORMAL and len(p.piece) > 2][::5]:
            piece.type = UNUSED
    return {
        "model": "llama",
        "tokens": [p.piece.replace("\u2581", " ") if p.type == USER_DEFINED else p.piece for p in pieces],
        "types": [p.type for p in pieces],
        "scores": [p.score for p in pieces],
        "unk": 0,
        "bos": 1,
        "eos": 2,
        "add_space_prefix": add_space_prefix,
    }


def main() -> None:
    texts = texts_in(FIXTURES)
    specs = {pre: byte_level(pre, texts, 320) for pre in PRE_TOKENIZERS}
    specs["spm"] = sentence_pieces(texts, 900, byte_fallback=True, add_space_prefix=True)
    specs["spm-unknown"] = sentence_pieces(texts, 600, byte_fallback=False, add_space_prefix=False)
    extra = [" unmergeable unmergeable", "unmergeables [PAD] <tool_call>unmergeable"]
    for name, spec in specs.items():
        cases = expectations(encoder(spec), texts + extra)
        head = {"extra": extra, "spec": spec}
        if spec["model"] == "llama":
            reference = sentencepiece_reference(spec)
            head["decoded"] = [reference.DecodeIds(case[0]) for case in cases]
        write(FIXTURES / f"tiny/{name}.json", head, cases)
        print(name, len(spec["tokens"]), "tokens", sum(len(c[0]) for c in cases), "ids")


if __name__ == "__main__":
    main()
