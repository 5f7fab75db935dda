"""laoka convert from the outside: the bundled model in every recipe answers, --verify passes, names a flipped byte's tensor, and signals
and refusals leave nothing behind."""
import json
import os
import pathlib
import signal
import struct
import subprocess
import time

import pytest

LAOKA = os.environ["LAOKA"]
DEMO = pathlib.Path(LAOKA).resolve().parent.parent / "models/demo"
if not DEMO.is_dir():
    DEMO = pathlib.Path(__file__).resolve().parents[2] / "models/demo"
RECIPES = "bf16 fp8 w8 nvfp4 nvfp4-all q4".split()
Q = ["-p", 'What does "lighthouse" mean?', "--think", "off", "--temp", "0", "--ctx", "2048", "--json"]


def laoka(*args, check=0):
    p = subprocess.run([LAOKA, *map(str, args)], capture_output=True, stdin=subprocess.DEVNULL, timeout=300, text=True)
    assert p.returncode == check, p.stderr
    return p


def answer(model, *more):
    return json.loads(laoka("run", "-m", model, *Q, *more).stdout)


def tensor_span(file, name):
    """(first, last) byte of a tensor in a safetensors file."""
    with open(file, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        a, b = json.loads(f.read(n))[name]["data_offsets"]
    return 8 + n + a, 8 + n + b - 1


def flip(file, at):
    with open(file, "r+b") as f:
        f.seek(at)
        b = f.read(1)[0]
        f.seek(at)
        f.write(bytes([b ^ 4]))


@pytest.fixture(scope="module")
def truth():
    return answer(DEMO)


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_answers(recipe, truth, tmp_path):
    out = tmp_path / recipe
    p = laoka("convert", DEMO, out, "--recipe", recipe, "--verify")
    assert "verified:" in p.stderr and [x.name for x in tmp_path.iterdir()] == [recipe]
    a = answer(out)
    # the demo is stored in 4 and 8 bits: formats that hold those values exactly must give the same text, the others a fluent one
    assert a["text"] == truth["text"] if recipe in ("bf16", "nvfp4") else "lighthouse" in a["text"].lower(), (recipe, a["text"])
    name = "model.layers.1.mlp.gate_proj.weight" + ("_packed" if recipe in ("nvfp4", "nvfp4-all", "q4") else "")
    file = out / "model.safetensors"
    stored = json.loads(open(file, "rb").read()[8:8 + struct.unpack("<Q", open(file, "rb").read(8))[0]])
    name = next(k for k in stored if k.endswith(name.removeprefix("model.")))
    flip(file, sum(tensor_span(file, name)) // 2)
    p = laoka("convert", DEMO, out, "--recipe", recipe, "--verify", check=1)
    assert p.stderr.count("\n") == 1 and f"tensor {name}" in p.stderr


@pytest.mark.parametrize("n,recipe", [(2, None), (2, "q4"), (1, None)])
def test_rank_files(n, recipe, tmp_path):
    whole, out, more = DEMO, tmp_path / "out", ["--recipe", recipe] if recipe else []
    p = laoka("convert", DEMO, out, "--tp", n, "--verify", *more)
    assert f"of {n} ranks re-join to the source bit for bit" in p.stderr and [x.name for x in tmp_path.iterdir()] == ["out"]
    assert sorted(x.name for x in out.glob("rank*")) == [f"rank-{i + 1}-of-{n}.safetensors" for i in range(n)]
    if recipe:
        whole = tmp_path / "whole"
        laoka("convert", DEMO, whole, *more)
    devices = ["--devices", ",".join(["cpu"] * n)]
    assert answer(out, *devices)["ids"] == answer(whole)["ids"]
    wrong = ["--devices", "cpu" if n > 1 else "cpu,cpu"]
    assert f"made for {n} devices" in laoka("run", "-m", out, *Q, *wrong, check=1).stderr
    laoka("convert", DEMO, out, "--tp", n, "--verify", *more)  # an OUT that exists is compared
    file = out / f"rank-{n}-of-{n}.safetensors"
    for name in ("layers.5.mlp.down_proj.data", "layers.1.linear_attn.in_proj_qkv.scale"):  # the earlier of two flips is named
        flip(file, sum(tensor_span(file, name)) // 2)
        p = laoka("convert", DEMO, out, "--tp", n, "--verify", *more, check=1)
        assert p.stderr.count("\n") == 1 and f"tensor {name.rsplit('.', 1)[0]}:" in p.stderr, p.stderr
    if n > 1:
        file.unlink()
        laoka("run", "-m", out, *Q, *devices, check=70 if n > 1 else 1)


def test_rank_files_are_not_a_model_to_convert(tmp_path):
    laoka("convert", DEMO, tmp_path / "r", "--tp", 2)
    assert "unsplit" in laoka("convert", tmp_path / "r", tmp_path / "x", "--recipe", "bf16", check=1).stderr
    assert "unsplit" in laoka("convert", tmp_path / "r", tmp_path / "x", "--tp", 2, check=1).stderr
    assert "KV heads that 3 divides" in laoka("convert", DEMO, tmp_path / "x", "--tp", 3, check=1).stderr
    assert [x.name for x in tmp_path.iterdir()] == ["r"]


def test_an_interrupted_run_leaves_nothing(tmp_path):
    big = tmp_path / "in"
    big.mkdir()
    cfg = json.loads((DEMO / "config.json").read_text())
    cfg.pop("quantization_config", None)
    (big / "config.json").write_text(json.dumps(cfg))
    n = 4 << 30
    head = json.dumps({"lm_head.weight": {"dtype": "BF16", "shape": [n // 2048, 1024], "data_offsets": [0, n]}}).encode()
    with open(big / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        f.truncate(8 + len(head) + n)  # sparse
    for sig, code in ((signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGKILL, -9)):
        p = subprocess.Popen([LAOKA, "convert", str(big), str(tmp_path / "out"), "--recipe", "q4"], stderr=subprocess.PIPE)
        deadline = time.time() + 60
        while not list(tmp_path.glob("out.tmp-*/*")) and time.time() < deadline:
            time.sleep(0.02)
        p.send_signal(sig)
        _, err = p.communicate(timeout=60)
        assert p.returncode == code and not (tmp_path / "out").exists()
        if code == 1:
            assert b"interrupted" in err and [x.name for x in tmp_path.iterdir()] == ["in"]


def test_refusals(tmp_path):
    assert "expected one of bf16" in laoka("convert", DEMO, tmp_path / "x", "--recipe", "fp9", check=2).stderr
    (tmp_path / "x").mkdir()
    assert "exists already" in laoka("convert", DEMO, tmp_path / "x", "--recipe", "fp8", check=1).stderr
    assert "no such file" in laoka("convert", tmp_path / "none", tmp_path / "y", check=1).stderr
    assert not (tmp_path / "y").exists()
