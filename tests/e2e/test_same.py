"""stream == non-stream for the same seed over generated requests; one finish reason; nothing of a stop string leaks.
40 requests here, 300 with LK_LONG=1."""

import concurrent.futures
import json
import os
import random

from server import sse

WORDS = ["tree", "lighthouse", "河流", "sort a list", "écrire", "🙂", "SELECT 1", "def f(x):", "the meaning of", "秋天"]


def generate(r):
    body = {"messages": [{"role": "user", "content": " ".join(r.choices(WORDS, k=r.randint(1, 6)))}], "seed": r.randrange(1 << 40),
            "temperature": r.choice([0, 0.7, 1, 1.6]), "max_tokens": r.choice([1, 2, 7, 16, 40]), "enable_thinking": r.random() < 0.4}
    if r.random() < 0.3:
        body["messages"].insert(0, {"role": "system", "content": r.choice(WORDS)})
    if r.random() < 0.4:
        body["stop"] = r.sample([".", "e", " the", "\n", "。", "an", "ing "], k=r.randint(1, 3))
    for k, v in (("top_k", 5), ("top_p", 0.8), ("min_p", 0.05), ("presence_penalty", 1.1), ("frequency_penalty", 0.5), ("n", 2)):
        if r.random() < 0.2:
            body[k] = v
    return body


def one(server, body):
    status, whole = server.post("/v1/chat/completions", body)
    assert status == 200, whole
    raw = server.request("POST", "/v1/chat/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})[2]
    events = [json.loads(d) for _, d in sse(raw) if d != "[DONE]"]
    assert sse(raw)[-1][1] == "[DONE]" and raw.count(b"[DONE]") == 1
    n = body.get("n", 1)
    content, think, finish, usage = [""] * n, [""] * n, [[] for _ in range(n)], None
    for e in events:
        usage = e.get("usage") or usage
        for c in e["choices"]:
            content[c["index"]] += c["delta"].get("content") or ""
            think[c["index"]] += c["delta"].get("reasoning_content") or ""
            if c["finish_reason"]:
                finish[c["index"]].append(c["finish_reason"])
    for c in whole["choices"]:
        m, i = c["message"], c["index"]
        assert content[i] == (m["content"] or "") and think[i] == m.get("reasoning_content", ""), body
        assert finish[i] == [c["finish_reason"]], body
        for s in body.get("stop", []):
            assert s not in content[i], (s, content[i])
    assert usage["completion_tokens"] == whole["usage"]["completion_tokens"]
    if n == 1 and usage["completion_tokens"] == body["max_tokens"] and "stop" not in body:
        assert finish[0][0] in ("length", "stop")
    return 1


def test_stream_is_non_stream(server):
    r = random.Random(11)
    bodies = [generate(r) for _ in range(300 if os.environ.get("LK_LONG") == "1" else 40)]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(lambda b: one(server, b), bodies)) == len(bodies)


def test_length_whenever_cut(server):
    for n in (1, 3, 9):
        o = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell a long story."}], "max_tokens": n, "seed": n})[1]
        if o["usage"]["completion_tokens"] == n:
            assert o["choices"][0]["finish_reason"] == "length"
