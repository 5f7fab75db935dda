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


def tools(build, mbw, threads, mb):
    """(name, function that runs the tool once and returns {(operation, threads): {column: GB/s}})."""
    def probe():
        points = json.loads(out(build / "laoka", "probe", "--json"))["cpu"]["bandwidth"]
        return {(what, p["threads"]): {"probe": p[f"{what}_gbs"]} for p in points for what in ("read", "copy")}

    def bench_copy(n):
        c = json.loads(out(build / "bench_copy", "--json", "--threads", n, "--mb", mb))
        return {("read", n): {"bench_copy": c["read_gbs"]}, ("copy", n): {"bench_copy": c["memcpy_gbs"], "loop": c["copy_gbs"]}}

    def mbw_run():
        mib = re.findall(r"Copy:\s+([0-9.]+) MiB/s", out(mbw, "-q", "-t0", "-n", "31", mb))
        return {("copy", 1): {"mbw": max(float(x) for x in mib[:31]) * 2 * 1.048576e-3}}  # it counts a byte once

    return [probe] + [lambda n=n: bench_copy(n) for n in threads] + [mbw_run] * bool(mbw)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--json", type=pathlib.Path, help="file for every value")
    o = p.parse_args()
    first, got, bad = json.loads(out(o.build / "laoka", "probe", "--json"))["cpu"]["bandwidth"], {}, 0
    runs = tools(o.build, shutil.which("mbw"), [p["threads"] for p in first], first[0]["bytes"] >> 20)
    for i in range(o.rounds):
        for k in range(len(runs)):  # each tool is first, second, ... in turn
            for key, values in runs[(i + k) % len(runs)]().items():
                for tool, v in values.items():
                    got.setdefault(key, {}).setdefault(tool, []).append(v)
    print("| operation | threads | probe GB/s: median, best | bench_copy | mbw | STREAM's loop |\n|---|---|---|---|---|---|")
    for (what, threads), by in sorted(got.items(), key=lambda kv: (kv[0][1], kv[0][0])):
        mine, cells = spread(by["probe"]), []
        for tool in ("bench_copy", "mbw", "loop"):
            if tool in by:
                v = spread(by[tool])
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
