"""Prompts without a conversation, by the official client."""

import openai
import pytest
from conftest import MODEL

PROMPT = "The capital of France is"


def ask(client, **more):
    more = {"prompt": PROMPT, "max_tokens": 12, "seed": 5, **more}
    return client.completions.create(model=MODEL, **more)


def test_a_whole_answer(client, server):
    answer = ask(client, temperature=0)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert "Paris" in answer.choices[0].text
    assert answer.usage.prompt_tokens == len(server.tokens(PROMPT))
    assert ask(client, max_tokens=openai.omit, extra_body={"ignore_eos": True}).usage.completion_tokens == 16


def test_streaming_says_the_same(client):
    whole = ask(client, n=2)
    texts = ["", ""]
    for chunk in ask(client, n=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [c.text for c in whole.choices]


def test_prompts_in_every_form(client, server):
    ids, other = server.tokens(PROMPT), server.tokens("Once upon a time")
    text = ask(client).choices[0].text
    assert ask(client, prompt=ids).choices[0].text == text
    both = ask(client, prompt=[PROMPT, "Once upon a time"])
    assert [c.index for c in both.choices] == [0, 1]
    assert both.choices[0].text == text
    assert both.choices == ask(client, prompt=[ids, other]).choices
    assert both.usage.prompt_tokens == len(ids) + len(other)


def test_echo_with_logprobs_scores_the_prompt(client):
    answer = ask(client, echo=True, logprobs=3, max_tokens=4, temperature=0)
    [choice] = answer.choices
    scores = choice.logprobs
    count = answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert choice.text.startswith(PROMPT)
    assert len(scores.tokens) == len(scores.token_logprobs) == len(scores.top_logprobs) == count
    assert scores.token_logprobs[0] is None and scores.top_logprobs[0] is None
    assert all(p <= 0 for p in scores.token_logprobs[1:])
    for token, offset in zip(scores.tokens, scores.text_offset):
        assert choice.text[offset:].startswith(token)
    only = ask(client, echo=True, logprobs=3, max_tokens=0, temperature=0)
    assert only.choices[0].text == PROMPT and only.usage.completion_tokens == 0
    assert only.choices[0].logprobs.token_logprobs == scores.token_logprobs[: only.usage.prompt_tokens]
    # Scoring again, now that the prompt is in the cache, gives the same to the last bit.
    assert ask(client, echo=True, logprobs=3, max_tokens=4, temperature=0).choices == answer.choices


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": [1, 2, 10**6]}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"stop": [""]}, "stop[0]"),
    ],
)
def test_wrong_requests(client, fields, param):
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, **fields)
    assert raised.value.param == param
