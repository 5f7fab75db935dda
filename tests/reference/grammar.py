#!/usr/bin/env python3
"""Makes tests/vectors/text/grammar.json with Python's jsonschema.

    grammar.py BUILD/test_grammar OUT.json        (needs jsonschema with format checking)

Random schemas are walked at random by test_grammar; every text must be valid. Texts are then damaged; those that
jsonschema finds invalid, or that are no JSON, must be refused. A few of each are stored.
"""
import json
import random
import subprocess
import sys
import tempfile

import jsonschema

NAMES = ["name", "age", "tags", "größe", "a b", "x", "xy", "xyz", 'q"uote', "list", "n", "city", "地名", "back\\slash", ""]
PATTERNS = ["^[a-z]{2,5}$", "^\\d{3}-\\d{4}$", "^(red|green|blue)$", "^[A-Z][a-z]*( [A-Z][a-z]*)?$", "^[^a-z]{1,6}$", "ab+c", "^x.y$", "^\\w+@\\w+\\.com$",
            "^[\\u4e00-\\u9fff]{1,4}$", "^$", "^\\S+$", "^[\"\\\\/]{1,3}$", "^(a|b(c|d)?)*e$", "end$", "^start", "^[\\s]{0,2}z$", "^\\$\\{?[a-f0-9]{4}\\}?$",
            "^[é-ü]+$", "^\\u{0}|y$".replace("\\u{0}|", "")]
FORMATS = ["date", "time", "date-time", "uuid", "email", "ipv4", "hostname"]


def number(rng, whole):
    return rng.randrange(-200, 2000) if whole or rng.random() < .5 else round(rng.uniform(-20, 20), rng.randrange(1, 5))


def scalar(rng):
    k = rng.randrange(9)
    if k == 0:
        s = {"type": "string"}
        if rng.random() < .5:
            lo = rng.randrange(4)
            s.update({"minLength": lo, "maxLength": lo + rng.randrange(8)})
        return s
    if k == 1:
        return {"type": "string", "pattern": rng.choice(PATTERNS)}
    if k == 2:
        return {"type": "string", "format": rng.choice(FORMATS)}
    if k in (3, 4):
        whole = k == 3
        s = {"type": "integer" if whole else "number"}
        if rng.random() < .7:
            lo, hi = sorted((number(rng, whole), number(rng, whole)))
            if rng.random() < .8:
                s[rng.choice(["minimum", "minimum", "exclusiveMinimum"])] = lo
            if rng.random() < .8:
                s[rng.choice(["maximum", "maximum", "exclusiveMaximum"])] = hi + (2 if whole else 1)
        return s
    if k == 5:
        return {"type": rng.choice(["boolean", "null", ["string", "null"], ["integer", "boolean"], ["number", "string", "null"]])}
    if k == 6:
        return {"enum": rng.sample(["a", "ab", "b c", 1, 2.5, None, True, "é", 'q"', [1, "x"], {"k": 1}], rng.randrange(1, 5))}
    if k == 7:
        return {"const": rng.choice(["only", 42, None, [1, 2], {"a": "b"}, "\n"])}
    return rng.choice([True, {}, {"description": "anything", "title": "T"}])


def schema(rng, depth=0):
    k = rng.randrange(10)
    if depth > 3 or k < 4:
        return scalar(rng)
    if k < 7:
        names = rng.sample(NAMES, rng.randrange(5))
        s = {"type": "object", "properties": {n: schema(rng, depth + 1) for n in names}}
        if rng.random() < .7:
            s["required"] = [n for n in names if rng.random() < .6] + (["extra"] if rng.random() < .1 else [])
        if rng.random() < .6 and "extra" not in s.get("required", []):
            s["additionalProperties"] = rng.choice([False, False, True, {"type": "integer"}])
        return s
    if k < 9:
        s = {"type": "array", "items": schema(rng, depth + 1)}
        if rng.random() < .6:
            s["minItems"] = rng.randrange(4)
        if rng.random() < .6:
            s["maxItems"] = s.get("minItems", 0) + rng.randrange(4)
        return s
    return {"anyOf": [schema(rng, depth + 1) for _ in range(rng.randrange(1, 4))]}


FIXED = [
    {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
     "required": ["value", "next"], "additionalProperties": False},
    {"$defs": {"node": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 6},
                                                         "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}},
                        "required": ["name", "children"], "additionalProperties": False}}, "$ref": "#/$defs/node"},
    {"type": "object", "additionalProperties": {"type": "number"}},
    {"type": "object", "properties": {"ab": {"type": "integer"}, "a": {"type": "integer"}, "é": {"type": "integer"}},
     "additionalProperties": {"type": "string"}},
    {"type": "object", "properties": {"steps": {"type": "array", "items": {"type": "object", "properties": {
        "explanation": {"type": "string"}, "output": {"type": "string"}}, "required": ["explanation", "output"], "additionalProperties": False}},
        "final_answer": {"type": "string"}}, "required": ["steps", "final_answer"], "additionalProperties": False},
    {"type": "number", "minimum": 0.25, "exclusiveMaximum": 0.5}, {"type": "number", "minimum": -0.125, "maximum": 12.75},
    {"type": "number", "exclusiveMinimum": 0}, {"type": "number", "exclusiveMaximum": 0}, {"type": "number", "minimum": 1, "maximum": 1},
    {"type": "number", "exclusiveMinimum": 1e-7, "maximum": 2e-7}, {"type": "number", "minimum": -3.5, "maximum": -3.25},
    {"type": "integer", "minimum": 0, "maximum": 255}, {"type": "integer", "minimum": -17, "exclusiveMaximum": 1005},
    {"type": "integer", "minimum": 99, "maximum": 10100}, {"type": "integer", "minimum": 18446744073709551615 // 10 ** 3},
    {"type": "integer", "exclusiveMaximum": -5}, {"type": "string", "minLength": 3, "maxLength": 3}, {"type": "string", "maxLength": 0},
    {"type": "string", "minLength": 30}, {"type": "array", "minItems": 2, "items": {"type": "boolean"}}, {"type": "array", "maxItems": 0},
    {"allOf": [{"type": "boolean"}]}, {"properties": {"p": {"const": 1}}, "required": ["p", "q"]}, {"type": ["array", "null"]},
] + [{"type": "string", "pattern": p} for p in PATTERNS] + [{"type": "string", "format": f} for f in FORMATS]


def damage(rng, text):
    k = rng.randrange(5)
    i = rng.randrange(len(text) + 1)
    if k == 0:
        return text[:i]
    if k == 1:
        return text[:i] + rng.choice('"{}[],:0a-. \\\n5') + text[i:]
    if k == 2:
        return text[:i] + text[i + 1:]
    if k == 3:
        return text + rng.choice([" ", "}", "\n", "1", ","])
    return text[:i] + rng.choice('"1-x]}') + text[i + 1:]


def main(binary, out):
    rng = random.Random(11)
    schemas = FIXED + [schema(rng) for _ in range(240)]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(schemas, f)
        f.flush()
        lines = subprocess.run([binary, "walk", f.name, "5", "8"], check=True, capture_output=True).stdout.decode()
    stored, n, bad, refused, stuck = [], 0, 0, 0, 0
    walks = {}
    for line in lines.splitlines():
        i, kind, text = json.loads(line)
        walks.setdefault(i, []).append((kind, text))
    for i, s in enumerate(schemas):
        check = jsonschema.Draft202012Validator(s, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        entry = {"schema": s, "valid": [], "invalid": []}
        for kind, text in walks[i]:
            if kind == "refused":
                refused += 1
                print("refused:", text, json.dumps(s))
                break
            if kind == "stuck":  # a random walk that found no end in 600 tokens says nothing
                stuck += 1
                continue
            n += 1
            try:
                errors = [e.message for e in check.iter_errors(json.loads(text))]
            except ValueError as e:
                errors = [str(e)]
            if errors:
                bad += 1
                print("BAD", json.dumps(s), "->", text[:300], errors[:2])
            elif len(text) < 150 and len(entry["valid"]) < 3:
                entry["valid"].append(text)
            for _ in range(4):
                t = damage(rng, text)
                try:
                    ok = check.is_valid(json.loads(t))
                except ValueError:
                    ok = False
                if not ok and len(t) < 150 and len(entry["invalid"]) < 3 and t not in entry["invalid"] and "\ufffd" not in t:
                    entry["invalid"].append(t)
        if entry["valid"]:
            stored.append(entry)
    with open(out, "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(e, ensure_ascii=False, separators=(",", ":")) for e in stored) + "\n]\n")
    print(f"{n} walks of {len(schemas)} schemas: {bad} bad, {stuck} without end, {refused} schemas refused; {len(stored)} stored -> {out}")
    return bad > 0


sys.exit(main(*sys.argv[1:]))
