"""Clients that leave, engines that die, queues that are full, numbers that cannot be: the front lives, the next request works.
LK_LONG=1 runs more of each."""

import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import threading
import time

import pytest

from server import Server, sse

LONG = os.environ.get("LK_LONG") == "1"
LONG_ASK = {"messages": [{"role": "user", "content": "Tell a long story."}], "max_tokens": 3000, "logit_bias": {}}


@pytest.fixture(scope="module")
def own():
    s = Server("--ctx", "8192", "--parallel", "2", "--queue", "3", "--keepalive", "1")
    yield s
    assert s.stop() == 0


def endless(server):
    """a body that cannot end before its limit: the tokens that end an answer are forbidden"""
    ids = [server.post("/tokenize", {"content": t})[1]["tokens"][0] for t in ("<|im_end|>", "<|endoftext|>")]
    return {**LONG_ASK, "logit_bias": {str(i): -100 for i in ids}}


def works(server):
    status, o = server.post("/v1/completions", {"prompt": "The", "max_tokens": 2, "temperature": 0})
    assert status == 200 and o["choices"][0]["finish_reason"] in ("stop", "length"), o


def raw(server, body, path="/v1/chat/completions"):
    data = json.dumps(body).encode()
    s = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    s.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    return s


def wait_state(server, state, seconds=60):
    end = time.time() + seconds
    while time.time() < end:
        if any(r["state"] == state for r in server.get("/slots")[1]["requests"]):
            return
        time.sleep(0.01)
    raise AssertionError(f"no request got to {state}")


# ---- clients that leave ----

@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("state", ["prefill", "decode"])
def test_client_leaves(own, stream, state):
    body = {**endless(own), "stream": stream}
    if state == "prefill":
        body["messages"] = [{"role": "user", "content": f"{time.time()} " + "many words of a long prompt " * 900}]
    s = raw(own, body)
    wait_state(own, state)
    s.close()
    took = own.wait_idle()
    assert took < 30  # one chunk or step on a busy machine, not the thousands of tokens asked for
    works(own)


def test_client_leaves_the_queue_and_others_go_on(own):
    keep = raw(own, {**endless(own), "max_tokens": 200, "stream": True})
    busy = raw(own, endless(own))
    wait_state(own, "decode")
    queued = raw(own, endless(own))
    wait_state(own, "waiting")
    queued.close()
    busy.close()
    got = b""
    while b"[DONE]" not in got:
        part = keep.recv(65536)
        assert part, "the stream of the client that stayed was cut"
        got += part
    keep.close()
    assert b'"finish_reason":"length"' in got
    own.wait_idle()


def test_pipelined_bytes_while_working_do_no_harm(own):
    s = raw(own, {**endless(own), "max_tokens": 5})
    s.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
    got = b""
    while b'"version"' not in got:
        part = s.recv(65536)
        assert part
        got += part
    assert got.count(b"HTTP/1.1 200") == 2
    s.close()


def test_queue_is_full(own):
    body = endless(own)
    open_ = [raw(own, body) for _ in range(5)]
    end = time.time() + 60
    while len(own.get("/slots")[1]["requests"]) < 5 and time.time() < end:
        time.sleep(0.01)
    status, head, out = own.request("POST", "/v1/chat/completions", body)
    assert status == 429 and int(head["Retry-After"]) >= 1 and json.loads(out)["error"]["code"] == "server_overloaded"
    for s in open_:
        s.close()
    own.wait_idle()
    works(own)


def test_slow_reader_is_cut_off(own):
    """A client that never reads costs its own stream only. Many choices and logprobs make the stream wide."""
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    s.connect(("127.0.0.1", own.port))
    data = json.dumps({**endless(own), "max_tokens": 7000, "stream": True, "logprobs": True, "top_logprobs": 20}).encode()
    s.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    wait_state(own, "decode")
    works(own)  # the other lane
    own.wait_idle(120 if not LONG else 400) if LONG else s.close()
    own.wait_idle()
    s.close()


def test_keepalive_comments(own):
    body = {**endless(own), "max_tokens": 3, "stream": True}
    body["messages"] = [{"role": "user", "content": f"{time.time()} " + "many words of a long prompt " * 900}]
    raw_bytes = own.request("POST", "/v1/chat/completions", body)[2]
    assert sse(raw_bytes)[-1][1] == "[DONE]"
    if b": keep-alive" not in raw_bytes:
        pytest.skip("the prompt was read faster than the shortest silence that gets a comment")


# ---- engines that die ----

@pytest.mark.parametrize("state", ["decode", "prefill", "idle"])
@pytest.mark.parametrize("sig", [signal.SIGKILL] + ([signal.SIGSTOP] if LONG else []))
def test_engine_dies(own, state, sig):
    s = None
    body = {**endless(own), "stream": state == "decode"}
    if state == "prefill":
        body["messages"] = [{"role": "user", "content": f"{time.time()} " + "many words of a long prompt " * 900}]
    if state != "idle":
        s = raw(own, body)
        wait_state(own, state)
    pid, before = own.engine_pid(), own.get("/health")[1]["restarts"]
    os.kill(pid, sig)
    if s:
        got = b""
        while b"engine_died" not in got:
            part = s.recv(65536)
            assert part, "closed without a reason: " + got[-300:].decode()
            got += part
        assert (b"HTTP/1.1 503" in got) == (state != "decode")
        s.close()
    end = time.time() + 30
    while own.request("GET", "/health")[0] == 200 and own.get("/health")[1]["restarts"] == before and time.time() < end:
        time.sleep(0.02)
    own.wait_ready()
    assert own.get("/health")[1]["restarts"] == before + 1 and own.engine_pid() != pid
    works(own)


def test_engine_stops_answering():
    s = Server("--ctx", "1024")  # a stopped process beats no more: 10 s
    try:
        pid = s.engine_pid()
        os.kill(pid, signal.SIGSTOP)
        status, o = s.post("/v1/completions", {"prompt": "The", "max_tokens": 2})
        assert status == 503 and o["error"]["code"] == "engine_died"
        s.wait_ready()
        works(s)
        assert not os.path.exists(f"/proc/{pid}")
    finally:
        assert s.stop() == 0


def test_engine_dies_while_loading():
    s = Server("--ctx", "1024", wait=False)
    try:
        status, o = s.get("/health")
        assert status in (200, 503)
        end = time.time() + 20
        while not s.engine_pid() and time.time() < end:
            time.sleep(0.01)
        os.kill(s.engine_pid(), signal.SIGKILL)
        s.wait_ready()
        works(s)
    finally:
        assert s.stop() == 0


def test_bad_model_ends_the_command(tmp_path):
    from server import LAOKA

    r = subprocess.run([LAOKA, "serve", "--port", "0", "-m", str(tmp_path)], capture_output=True, timeout=60)
    assert r.returncode == 1 and str(tmp_path).encode() in r.stderr
    r = subprocess.run([LAOKA, "serve", "--port", "1", "--host", "203.0.113.7"], capture_output=True, timeout=60)
    assert r.returncode == 1 and b"cannot listen" in r.stderr


# ---- stopping ----

def test_drain():
    s = Server("--ctx", "4096")
    body = {**endless(s), "max_tokens": 60, "stream": True}
    c = raw(s, body)
    wait_state(s, "decode")
    s.proc.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", s.port), timeout=5)
    got = b""
    while True:
        part = c.recv(65536)
        if not part:
            break
        got += part
    assert b"[DONE]" in got and s.proc.wait(30) == 0


# ---- numbers and sizes ----

NUMBERS = ["1e999", "-1e999", "-1", "0", "1e300", "99999999999999999999", "-9223372036854775808", "0.5", "true", '"1"', "[]", "{}", "null"]
FIELDS = {
    "/v1/chat/completions": ["temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed",
                             "max_tokens", "max_completion_tokens", "n", "top_logprobs", "thinking_budget", "logit_bias", "stop", "stream",
                             "messages", "tools", "tool_choice", "response_format", "stream_options", "reasoning_effort", "model",
                             "chat_template_kwargs", "enable_thinking", "logprobs"],
    "/v1/completions": ["prompt", "max_tokens", "n", "best_of", "logprobs", "echo", "temperature", "suffix"],
    "/v1/responses": ["input", "max_output_tokens", "temperature", "previous_response_id", "store", "metadata", "reasoning", "text",
                      "truncation", "background", "instructions"],
    "/v1/messages": ["max_tokens", "messages", "system", "stop_sequences", "thinking", "tool_choice", "tools", "output_config", "top_k", "model"],
    "/v1/messages/count_tokens": ["messages", "system", "tools"],
    "/tokenize": ["content", "messages", "with_pieces"],
    "/detokenize": ["tokens"],
}
BASE = {"/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
        "/v1/completions": {"prompt": "x", "max_tokens": 1}, "/v1/responses": {"input": "x", "max_output_tokens": 1},
        "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
        "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}]}, "/tokenize": {"content": "x"},
        "/detokenize": {"tokens": [1]}}


@pytest.mark.parametrize("path", list(FIELDS))
def test_numbers_out_of_range(server, path):
    conn = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    for field in FIELDS[path]:
        for number in NUMBERS:
            if number == "null" and field.startswith("max_"):
                continue  # no limit: an answer to the end of the context
            rest = {k: v for k, v in BASE[path].items() if k != field}
            body = "{" + f'"{field}": {number}' + "".join(f", {json.dumps(k)}: {json.dumps(v)}" for k, v in rest.items()) + "}"
            conn.request("POST", path, body)
            r = conn.getresponse()
            out = r.read()
            if r.getheader("Content-Type", "").startswith("text/event-stream"):
                assert sse(out)
                continue
            o = json.loads(out)
            assert r.status in (200, 400, 404), (field, number, out)
            if r.status == 400:
                assert o["error"]["message"], (field, number)
                if path.startswith("/v1/chat") and o["error"]["code"] == "invalid_value":
                    assert o["error"]["param"].split(".")[0].split("[")[0] == field, (field, number, o)
    conn.close()


@pytest.mark.parametrize("symbol", ["a", " ", "\n", "🙂", "\u0301", "{", "<", "0"])
def test_many_of_one_symbol(server, symbol):
    t = time.time()
    status, o = server.post("/tokenize", {"content": symbol * 50000})
    assert status == 200 and o["count"] > 0
    status, o = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": symbol * 50000}], "max_tokens": 1})
    assert status in (200, 400), o
    assert time.time() - t < 60


def test_large_and_deep_bodies(server):
    status, o = server.post("/v1/chat/completions", b'{"messages":' + b"[" * 3000 + b"]" * 3000 + b"}")
    assert status == 400
    deep = '{"a":' * 1500 + "1" + "}" * 1500
    status, o = server.post("/v1/chat/completions", f'{{"messages":[{{"role":"user","content":"x"}}],"max_tokens":1,"tools":[{{"type":"function",'
                            f'"function":{{"name":"f","parameters":{deep}}}}}]}}'.encode())
    assert status in (200, 400)
    s = Server("--ctx", "1024", "--max-body", "1")
    try:
        try:
            assert s.request("POST", "/tokenize", b'{"content":"' + b"a" * (3 << 20) + b'"}')[0] == 413
        except OSError:
            pass  # cut while sending
        works(s)
    finally:
        assert s.stop() == 0


# ---- load ----

def test_many_clients():
    seconds = 600 if LONG else 20
    s = Server("--ctx", "4096", "--parallel", "4", "--queue", "40")
    try:
        stop, bad, done, refused = time.time() + seconds, [], [0], [0]

        def rss():
            fields = open(f"/proc/{s.proc.pid}/status").read()
            return int(fields.split("VmRSS:")[1].split()[0]), len(os.listdir(f"/proc/{s.proc.pid}/fd"))

        def user(i):
            k = 0
            while time.time() < stop:
                k += 1
                body = {"messages": [{"role": "user", "content": f"User {i} asks {k % 5}."}], "max_tokens": 4 + (i + k) % 9, "stream": (i + k) % 2 == 0}
                try:
                    status, _, out = s.request("POST", "/v1/chat/completions", body, timeout=300)
                except OSError as e:
                    bad.append(repr(e))
                    return
                if status == 429:
                    refused[0] += 1
                    time.sleep(0.1)
                elif status != 200 or (body["stream"] and b"[DONE]" not in out):
                    bad.append((status, out[-200:]))
                else:
                    done[0] += 1

        def wave(n):
            threads = [threading.Thread(target=user, args=(i,)) for i in range(n)]
            [t.start() for t in threads]
            return threads

        threads = wave(64)
        time.sleep(seconds / 2)
        middle = rss()
        [t.join() for t in threads]
        s.wait_idle()
        end = rss()
        print(f"load: {done[0]} answers, {refused[0]} refused, rss {middle[0]} -> {end[0]} KB, descriptors {middle[1]} -> {end[1]}")
        assert not bad and done[0] > 20
        assert end[1] <= middle[1] and end[0] <= middle[0] * 1.1 + 4096
    finally:
        assert s.stop() == 0
