#!/usr/bin/env python3
"""What `laoka serve` adds to the engine, as a client on this machine sees it: the time from the first byte sent to the last chunk,
less what the engine itself reports for queue, prompt and tokens. That holds parsing, rendering and tokenizing, both ways over
the wire, and the events of every token. The sum is all there is to see: the engine hands a first token over at the end of
its turn, so a part before it cannot be told apart. It must stay under 2 ms + 0.2 ms a token.
usage: bench/serve_latency.py [build/laoka] [repeats]"""

import json
import pathlib
import socket
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import server as e2e  # noqa: E402

if len(sys.argv) > 1:
    e2e.LAOKA = sys.argv[1]
REPEATS = int(sys.argv[2]) if len(sys.argv) > 2 else 50


def once(s, i):
    body = json.dumps({"messages": [{"role": "user", "content": f'{i}: what does "lighthouse" mean?'}], "max_tokens": 48, "stream": True,
                       "temperature": 0, "enable_thinking": False, "stream_options": {"include_usage": True}}).encode()
    c = socket.create_connection(("127.0.0.1", s.port))
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    t0 = time.perf_counter()
    c.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    got, last = b"", None
    while True:
        part = c.recv(65536)
        if not part:
            break
        got += part
        if last is None and b'"usage":{' in got:
            last = time.perf_counter()
    c.close()
    line = [x for x in got.decode().split("\n") if x.startswith("data: ") and '"timings"' in x][-1]
    t = json.loads(line[6:])["timings"]
    return (last - t0) * 1e3 - t["queue_ms"] - t["prompt_ms"] - t["predicted_ms"], t["predicted_n"]


s = e2e.Server("--ctx", "4096")
try:
    rows = [once(s, i) for i in range(REPEATS + 3)][3:]
finally:
    s.stop()
v = sorted(r[0] for r in rows)
n = statistics.mean(r[1] for r in rows)
print(f"added to an answer of {n:.0f} tokens: median {statistics.median(v):.2f} ms, 95 % {v[int(len(v) * 0.95)]:.2f} ms, "
      f"bound {2 + 0.2 * n:.1f} ms ({REPEATS} answers)")
