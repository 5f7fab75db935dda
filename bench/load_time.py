#!/usr/bin/env python3
"""Loading against reading: for each model file, already in the page cache, seconds to read its bytes once (read() into one buffer), seconds from
the start of `laoka run` to the engine's line "ready", and to the first token of a one-token prompt. Medians; prints a table, judges nothing.

    bench/load_time.py [-n RUNS] LAOKA MODEL..."""
import os
import pathlib
import statistics
import subprocess
import sys
import time


def files(model):
    p = pathlib.Path(model)
    if p.is_dir():
        return sorted(p.glob("*.safetensors"))
    return [p, *sorted(p.parent.glob(p.name + ".part-*"))]


def read_once(paths):
    buf = bytearray(4 << 20)
    t, n = time.perf_counter(), 0
    for p in paths:
        fd = os.open(p, os.O_RDONLY)
        while got := os.readv(fd, [buf]):
            n += got
        os.close(fd)
    return time.perf_counter() - t, n


def run(laoka, model):
    """(seconds to the line that says what was opened, seconds to the first token)"""
    t = time.perf_counter()
    p = subprocess.Popen([laoka, "run", "-m", model, "--raw", "a", "--max-tokens", "1", "--temp", "0", "--ctx", "2048"], stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    ready = None
    while line := p.stderr.readline():
        if b" at once, KV " in line:
            ready = time.perf_counter() - t
        if b"laoka: prompt" in line:
            break
    first = time.perf_counter() - t
    p.stdout.read()
    if p.wait() or ready is None:
        sys.exit(f"{model}: run failed: {line} {p.stderr.read()}")
    return ready, first


def main(argv):
    runs = 5
    if argv[:1] == ["-n"]:
        runs, argv = int(argv[1]), argv[2:]
    laoka, models = argv[0], argv[1:]
    print(f"{'model':32}{'MB':>9}{'read once':>12}{'ready':>9}{'first token':>13}   s, medians of {runs}")
    for m in models:
        paths = files(m)
        read_once(paths)
        rows = [(read_once(paths)[0], *run(laoka, m)) for _ in range(runs)]
        size = read_once(paths)[1]
        a, b, c = (statistics.median(x) for x in zip(*rows))
        print(f"{pathlib.Path(m).name:32}{size / 1e6:9.1f}{a:12.3f}{b:9.3f}{c:13.3f}", flush=True)


main(sys.argv[1:])
