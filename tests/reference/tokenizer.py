#!/usr/bin/env python3
"""Makes tests/vectors/text/tokenizer.json with the `tokenizers` library over the demo vocabulary.

    tokenizer.py TOKENIZER.json OUT.json

Each text is encoded under two regexes (the file's own, and the older one without \\p{M}), each with added tokens cut out
and without (an added token's text is then ordinary text). Long runs are stored as a recipe and a hash of the ids.
A text is {"t": text} | {"r": [[text, count], ...]} | {"x": hex of bytes, decoded with errors="replace"}; ids are
"a" (added tokens on), and where they differ "n" (off), "qa", "qn" (older regex). Decodes are {"ids", "d", "s"}: all, and
without special tokens.
"""
import json
import random
import sys

from tokenizers import Tokenizer

OLD = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
       r"|\s*[\r\n]+|\s+(?!\S)|\s+")

HAND = r"""
Hello, world!
  two leading spaces, three trailing   
don't can't won't I'LL WE'VE he'D it'S 'sup ſ's 'ſ dogſ' 'ſt 'ſ'ſ o'ſe
'rE 'Re 'VE 'll'll 'm'M'd'D 't
snake_case camelCase kebab-case SCREAMING_SNAKE x1y2z3 0x1F 1e-9 3.14159 1,234,567
def f(x):\n    return x**2  # square\n\n\nprint(f(3))\n
for (int i = 0; i < n; ++i) {\n\ta[i] = b[i] << 3;\n}\n
#include <stdio.h>\r\nint main(void) { return 0; }\r\n
SELECT name, COUNT(*) FROM t WHERE a >= 10 GROUP BY 1;\n-- end\n
{"key": [1, 2.5, null, true], "s": "a\\"b\\\\c\\u00e9"}
<div class="x">&nbsp;&lt;b&gt;</div>\n<!-- note -->
\t\ttabs\tand   spaces \t mixed\n \n\t\n   \n
line\rline\r\nline\n\rline\n\n\n
   \n   \n  x
\n\n\n
!!!???...---***
!\n\n?\r\n.\r
a\u00a0b\u1680c\u2003d\u2028e\u2029f\u202fg\u205fh\u3000i\u180ej\u200bk\ufeffl
\u180e\u180e x \u180e\n
\x85\x85x\x85\n\x1c\x1d\x1e\x1f y
\u3000\u3000全角 空白\u3000
今天天气很好，我们去公园散步吧。
机器学习模型需要大量的数据和算力！
「こんにちは、世界。」カタカナとひらがな、漢字ｶﾀｶﾅ
안녕하세요 세계. 한국어 문장입니다.
\u1112\u1161\u11ab\u1100\u1173\u11af jamo
नमस्ते दुनिया, यह एक परीक्षण है। क्षेत्रज्ञ कि की
ภาษาไทยไม่มีช่องว่างระหว่างคำ น้ำ ที่นี่ ผู้ใหญ่
தமிழ் எழுத்து கொண்டு மொழி
বাংলা ভাষা ও আমার সোনার
ქართული ენა ႠႡ
Ελληνικά κείμενα, τέλος. ΣΊΣΥΦΟΣ
Привет, мир! Ёлка и йод, объём.
שלום עולם שָׁלוֹם בְּרֵאשִׁית
مرحبا بالعالم مَرْحَبًا بِكَ ـــ لا
Tiếng Việt có nhiều dấu: ễ ộ ữ ắ
naïve café résumé Ångström Straße ﬁﬂ Ǆ ǅ
nai\u0308ve cafe\u0301 A\u030angstro\u0308m o\u0323\u0302 q\u0307\u0323 q\u0323\u0307
\u0344 \u0958 \u2126 \u212a \u212b \u1e9b\u0323 \u0f73 \u0f75 \ufb1d \u2adc \ud7a3
\u0301start \u0301\u0302 a\u0301\u0301\u0301 \u0300
e\u0301\u0327 e\u0327\u0301 \u0061\u05ae\u0300\u0315\u0062
😀🚀 👩‍💻 👨‍👩‍👧‍👦 🇩🇪🇫🇷 👍🏽 ❤️ ☕︎ 1️⃣
emoji😀between😀words😀\n😀😀
∑∫√≠≤≥±×÷ ½ ⅓ Ⅷ ⅷ ① ² ³ 𝟘𝟙 ٣٤ ৪ 五
𝒜𝓑𝔊 mathematical 𐍈 gothic 𒀀 cuneiform 😈
«quotes» “curly” ‘single’ – — … † ‡ • §
$100 €50 £20 ¥30 ₿1 50% 20°C
a.b.c/d\\e@f#g:h;i
https://example.org/path?q=1&r=%20#frag mail@example.org
\u0000nul\u0000 \u0001\u0002\u0007\u0008\u000b\u000c\u001b[31m\u007f
\ue000\uf8ff\U000f0000 private \ufffe\uffff\ufdd0
<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n
<|im_end|><|im_end|> <|im_end|>\n<|endoftext|>
a<|im_end|>b<|im_start|>c<think>d</think>e<tool_call>f</tool_call>
<|im_end| ><|im_ end|> <|IM_END|> <|im_end|<|im_end|>> <<|im_end|>> <|<|im_end|>
<thin</think>k> <think</think <tool_response></tool_response>
e<|im_end|>\u0301 <think>\u0338 \u0301<|im_start|>
<|vision_start|><|image_pad|><|vision_end|><|fim_prefix|>x<|fim_suffix|>y<|fim_middle|>
"""

POOLS = {
    "ascii": [chr(c) for c in range(32, 127)],
    "code": list("abcdefxyz_0123456789(){}[]<>;:,.=+-*/%&|^!~\"'#\\ \n\t") + ["  ", "    ", "return ", "if (", "\r\n"],
    "latin": [chr(c) for c in range(0xa0, 0x250)],
    "han": [chr(random.Random(1).randrange(0x4e00, 0x9fa5) + i % 7) for i in range(50)] +
           [chr(0x4e00 + 97 * i) for i in range(200)] + list("，。！？、「」"),
    "deva": [chr(c) for c in range(0x900, 0x966)] + [" ", "।", "\u200d", "\u094d"],
    "thai": [chr(c) for c in range(0xe01, 0xe3b)] + [chr(c) for c in range(0xe40, 0xe4f)] + [" "],
    "arabic": [chr(c) for c in range(0x621, 0x653)] + [" "],
    "hebrew": [chr(c) for c in range(0x5b0, 0x5bd)] + [chr(c) for c in range(0x5d0, 0x5eb)] + [" "],
    "hangul": [chr(c) for c in range(0x1100, 0x1113)] + [chr(c) for c in range(0x1161, 0x1176)] +
              [chr(c) for c in range(0x11a8, 0x11c3)] + [chr(0xac00 + 28 * i) for i in range(60)],
    "marks": [chr(c) for c in range(0x300, 0x345)] + list("aeiouqzAEKO <>=") + ["\u0323", "\u0327", "\u0315"],
    "space": list(" \t\n\r\x0b\x0c\x85\xa0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000\u180e\u200b") + ["a", "1", "."],
    "emoji": [chr(c) for c in range(0x1f600, 0x1f640)] + ["\u200d", "\ufe0f", "🏽", "🇫", "🇷", " "],
    "control": [chr(c) for c in range(0, 33)] + ["\x7f", "\x80", "\x9f", "x"],
    "digits": list("0123456789٠١२३ⅳ²½①𝟗") + list(" .,-"),
    "apostrophe": ["'", "s", "S", "ſ", "t", "re", "VE", "m", "ll", "d", "’", " ", "K", "\u212a"],
    "tags": ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "<", "|", ">", "im_end", "think", "/", " ",
             "\n", "x", "\u0301"],
}
POOLS["any"] = sum(POOLS.values(), [])

RUNS = [(c, 200_000) for c in (" ", "\n", "a", "!", "1", "'", "=", "\t", "<")] + \
       [(c, 66_667) for c in ("中", "क", "\u0e33", "\u3000")] + \
       [("\u0301", 100_000), ("\u0327\u0301", 30_000), ("\u0301\u0327", 30_000), ("é", 100_000), ("e\u0301", 60_000),
        ("😀", 50_000), ("ab", 100_000), ("\r\n", 100_000), (" \n", 100_000), ("'s", 50_000), ("\x00", 200_000)]


def fnv(ids):
    h = 0xcbf29ce484222325
    for i in ids:
        for b in i.to_bytes(4, "little"):
            h = (h ^ b) * 0x100000001b3 & 0xffffffffffffffff
    return f"{h:016x}"


def texts():
    for line in HAND.strip("\n").split("\n"):
        yield {"t": line.encode("raw_unicode_escape").decode("unicode_escape") if "\\" in line else line}
    rng = random.Random(20)
    for name in sorted(POOLS):
        for n in (1, 2, 3, 5, 8, 13, 21, 34, 55) * 3:
            yield {"t": "".join(rng.choice(POOLS[name]) for _ in range(n))}
    for _ in range(60):
        yield {"t": "".join(rng.choice(POOLS[rng.choice(sorted(POOLS))]) for _ in range(rng.randrange(1, 90)))}
    for n in range(1, 13):
        yield {"x": "".join(f"{rng.choice((0x80, 0xbf, 0xc0, 0xc3, 0xe2, 0xed, 0xa0, 0xf0, 0x9f, 0xf5, 0xff, 0x41, 0x20)):02x}"
                            for _ in range(n * 3))}
    for x in ("e282", "e28241", "f09f98", "f09f9841", "eda080", "f4908080", "c0af", "fffe", "41e4bd", "e4bda0e5a5", "f0808080"):
        yield {"x": x}
    for c, n in RUNS:
        yield {"r": [[c, n]]}
    yield {"r": [["x", 1], [" ", 200_000], ["y", 1]]}
    yield {"r": [[" ", 100_000], ["\n", 100_000], ["z ", 1000]]}
    yield {"r": [["<|im_end|>", 5000], ["<|im_end", 5000]]}


def main(src, out):
    base = json.load(open(src, encoding="utf-8"))
    made = {}
    for regex in ("", "q"):
        for added in ("a", "n"):
            j = json.loads(json.dumps(base))
            if regex:
                j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = OLD
            if added == "n":
                j["added_tokens"] = []
            t = made[regex + added] = Tokenizer.from_str(json.dumps(j))
            j["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in j["model"]["merges"]]
            assert Tokenizer.from_str(json.dumps(j)).encode("merges as strings").ids == t.encode("merges as strings").ids
    cases = []
    for c in texts():
        s = c.get("t")
        if "x" in c:
            s = bytes.fromhex(c["x"]).decode("utf-8", "replace")
        if "r" in c:
            s = "".join(p * n for p, n in c["r"])
        ids = {k: t.encode(s, add_special_tokens=False).ids for k, t in made.items()}
        if "r" in c:
            ids = {k: [len(v), fnv(v)] for k, v in ids.items()}
        c["a"] = ids["a"]
        c.update({k: ids[k] for k in ("n", "qa", "qn") if ids[k] != ids["a"]})
        cases.append(c)
    rng, t, n = random.Random(7), made["a"], made["a"].get_vocab_size()
    low = [i for i in range(n) if any(c not in "ĠĊ" and ord(c) > 0xff or 0x80 <= ord(c) <= 0xff
                                      for c in t.id_to_token(i) or "")]
    decodes = []
    for k in range(120):
        pick = [rng.choice(low) if rng.random() < .5 else rng.randrange(n) for _ in range(rng.randrange(1, 24))]
        d = {"ids": pick, "d": t.decode(pick, skip_special_tokens=False), "s": t.decode(pick, skip_special_tokens=True)}
        decodes.append(d)
    with open(out, "w", encoding="ascii") as f:
        f.write('{"old_regex":' + json.dumps(OLD) + ',\n"cases":[\n')
        f.write(",\n".join(json.dumps(c, separators=(",", ":")) for c in cases))
        f.write('],\n"decodes":[\n' + ",\n".join(json.dumps(c, separators=(",", ":")) for c in decodes) + "]}\n")
    print(f"{len(cases)} texts, {len(decodes)} decodes -> {out}")


main(*sys.argv[1:])
