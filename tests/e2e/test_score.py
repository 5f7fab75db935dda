"""laoka score as scripts see it: files, JSON, rows, exit codes."""
import array
import json
import os
import pathlib
import subprocess

import pytest

LAOKA = os.environ["LAOKA"]
MODEL = pathlib.Path(__file__).parents[2] / "models/demo"
CONFIG = json.loads((MODEL / "config.json").read_text())["text_config"]
VOCAB, HIDDEN, LAYERS = CONFIG["vocab_size"], CONFIG["hidden_size"], CONFIG["num_hidden_layers"]
A, B = [8129, 319, 198, 509, 649, 292, 75], [1830, 1128, 5]


def score(tmp, ids, *flags, code=0):
    text = ids if isinstance(ids, str) else json.dumps(ids)
    (tmp / "ids.json").write_text(text)
    r = subprocess.run([LAOKA, "score", "-m", MODEL, "--ids", tmp / "ids.json", *flags], capture_output=True, text=True, timeout=120)
    assert r.returncode == code, r.stderr
    return r


def floats(path):
    a = array.array("f")
    a.frombytes(path.read_bytes())
    return a


def run(tmp, ids, *flags):
    names = {n: tmp / n for n in ("logits", "hidden", "mtp")}
    r = score(tmp, ids, "--json", *[x for n, p in names.items() for x in ("--" + n, p)], *flags)
    assert r.stdout.count("\n") == 1
    return json.loads(r.stdout), {n: floats(p) for n, p in names.items()}


def test_sizes_and_rows(tmp_path):
    one, fa = run(tmp_path, A)
    two, fb = run(tmp_path, B)
    both, f = run(tmp_path, [A, B])
    n = len(A) + len(B)
    assert one["tokens"] == len(A) - 1 and both["tokens"] == n - 2
    assert both["nll"] == pytest.approx(one["nll"] + two["nll"], rel=1e-6)
    assert f["logits"] == fa["logits"] + fb["logits"] and len(f["logits"]) == n * VOCAB
    assert f["mtp"] == fa["mtp"] + fb["mtp"] and len(f["mtp"]) == (n - 2) * VOCAB
    assert len(f["hidden"]) == (LAYERS + 1) * n * HIDDEN
    for layer in range(LAYERS + 1):
        rows = f["hidden"][layer * n * HIDDEN : (layer + 1) * n * HIDDEN]
        assert rows[: len(A) * HIDDEN] == fa["hidden"][layer * len(A) * HIDDEN : (layer + 1) * len(A) * HIDDEN]


def test_chunks_threads_and_cache(tmp_path):
    _, want = run(tmp_path, A)
    for flags in (["--chunk", "1"], ["--chunk", "3"], ["--threads", "1"]):
        _, got = run(tmp_path, A, *flags)
        assert max(abs(x - y) for x, y in zip(got["logits"], want["logits"])) < 1e-4
    _, got = run(tmp_path, A, "--kv", "int8")
    gap = max(abs(x - y) for x, y in zip(got["logits"], want["logits"]))
    assert 0 < gap < 1  # the flag does something, and not much


def test_two_ranks(tmp_path):
    a, want = run(tmp_path, [A, B])
    b, got = run(tmp_path, [A, B], "--devices", "cpu,cpu")
    for k in want:
        assert max(abs(x - y) for x, y in zip(got[k], want[k])) < 1e-3
    assert b["nll"] == pytest.approx(a["nll"], rel=1e-4)


@pytest.mark.parametrize("ids, word", [
    ("[", "JSON"), ("{}", "array"), ("[]", "array"), ("[[1],[]]", "row 1"), ("[1, -2]", "token 1"), ("[1.5]", "token id"),
    ('["a"]', "token id"), ("[99999999]", "99999999"), ("[[1], 2]", "row 1"),
])
def test_bad_ids(tmp_path, ids, word):
    r = score(tmp_path, ids, "--logits", tmp_path / "out", code=1)
    first = ("no GPU that can be used", "no GPU code: running on the CPU")  # a GPU build without a GPU says so first, a CPU build beside one too
    lines = [line for line in r.stderr.splitlines() if not any(f in line for f in first)]
    assert r.stdout == "" and len(lines) == 1 and word in lines[0]
    assert [p.name for p in tmp_path.iterdir()] == ["ids.json"]  # nothing half-written stays


def test_refusals(tmp_path):
    assert "--ids" in subprocess.run([LAOKA, "score", "-m", MODEL], capture_output=True, text=True, timeout=60).stderr
    r = score(tmp_path, A, "--logits", "/no/such/folder/x", code=1)
    assert "/no/such/folder/x" in r.stderr
