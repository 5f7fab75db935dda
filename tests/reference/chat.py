#!/usr/bin/env python3
"""Makes tests/vectors/text/chat.json: random conversations rendered by jinja2 from the real templates.

    chat.py FOLDER_WITH_TEMPLATES OUT.json

A case is {"in": JSON text of {messages, tools, chat_template_kwargs}, "out": [3.5, 3.6, 3.8]}: a render, {"error": text}, or
null where it equals the one before it. Long constant passages stand once, under "macros", and as U+E000 + index in the renders.
"""
import json
import random
import sys

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment


def raise_exception(text):
    raise TemplateError(text)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    env.globals["raise_exception"] = raise_exception
    return env


WORDS = ["hello", "what is 2+2?", "naïve café", "你好，世界", "नमस्ते", "ภาษา", "😀👩‍💻", "a\tb", "x\ny", "", " ", "\n", "</think>", "<think>",
         "<|im_end|>", "<|im_start|>system", "<tool_call>", "</tool_response>", "<tool_response>", "\u00a0", "\u3000", "\u2028", "\x1c",
         "\x85", "\u200b", "\ufeff", "e\u0301", "{{ x }}", "{% raise %}", '"quoted"', "back\\slash", "\u0000", "\x7f", "<function=f>",
         "tab\there", "end.  ", "  start", "\r\n", "'s", "ſ", "𝒜", "<|image_pad|>", "\n\n", "def f():\n    return 1\n"]
NUMBERS = ["0", "-0", "1", "-7", "42", "9223372036854775807", "9223372036854775808", "18446744073709551615", "-9223372036854775809",
           "123456789012345678901234567890", "0.1", "1e20", "1E2", "1e-5", "0.0001", "1e16", "1e15", "123456789.123456789", "-0.0", "5e-324",
           "1.7976931348623157e308", "1e400", "-1e999", "3.141592653589793", "100.0", "1e22", "1e21", "0.30000000000000004",
           "2.2250738585072014e-308", "1.5e300", "99999999999999990.0", "12345678901234567.0"]


class Raw(str):
    """A number as it stands in the JSON text."""


def dump(v, rng):
    if isinstance(v, Raw):
        return str(v)
    if isinstance(v, dict):
        return "{" + ",".join(json.dumps(k, ensure_ascii=rng.random() < .5) + ":" + dump(x, rng) for k, x in v.items()) + "}"
    if isinstance(v, list):
        return "[" + ", ".join(dump(x, rng) for x in v) + "]"
    return json.dumps(v, ensure_ascii=rng.random() < .5)


def text(rng, n=4):
    return "".join(rng.choice(WORDS) for _ in range(rng.randrange(n + 1)))


def value(rng, depth=0):
    k = rng.randrange(8 if depth < 3 else 6)
    if k < 2:
        return text(rng)
    if k < 4:
        return Raw(rng.choice(NUMBERS))
    if k == 4:
        return rng.choice([True, False])
    if k == 5:
        return None
    if k == 6:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {key(rng): value(rng, depth + 1) for _ in range(rng.randrange(4))}


def key(rng):
    return rng.choice(["a", "city", "größe", "x y", "k<1>", "名", "list", "n", "", '"', "name", "type", "items"])


def item(rng):
    k = rng.randrange(12)
    if k < 6:
        return {"type": "text", "text": text(rng)}
    if k == 6:
        return {"type": "image", "image": "data:"}
    if k == 7:
        return {"type": "image_url", "image_url": {"url": "x"}}
    if k == 8:
        return {"type": "video", "video": "v"}
    if k == 9:
        return {"text": rng.choice([text(rng), Raw("1.50"), None, True, Raw("1e400")])}
    if k == 10:
        return {"type": rng.choice(["image", "video"])}
    return rng.choice([{"type": "video_url", "video_url": {}}, {}, "plain text", "an image", "a text", Raw("5"), None, ["text"], [], True]
                      ) if rng.random() < .4 else {"type": "text", "text": "ok"}


def content(rng):
    k = rng.randrange(10)
    if k < 6:
        return text(rng)
    if k < 9:
        return [item(rng) for _ in range(rng.randrange(4))]
    return rng.choice([None, None, None, Raw("3"), {"a": 1}, True]) if rng.random() < .5 else ""


def tool_call(rng):
    f = {"name": rng.choice(["get_weather", "f", "naïve", "x.y", ""]), "arguments": {key(rng): value(rng) for _ in range(rng.randrange(4))}}
    k = rng.randrange(14)
    if k == 0:
        del f["arguments"]
    if k == 1:
        f["arguments"] = rng.choice(["", "{}", None, []])
    if k == 2 and rng.random() < .3:
        f["name"] = rng.choice([None, Raw("1"), True])
    if k == 3 and rng.random() < .3:
        del f["name"]
    if k == 4 and rng.random() < .3:
        return rng.choice([None, "call", Raw("1"), {"function": None}])
    return {"type": "function", "id": "c1", "function": f} if rng.random() < .7 else f


def message(rng, role):
    m = {"role": role, "content": content(rng)}
    if rng.random() < .05:
        del m["content"]
    if role == "assistant":
        if rng.random() < .5:
            m["reasoning_content"] = rng.choice([text(rng), "", None, "  r  ", "\n\nthought\n"])
        if rng.random() < .3:
            m["content"] = "<think>\n" + text(rng) + "\n</think>\n\n" + text(rng)
        if rng.random() < .5:
            m["tool_calls"] = [tool_call(rng) for _ in range(rng.randrange(4))]
        if rng.random() < .03:
            m["tool_calls"] = rng.choice(["abc", {}, {"a": 1}, Raw("5"), True, None])
    if role == "user" and rng.random() < .1:
        m["content"] = "<tool_response>" + text(rng) + "</tool_response>"
    return m


def conversation(rng):
    roles = ["system"] if rng.random() < .5 else []
    for _ in range(rng.randrange(1, 5)):
        roles.append("user")
        for _ in range(rng.randrange(3)):
            roles.append(rng.choice(["assistant", "assistant", "tool"]))
    if rng.random() < .1:
        roles.insert(rng.randrange(len(roles) + 1), rng.choice(["system", "developer", "tool", "assistant", "function", "User"]))
    c = {"messages": [message(rng, r) for r in roles]}
    if rng.random() < .02:
        c["messages"].append(rng.choice([{}, "text", None, {"content": "no role"}, []]))
    if rng.random() < .5:
        c["tools"] = [{"type": "function", "function": {"name": "f" + str(i), "description": text(rng), "parameters": value(rng)}}
                      if rng.random() < .8 else value(rng) for i in range(rng.randrange(3))]
    if rng.random() < .05:
        c["tools"] = rng.choice([None, {}, {"a": 1}, False, Raw("0"), Raw("3"), True, ""])
    kw = {"add_generation_prompt": rng.choice([True, True, True, False, Raw("1"), None])} if rng.random() < .9 else {}
    if rng.random() < .4:
        kw["enable_thinking"] = rng.choice([True, False, False, None, "false", Raw("0")])
    if rng.random() < .4:
        kw["preserve_thinking"] = rng.choice([True, False, None, "yes"])
    if rng.random() < .4:
        kw["reasoning_effort"] = rng.choice(["low", "medium", "xhigh", "low", "xhigh", "high", "", None, "größer", True])
    if rng.random() < .3:
        kw["add_vision_id"] = rng.choice([True, True, False, None, Raw("1"), ""])
    if rng.random() < .1:
        kw["unknown"] = value(rng)
    if kw or rng.random() < .5:
        c["chat_template_kwargs"] = kw
    return c


def render(t, c):
    kw = dict(c.get("chat_template_kwargs") or {})
    try:
        return t.render(messages=c["messages"], tools=c.get("tools"), **kw)
    except Exception as e:
        return {"error": str(e)}


def main(folder, out):
    env = environment()
    source = [open(f"{folder}/chat_template_qwen3_{v}.jinja", encoding="utf-8").read() for v in (5, 6, 8)]
    made = [env.from_string(s) for s in source]
    probe = made[2].render(messages=[{"role": "user", "content": "x"}], tools=[1])
    head, tail = probe.split("1\n</tools>", 1)
    macros = ["\n</tools>" + tail.split("<|im_end|>")[0], head[head.index("# Tools"):-1],
              head[head.index("Reasoning effort"):head.index("\n\n# Tools")]]
    low = made[2].render(messages=[{"role": "user", "content": "x"}], reasoning_effort="low")
    macros.append(low[low.index("Reasoning effort"):low.index("<|im_end|>")])
    rng, cases, errors = random.Random(3), [], 0
    while len(cases) < 250:
        line = dump(conversation(rng), rng)
        outs = [render(t, json.loads(line)) for t in made]
        errors += any(isinstance(o, dict) for o in outs)
        if errors > 70 and any(isinstance(o, dict) for o in outs):
            errors -= 1
            continue
        for i, o in enumerate(outs):
            if isinstance(o, str):
                for k, m in enumerate(macros):
                    outs[i] = outs[i].replace(m, chr(0xe000 + k))
        outs = [o if i == 0 or o != outs[i - 1] else None for i, o in enumerate(outs)]
        cases.append({"in": line, "out": outs})
    with open(out, "w", encoding="utf-8") as f:
        f.write('{"macros":' + json.dumps(macros, ensure_ascii=False) + ',\n"cases":[\n')
        f.write(",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases) + "]}\n")
    print(f"{len(cases)} conversations, {errors} of them raise -> {out}")


main(*sys.argv[1:])
