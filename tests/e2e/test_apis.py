"""The other APIs through the official clients: completions, responses, Anthropic messages, tools, and the small ones."""

import json

import anthropic
import openai
import pytest

from server import Server, sse

COLD = {"temperature": 0}
ASK = 'What does "lighthouse" mean?'
TOOLS = [{"type": "function", "function": {"name": "find_word", "description": "Look a word up.", "parameters": {
    "type": "object", "properties": {"word": {"type": "string"}, "limit": {"type": "integer"}}, "required": ["word"]}}},
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]


# ---- /v1/completions ----

def test_completion(client):
    kw = {"model": "demo", "prompt": "def add(a, b):\n", "max_tokens": 12, "temperature": 0}
    r = client.completions.create(**kw)
    assert r.object == "text_completion" and r.choices[0].text and r.choices[0].finish_reason in ("stop", "length")
    assert "".join(c.choices[0].text for c in client.completions.create(stream=True, **kw)) == r.choices[0].text
    echo = client.completions.create(echo=True, **kw)
    assert echo.choices[0].text == kw["prompt"] + r.choices[0].text


def test_completion_of_token_ids(client, server):
    ids = server.post("/tokenize", {"content": "def add(a, b):\n"})[1]["tokens"]
    kw = {"model": "demo", "max_tokens": 8, "temperature": 0}
    a, b = (client.completions.create(prompt=p, **kw) for p in (ids, "def add(a, b):\n"))
    assert a.choices[0].text == b.choices[0].text and a.usage.prompt_tokens == len(ids)


def test_completion_logprobs(client):
    r = client.completions.create(model="demo", prompt="The", max_tokens=5, temperature=0, logprobs=2)
    lp = r.choices[0].logprobs
    assert "".join(lp.tokens) == r.choices[0].text and len(lp.token_logprobs) == len(lp.tokens) == len(lp.text_offset)
    assert all(len(t) == 2 for t in lp.top_logprobs)


def test_completion_of_several_prompts(client):
    prompts = ["def add(a, b):\n", "The river", "1, 2, 3,"]
    kw = {"model": "demo", "max_tokens": 8, "temperature": 1, "seed": 7}
    alone = [client.completions.create(prompt=p, n=2, **kw) for p in prompts]
    r = client.completions.create(prompt=prompts, n=2, **kw)
    assert [c.index for c in r.choices] == list(range(6))
    assert [c.text for c in r.choices] == [c.text for a in alone for c in a.choices]  # prompt by prompt, with each one's own draws
    assert r.usage.prompt_tokens == sum(a.usage.prompt_tokens for a in alone)
    assert r.usage.completion_tokens == sum(a.usage.completion_tokens for a in alone)
    texts = [""] * 6
    for c in client.completions.create(prompt=prompts, n=2, stream=True, **kw):
        for x in c.choices:
            texts[x.index] += x.text
    assert texts == [c.text for c in r.choices]
    echo = client.completions.create(prompt=prompts, echo=True, **kw)
    assert [c.text[:len(p)] for c, p in zip(echo.choices, prompts)] == prompts
    ids = client.completions.create(prompt=[[100, 101], [102]], **kw)
    assert len(ids.choices) == 2 and ids.usage.prompt_tokens == 3
    for bad in (["a"] * 17, ["a", 5], [[1], "a", {}], [], [[]], ["a", ""]):
        with pytest.raises(openai.BadRequestError) as e:
            client.completions.create(prompt=bad, **kw)
        assert e.value.param == "prompt", bad


# ---- /v1/responses ----

def test_response_logprobs(client):
    kw = {"model": "demo", "input": ASK, "max_output_tokens": 24, "temperature": 0, "reasoning": {"effort": "none"}}
    part = client.responses.create(top_logprobs=3, include=["message.output_text.logprobs"], **kw).output[0].content[0]
    assert "".join(bytes(t.bytes).decode() for t in part.logprobs) == part.text
    assert all(t.logprob <= 0 and len(t.top_logprobs) == 3 for t in part.logprobs)
    chat = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": ASK}], max_tokens=24, temperature=0, logprobs=True,
                                          top_logprobs=3, extra_body={"enable_thinking": False}).choices[0]
    assert [(t.token, t.logprob) for t in chat.logprobs.content] == [(t.token, t.logprob) for t in part.logprobs]
    told = []
    for ev in client.responses.create(stream=True, top_logprobs=3, **kw):
        if ev.type == "response.output_text.delta":
            told += [t.token for t in ev.logprobs]
        if ev.type == "response.output_text.done":
            assert [t.token for t in ev.logprobs] == told
    assert told == [t.token for t in part.logprobs]
    only = client.responses.create(include=["message.output_text.logprobs"], **kw).output[0].content[0]
    assert [t.logprob for t in only.logprobs] == [t.logprob for t in part.logprobs] and not only.logprobs[0].top_logprobs
    assert not client.responses.create(**kw).output[0].content[0].logprobs


def test_response_logprobs_leave_thinking_out(client):
    r = client.responses.create(model="demo", input=ASK, max_output_tokens=96, temperature=0, top_logprobs=1)
    part = r.output[-1].content[0]
    assert r.output[0].type == "reasoning" and part.text.strip()
    assert "".join(bytes(t.bytes).decode() for t in part.logprobs).strip() == part.text.strip()



def test_response(client):
    r = client.responses.create(model="demo", input=ASK, max_output_tokens=64, temperature=0)
    kinds = [o.type for o in r.output]
    assert kinds == ["reasoning", "message"] and r.status in ("completed", "incomplete")
    assert r.output_text and r.usage.output_tokens_details.reasoning_tokens > 0
    assert client.responses.retrieve(r.id).output_text == r.output_text
    listed = client.responses.input_items.list(r.id)
    assert listed.data[0].content[0].text == ASK


def test_response_stream(client):
    kw = {"model": "demo", "input": ASK, "max_output_tokens": 64, "temperature": 0}
    whole = client.responses.create(**kw)
    seen, text, seq, final = [], "", [], None
    for ev in client.responses.create(stream=True, **kw):
        seen.append(ev.type)
        seq.append(ev.sequence_number)
        if ev.type == "response.output_text.delta":
            text += ev.delta
        if ev.type in ("response.completed", "response.incomplete"):
            final = ev.response
    assert text == whole.output_text == final.output_text
    assert seq == list(range(len(seq)))
    assert seen[:2] == ["response.created", "response.in_progress"] and seen.count("response.output_item.done") == 2
    with client.responses.stream(**kw) as s:  # the client's own accumulator agrees
        s.until_done()
        assert s.get_final_response().output_text == text


def test_response_goes_on_from_the_previous(client):
    kw = {"model": "demo", "max_output_tokens": 8, "temperature": 0, "reasoning": {"effort": "none"}}
    a = client.responses.create(input=ASK, **kw)
    b = client.responses.create(input="And what else?", previous_response_id=a.id, **kw)
    assert b.previous_response_id == a.id and b.usage.input_tokens > a.usage.input_tokens + a.usage.output_tokens
    client.responses.delete(a.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(a.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(input="x", previous_response_id=a.id, **kw)
    c = client.responses.create(input="x", store=False, **kw)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(c.id)


# ---- Anthropic ----

def test_message(claude):
    m = claude.messages.create(model="claude-x", max_tokens=64, messages=[{"role": "user", "content": ASK}], extra_body=COLD,
                               thinking={"type": "enabled", "budget_tokens": 1024})
    assert [b.type for b in m.content] == ["thinking", "text"] and m.model == "claude-x" and m.role == "assistant"
    assert m.stop_reason in ("end_turn", "max_tokens") and m.usage.output_tokens > 0
    with claude.messages.stream(model="claude-x", max_tokens=64, messages=[{"role": "user", "content": ASK}], extra_body=COLD,
                                thinking={"type": "enabled", "budget_tokens": 1024}) as s:
        streamed = s.get_final_message()
    assert [b.type for b in streamed.content] == ["thinking", "text"]
    assert streamed.content[1].text == m.content[1].text and streamed.content[0].thinking == m.content[0].thinking
    assert streamed.usage.output_tokens == m.usage.output_tokens and streamed.stop_reason == m.stop_reason


def test_message_stop_sequence_and_prefill(claude):
    kw = {"model": "x", "max_tokens": 40, "extra_body": COLD, "thinking": {"type": "disabled"}}
    ask = [{"role": "user", "content": ASK}]
    whole = claude.messages.create(messages=ask, **kw).content[0].text
    stop = whole[6:9]
    m = claude.messages.create(messages=ask, stop_sequences=[stop], **kw)
    assert m.stop_reason == "stop_sequence" and m.stop_sequence == stop and m.content[0].text == whole[: whole.index(stop)]
    p = claude.messages.create(messages=[*ask, {"role": "assistant", "content": whole[:12]}], **kw)
    assert (whole[:12] + p.content[0].text)[:20] == whole[:20]


def test_count_tokens_is_what_is_used(claude):
    kw = {"model": "x", "system": [{"type": "text", "text": "Be brief."}], "messages": [{"role": "user", "content": ASK}],
          "tools": [{"name": "f", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}}]}
    n = claude.messages.count_tokens(**kw).input_tokens
    m = claude.messages.create(max_tokens=1, **kw)
    assert n == m.usage.input_tokens + (m.usage.cache_read_input_tokens or 0)


def test_message_errors(claude, server):
    with pytest.raises(anthropic.BadRequestError, match="messages"):
        claude.messages.create(model="x", max_tokens=5, messages=[])
    status, o = server.post("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]})
    assert status == 400 and o["type"] == "error" and o["error"]["type"] == "invalid_request_error"


# ---- tools ----

def test_required_tool_is_called(client):
    kw = {"model": "demo", "messages": [{"role": "user", "content": "Find the word tree."}], "tools": TOOLS, "temperature": 0,
          "max_tokens": 60, "extra_body": {"enable_thinking": False}}
    for choice, names in (("required", {"find_word", "add"}), ({"type": "function", "function": {"name": "add"}}, {"add"})):
        r = client.chat.completions.create(tool_choice=choice, **kw)
        calls = r.choices[0].message.tool_calls
        assert calls[0].function.name in names and calls[0].id.startswith("call_")
        assert isinstance(json.loads(calls[0].function.arguments), dict)
        name, args, ids = "", "", set()
        for c in client.chat.completions.create(tool_choice=choice, stream=True, **kw):
            for t in c.choices[0].delta.tool_calls or []:
                if t.index == 0:
                    name += t.function.name or ""
                    args += t.function.arguments or ""
                    ids |= {t.id} if t.id else set()
        assert (name, args) == (calls[0].function.name, calls[0].function.arguments) and len(ids) == 1


def test_required_tool_after_thinking(client):
    r = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "Find the word tree."}], tools=TOOLS,
                                       temperature=0, max_tokens=100, tool_choice="required", extra_body={"thinking_budget": 6})
    assert r.choices[0].message.reasoning_content and r.choices[0].message.tool_calls


def test_tools_in_the_other_apis(claude, client):
    flat = [{"type": "function", "name": "add", "parameters": TOOLS[1]["function"]["parameters"]}]
    r = client.responses.create(model="demo", input="Add.", tools=flat, tool_choice="required", max_output_tokens=60, temperature=0,
                                reasoning={"effort": "none"})
    assert r.output[0].type == "function_call" and r.output[0].name == "add" and isinstance(json.loads(r.output[0].arguments), dict)
    kw = {"model": "x", "max_tokens": 60, "messages": [{"role": "user", "content": "Add."}], "tool_choice": {"type": "any"},
          "tools": [{"name": "add", "input_schema": {"type": "object", "properties": {}}}], "thinking": {"type": "disabled"},
          "extra_body": COLD}
    m = claude.messages.create(**kw)
    assert m.content[0].type == "tool_use" and m.content[0].name == "add" and isinstance(m.content[0].input, dict)
    with claude.messages.stream(**kw) as s:
        assert s.get_final_message().content[0].input == m.content[0].input


def test_replayed_call_is_the_sampled_bytes(client, server):
    """The next turn's prompt begins with the last one's prompt and answer, token for token, so nothing is computed again."""
    messages = [{"role": "user", "content": "Find the word tree."}]
    r = client.chat.completions.create(model="demo", messages=messages, tools=TOOLS, temperature=1.2, seed=3, max_tokens=200,
                                       tool_choice="required", extra_body={"enable_thinking": False})
    m = r.choices[0].message
    if r.choices[0].finish_reason != "tool_calls":
        pytest.skip("the small model did not end its call")
    call = m.tool_calls[0]
    said = {"role": "assistant", "content": m.content, "tool_calls": [t.model_dump() for t in m.tool_calls]}
    kw = {"tools": TOOLS, "chat_template_kwargs": {"enable_thinking": False}}
    back = server.post("/tokenize", {"messages": [*messages, said, {"role": "tool", "tool_call_id": call.id, "content": "oak"}], **kw})[1]
    text = server.post("/detokenize", {"tokens": back["tokens"]})[1]["content"]
    assert f"<function={call.function.name}>" in text
    other = {**said, "tool_calls": [{**call.model_dump(), "function": {"name": "add", "arguments": "{\"z\": 1}"}}]}
    plain = server.post("/tokenize", {"messages": [*messages, other], **kw})[1]["tokens"]
    assert "<parameter=z>\n1\n</parameter>" in server.post("/detokenize", {"tokens": plain})[1]["content"]


@pytest.mark.parametrize("think", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_second_turn_begins_with_every_token_of_the_first(client, think, seed):
    """The state behind an answer is of use to exactly its tokens: a replayed call is the sampled bytes, cut into the sampled tokens,
    though a warm model under a grammar spells them in its own way, and though the client left the thinking out."""
    extra = {"thinking_budget": 12} if think else {"enable_thinking": False}
    tool = {"type": "function", "function": {"name": "plant_trees", "parameters": {"type": "object", "properties": {
        "kind": {"enum": ["an old oak", "a birch", "a spruce in snow"]}, "how_many": {"type": "integer", "minimum": 1, "maximum": 99999},
        "where": {"type": "object", "properties": {"hill": {"type": "boolean"}, "rows": {"enum": [10, 200, 3000]}}, "required": ["hill", "rows"],
                  "additionalProperties": False}}, "required": ["kind", "how_many", "where"]}}}
    kw = {"model": "demo", "tools": [tool], "temperature": 2, "seed": seed, "extra_body": extra}
    messages = [{"role": "user", "content": f"Plant trees, please, the {seed}th time."}]
    a = client.chat.completions.create(messages=messages, max_tokens=300, tool_choice="required", **kw)
    m = a.choices[0].message
    assert a.choices[0].finish_reason == "tool_calls"
    said = {"role": "assistant", "content": m.content, "tool_calls": [
        {"id": t.id, "type": "function", "function": {"name": t.function.name,
         "arguments": json.dumps(json.loads(t.function.arguments), indent=3)}} for t in m.tool_calls]}  # spaced in the client's way
    b = client.chat.completions.create(messages=[*messages, said, {"role": "tool", "tool_call_id": m.tool_calls[0].id, "content": "oak"}],
                                       max_tokens=2, **kw)
    # its last token, <|im_end|>, is sampled and not computed
    assert b.usage.prompt_tokens_details.cached_tokens >= a.usage.prompt_tokens + a.usage.completion_tokens - 1
    changed = {**said, "tool_calls": [{**said["tool_calls"][0], "function": {"name": "plant_trees", "arguments": '{"kind": "a birch"}'}}]}
    c = client.chat.completions.create(messages=[*messages, changed], max_tokens=2, **kw)
    assert c.usage.prompt_tokens_details.cached_tokens < a.usage.prompt_tokens + a.usage.completion_tokens - 1


# ---- the small ones ----

def test_models(client):
    assert [m.id for m in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").owned_by == "laoka"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_tokenize_and_back(server):
    for text in ("Hello, world", "老卡 runs", "a\nb  c", "<|im_end|> 🙂"):
        o = server.post("/tokenize", {"content": text, "with_pieces": True})[1]
        ids = [t["id"] for t in o["tokens"]]
        assert o["count"] == len(ids)
        assert server.post("/detokenize", {"tokens": ids})[1]["content"] == text
    assert server.post("/detokenize", {"tokens": [-1]})[0] == 400 and server.post("/detokenize", {"tokens": [10**9]})[0] == 400


def test_metrics_count(server):
    def metric(name):
        body = server.request("GET", "/metrics")[2].decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in body.splitlines() if line.split("{")[0].split(" ")[0] == name)

    before = metric("laoka_answers_finished_total"), metric("laoka_completion_tokens_total")
    server.post("/v1/completions", {"prompt": "The", "max_tokens": 3})
    assert metric("laoka_answers_finished_total") == before[0] + 1
    assert 1 <= metric("laoka_completion_tokens_total") - before[1] <= 3
    assert metric("laoka_up") == 1 and metric("laoka_first_token_seconds_count") >= 1


def test_health_version_page(server):
    status, o = server.get("/health")
    assert status == 200 and o["status"] == "ok" and "demo" in o["engine"]
    assert set(server.get("/version")[1]) == {"version", "model"}
    status, head, body = server.request("GET", "/")
    assert status == 200 and head["Content-Type"].startswith("text/html") and b"<script>" in body
    for word in (b"http://", b"https://"):
        assert body.replace(b"http://www.w3.org/2000/svg", b"").count(word) == 0  # nothing is loaded from elsewhere


def test_second_turn_reuses_the_first(client):
    turn = [{"role": "user", "content": "Tell me about rivers. " + "Rivers run to the sea. " * 20}]
    kw = {"model": "demo", "temperature": 0, "max_tokens": 8, "extra_body": {"enable_thinking": False}}
    a = client.chat.completions.create(messages=turn, **kw)
    more = [*turn, {"role": "assistant", "content": a.choices[0].message.content}, {"role": "user", "content": "And lakes?"}]
    b = client.chat.completions.create(messages=more, **kw)
    assert b.usage.prompt_tokens_details.cached_tokens > 0


def test_stream_framing(server):
    raw = server.request("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "写一首关于秋天的诗"}], "max_tokens": 24,
                                                          "stream": True, "seed": 5})[2]
    events = sse(raw)
    assert events[-1][1] == "[DONE]" and all(name is None for name, _ in events)
    finish = [c["finish_reason"] for _, d in events[:-1] for c in json.loads(d)["choices"] if c["finish_reason"]]
    assert len(finish) == 1


# ---- behaviour ----

def test_api_key(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("first\nsecond\n")
    s = Server("--ctx", "1024", "--api-key-file", str(keys), "--cors", "https://example.org")
    try:
        for head in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer firs"}, {"x-api-key": "secondd"}):
            status, h, body = s.request("GET", "/v1/models", headers=head)
            assert status == 401 and json.loads(body)["error"]["code"] == "invalid_api_key" and h["WWW-Authenticate"]
        for head in ({"Authorization": "Bearer first"}, {"x-api-key": "second"}):
            assert s.request("GET", "/v1/models", headers=head)[0] == 200
        assert s.request("GET", "/health")[0] == 200 and s.request("GET", "/")[0] == 200
        status, h, _ = s.request("OPTIONS", "/v1/chat/completions", headers={"Origin": "https://example.org",
                                 "Access-Control-Request-Headers": "authorization"})
        assert status == 204 and h["Access-Control-Allow-Origin"] == "https://example.org"
        assert s.request("OPTIONS", "/v1/models", headers={"Origin": "https://elsewhere.org"})[1]["Access-Control-Allow-Origin"] is None
    finally:
        assert s.stop() == 0
