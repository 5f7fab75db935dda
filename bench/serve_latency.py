#!/usr/bin/env python3
"""What `laoka serve` adds to an answer, as a client on this machine sees it.

Against `laoka run --json` of the same prompt, alternating, medians: time to the first token (run: prompt_ms) and time a token
after it (run: predicted_ms a token). Bounds: 2 ms and 0.2 ms. And against the engine's own account of the same request: from the
first byte sent to the last chunk, less queue, prompt and tokens; that part is free of run-to-run noise and must stay under
2 ms + 0.2 ms a token. The machine must be quiet.
usage: bench/serve_latency.py [build/laoka] [repeats 30]"""

import json
import pathlib
import socket
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import server as e2e  # noqa: E402

if len(sys.argv) > 1:
    e2e.LAOKA = sys.argv[1]
REPEATS = int(sys.argv[2]) if len(sys.argv) > 2 else 30
N = 48


def ask(i):
    return f'{i:03d}: what does "lighthouse" mean?'  # a number in front, or the prefix store answers for the prompt


def served(s, i):
    body = json.dumps({"messages": [{"role": "user", "content": ask(i)}], "max_tokens": N, "stream": True, "temperature": 0,
                       "enable_thinking": False, "stream_options": {"include_usage": True}}).encode()
    c = socket.create_connection(("127.0.0.1", s.port))
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    t0 = time.perf_counter()
    c.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    got, first, last = b"", None, None
    while True:
        part = c.recv(65536)
        if not part:
            break
        got += part
        now = time.perf_counter()
        if first is None and b'"content":"' in got.replace(b'"content":""', b""):
            first = now
        if last is None and b'"usage":{' in got:
            last = now
    c.close()
    line = [x for x in got.decode().split("\n") if x.startswith("data: ") and '"timings"' in x][-1]
    t = json.loads(line[6:])["timings"]
    n = t["predicted_n"]
    return {"first": (first - t0) * 1e3, "token": (last - first) * 1e3 / n, "n": n,
            "own": (last - t0) * 1e3 - t["queue_ms"] - t["prompt_ms"] - t["predicted_ms"]}


def ran(i):
    r = subprocess.run([e2e.LAOKA, "run", "-p", ask(i), "--think", "off", "--temp", "0", "--max-tokens", str(N), "--ctx", "4096", "--json"],
                       capture_output=True, check=True)
    t = json.loads(r.stdout)["timings"]
    return {"first": t["prompt_ms"], "token": t["predicted_ms"] / t["predicted_n"]}


def median(rows, key):
    return statistics.median(r[key] for r in rows)


s = e2e.Server("--ctx", "4096")
try:
    for i in range(3):
        served(s, 900 + i)
    a, b = [], []
    for i in range(REPEATS):
        a.append(served(s, i))
        b.append(ran(i))
finally:
    s.stop()
n = statistics.mean(r["n"] for r in a)
own = sorted(r["own"] for r in a)
print(f"first token: run {median(b, 'first'):.2f} ms, served {median(a, 'first'):.2f}, added {median(a, 'first') - median(b, 'first'):.2f} (bound 2)")
print(f"a token: run {median(b, 'token'):.3f} ms, served {median(a, 'token'):.3f}, added {median(a, 'token') - median(b, 'token'):.3f} (bound 0.2)")
print(f"by the engine's own account, added to {n:.0f} tokens: median {statistics.median(own):.2f} ms, 95 % {own[int(len(own) * 0.95)]:.2f} "
      f"(bound {2 + 0.2 * n:.1f}); {REPEATS} answers each")
