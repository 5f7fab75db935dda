#!/usr/bin/env python3
"""laoka beside llama.cpp on this machine: random weights at the shapes of the 0.8B and the 4B in Q8_0, Q4_K and BF16 (the same GGUF file for both),
the same number of threads, runs that alternate, medians; prints the ratio laoka / llama.cpp for decode at 64 and 4,096 tokens of context and for
prefill of 512 and 4,096. llama.cpp is driven through the C functions of the module llama_cpp (its arch qwen35, batches of 512, KV F16 as it comes),
laoka by `laoka bench rounds --draft 0` (KV as --kv says, int8 as it comes; the 4,096 tokens are forced, not computed: the same bytes are read).

    bench/compare_llama.py                                     all cells, 5 runs; a cell of more than 20 s a run gets 1: it says how long it will take
    bench/compare_llama.py --shapes 0.8b --formats q8_0,q4_k --cells decode-64,prefill-512 --runs 3
    bench/compare_llama.py --busy                              one thread by processor time: a rough answer on a machine that others use too

Needs a venv once (10 to 30 minutes, it compiles llama.cpp for this processor):
    python3 -m venv .venv-bench && CMAKE_ARGS="-DGGML_NATIVE=ON -DGGML_BLAS=OFF" .venv-bench/bin/pip install --no-binary llama-cpp-python -r bench/requirements.txt"""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
CELLS = ["decode-64", "decode-4096", "prefill-512", "prefill-4096"]
TOKENS = 24  # of a decode run
PAUSE = 1.0  # seconds between the two: a thread pool that has just worked spins on a core (OpenMP's for milliseconds, ggml's own for up to 0.1 s)
GFLOPS = 90  # of a core pair, for the estimate alone
PARAMS = {"tiny": 0.002e9, "0.8b": 0.75e9, "4b": 4.2e9}


class Llama:
    """llama.cpp in this process: one model, one context."""

    def __init__(self, path, threads, busy):
        import llama_cpp as L

        self.L, self.busy = L, busy
        self.log = L.llama_log_callback(lambda level, text, data: None)
        L.llama_log_set(self.log, ctypes.c_void_p(0))
        L.llama_backend_init()
        self.model = L.llama_model_load_from_file(path.encode(), L.llama_model_default_params())
        if not self.model:
            sys.exit(f"llama.cpp does not load {path}: does its version know the arch qwen35?")
        p = L.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_threads, p.n_threads_batch = 4608, 512, 512, threads, threads
        self.ctx = L.llama_init_from_model(self.model, p)
        self.at = 0

    def now(self):
        return time.process_time() if self.busy else time.perf_counter()

    def feed(self, n):
        for i in range(0, n, 512):
            ids = [(self.at + i + j) * 7919 % 4000 for j in range(min(512, n - i))]
            a = (ctypes.c_int32 * len(ids))(*ids)
            if self.L.llama_decode(self.ctx, self.L.llama_batch_get_one(a, len(ids))):
                sys.exit("llama_decode failed")
        self.L.llama_synchronize(self.ctx)
        self.at += n

    def clear(self):
        self.L.llama_memory_clear(self.L.llama_get_memory(self.ctx), True)
        self.at = 0

    def prefill(self, n):
        self.clear()
        t = self.now()
        self.feed(n)
        return n / (self.now() - t)

    def decode(self, context):
        if not context <= self.at <= context + 256:  # a run that follows goes on from where the last one ended
            self.clear()
            self.feed(context)
        self.feed(2)
        times = []
        for _ in range(TOKENS):
            t = self.now()
            self.feed(1)
            times.append(self.now() - t)
        return 1 / statistics.median(times)


def child(path, threads, busy):
    """Worker: `decode 64` on stdin, a rate on stdout. In a process of its own, so that its threads and memory are its own."""
    m = Llama(path, threads, busy)
    m.prefill(16)
    print("ready", flush=True)
    for line in sys.stdin:
        what, n = line.split()
        print(json.dumps(getattr(m, what)(int(n))), flush=True)


class Worker:
    def __init__(self, path, o):
        words = [sys.executable, __file__, "--child", path, "--threads", str(o.threads)] + ["--busy"] * o.busy
        self.p = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.p.stdout.readline() != "ready\n":
            sys.exit("compare_llama: llama.cpp did not start: its message is above")

    def __call__(self, what, n):
        self.p.stdin.write(f"{what} {n}\n")
        self.p.stdin.flush()
        return json.loads(self.p.stdout.readline())

    def close(self):
        self.p.stdin.close()
        self.p.wait()


def laoka(o, path, what, n):
    with tempfile.TemporaryDirectory() as out:
        words = [o.laoka, "bench", "rounds", "-q", "-m", path, "--draft", "0", "--out", out, "--threads", str(o.threads), "--rounds", str(TOKENS), "--kv", o.kv]
        words += ["--gbs", "100000"]  # or each start measures the memory for a second
        words += ["--sizes", str(n)] if what == "decode" else ["--sizes", "none", "--prefill", str(n)]
        r = subprocess.run(words + ["--cpu-time"] * o.busy, capture_output=True, text=True)
        if r.returncode:
            sys.exit(f"compare_llama: {' '.join(words)}: {r.stderr.strip()}")
        c = json.loads((pathlib.Path(out) / "results.json").read_text())["cells"][0]
        return c["tps"] if what == "decode" else c["prefill_tps"]


def estimate(o, shape, cell):
    """Seconds of one run of one engine."""
    what, n = cell.split("-")
    if what == "prefill":
        return 2 * PARAMS[shape] * int(n) / (GFLOPS * 1e9 / (2 if o.threads == 1 else 1)) + 3
    return TOKENS * PARAMS[shape] * 1.2 / 10e9 + 4


def plan(o):
    """(shape, format, cell, runs) in the order they are run, and seconds."""
    cells, total = [], 0
    for shape in o.shapes.split(","):
        for fmt in o.formats.split(","):
            total += PARAMS[shape] * 2 / 200e6 + 5  # writing, loading
            for cell in sorted(o.cells.split(","), key=lambda c: (int(c.split("-")[1]), c.startswith("decode"))):
                runs = o.runs if estimate(o, shape, cell) <= o.long else o.long_runs
                cells.append((shape, fmt, cell, runs))
                total += 2 * runs * estimate(o, shape, cell)
                if cell == "decode-4096" and "prefill-4096" not in o.cells:
                    total += estimate(o, shape, "prefill-4096")
    return cells, total


def compare(o):
    import gguf_random

    cells, total = plan(o)
    print(f"{len(cells)} cells, about {total / 60:.0f} minutes with {o.threads} thread(s)", file=sys.stderr, flush=True)
    rows, worker, file = [], None, None
    path = pathlib.Path(o.dir) / "compare.gguf"
    t0 = time.time()
    for shape, fmt, cell, runs in cells:
        if (shape, fmt) != file:
            if worker:
                worker.close()
            gguf_random.write(str(path), shape, fmt)
            worker, file = Worker(str(path), o), (shape, fmt)
        what, n = cell.split("-")
        ours, theirs = [], []
        for i in range(runs):
            for mine in ((True, False), (False, True))[i % 2]:  # first and second by turns
                time.sleep(PAUSE)
                (ours if mine else theirs).append(laoka(o, str(path), what, int(n)) if mine else worker(what, int(n)))
        a, b = statistics.median(ours), statistics.median(theirs)
        rows.append({"shape": shape, "format": fmt, "cell": cell, "runs": runs, "laoka": a, "llama": b, "ratio": a / b, "laoka_all": ours, "llama_all": theirs})
        print(f"{time.time() - t0:6.0f} s  {shape} {fmt} {cell}: {a:.2f} / {b:.2f} = {a / b:.2f}", file=sys.stderr, flush=True)
    if worker:
        worker.close()
    path.unlink(missing_ok=True)
    return rows


def table(o, rows):
    import llama_cpp

    how = "processor time of one thread (busy machine: rough)" if o.busy else f"{o.threads} threads"
    print(f"\nTokens a second, laoka / llama.cpp = ratio; {how}; medians (number of alternating runs in brackets); llama-cpp-python "
          f"{llama_cpp.__version__} from source, KV F16; laoka KV {o.kv}.\n")
    print("| shape | format | " + " | ".join(c.replace("-", " ") for c in CELLS) + " |\n|---|---|" + "---|" * len(CELLS))
    for key in dict.fromkeys((r["shape"], r["format"]) for r in rows):
        cells = {r["cell"]: r for r in rows if (r["shape"], r["format"]) == key}
        print(f"| {key[0]} | {key[1]} | " + " | ".join(f"{r['laoka']:.1f} / {r['llama']:.1f} = **{r['ratio']:.2f}** ({r['runs']})" if (r := cells.get(c)) else "–"
                                                       for c in CELLS) + " |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--laoka", default=str(ROOT / "build" / "laoka"))
    p.add_argument("--shapes", default="0.8b,4b")
    p.add_argument("--formats", default="q8_0,q4_k,bf16")
    p.add_argument("--cells", default=",".join(CELLS))
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--long", type=float, default=20, help="a run estimated at more seconds is repeated --long-runs times only")
    p.add_argument("--long-runs", type=int, default=1)
    p.add_argument("--kv", default="int8", help="laoka's KV format: int8, bf16, f32")
    p.add_argument("--busy", action="store_true")
    p.add_argument("--dir", default=tempfile.gettempdir(), help="where the weights are written, 8.4 GB at most")
    p.add_argument("--json", help="file for all runs")
    p.add_argument("--plan", action="store_true", help="print the estimate and stop")
    p.add_argument("--child", help=argparse.SUPPRESS)
    o = p.parse_args()
    o.threads = 1 if o.busy else o.threads
    if o.child:
        return child(o.child, o.threads, o.busy)
    if o.plan:
        return print(f"about {plan(o)[1] / 60:.0f} minutes")
    rows = compare(o)
    table(o, rows)
    if o.json:
        pathlib.Path(o.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    venv = ROOT / ".venv-bench" / "bin" / "python"
    try:
        import gguf  # noqa: F401
        import llama_cpp  # noqa: F401
    except ImportError:
        if venv.exists() and pathlib.Path(sys.executable) != venv:
            os.execv(venv, [str(venv), *sys.argv])
        if "--plan" not in sys.argv:
            sys.exit("compare_llama: no module llama_cpp or gguf here: see the top of this file for the venv")
    main()
