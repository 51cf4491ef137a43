"""Load, cancellation, time limits and the end of a server, by the official client."""

import asyncio
import threading
import time

import openai
import pytest
from conftest import KEY, MODEL, Server

MESSAGES = [{"role": "user", "content": "Tell me a long story about a river."}]
LONG = {"model": MODEL, "messages": MESSAGES, "max_tokens": 1500, "seed": 3, "extra_body": {"ignore_eos": True}}


def figure(server, name):
    lines = server.fetch("/metrics").splitlines()
    lines = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return next(float(value) for key, value in lines if key in (f"plainchant_{name}", f"plainchant_{name}_total"))


def wait(condition, what, patience=60):
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def idle(server):
    return figure(server, "requests_running") == 0 and figure(server, "requests_waiting") == 0


def test_answers_are_the_same_at_any_load(server):
    async def many():
        client = openai.AsyncOpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0)
        ask = client.chat.completions.create

        def request(i):
            messages = [{"role": "user", "content": f"What is {i} plus {i}?"}]
            return ask(model=MODEL, messages=messages, max_tokens=16, seed=i)

        alone = [await request(i) for i in range(12)]
        together = await asyncio.gather(*(request(i) for i in range(12)))
        await client.close()
        return alone, together

    alone, together = asyncio.run(many())
    assert [a.choices for a in alone] == [t.choices for t in together]


def test_closing_a_stream_ends_its_request(server, client):
    wait(lambda: idle(server), "idle before")
    cancelled = figure(server, "requests_cancelled")
    stream = client.chat.completions.create(stream=True, **LONG)
    for _, _chunk in zip(range(5), stream):
        pass
    stream.close()
    wait(lambda: idle(server), "the request ends")
    assert figure(server, "requests_cancelled") == cancelled + 1
    assert figure(server, "pages_held") == 0


def test_a_clients_timeout_ends_its_request(server, client):
    wait(lambda: idle(server), "idle before")
    cancelled = figure(server, "requests_cancelled")
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.5).chat.completions.create(**LONG)
    wait(lambda: idle(server), "the request ends")
    assert figure(server, "requests_cancelled") == cancelled + 1


def test_cancelling_spares_neighbours(server, client):
    ask = {"model": MODEL, "messages": MESSAGES, "max_tokens": 40, "seed": 9}
    alone = client.chat.completions.create(**ask).choices
    result = []
    thread = threading.Thread(target=lambda: result.append(client.chat.completions.create(**ask).choices))
    stream = client.chat.completions.create(stream=True, **LONG)
    next(iter(stream))
    thread.start()
    stream.close()
    thread.join(120)
    assert result == [alone]


def test_requests_are_logged_without_their_text(server, client):
    marker = "a-text-that-is-in-no-log"
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": marker}], max_tokens=3, user="u-17", metadata={"a": "b"},
        extra_body={"ignore_eos": True},
    )
    name = raw.headers["x-request-id"]
    wait(lambda: any(r["id"] == name for r in server.records()), "its line")
    [record] = [r for r in server.records() if r["id"] == name]
    assert record["tenant"] == "e2e" and record["user"] == "u-17" and record["status"] == 200
    assert record["generated_tokens"] == 3 and record["finish"] == "length"
    assert record["prompt_tokens"] == raw.parse().usage.prompt_tokens
    assert record["ttft_ms"] <= record["total_ms"]
    assert marker not in "".join(server.lines) and KEY not in "".join(server.lines)


def test_a_full_queue_is_a_rate_limit_error():
    server = Server("--sequences", "1", "--queue", "1", "--ctx", "1024")
    try:
        client = server.client()
        with pytest.raises(openai.RateLimitError) as raised:
            client.chat.completions.create(model=MODEL, messages=MESSAGES, n=8, max_tokens=4)
        assert int(raised.value.response.headers["retry-after"]) >= 1
        # The client tries again by itself where it may.
        patient = client.with_options(max_retries=2)
        assert patient.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=4).choices
    finally:
        assert server.end() == 0


def test_a_server_lets_answers_end_before_it_does():
    server = Server("--drain-seconds", "60", "--ctx", "1024")
    stream = server.client().chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=60, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    statuses = []
    ender = threading.Thread(target=lambda: statuses.append(server.end(120)))
    ender.start()
    reasons = [c.finish_reason for chunk in stream for c in chunk.choices if c.finish_reason]
    stream.close()
    ender.join()
    assert reasons == ["length"] and statuses == [0]


def test_a_server_cancels_what_does_not_end():
    server = Server("--drain-seconds", "0")
    stream = server.client().chat.completions.create(stream=True, **{**LONG, "max_tokens": 3000})
    next(iter(stream))
    statuses = []
    ender = threading.Thread(target=lambda: statuses.append(server.end(120)))
    ender.start()
    with pytest.raises(openai.APIError) as raised:
        for _ in stream:
            pass
    ender.join()
    assert "shutting down" in str(raised.value) and statuses == [0]
