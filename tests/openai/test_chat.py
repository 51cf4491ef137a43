"""Conversations by the official client."""

import openai
import pytest
from conftest import MODEL

MESSAGES = [{"role": "user", "content": "Name three colours."}]


def ask(client, **more):
    more = {"max_tokens": 24, "seed": 11, "messages": MESSAGES, **more}
    return client.chat.completions.create(model=MODEL, **more)


def joined(stream):
    """Text, reasons and usage of a stream, by choice."""
    texts, reasons, usage = {}, {}, None
    for chunk in stream:
        assert chunk.object == "chat.completion.chunk"
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
    return texts, reasons, usage


def test_a_whole_answer(client):
    answer = ask(client)
    assert answer.object == "chat.completion" and answer.model == MODEL
    assert answer.id.startswith("chatcmpl-") and answer.system_fingerprint.startswith("fp_")
    [choice] = answer.choices
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 1 <= usage.completion_tokens <= 24
    assert usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens


def test_streaming_says_the_same(client):
    for n in (1, 3):
        whole = ask(client, n=n)
        texts, reasons, usage = joined(ask(client, n=n, stream=True, stream_options={"include_usage": True}))
        assert texts == {c.index: c.message.content for c in whole.choices}
        assert reasons == {c.index: c.finish_reason for c in whole.choices}
        assert usage.completion_tokens == whole.usage.completion_tokens
        assert usage.prompt_tokens == whole.usage.prompt_tokens
    assert joined(ask(client, stream=True))[2] is None


def test_the_clients_own_stream_helper(client):
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, max_tokens=12, seed=1) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == ask(client, max_tokens=12, seed=1).choices[0].message.content


def test_seeds(client):
    one, again, other = (ask(client, seed=s).choices[0].message.content for s in (1, 1, 2))
    assert one == again and one != other
    unseeded = {ask(client, seed=openai.omit).choices[0].message.content for _ in range(4)}
    assert len(unseeded) > 1


def test_a_drawn_seed_is_told_and_gives_the_same_again(client):
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=MESSAGES, max_tokens=24)
    seed = int(raw.headers["x-seed"])
    again = ask(client, seed=openai.omit, extra_body={"seed": seed})
    assert again.choices[0].message.content == raw.parse().choices[0].message.content


def test_many_choices_differ_and_the_first_is_that_of_the_seed(client):
    texts = [c.message.content for c in ask(client, n=4).choices]
    assert len(set(texts)) > 1
    assert texts[0] == ask(client).choices[0].message.content


def test_stops(client):
    text = ask(client, temperature=0).choices[0].message.content
    stop = text[8:11]
    choice = ask(client, temperature=0, stop=[stop, "never in any answer"]).choices[0]
    assert choice.message.content == text[: text.find(stop)]
    assert choice.finish_reason == "stop"


def test_lengths(client):
    for name in ("max_tokens", "max_completion_tokens"):
        fields = {"max_tokens": openai.omit, name: 5}
        answer = ask(client, **fields, extra_body={"ignore_eos": True})
        assert answer.usage.completion_tokens == 5
        assert answer.choices[0].finish_reason == "length"


def test_logprobs(client):
    answer = ask(client, logprobs=True, top_logprobs=5, temperature=0)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for entry in content:
        assert len(entry.top_logprobs) == 5
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0
        assert entry.token == entry.top_logprobs[0].token
    text = b"".join(bytes(e.bytes) for e in content if not e.token.startswith("<|")).decode()
    assert text == answer.choices[0].message.content
    streamed = []
    for chunk in ask(client, logprobs=True, top_logprobs=5, temperature=0, stream=True):
        if chunk.choices and chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert streamed == content


def test_logit_bias_and_penalties(client, server):
    [blue] = server.tokens(" blue", add_special_tokens=False)
    answer = ask(client, logit_bias={str(blue): 1000}, max_tokens=4)
    assert answer.choices[0].message.content == " blue" * 4
    plain = ask(client).choices[0].message.content
    assert ask(client, frequency_penalty=2, presence_penalty=2).choices[0].message.content != plain
    assert ask(client, extra_body={"top_k": 1}).choices == ask(client, temperature=0).choices


def test_a_conversation_goes_on(client):
    first = ask(client)
    messages = [*MESSAGES, first.choices[0].message, {"role": "user", "content": "And one more?"}]
    second = ask(client, messages=messages)
    assert second.usage.prompt_tokens > first.usage.prompt_tokens
    parts = [{"role": "user", "content": [{"type": "text", "text": "Name three colours."}]}]
    assert ask(client, messages=parts).choices == ask(client).choices


def test_repeated_prompts_are_cached(client):
    long = [{"role": "user", "content": "Count: " + " ".join(map(str, range(150)))}]
    cold, warm = ask(client, messages=long), ask(client, messages=long)
    assert cold.usage.prompt_tokens_details.cached_tokens < warm.usage.prompt_tokens_details.cached_tokens
    assert cold.choices == warm.choices


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"temperature": -1}, "temperature"),
        ({"n": 0}, "n"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0]"),
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
        ({"extra_body": {"made_up": 1}}, "made_up"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
         "messages[0].content[0].type"),
    ],
)
def test_wrong_requests(client, fields, param):
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, **fields)
    assert raised.value.param == param
    assert raised.value.type == "invalid_request_error" and raised.value.code
    field = param.split("[")[0].split(".")[0]
    # What a prompt is too long for names the prompt, which all messages make together.
    assert field in raised.value.message or "prompt" in raised.value.message


def test_unknown_models_and_keys(client, server):
    with pytest.raises(openai.NotFoundError) as raised:
        client.chat.completions.create(model="gpt-none", messages=MESSAGES)
    assert raised.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        ask(server.client(key="wrong-key-wrong-key"))


def test_models(client):
    [model] = client.models.list().data
    assert model.id == MODEL
    assert client.models.retrieve(MODEL) == model
