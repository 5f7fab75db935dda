#!/usr/bin/env python3
"""Two users at once against one alone, through the server: tokens a second that each gets while it decodes. When decode is bound by
reading the weights two answers in one step cost little more than one; each of two must keep 0.85 of a lone user's speed. Needs a
model whose weights exceed the caches (tests/reference/large_random.py makes one); lone and paired runs alternate, medians.
usage: bench/serve_two.py LAOKA MODEL [tokens 48] [rounds 5] [flags of serve ...]"""

import pathlib
import statistics
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import server as e2e  # noqa: E402

e2e.LAOKA = sys.argv[1]
N = int(sys.argv[3]) if len(sys.argv) > 3 else 48
ROUNDS = int(sys.argv[4]) if len(sys.argv) > 4 else 5
s = e2e.Server("-m", sys.argv[2], "--ctx", "2048", "--parallel", "2", *sys.argv[5:])
ends = {str(s.post("/tokenize", {"content": t})[1]["tokens"][0]): -100 for t in ("<|im_end|>", "<|endoftext|>")}


def user(i, out):
    body = {"prompt": f"User {i} wrote:", "max_tokens": N, "temperature": 1, "seed": i, "logit_bias": ends}
    t = s.post("/v1/completions", body, timeout=600)[1]["timings"]
    out[i] = t["predicted_n"] / t["predicted_ms"] * 1e3


def together(n):
    out = {}
    threads = [threading.Thread(target=user, args=(i, out)) for i in range(n)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return out


try:
    together(2)  # pages touched, clocks up
    lone, pair = [], []
    for _ in range(ROUNDS):
        lone += together(1).values()
        pair += together(2).values()
        lone += together(1).values()
finally:
    s.stop()
a, b = statistics.median(lone), statistics.median(pair)
print(f"alone {a:.2f} tokens/s, each of two {b:.2f} (worst {min(pair):.2f}), {b / a:.2f} of alone; "
      f"{len(lone)} lone and {len(pair)} paired answers of {N} tokens")
