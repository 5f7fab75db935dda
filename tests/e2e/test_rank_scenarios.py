"""What users do to a server of two CPU ranks: twelve scenarios, then follow-ups on a stored prefix, and a soak with clients that leave. After each,
a small request is answered rightly, no work is left, and the logs of both ranks' records are equal line by line.
The soak: 30 requests two at a time here, LK_LONG=1: 300."""

import concurrent.futures
import http.client
import json
import os
import random
import socket
import struct
import time
import zlib

import pytest

from server import Server, sse

LONG = bool(os.environ.get("LK_LONG"))
OFF = {"chat_template_kwargs": {"enable_thinking": False}}
SMALL = {"messages": [{"role": "user", "content": 'What does "river" mean?'}], "temperature": 0, "max_tokens": 12, **OFF}
STORY = {"messages": [{"role": "user", "content": "Tell a long story."}], "temperature": 0.7, "top_p": 0.8, "top_k": 20, "max_tokens": 200, **OFF}


@pytest.fixture(scope="module")
def truth():
    s = Server("--ctx", "4096")
    status, o = s.post("/v1/chat/completions", SMALL)
    assert status == 200
    assert s.stop() == 0
    return o["choices"][0]["message"]["content"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory, truth):
    where = tmp_path_factory.mktemp("ranks")
    s = Server("--ctx", "4096", "--devices", "cpu,cpu", "--threads", "1", "--parallel", "2", "--chunk", "128", "--rank-log", str(where))
    s.logs = [where / "rank-0.log", where / "rank-1.log"]
    s.seen = 0
    yield s
    assert s.proc.poll() is None, "the front ended: " + s.stderr()
    assert s.get("/health")[1]["restarts"] == 0, s.stderr()
    assert s.stop() == 0


@pytest.fixture(autouse=True)
def ranks_agree_afterwards(pair, truth):
    yield
    pair.wait_idle(120)
    status, o = pair.post("/v1/chat/completions", SMALL)
    assert status == 200 and o["choices"][0]["message"]["content"] == truth
    pair.wait_idle(60)
    a, b = same_logs(pair)
    assert len(a) > pair.seen, "no step was logged"
    pair.seen = len(a)


def same_logs(pair, seconds=20):
    """a snapshot of a finished request may still be moved while nothing runs: wait until both logs rest"""
    end = time.time() + seconds
    while True:
        a, b = (p.read_text().splitlines() for p in pair.logs)
        if a == b:
            return a, b
        n = min(len(a), len(b))
        for x, y in zip(a[:n - 1], b[:n - 1]):
            assert x == y
        assert time.time() < end, (a[n - 2:], b[n - 2:])
        time.sleep(0.05)


def chat(pair, body):
    status, o = pair.post("/v1/chat/completions", {**SMALL, **body})
    assert status == 200, o
    return o["choices"][0]


def drop(pair, body, events=0, seconds=0.0):
    """leaves after so many stream events, or seconds"""
    c = http.client.HTTPConnection("127.0.0.1", pair.port, timeout=60)
    c.request("POST", "/v1/chat/completions", json.dumps({**body, "stream": events > 0}), {"Content-Type": "application/json"})
    if events:
        r = c.getresponse()
        assert r.status == 200
        while events > 0:
            line = r.readline()
            assert line, "the stream ended before the client left"
            events -= line.startswith(b"data:")
    else:
        time.sleep(seconds)
    c.sock.shutdown(socket.SHUT_RDWR)
    c.close()


def png(side):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(b"".join(b"\0" + bytes((x * y) & 255 for x in range(side * 3)) for y in range(side)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def picture(side):
    import base64

    url = "data:image/png;base64," + base64.b64encode(png(side)).decode()
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]}],
            "max_tokens": 16}


def words(n):
    return " ".join(f"word{i}" for i in range(n))


def test_01_basic(pair, truth):
    assert chat(pair, {})["message"]["content"] == truth


def test_02_stream(pair, truth):
    raw = pair.request("POST", "/v1/chat/completions", {**SMALL, "stream": True})[2]
    assert "".join(c["delta"].get("content") or "" for _, d in sse(raw) if d != "[DONE]" for c in json.loads(d)["choices"]) == truth


def test_03_no_seed(pair):
    assert chat(pair, {"temperature": 1.0, "max_tokens": 24})["finish_reason"] in ("stop", "length")


def test_04_stream_dropped_after_30_events(pair):
    ids = [pair.post("/tokenize", {"content": t})[1]["tokens"][0] for t in ("<|im_end|>", "<|endoftext|>")]
    drop(pair, {**STORY, "max_tokens": 1000, "logit_bias": {str(i): -100 for i in ids}}, events=30)


def test_05_dropped_during_prefill(pair):
    drop(pair, {**STORY, "messages": [{"role": "user", "content": words(700)}]}, seconds=0.3)


def test_06_client_timeout(pair):
    with pytest.raises(OSError):
        pair.request("POST", "/v1/chat/completions", {**STORY, "messages": [{"role": "user", "content": "中" * 900}], "max_tokens": 1000}, timeout=0.8)


def test_07_five_tokens(pair):
    c = chat(pair, {"messages": STORY["messages"], "max_tokens": 5})
    assert c["finish_reason"] in ("length", "stop")


def test_08_stop_string(pair):
    c = chat(pair, {"messages": STORY["messages"], "max_tokens": 100, "stop": ["\n"]})
    assert "\n" not in c["message"]["content"]


@pytest.mark.parametrize("side", [64, 256])
def test_09_10_pictures(pair, side):
    """this model build reads none: a clear refusal, streamed or not, and nobody's step is disturbed"""
    body = picture(side)
    keep = concurrent.futures.ThreadPoolExecutor(1).submit(chat, pair, {"max_tokens": 40})
    for stream in (False, True):
        status, o = pair.post("/v1/chat/completions", {**body, "stream": stream})
        assert status == 400 and o["error"]["code"] == "modality_not_supported", o
    assert keep.result(120)["finish_reason"]


def test_11_anthropic_messages(pair):
    status, o = pair.post("/v1/messages", {"model": "demo", "max_tokens": 16, "temperature": 0, "messages": [{"role": "user", "content": "hello"}]})
    assert status == 200 and o["type"] == "message" and o["stop_reason"] in ("end_turn", "max_tokens"), o


def test_12_responses(pair):
    status, o = pair.post("/v1/responses", {"model": "demo", "max_output_tokens": 16, "temperature": 0, "input": "hello"})
    assert status == 200 and o["object"] == "response", o


def test_13_follow_up_on_a_stored_prefix(pair):
    turn = [{"role": "user", "content": words(500)}]
    first = chat(pair, {"messages": turn, "max_tokens": 8})
    turn += [{"role": "assistant", "content": first["message"]["content"]}, {"role": "user", "content": "and then?"}]
    status, o = pair.post("/v1/chat/completions", {**SMALL, "messages": turn, "max_tokens": 8})
    assert status == 200 and o["usage"]["prompt_tokens_details"]["cached_tokens"] > 500, o["usage"]


def mixed(r):
    """a request of any kind, and how it ends: None to the end, else events or seconds until the client leaves"""
    body = {"messages": [{"role": "user", "content": r.choice(["hello", "Tell a long story.", words(r.randint(5, 300)), "写一首诗", "def f(x):"])}],
            "temperature": r.choice([0, 0.7, 1]), "max_tokens": r.choice([1, 4, 16, 60]), "seed": r.randrange(1 << 40),
            "chat_template_kwargs": {"enable_thinking": r.random() < 0.3}}
    if r.random() < 0.2:
        body["stop"] = [r.choice(["\n", "e", "."])]
    for k, v in (("top_k", 5), ("top_p", 0.8), ("presence_penalty", 1.5), ("n", 2)):
        if r.random() < 0.2:
            body[k] = v
    leave = r.random()
    return body, ("events", 1) if leave < 0.1 else ("seconds", r.random()) if leave < 0.2 else None


def one(pair, job):
    body, leave = job
    if leave is None:
        status, o = pair.post("/v1/chat/completions", body, timeout=300)
        assert status == 200, o
    elif leave[0] == "events":
        drop(pair, {**body, "max_tokens": 200, "stop": None}, events=1)
    else:
        drop(pair, body, seconds=leave[1])
    return 1


def test_soak_two_at_a_time_with_drops(pair):
    r = random.Random(int(os.environ.get("LK_SEED", "7")))
    jobs = [mixed(r) for _ in range(300 if LONG else 30)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        done = sum(pool.map(lambda j: one(pair, j), jobs))
    assert done == len(jobs)
    pair.wait_idle(120)
    a, _ = same_logs(pair)
    print(f"\nsoak: {done} requests, {sum(j[1] is not None for j in jobs)} left early, {len(a)} steps, 0 disagreements")
    assert pair.get("/health")[1]["restarts"] == 0
