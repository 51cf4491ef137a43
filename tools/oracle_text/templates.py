"""Writes what `transformers` renders from chat templates: our own, and those of real models.

Each template is rendered for each conversation; where it fails, the expectation is the message of
`raise_exception`, or just that it fails.
"""

import datetime
import json
import os
from pathlib import Path

import gguf
import jinja2
from transformers.utils import chat_template_utils

from corpus import FIXTURES
from models import MODELS

NOW = datetime.datetime(2024, 7, 6, 9, 5, 3, 42)


class Frozen(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


chat_template_utils.datetime = Frozen

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather <now> & \"later\" in a city: été, 天気",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "City's name"},
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                    "days": {"type": "array", "items": {"type": "integer"}, "nullable": True},
                    "where": {
                        "type": "object",
                        "properties": {"lat": {"type": "number", "default": 0.5}, "lon": {"type": "number", "default": 1e-7}},
                        "required": ["lat"],
                    },
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "stop", "description": "", "parameters": {"type": "object", "properties": {}}}},
]

CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich <b>", "days": [1, 2], "f": 0.1}}}

CONVERSATIONS = [
    {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": True},
    {
        "messages": [
            {"role": "system", "content": "  You are terse.\n"},
            {"role": "user", "content": "What is 2+2?\n"},
            {"role": "assistant", "content": " 4. "},
            {"role": "user", "content": "And 3+3?"},
        ],
        "add_generation_prompt": True,
    },
    {
        "messages": [
            {"role": "user", "content": "Grüße, 世界! 👨‍👩‍👧 <b>&amp;</b> 'single' \"double\" \\n {{ not jinja }} {% if %}\ttab\u00a0nbsp"},
            {"role": "assistant", "content": "نعم\u2028e\u0301\x07"},
            {"role": "user", "content": "multi\nline\r\n\n  text  "},
            {"role": "assistant", "content": "done"},
        ],
        "add_generation_prompt": False,
    },
    {
        "messages": [
            {"role": "system", "content": "Use tools."},
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "name": "get_weather", "tool_call_id": "call_1", "content": "{\"temp\": 21.5}"},
            {"role": "tool", "name": "get_weather", "content": "<sunny>"},
            {"role": "assistant", "content": "21.5 °C"},
            {"role": "user", "content": "Thanks"},
        ],
        "tools": TOOLS,
        "add_generation_prompt": True,
    },
    {
        "messages": [
            {"role": "user", "content": "Both?"},
            {"role": "assistant", "content": None, "tool_calls": [CALL, {"type": "function", "function": {"name": "stop", "arguments": {}}}]},
        ],
        "tools": TOOLS,
        "add_generation_prompt": False,
    },
    {"messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": "   "}, {"role": "user", "content": "\n"}], "add_generation_prompt": True},
    {
        "messages": [
            {"role": "user", "content": "Think."},
            {"role": "assistant", "reasoning_content": "\nLet me see…\n", "content": "Done."},
            {"role": "user", "content": "Again."},
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes.", "reasoning": "why"},
        ],
        "extra": {"enable_thinking": False, "temperature": 1e-5, "reasoning_effort": "high"},
        "add_generation_prompt": True,
    },
    {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Look."}]},
            {"role": "user", "content": [{"type": "image", "url": "x"}, {"type": "text", "text": " What is it? "}]},
        ],
        "add_generation_prompt": True,
    },
    {"messages": [{"role": "system", "content": "Only a system message"}], "add_generation_prompt": False},
    {"messages": [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}], "tools": [], "add_generation_prompt": True},
    {"messages": [], "add_generation_prompt": True},
    {
        "messages": [{"role": "user" if i % 2 == 0 else "assistant", "content": f"turn {i}"} for i in range(9)],
        "extra": {"bos_token": "<override>", "custom_tools": TOOLS[1:], "tools_in_user_message": False},
        "add_generation_prompt": True,
    },
]


def render(template: str, conversation: dict) -> dict:
    try:
        messages = chat_template_utils._normalize_chat_messages(conversation["messages"])
        variables = {"bos_token": "<bos>", "eos_token": "<eos>"} | conversation.get("extra", {})
        rendered, _ = chat_template_utils.render_jinja_template(
            conversations=[messages],
            tools=conversation.get("tools"),
            chat_template=template,
            add_generation_prompt=conversation["add_generation_prompt"],
            **variables,
        )
        return {"text": rendered[0]}
    except jinja2.exceptions.TemplateSyntaxError:
        raise
    except jinja2.exceptions.TemplateError as error:
        if type(error) is jinja2.exceptions.TemplateError:
            return {"raised": error.message}
        return {"error": f"{type(error).__name__}: {error}"}
    except (TypeError, ValueError, KeyError, IndexError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def without_repeats(results: list[dict]) -> list:
    """Results; one equal to an earlier one is the place of that one."""
    return [r if results.index(r) == i else results.index(r) for i, r in enumerate(results)]


def dump(path: Path, value) -> None:
    path.write_text(json.dumps(value, ensure_ascii=True, indent=1) + "\n")


def main() -> None:
    folder = FIXTURES / "templates"
    dump(folder / "conversations.json", CONVERSATIONS)
    expected = {}
    for path in sorted(folder.glob("*.jinja")):
        # Bytes, for line ends must stay as they are.
        template = path.read_bytes().decode()
        expected[path.stem] = [render(template, c) for c in CONVERSATIONS]
        failed = [r for r in expected[path.stem] if "text" not in r]
        print(path.stem, len(CONVERSATIONS) - len(failed), "rendered", *{json.dumps(f) for f in failed})
    dump(folder / "expected.json", {name: without_repeats(r) for name, r in expected.items()})

    default = Path.home() / ".cache/plainchant-dev-models"
    models = Path(os.environ.get("PLAINCHANT_DEV_MODELS", default))
    of_models = {}
    for file in sorted(sum(MODELS.values(), [])):
        fields = gguf.GGUFReader(models / file).fields
        if "tokenizer.chat_template" in fields:
            template = fields["tokenizer.chat_template"].contents()
            of_models[file] = [render(template, c) for c in CONVERSATIONS]
            print(file, sum("text" in r for r in of_models[file]), "rendered")
    dump(folder / "model_templates.json", of_models)


if __name__ == "__main__":
    main()
