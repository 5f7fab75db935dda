"""laoka inspect's memory forecast against what a run really takes: within 5 % of the process's peak, with a conversation that fills the
context. Sizes, not times: a busy machine changes nothing."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

from server import Server

LAOKA = os.environ["LAOKA"]
BUILD = pathlib.Path(LAOKA).resolve().parent
DEMO = pathlib.Path(__file__).resolve().parents[2] / "models/demo"
MARGIN = 0.05
# the child of a small process: a child's ru_maxrss begins with what its parent held when it was started
PEAK = ("import resource,subprocess,sys;p=subprocess.run(sys.argv[1:],stdin=subprocess.DEVNULL,stdout=subprocess.DEVNULL);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss*1024);sys.exit(p.returncode)")


def laoka(*args):
    p = subprocess.run([LAOKA, *map(str, args)], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
    assert p.returncode == 0, p.stderr
    return p.stdout


def forecast(model, ctx, *flags, devices=1, rank=0):
    rows = json.loads(laoka("inspect", model, "--json", "--ctx", ctx, *flags))["memory"]
    return next(r for r in rows if r["devices"] == devices and r["rank"] == rank)


def question(model, tokens, tmp):
    """A messages file whose prompt has just below `tokens` tokens; its words differ, so that the whole embedding table is read."""
    def text(n):
        return " ".join(f"{i * 7919 % 10007} {chr(97 + i % 26)}{chr(97 + i // 26 % 26)}{chr(97 + i // 676 % 26)}" for i in range(n))

    def count(n):
        file.write_text(json.dumps([{"role": "user", "content": text(n)}]))
        return len(json.loads(laoka("tokenize", "-m", model, "--messages", file, "--json"))["ids"])

    file, n = tmp / "messages.json", tokens // 8
    for _ in range(6):
        got = count(n)
        if tokens - 24 <= got <= tokens:
            break
        n = max(1, n * (tokens - 12) // got)
    assert tokens * 0.95 <= got <= tokens
    return file


def peak_of_run(model, file, ctx, answer, *flags):
    p = subprocess.run([sys.executable, "-c", PEAK, LAOKA, "run", "-m", str(model), "--messages", str(file), "--ctx", str(ctx), "--temp", "0",
                        "--max-tokens", str(answer), *flags], capture_output=True, text=True, timeout=900)
    assert p.returncode == 0, p.stderr
    return int(p.stdout.split()[-1])


def within(real, said, what):
    print(f"{what}: forecast {said / 1e6:.1f} MB, peak {real / 1e6:.1f} MB, {100 * (said / real - 1):+.1f} %")
    assert abs(said - real) <= MARGIN * real, f"{what}: forecast {said / 1e6:.1f} MB, peak {real / 1e6:.1f} MB"


def check(model, ctx, tmp, *flags, what):
    answer = min(128, ctx // 16)
    file = question(model, ctx - answer, tmp)
    within(peak_of_run(model, file, ctx, answer, *flags), forecast(model, ctx, *flags)["bytes_per_device"], what)


@pytest.mark.parametrize("ctx,flags", [(2048, []), (8192, ["--kv", "bf16"]), (4096, ["--draft", "0", "--chunk", "256"]), (4096, ["--isa", "scalar"])],
                         ids=lambda v: " ".join(v) if isinstance(v, list) else str(v))
def test_run(ctx, flags, tmp_path):
    check(DEMO, ctx, tmp_path, *flags, what=f"demo {ctx} {' '.join(flags)}")


@pytest.mark.parametrize("recipe", ["bf16", "q4"])
def test_converted(recipe, tmp_path):
    laoka("convert", DEMO, tmp_path / recipe, "--recipe", recipe)
    check(tmp_path / recipe, 4096, tmp_path, what=f"demo as {recipe}")


def test_ninfer(tmp_path):
    """Weights that are laid out anew at load."""
    writer = BUILD / "test_ninfer"
    if not writer.exists():
        pytest.skip(f"{writer} is not there: it writes the .ninfer files")
    subprocess.run([writer, "--write", "."], cwd=tmp_path, check=True, capture_output=True, timeout=300)
    for model in sorted(tmp_path.glob("*.ninfer"))[:2]:
        check(model, 4096, tmp_path, what=model.name)


def test_two_ranks(tmp_path):
    """The leader of two processes, from one folder and from rank files."""
    laoka("convert", DEMO, tmp_path / "tp", "--tp", "2")
    file = question(DEMO, 4000, tmp_path)
    for model in (DEMO, tmp_path / "tp"):
        real = peak_of_run(model, file, 4096, 64, "--devices", "cpu,cpu")
        within(real, forecast(model, 4096, devices=2)["bytes_per_device"], f"{model.name} on 2 devices")


def test_serve(tmp_path):
    """The engine's process behind the server, and the server's own."""
    ctx = 4096
    messages = json.loads(question(DEMO, ctx - 128, tmp_path).read_text())
    s = Server("-m", str(DEMO), "--ctx", str(ctx))
    try:
        worker = int(pathlib.Path(f"/proc/{s.proc.pid}/task/{s.proc.pid}/children").read_text().split()[0])
        status, _ = s.post("/v1/chat/completions", {"messages": messages, "max_tokens": 100, "temperature": 0}, timeout=600)
        assert status == 200
        said = json.loads(laoka("inspect", DEMO, "--json", "--ctx", ctx))
        high = {pid: int(next(x for x in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmHWM")).split()[1]) * 1024
                for pid in (worker, s.proc.pid)}
    finally:
        s.stop()
    within(high[worker], said["memory"][0]["bytes_per_device"], "serve's engine")
    assert abs(high[s.proc.pid] - said["front_bytes"]) < 4e6, (high[s.proc.pid], said["front_bytes"])


def test_parts_and_order():
    """The sum is the sum of its parts, and more context or wider KV never needs less."""
    rows = json.loads(laoka("inspect", DEMO, "--json"))["memory"]
    one = [r for r in rows if r["devices"] == 1]
    for r in one:
        assert abs(sum(r["parts"].values()) - r["bytes_per_device"]) < 16
        assert r["loaded_bytes"] < r["bytes_per_device"]
    assert [r["context"] for r in one] == [8192, 131072, 262144]
    assert one[0]["bytes_per_device"] < one[1]["bytes_per_device"] < one[2]["bytes_per_device"]
    assert forecast(DEMO, 8192, "--kv", "bf16")["bytes_per_device"] > forecast(DEMO, 8192)["bytes_per_device"]


def test_every_rank_file_is_told(tmp_path):
    laoka("convert", DEMO, tmp_path / "tp", "--tp", "2")
    said, whole = (json.loads(laoka("inspect", m, "--json")) for m in (tmp_path / "tp", DEMO))
    assert [r["rank"] for r in said["ranks"]] == [0, 1]
    assert said["tensors"] == sum(r["tensors"] for r in said["ranks"])
    assert said["bytes"] == sum(r["bytes"] for r in said["ranks"]) > whole["bytes"]
    files = sorted(f.stat().st_size for f in (tmp_path / "tp").glob("*.safetensors"))
    for size, r in zip(files, sorted(r["bytes"] for r in said["ranks"])):
        assert 0.95 * size < r < size
    assert {(r["devices"], r["rank"]) for r in said["memory"]} == {(2, 0), (2, 1)}
    out = laoka("inspect", tmp_path / "tp")
    assert "rank 0" in out and "rank 1" in out
