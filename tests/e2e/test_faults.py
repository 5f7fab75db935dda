"""Clients that leave, engines that die, queues that are full, numbers that cannot be: the front lives, the next request works.
LK_LONG=1 runs more of each."""

import http.client
import json
import os
import resource
import signal
import socket
import struct
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

@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("state", ["waiting", "prefill", "decode"])
def test_client_leaves(own, path, stream, state):
    if not LONG and path != "/v1/chat/completions" and stream == (state == "decode"):
        return  # half of the table for the others: the code below the endpoint is one
    words = f"{time.time()} " + "many words of a long prompt " * (900 if state == "prefill" else 1)
    body = {**endless(own), "stream": stream, "messages": [{"role": "user", "content": words}]}
    if path == "/v1/responses":
        body = {**body, "input": words, "max_output_tokens": 3000}
    if path == "/v1/completions":
        body = {**body, "prompt": words}
    others = [raw(own, endless(own)) for _ in range(2)] if state == "waiting" else []
    if others:
        end = time.time() + 60
        while sum(r["state"] == "decode" for r in own.get("/slots")[1]["requests"]) < 2:
            assert time.time() < end
            time.sleep(0.01)
    s = raw(own, body, path)
    wait_state(own, state)
    s.close()
    end = time.time() + 30  # one chunk or step on a busy machine, not the thousands of tokens asked for
    while len(own.get("/slots")[1]["requests"]) > len(others):
        assert time.time() < end, "the work of a client that left goes on"
        time.sleep(0.01)
    assert sum(r["state"] == "decode" for r in own.get("/slots")[1]["requests"]) == len(others)  # nobody else's was stopped
    [o.close() for o in others]
    assert own.wait_idle() < 30
    works(own)


@pytest.mark.parametrize("stream", [False, True])
def test_client_leaves_several_choices(own, stream):
    words = [f"{time.time()} {i} " + "many words " * 20 for i in range(2)]
    s = raw(own, {**endless(own), "stream": stream, "prompt": words, "n": 2}, "/v1/completions")
    end = time.time() + 60
    while sum(r["state"] == "decode" for r in own.get("/slots")[1]["requests"]) < 2:
        assert time.time() < end
        time.sleep(0.01)
    assert len(own.get("/slots")[1]["requests"]) == 4  # two run, two wait
    s.close()
    assert own.wait_idle() < 30
    works(own)


@pytest.mark.parametrize("sent", [0, 1, 60, 300])
def test_client_leaves_while_it_asks(own, sent):
    body = json.dumps({**endless(own), "messages": [{"role": "user", "content": "x" * 400}]}).encode()
    text = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
    for reset in (0, 1):
        s = socket.create_connection(("127.0.0.1", own.port))
        s.sendall(text[:sent])
        if reset:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
    time.sleep(0.05)
    assert not own.get("/slots")[1]["requests"]
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


def metric(server, name):
    for line in server.request("GET", "/metrics")[2].decode().splitlines():
        if line.split(" ")[0] == name:
            return float(line.split(" ")[1])
    raise AssertionError(name)


def test_slow_reader_is_cut_off(own):
    """A client that never reads is cut off, by what waits for it (4 MB) or by time (20 s without a byte taken), its work ends long
    before its limit, and a client beside it gets its whole stream."""
    body = {**endless(own), "max_tokens": 7500, "stream": True, "logprobs": True, "top_logprobs": 20}
    data = json.dumps(body).encode()
    cut = metric(own, "laoka_slow_readers_cut_total")
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    s.connect(("127.0.0.1", own.port))
    s.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    wait_state(own, "decode")
    said = own.request("POST", "/v1/chat/completions", {**endless(own), "max_tokens": 40, "stream": True})[2]
    assert sse(said)[-1][1] == "[DONE]" and b'"finish_reason":"length"' in said
    own.wait_idle(120)
    assert metric(own, "laoka_slow_readers_cut_total") == cut + 1
    got = 0
    s.settimeout(20)
    try:
        while True:
            part = s.recv(1 << 20)
            got += len(part)
            assert b"[DONE]" not in part
            if not part:
                break
    except ConnectionResetError:
        pass
    s.close()
    assert got < 12 << 20  # what the sockets held, not the whole of it
    works(own)


def test_keepalive_comments(own):
    body = {**endless(own), "max_tokens": 3, "stream": True}
    body["messages"] = [{"role": "user", "content": f"{time.time()} " + "many words of a long prompt " * 900}]
    raw_bytes = own.request("POST", "/v1/chat/completions", body)[2]
    assert sse(raw_bytes)[-1][1] == "[DONE]"
    if b": keep-alive" not in raw_bytes:
        pytest.skip("the prompt was read faster than the shortest silence that gets a comment")


def test_anthropic_pings(own):
    body = {"model": "demo", "max_tokens": 3, "stream": True,
            "messages": [{"role": "user", "content": f"{time.time()} " + "many words of a long prompt " * 900}]}
    names = [n for n, _ in sse(own.request("POST", "/v1/messages", body)[2])]
    assert names[:2] == ["message_start", "ping"] and names[-1] == "message_stop"
    if names.count("ping") == 1:
        pytest.skip("the prompt was read faster than the shortest silence that gets another ping")


# ---- engines that die ----

@pytest.mark.parametrize("state", ["decode", "prefill", "idle"])
@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP])
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


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP])
def test_engine_dies_while_loading(sig):
    for _ in range(20):  # until one was met while it loaded
        s = Server("--ctx", "1024", wait=False)
        try:
            end = time.time() + 20
            while not s.engine_pid() and time.time() < end:
                pass
            pid = s.engine_pid()
            os.kill(pid, sig)
            o = s.get("/health")[1]
            status, _ = s.post("/v1/completions", {"prompt": "The", "max_tokens": 2})
            assert status == 503 or o["status"] == "ok"
            s.wait_ready()
            works(s)
            assert s.engine_pid() != pid and not os.path.exists(f"/proc/{pid}") and s.get("/health")[1]["restarts"] == 1
            if o["status"] != "ok":
                return
        finally:
            assert s.stop() == 0
    raise AssertionError("the engine was always ready before the signal")


def test_bad_model_ends_the_command(tmp_path):
    from server import LAOKA

    r = subprocess.run([LAOKA, "serve", "--port", "0", "-m", str(tmp_path)], capture_output=True, timeout=60)
    assert r.returncode == 1 and str(tmp_path).encode() in r.stderr
    r = subprocess.run([LAOKA, "serve", "--port", "1", "--host", "203.0.113.7"], capture_output=True, timeout=60)
    assert r.returncode == 1 and b"cannot listen" in r.stderr


# ---- a disk that is full ----

def fill(server, n=6):
    """conversations whose states do not fit host memory and go to the disk tier while the engine is idle"""
    for i in range(n):
        status, o = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": f"{i} " + f"word{i} " * 300}], "max_tokens": 2,
                                                         "enable_thinking": False, "temperature": 0})
        assert status == 200, o
    time.sleep(1.5)


def asked_again(server):
    """an answer is the same whether its prefix could be kept or not"""
    body = {"messages": [{"role": "user", "content": "0 " + "word0 " * 300}], "max_tokens": 8, "enable_thinking": False, "temperature": 0}
    a, b = server.post("/v1/chat/completions", body)[1], server.post("/v1/chat/completions", body)[1]
    assert a["choices"] == b["choices"]


def limit_file_size():
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))  # a write past it fails (EFBIG), as on a full disk


@pytest.mark.parametrize("how", ["limit", "tmpfs", "gone"])
def test_disk_of_the_session_store_is_full(tmp_path, how):
    where = tmp_path / "store"
    where.mkdir()
    mounted = how == "tmpfs" and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(where)], capture_output=True).returncode == 0
    if how == "tmpfs" and not mounted:
        pytest.skip("no right to mount a small file system here; the limit on file sizes stands in")
    try:
        s = Server("--ctx", "2048", "--prefix-ram", "0", "--prefix-dir", str(where), "--prefix-disk", "1000000000",
                   preexec_fn=limit_file_size if how == "limit" else None)
        try:
            pid = s.engine_pid()
            if how == "gone":
                where.rmdir()
            fill(s)
            asked_again(s)
            works(s)
            assert s.engine_pid() == pid and s.get("/health")[1]["restarts"] == 0
        finally:
            assert s.stop() == 0
    finally:
        if mounted:
            subprocess.run(["umount", str(where)])


def test_store_that_cannot_be_one_ends_the_command():
    from server import LAOKA

    r = subprocess.run([LAOKA, "serve", "--port", "0", "--prefix-dir", "/dev/full", "--prefix-disk", "1"], capture_output=True, timeout=60)
    assert r.returncode == 1 and b"/dev/full" in r.stderr


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

NUMBERS = ["1e999", "-1e999", "NaN", "-Infinity", "-1", "0", "1e300", "1e-320", "99999999999999999999", "18446744073709551616",
           "-9223372036854775809", "-9223372036854775808", "9223372036854775807", "0.5", "true", '"1"', "[]", "[1e999]", "{}", "null"]
BASE = {"/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
        "/v1/completions": {"prompt": "x", "max_tokens": 1}, "/v1/responses": {"input": "x", "max_output_tokens": 1},
        "/v1/responses/input_tokens": {"input": "x"}, "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
        "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}]}, "/tokenize": {"content": "x"},
        "/detokenize": {"tokens": [1]}}
NO_NUMBERS = ("1e999", "-1e999", "NaN", "-Infinity", "99999999999999999999", "18446744073709551616", "-9223372036854775809", "[1e999]")


def fields(description, path):
    """every field of a request body, and the fields of objects in it, from the description the server gives of itself"""
    schema = description["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]

    def resolve(s):
        while "$ref" in s:
            at = description
            for key in s["$ref"].split("/")[1:]:
                at = at[key]
            s = at
        return s

    top = resolve(schema)["properties"]
    for name, sub in top.items():
        yield (name,)
        for inner in resolve(sub).get("properties", {}):
            yield (name, inner)


@pytest.mark.parametrize("path", list(BASE))
def test_numbers_out_of_range(server, path):
    description = server.get("/openapi.json")[1]
    assert {p for p, m in description["paths"].items() if "post" in m} == set(BASE)
    conn = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    asked = 0
    for field in fields(description, path):
        for number in NUMBERS:
            if number == "null" and field[0].startswith("max_"):
                continue  # no limit: an answer to the end of the context
            value = number if len(field) == 1 else "{" + f'"{field[1]}": {number}' + "}"
            rest = {k: v for k, v in BASE[path].items() if k != field[0]}
            body = "{" + f'"{field[0]}": {value}' + "".join(f", {json.dumps(k)}: {json.dumps(v)}" for k, v in rest.items()) + "}"
            conn.request("POST", path, body)
            r = conn.getresponse()
            out = r.read()
            asked += 1
            if r.getheader("Content-Type", "").startswith("text/event-stream"):
                assert sse(out)
                continue
            o = json.loads(out)
            assert r.status in (200, 400, 404), (field, number, out)
            if r.status == 400:  # the field is named, in param where the protocol has one
                named = o["error"].get("param") or o["error"]["message"]
                assert field[0] in named or field[-1] in named, (field, number, o)
            if number in NO_NUMBERS:
                assert r.status == 400 and ".".join(field) in o["error"]["message"], (field, number, o)
    conn.close()
    works(server)
    print(f"{path}: {asked} requests")


SYMBOLS = {"letter": "a", "space": " ", "line break": "\n", "emoji": "\U0001f642", "CJK": "\u8001", "combining mark": "\u0301", "NUL": "\0",
           "brace": "{", "less": "<", "digit": "0", "joiner": "\u200d"}


@pytest.mark.parametrize("symbol", list(SYMBOLS))
def test_many_of_one_symbol(server, symbol):
    text = SYMBOLS[symbol] * 50000
    t = time.time()
    asks = {"/tokenize": {"content": text}, "/v1/chat/completions": {"messages": [{"role": "user", "content": text}], "max_tokens": 1},
            "/v1/messages": {"messages": [{"role": "user", "content": text}], "max_tokens": 1},
            "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": text}]},
            "/v1/responses": {"input": text, "max_output_tokens": 1}, "/v1/completions": {"prompt": text, "max_tokens": 1}}
    for path, body in asks.items():
        status, o = server.post(path, body)
        if symbol == "NUL":  # no text: the field is named
            assert status == 400 and "u0000" in o["error"]["message"] and "content" in o["error"]["message"] + str(o["error"].get("param")) or path in (
                "/v1/responses", "/v1/completions"), o
        elif status == 400:
            assert "tokens and the context of this server" in o["error"]["message"], (path, o)
        else:
            assert status == 200, (path, o)
            if path == "/tokenize":
                assert server.post("/detokenize", {"tokens": o["tokens"]})[1]["content"] == text
    assert time.time() - t < 120
    works(server)


def test_large_and_deep_bodies(server):
    status, o = server.post("/v1/chat/completions", b'{"messages":' + b"[" * 3000 + b"]" * 3000 + b"}")
    assert status == 400
    deep = '{"a":' * 1500 + "1" + "}" * 1500
    status, o = server.post("/v1/chat/completions", f'{{"messages":[{{"role":"user","content":"x"}}],"max_tokens":1,"tools":[{{"type":"function",'
                            f'"function":{{"name":"f","parameters":{deep}}}}}]}}'.encode())
    assert status in (200, 400)
    s = Server("--ctx", "1024", "--max-body", "1")
    try:
        assert s.request("POST", "/tokenize", b'{"content":"' + b"a" * (3 << 20) + b'"}')[0] == 413
        works(s)
    finally:
        assert s.stop() == 0


# ---- load ----

ENDS = {"/v1/chat/completions": b"data: [DONE]", "/v1/completions": b"data: [DONE]", "/v1/messages": b"event: message_stop",
        "/v1/responses": b"event: response."}


def user_body(i, k):
    """(path, body) of a user's next request: four APIs, short answers, streamed or not"""
    path = list(ENDS)[(i + k) % 4]
    text, n, stream = f"User {i} asks {k % 5}.", 4 + (i + k) % 9, (i + k // 4) % 2 == 0
    if path == "/v1/completions":
        return path, {"prompt": text, "max_tokens": n, "stream": stream}
    if path == "/v1/responses":
        return path, {"input": text, "max_output_tokens": n, "stream": stream}
    return path, {"messages": [{"role": "user", "content": text}], "max_tokens": n, "stream": stream}


def check_stream(path, out):
    """exactly one end, at the end; exactly one finish reason"""
    events = sse(out)
    if path in ("/v1/chat/completions", "/v1/completions"):
        assert events[-1][1] == "[DONE]" and sum(d == "[DONE]" for _, d in events) == 1
        finish = [c["finish_reason"] for _, d in events[:-1] for c in json.loads(d)["choices"] if c["finish_reason"]]
        assert len(finish) == 1
    elif path == "/v1/messages":
        assert events[0][0] == "message_start" and events[-1][0] == "message_stop" and sum(n == "message_delta" for n, _ in events) == 1
    else:
        assert events[0][0] == "response.created" and events[-1][0] in ("response.completed", "response.incomplete")


def sizes(pid):
    fields = open(f"/proc/{pid}/status").read()
    return int(fields.split("VmRSS:")[1].split()[0]), len(os.listdir(f"/proc/{pid}/fd"))


def test_many_clients():
    """64 clients; memory and descriptors of both processes after a third of the time against the end"""
    seconds = 600 if LONG else 60
    s = Server("--ctx", "4096", "--parallel", "4", "--queue", "40")
    try:
        stop, bad, done, refused, samples = time.time() + seconds, [], [0], [0], []

        def user(i):
            k = 0
            while time.time() < stop and not bad:
                k += 1
                path, body = user_body(i, k)
                try:
                    status, head, out = s.request("POST", path, body, timeout=300)
                    if status == 429:
                        assert int(head["Retry-After"]) >= 1
                        refused[0] += 1
                        time.sleep(0.1)
                        continue
                    assert status == 200, (status, out[-200:])
                    if body["stream"]:
                        check_stream(path, out)
                    done[0] += 1
                except Exception as e:
                    bad.append((path, repr(e)))

        threads = [threading.Thread(target=user, args=(i,)) for i in range(64)]
        [t.start() for t in threads]
        pids = s.proc.pid, s.engine_pid()
        while time.time() < stop and not bad:
            samples.append([sizes(p) for p in pids])
            time.sleep(seconds / 60)
        [t.join() for t in threads]
        s.wait_idle()
        third, text = len(samples) // 3, []
        for i, name in enumerate(("front", "engine")):
            before, after = samples[third : 2 * third], samples[2 * third :]
            a, b = (max(x[i][0] for x in part) for part in (before, after))
            c, d = (max(x[i][1] for x in part) for part in (before, after))
            text.append(f"{name} {a} -> {b} KB, {c} -> {d} descriptors")
        print(f"load: 64 clients, {seconds} s: {done[0]} answers, {refused[0]} refused, {len(bad)} errors; {'; '.join(text)}")
        assert not bad, bad[:3]
        assert done[0] >= 64 and s.engine_pid() == pids[1]
        for i in range(2):
            before, after = samples[third : 2 * third], samples[2 * third :]
            assert max(x[i][0] for x in after) <= max(x[i][0] for x in before) * 1.03 + 2048, text
            assert max(x[i][1] for x in after) <= max(x[i][1] for x in before) + 8, text
        idle = sizes(pids[0])
        assert idle[1] <= 40, idle  # every connection was given back
    finally:
        assert s.stop() == 0
