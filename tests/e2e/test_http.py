"""HTTP itself: what a client meets before and beside any endpoint. Every refusal is JSON, whoever finds it."""

import json
import socket

import pytest

from server import Server


def talk(server, data, until=None, timeout=30):
    """raw bytes there, raw bytes back until the server closes (or `until` was seen)"""
    s = socket.create_connection(("127.0.0.1", server.port), timeout=timeout)
    got = b""
    try:
        s.sendall(data)
    except OSError:
        pass  # refused while sending
    try:
        while until is None or until not in got:
            part = s.recv(65536)
            if not part:
                break
            got += part
    except ConnectionResetError:
        pass
    s.close()
    return got


def parse(raw):
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    return int(lines[0].split(" ")[1]), {k.lower(): v for k, v in (x.split(": ", 1) for x in lines[1:])}, body


@pytest.fixture(scope="module")
def small():
    s = Server("--ctx", "1024", "--max-body", "1", "--cors", "*")
    yield s
    assert s.stop() == 0


@pytest.mark.parametrize("request_bytes,status,code", [
    (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n" + b"a" * 3000000, 413, "request_too_large"),
    (b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + (b"10000\r\n" + b"a" * 65536 + b"\r\n") * 40, 413, "request_too_large"),
    (b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 200000 + b"\r\n\r\n", 400, "invalid_request"),
    (b"nonsense\r\n\r\n", 400, "invalid_request"),
    (b"GET / HTTP/1.1\r\nno colon here\r\n\r\n", 400, "invalid_request"),
    (b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", 501, "method_not_allowed"),
    (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nExpect: miracles\r\nContent-Length: 2\r\n\r\n{}", 417, "invalid_request"),
])
def test_refusals_of_the_library_are_json(small, request_bytes, status, code):
    got = talk(small, request_bytes)
    assert got, "closed without a reason"
    st, head, body = parse(got)
    o = json.loads(body)
    assert st == status and head["content-type"] == "application/json" and o["error"]["code"] == code and o["error"]["message"], got
    assert o["type"] == "error" and o["error"]["type"]  # the Anthropic client reads it as well
    assert int(head["content-length"]) == len(body)
    assert small.get("/health")[0] == 200


def test_largest_body_that_is_taken(small):
    body = b'{"content": "' + b"a " * 500000 + b'"}'
    assert small.request("POST", "/tokenize", body)[0] == 200
    status, head, out = small.request("POST", "/tokenize", b'{"content": "' + b"a " * 530000 + b'"}')
    assert status == 413 and json.loads(out)["error"]["code"] == "request_too_large"


def test_head_is_get_without_a_body(small):
    for path in ("/", "/health", "/v1/models", "/openapi.json"):
        status, head, body = small.request("HEAD", path)
        full = small.request("GET", path)
        assert status == full[0] == 200 and not body and int(head["Content-Length"]) == len(full[2])
    # the connection goes on after it
    got = talk(small, b"HEAD /v1/models HTTP/1.1\r\nHost: x\r\n\r\nGET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert got.count(b"HTTP/1.1 200") == 2 and b'"version"' in got


def test_options_and_unknown_methods(small):
    for path, allow in (("/v1/chat/completions", "POST, OPTIONS"), ("/v1/models", "GET, HEAD, OPTIONS"), ("/v1/responses/x", "GET, HEAD, DELETE, OPTIONS")):
        status, head, _ = small.request("OPTIONS", path)
        assert status == 204 and head["Allow"] == allow
        status, head, body = small.request("PATCH", path, {})
        assert status == 405 and head["Allow"] == allow and json.loads(body)["error"]["code"] == "method_not_allowed"
    for path in ("/nowhere", "/v1", "/v1/chat/completions/", "/v1/models/a/b", "/%00", "/..%2f..%2fetc/passwd", "/v1/responses/"):
        status, _, body = small.request("GET", path)
        assert status == 404 and json.loads(body)["error"]["code"] == "not_found", path


def test_preflight_of_a_browser(small):
    ask = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    status, head, _ = small.request("OPTIONS", "/v1/messages", headers=ask)
    assert status == 204 and head["Access-Control-Allow-Origin"] == "*" and "POST" in head["Access-Control-Allow-Methods"]
    assert head["Access-Control-Allow-Headers"] == "authorization,content-type"
    status, head, _ = small.request("POST", "/tokenize", {"content": 1}, headers={"Origin": "https://page.example"})
    assert status == 400 and head["Access-Control-Allow-Origin"] == "*"  # the page can read errors too


def test_request_ids(small):
    seen = set()
    for path in ("/version", "/v1/models", "/nowhere"):
        seen.add(small.request("GET", path)[1]["X-Request-Id"])
    status, head, _ = small.request("POST", "/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "x"}]})
    assert status == 200 and head["Request-Id"] == head["X-Request-Id"] and len(seen) == 3


def test_http_1_0_and_slow_senders(small):
    assert b" 200 OK" in talk(small, b"GET /version HTTP/1.0\r\n\r\n").split(b"\r\n")[0]
    s = socket.create_connection(("127.0.0.1", small.port), timeout=30)
    body = b'{"content":"slow"}'
    for part in (b"POST /tokenize HT", b"TP/1.1\r\nHost: x\r\nContent-", b"Length: %d\r\n\r\n" % len(body), body[:4], body[4:]):
        s.sendall(part)
        assert small.get("/health")[0] == 200  # nobody waits for it
    assert s.recv(65536).startswith(b"HTTP/1.1 200")
    s.close()
