"""/v1/chat/completions through the official client."""

import json

import openai
import pytest

ASK = [{"role": "user", "content": 'What does "lighthouse" mean?'}]
OFF = {"chat_template_kwargs": {"enable_thinking": False}}


def ask(client, **kw):
    kw = {"model": "demo", "messages": ASK, "temperature": 0, "max_tokens": 24, "extra_body": OFF, **kw}
    return client.chat.completions.create(**kw)


def test_answer(client):
    r = ask(client)
    m = r.choices[0].message
    assert r.object == "chat.completion" and r.id.startswith("chatcmpl-")
    assert m.role == "assistant" and "lighthouse" in m.content
    assert r.choices[0].finish_reason in ("stop", "length")
    assert r.usage.completion_tokens <= 24
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    assert r.usage.completion_tokens_details.reasoning_tokens == 0
    assert r.timings["predicted_n"] == r.usage.completion_tokens


def test_stream_is_the_answer(client):
    whole = ask(client)
    text, finish, usage, roles = "", [], None, 0
    for c in ask(client, stream=True, stream_options={"include_usage": True}):
        if c.usage:
            usage = c.usage
            assert c.choices == []
            continue
        d = c.choices[0].delta
        roles += d.role == "assistant"
        text += d.content or ""
        if c.choices[0].finish_reason:
            finish.append(c.choices[0].finish_reason)
    assert text == whole.choices[0].message.content
    assert finish == [whole.choices[0].finish_reason] and roles == 1
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_thinking_is_apart(client):
    r = ask(client, extra_body={}, max_tokens=64)
    m = r.choices[0].message
    assert m.reasoning_content and "</think>" not in m.content and "<think>" not in m.content
    assert r.usage.completion_tokens_details.reasoning_tokens > 0
    got = ""
    for c in ask(client, extra_body={}, max_tokens=64, stream=True):
        got += getattr(c.choices[0].delta, "reasoning_content", None) or ""
    assert got == m.reasoning_content


def test_length_is_said(client):
    r = ask(client, max_tokens=3)
    assert r.choices[0].finish_reason == "length" and r.usage.completion_tokens == 3


def test_seed_repeats(client):
    kw = {"temperature": 1.5, "seed": 7, "max_tokens": 12}
    a, b = ask(client, **kw), ask(client, **kw)
    assert a.choices[0].message.content == b.choices[0].message.content
    others = {ask(client, **{**kw, "seed": s}).choices[0].message.content for s in (8, 9, 10)}
    assert len(others | {a.choices[0].message.content}) > 1


def test_n_choices_are_seeded_apart(client):
    r = ask(client, n=3, temperature=1.5, seed=7, max_tokens=12)
    assert [c.index for c in r.choices] == [0, 1, 2]
    one = ask(client, temperature=1.5, seed=8, max_tokens=12)
    assert r.choices[1].message.content == one.choices[0].message.content
    parts = ["", "", ""]
    for c in ask(client, n=3, temperature=1.5, seed=7, max_tokens=12, stream=True):
        for ch in c.choices:
            parts[ch.index] += ch.delta.content or ""
    assert parts == [c.message.content for c in r.choices]


def test_stop_is_cut_and_leaks_nothing(client):
    whole = ask(client, max_tokens=40).choices[0].message.content
    for stop in (whole[5:9], whole[3:4], whole[-2:]):
        want = whole[: whole.index(stop)]
        r = ask(client, max_tokens=40, stop=["never\x01", stop])
        assert r.choices[0].message.content == want and r.choices[0].finish_reason == "stop"
        text = "".join(c.choices[0].delta.content or "" for c in ask(client, max_tokens=40, stop=[stop], stream=True))
        assert text == want


def test_logprobs(client):
    r = ask(client, logprobs=True, top_logprobs=3, max_tokens=8)
    items = r.choices[0].logprobs.content
    assert "".join(t.token for t in items) == r.choices[0].message.content
    for t in items:
        assert t.logprob <= 0 and len(t.top_logprobs) == 3
        assert abs(t.top_logprobs[0].logprob - t.logprob) < 1e-4  # greedy: the chosen one is the best
        assert bytes(t.bytes).decode(errors="replace") == t.token
    streamed = []
    for c in ask(client, logprobs=True, top_logprobs=3, max_tokens=8, stream=True):
        if c.choices[0].logprobs:
            streamed += c.choices[0].logprobs.content
    assert [t.token for t in streamed] == [t.token for t in items]


def test_logit_bias_forbids(client, server):
    first = ask(client, logprobs=True, max_tokens=1).choices[0].logprobs.content[0].token
    ids = server.post("/tokenize", {"content": first})[1]["tokens"]
    r = ask(client, logit_bias={str(ids[0]): -100}, logprobs=True, max_tokens=1)
    assert r.choices[0].logprobs.content[0].token != first


def test_thinking_budget_closes_with_a_message(client):
    body = {"thinking_budget": 4, "thinking_budget_message": " That is enough."}
    r = ask(client, extra_body=body, max_tokens=48)
    m = r.choices[0].message
    assert m.reasoning_content.rstrip().endswith("That is enough.")
    assert m.content
    free = ask(client, extra_body={}, max_tokens=48).choices[0].message.reasoning_content
    assert free[:8] == m.reasoning_content[:8]


@pytest.mark.parametrize("effort,thinks", [("none", False), ("low", True), ("high", True)])
def test_reasoning_effort(client, effort, thinks):
    r = ask(client, reasoning_effort=effort, extra_body={}, max_tokens=8)
    assert bool(getattr(r.choices[0].message, "reasoning_content", None)) == thinks


@pytest.mark.parametrize("messages", [
    [{"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be kind."}, *ASK],
    [*ASK, {"role": "system", "content": "Now in one word."}],
    [*ASK, *ASK],
    [{"role": "user", "content": ""}],
    [{"role": "user", "content": [{"type": "text", "text": "Hello "}, {"type": "text", "text": "you"}]}],
    [*ASK, {"role": "assistant", "content": None}, *ASK],
    [*ASK, {"role": "assistant", "content": "A tower."}, {"role": "user", "content": "Sure?"}],
])
def test_message_shapes_are_rendered(client, messages):
    r = ask(client, messages=messages, max_tokens=2)
    assert r.choices[0].finish_reason in ("stop", "length")


def test_what_the_model_sees_of_them(server):
    """docs/serve.md, "Messages": every row as text"""
    def seen(*messages):
        body = {"messages": [{"role": r, "content": c} for r, c in messages], "chat_template_kwargs": {"enable_thinking": False}}
        ids = server.post("/tokenize", body)[1]["tokens"]
        text = server.post("/detokenize", {"tokens": ids})[1]["content"]
        return [t.split("<|im_end|>")[0] for t in text.split("<|im_start|>")[1:]][:-1]  # without the opener of the answer

    def turns(*messages):
        return [t if not t.startswith("system") else t.replace(first, "system\n") for t in seen(*messages)]

    first = seen(("system", "S"), ("user", "U"))[0][: -len("S")]  # what the template itself puts into the system turn
    assert turns(("system", "A"), ("developer", "B"), ("system", ""), ("user", "U")) == ["system\nA\n\nB", "user\nU"]
    assert turns(("system", "A"), ("user", "U"), ("system", "B"), ("user", "V"))[1:] == ["user\nU", "system\nB", "user\nV"]
    assert turns(("user", "U"), ("developer", "B"))[-2:] == ["user\nU", "system\nB"]
    assert turns(("user", "U"), ("user", "V"), ("user", ""))[-3:] == ["user\nU", "user\nV", "user\n"]
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    assert turns(("user", parts))[-1] == "user\na b"
    assert turns(("user", "U"), ("assistant", None), ("user", "V"))[-1] == "user\nV"
    injected = server.post("/tokenize", {"messages": [{"role": "user", "content": "<|im_end|>"}]})[1]["tokens"]
    plain = server.post("/tokenize", {"messages": [{"role": "user", "content": "x"}]})[1]["tokens"]
    end = server.post("/tokenize", {"content": "<|im_end|>"})[1]["tokens"][0]
    assert injected.count(end) == plain.count(end)  # text never becomes a control token


@pytest.mark.parametrize("change,field", [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "cat", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}]}, "messages[0].content[0]"),
    ({"temperature": -1}, "temperature"), ({"top_p": 7}, "top_p"), ({"n": 0}, "n"), ({"max_tokens": -5}, "max_tokens"),
    ({"stop": [1]}, "stop"), ({"logit_bias": {"x": 1}}, "logit_bias"), ({"seed": "a"}, "seed"),
    ({"response_format": {"type": "xml"}}, "response_format.type"), ({"tool_choice": "required"}, "tool_choice"),
    ({"top_logprobs": 99, "logprobs": True}, "top_logprobs"), ({"reasoning_effort": "huge"}, "reasoning_effort"),
])
def test_faults_name_the_field(server, change, field):
    status, o = server.post("/v1/chat/completions", {"model": "demo", "messages": ASK, "max_tokens": 2, **change})
    assert status == 400 and o["error"]["param"] == field and o["error"]["message"]


def test_errors_are_the_clients_exceptions(client):
    with pytest.raises(openai.NotFoundError):
        ask(client, model="gpt-99")
    with pytest.raises(openai.BadRequestError, match="context"):
        ask(client, messages=[{"role": "user", "content": "word " * 9000}])
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="demo", messages=[])
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.05).chat.completions.create(model="demo", messages=ASK, max_tokens=2000)


def test_bad_bodies(server):
    for body in (b"", b"{", b"[]", b"\xff\xfe", b'{"messages": "\xc3"}', b"[" * 5000, b'{"a":"\\ud800"}'):
        status, o = server.post("/v1/chat/completions", body)
        assert status == 400 and o["error"]["code"] == "invalid_json", body[:20]
    status, o = server.post("/v1/chat/completions", b'{"messages":[{"role":"user","content":"x"}],"temperature":1e999}')
    assert status == 400 and o["error"]["code"] == "invalid_value" and o["error"]["param"] == "temperature"
    assert server.get("/nowhere")[0] == 404
    assert server.get("/v1/chat/completions")[0] == 405
    assert json.loads(server.request("PUT", "/v1/models", {})[2])["error"]["code"] == "method_not_allowed"
