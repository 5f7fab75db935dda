#!/usr/bin/env python3
"""`laoka probe`'s figures of the processor's memory beside other tools', in turns: build/bench_copy (a sum, memcpy and STREAM's copy by a loop, sharing no
code with laoka) with as many threads, and Debian's mbw (memcpy, one thread) where it is installed. Each tool reports its fastest pass; the medians of all
turns are compared, for a neighbour's load moves the memory's speed within seconds. Exit code 1: a like operation lies more than 10 % apart.

    bench/probe_beside.py [--build build] [--rounds 9]

Like is compared with like: probe copies by memcpy, as mbw's MEMCPY method does. STREAM's loop is shown and not judged: its plain stores fetch each line
before they overwrite it, three bytes moved for two counted."""

import argparse
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def out(*words):
    return subprocess.run([str(w) for w in words], check=True, capture_output=True, text=True).stdout


def turn(build, mbw, got):
    """One value of each tool into got[(operation, threads)][tool]."""
    def put(what, threads, tool, v):
        got.setdefault((what, threads), {}).setdefault(tool, []).append(v)

    points = json.loads(out(build / "laoka", "probe", "--json"))["cpu"]["bandwidth"]
    mb = points[0]["bytes"] >> 20
    for p in points:
        n = p["threads"]
        put("read", n, "probe", p["read_gbs"])
        put("copy", n, "probe", p["copy_gbs"])
        c = json.loads(out(build / "bench_copy", "--json", "--threads", n, "--mb", p["bytes"] >> 20))
        put("read", n, "bench_copy", c["read_gbs"])
        put("copy", n, "bench_copy", c["memcpy_gbs"])
        put("copy", n, "loop", c["copy_gbs"])
    if mbw:
        mib = re.findall(r"Copy:\s+([0-9.]+) MiB/s", out(mbw, "-q", "-t0", "-n", "31", mb))
        put("copy", 1, "mbw", max(float(x) for x in mib[:31]) * 2 * 1.048576e-3)  # it counts a byte once


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--json", type=pathlib.Path, help="file for every value")
    o = p.parse_args()
    mbw, got, bad = shutil.which("mbw"), {}, 0
    for _ in range(o.rounds):
        turn(o.build, mbw, got)
    print("| operation | threads | probe GB/s: median, best | bench_copy | mbw | STREAM's loop |\n|---|---|---|---|---|---|")
    for (what, threads), tools in sorted(got.items(), key=lambda kv: (kv[0][1], kv[0][0])):
        mine, cells = spread(tools["probe"]), []
        for tool in ("bench_copy", "mbw", "loop"):
            if tool in tools:
                v = spread(tools[tool])
                cells.append(f"{v[0]:.1f}, {v[1]:.1f}: {mine[0] / v[0]:.2f}, {mine[1] / v[1]:.2f}")
                bad += tool != "loop" and abs(mine[0] / v[0] - 1) > 0.1
            else:
                cells.append("–")
        print(f"| {what} | {threads} | {mine[0]:.1f}, {mine[1]:.1f} | " + " | ".join(cells) + " |")
    print(f"\n{o.rounds} turns; behind a tool's figures probe's over them. " + (f"{bad} medians more than 10 % apart." if bad else "All medians within 10 %."))
    if o.json:
        o.json.write_text(json.dumps([{"what": w, "threads": n, **t} for (w, n), t in got.items()], indent=1))
    sys.exit(bool(bad))


def spread(v):
    return statistics.median(v), max(v)


if __name__ == "__main__":
    main()
