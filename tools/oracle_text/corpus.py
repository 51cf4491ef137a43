"""Writes the texts that every tokenizer is compared on: a hand-picked corpus and seeded random texts."""

import json
import random
from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[2] / "crates/text/tests/fixtures"

PROSE = [
    "",
    " ",
    "a",
    " a",
    "a ",
    "  leading and trailing  ",
    "The quick brown fox jumps over the lazy dog.",
    "It's what we've said: they'll go, I'd stay, you're right, I'm sure, he won't. DON'T SHOUT'S 'Tis 'twas",
    "he's HE'S they'RE I'Ll we'vE 'S 's'S x'd'D ''s 'st 're're",
    "curly apostrophes: don’t, it’s, l’été",
    "$1,234.56 is 12% of 10288; call +49 (0)30 901820, on 2024-02-29 at 23:59:59.999",
    "0 00 000 0000 00000 1234567890 3.14159265358979 1e-10 0xDEADBEEF ½ ² Ⅷ ٣٤٥ ३४५ 一二三",
    "Grüße aus Köln! Die Straßenbahnhaltestellenüberdachung wird größer; naïve façade, coöperate, Ångström.",
    "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft",
    "汉语是世界上使用人数最多的语言。你好,世界!“引号”、顿号;2024年5月1日。",
    "日本語の文章です。カタカナとひらがな、漢字が混ざっています。「こんにちは」ー〜",
    "مرحبا بالعالم! اللغة العربية تُكتب من اليمين إلى اليسار، وفيها تَشْكِيل.",
    "नमस्ते दुनिया! हिन्दी में लिखा गया यह वाक्य है। क्षत्रिय, ज्ञान, श्री।",
    "Привет, мир! Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "한국어 문장입니다. 안녕하세요, 세계! ㄱㄴㄷ",
    "Γειά σου Κόσμε, ελληνικά με τόνους· שלום עולם עם נִקּוּד ไทยไม่มีช่องว่าง",
    "🙂 👨‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪🇯🇵 ❤️ ☎︎ 1️⃣ ©®™ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 🫠🫨",
    "combining: e\u0301 a\u0308 n\u0303 o\u0302\u0323 Å \u212b \u2126 ﬁ ﬀ \u1e9b\u0323 q\u0307\u0323 \u0344 가 각",
    "math: ∀x∈ℝ: x² ≥ 0 ⇒ √(x²)=|x| ≤ ∑ᵢ₌₁ⁿ αᵢ·βᵢ ≠ ∞ … — – ‐ ‑ − × ÷ ± ‰ € £ ¥ ₹",
    "punctuation: !!! ??? ... ;;; :-) ^_^ <(^.^)> [x](y) {z} @user #tag a/b\\c a_b__c ~~ `` ''' \"\"\" |||| &&&& ****",
]

CODE = [
    "def f(x: int) -> int:\n    \"\"\"Doc.\"\"\"\n    if x > 0:\n        return x ** 2\n\n    return -x  # neg\n",
    "fn main() {\n\tlet v: Vec<u8> = (0..10).map(|x| x * 2).collect();\n\tprintln!(\"{v:?}\\n\");\n}\n",
    "#include <stdio.h>\r\nint main(void) {\r\n    for (int i=0;i<10;++i) printf(\"%d\\t\", i);\r\n    return 0;\r\n}\r\n",
    "const f = async (a, b = {}) => { await fetch(`https://example.org/?q=${a}&x=${b?.y ?? 1}`); };",
    "SELECT u.id, COUNT(*) AS n FROM users u LEFT JOIN orders o ON o.user_id = u.id WHERE u.name LIKE '%o''b%' GROUP BY 1;",
    "<!DOCTYPE html><html><body><h1 class=\"a\">x &amp; y</h1><table><tr><td>1</td></tr></table><br/></body></html>",
    "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\", \"days\": [1, 2, 3], \"units\": null, \"ok\": true}}",
    "camelCase snake_case SCREAMING_SNAKE kebab-case PascalCase HTTPServer2XML x1y2z3 __init__ a.b.c::d->e",
    "all: build\n\t@echo \"done\" && cp -r src/*.c /tmp/ 2>/dev/null || exit 1\n",
    "\\begin{equation}\n  E = mc^2 \\label{eq:1}\n\\end{equation}",
]

SPACES = [
    "\n",
    "\n\n",
    "\r\n\r\n",
    "\t",
    "a\n\nb\n \nc \n d  \n  e\t\n\tf\n\n\n",
    "a  b   c    d     e",
    "x\r\ny\rz\n\rw\r\r\n\n",
    "tab\tsep\t\tvalues\t \tmixed \t x",
    "no\u00a0break\u2003em\u3000ideographic\u2028line\u2029para\u0085nel\u200bzwsp\ufeffbom\u00adshy",
    "  !  .  ?  1  é  中",
    " \n \n \n",
    "   \n\n\n   x",
    "\n   x\n     y",
    "trailing newline\n",
    "1 2  3   4\n5\n\n6",
    " " * 70,
    "\n" * 40,
    "\t" * 40,
    "9" * 50,
    "a" * 90,
    "é" * 40,
    "中" * 30,
    "ab" * 60,
    "-" * 100 + "=" * 50,
    " " * 33 + "x" + " " * 17 + "\n" + " " * 31 + "\n",
    "▁literal ▁▁ lower one eighth block▁",
]

CONTROL = [
    "\x00",
    "a\x00b\x01c\x02d\x1b[31mred\x1b[0m\x7f\x9f",
    "".join(map(chr, range(0, 32))),
    "x\x04y \x06z\x13\x14\x16\x1dw",
    "\U000f0000\U0010ffff\ue000\ufffd\uffff",
    "GPT-2's alphabet itself: Ġ Ċ ĉ č Ń ł ī",
]

SPECIAL = [
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "a<|im_end|>b <|im_end|> c\n<|im_end|>\n",
    "<|endoftext|><|endoftext|>  <|endoftext|>x",
    "<|im_start|",
    "<|im_start|><|im_start",
    "text <|IM_START|> <| im_start |> <|im_end|",
    "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n<eos><pad><unk><mask>",
    "<tool_call>\n{\"name\": \"f\"}\n</tool_call><tool_call></tool_call>",
    "<|fim_prefix|>def f():<|fim_suffix|>\n<|fim_middle|>",
    "<repo_name>x<file_sep>y<filename>z<gh_stars>1<issue_start><jupyter_code>",
    "<s>[INST] <<SYS>>\nx\n<</SYS>>\n\ny [/INST] z</s>",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>",
    "<unused0><unused99>[multimodal][PAD151665]<start_of_image>",
    "e\u0301<|im_end|>\u0301 combining across a token",
    "<0x0A><0x41> <0xZZ>",
    "a <b>bold</b>\n\n\n<table>  </table>",
    "don<|im_end|>'t 12<|im_end|>34",
]

# The pieces that random texts are made of: what the scanners' rules are about.
ATOMS = [
    " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", "\u00a0", "\u3000", "\u0085", "\x0b", "\x1c", "'", "'s", "'S", "'t",
    "'re", "'RE", "'ve", "'Ll", "'d", "'m", "'ſ", "’s", "a", "b", "Z", "the", "ing", "é", "e\u0301", "\u0301", "ß", "中", "文",
    "あ", "ア", "ع", "ह", "ि", "한", "ʰ", "ª", "0", "1", "23", "456", "7890", "½", "²", "Ⅷ", "٣", "一", ".", ",", "!", "?!", "-",
    "_", "$", "=", "(", ")", "#", "\"", "/", "🙂", "👨‍👩‍👧", "\u200d", "\ufe0f", "\x00", "\x7f", "▁", "…", "“", "<", ">", "<a>", "<|im_end|>",
    "<|x|>", "\n ", " \n", ".\n", "!\n\n", "; ", "Å", "\u212b", "ﬁ", "\u1100\u1161", "𝔘", "𝟙",
]


def random_texts(count: int, length: int, seed: int) -> list[str]:
    """Seeded random texts of up to `length` atoms."""
    draw = random.Random(seed)
    return ["".join(draw.choices(ATOMS, k=draw.randint(1, length))) for _ in range(count)]


def write(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(text, ensure_ascii=True) for text in texts)
    path.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    write(FIXTURES / "corpus.json", PROSE + CODE + SPACES + CONTROL + SPECIAL)
    write(FIXTURES / "fuzz.json", random_texts(150, 12, 20240229))
