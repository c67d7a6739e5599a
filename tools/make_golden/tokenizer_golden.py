#!/usr/bin/env python3
"""Writes the expected values of src/text/tokenizer_test.cc with Hugging Face's `tokenizers`.

    tokenizer_golden.py                      corpus.json and golden_small.json
    tokenizer_golden.py --deepseek FOLDER    golden_deepseek_v3.json, from a folder with the published files
    tokenizer_golden.py --demo                golden_demo.json, from the built-in model's files
    tokenizer_golden.py --tiktoken           tiktoken/ and golden_tiktoken.json: the small vocabulary in the form of
                                             Moonlight and Kimi-K2, encoded by the package `tiktoken`

"trusted" ids recognise every added token, as Hugging Face's encode() does. "plain" ids recognise none: they come
from a second tokenizer whose added tokens are all special and which encodes special tokens as text.
"""
import argparse
import base64
import hashlib
import json
import pathlib
import random

from tokenizers import Tokenizer

FIXTURES = pathlib.Path(__file__).parents[2] / "tests/fixtures/tokenizer"
LONG = 400  # more ids than this are kept as a count and a hash

FIXED = [
    "", " ", "  ", "\n", "\r\n", "\t", "a", "Hello, world!", "What is 347 + 586?", "12*34", "0", "7", "42", "123", "1234",
    "12345678901234567890", "3.14159", "1,000,000", "٣٤٥", "１２３４", "½ ¾ Ⅻ ²³", "v1.2.3-rc4",
    "don't can't I'll we've THEY'RE", "\u2019s \u2019t", "snake_case CamelCase kebab-case", "a/b\\c|d", "<html><b>x</b></html>",
    "if (a<b && c>d) { return !e; }", "!Hello #tag @name $var %x ^y &z *w", "\"quoted\"", "`code`", "~/.bashrc",
    "你好，世界！", "模型把提示词分成小块", "一二三abc四五六123七", "龥龦〇々㐀𠀀", "こんにちは世界", "カタカナ・ヒラガナー", "゛゜ヽヾ", "한국어 문장", "ㄱㄴㄷ",
    "русский язык", "ελληνικά", "עברית", "العربية ١٢٣", "हिन्दी में", "ไทย", "ქართული", "አማርኛ",
    "😀", "😀😀😀", "👨‍👩‍👧‍👦 family", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "❤️", "☃ ☂ ★",
    "e\u0301 a\u0308 n\u0303", "\u0301alone", "Z\u0351\u036b\u0343a\u0325l\u0332g\u0303o\u0308", "क्\u200dष", "ﬁ ﬂ ﬀ", "Å Å Å",
    "line\nline", "line\r\nline\r\n", "a\n\n\nb", "a\r\rb", " \n \n ", "trailing   ", "   leading", "a  b   c    d", "\t\tindent",
    "x\u00a0y", "x\u2003y\u200bz\ufeff", "\u180e \u180e", "\u2028\u2029", "\u0085 \x0b \x0c", "\u3000全角\u3000",
    "\0", "a\0b\0\0c", "\x01\x02\x1f\x7f", "\ufffd", "\ufdd0\uffff", "\U0010ffff", "\ue000",
    "<｜User｜>", "<｜Assistant｜>hi<｜end▁of▁sentence｜>", "a<｜User｜>b", "<｜User｜><｜User｜>", "<｜begin▁of▁sentence｜>",
    "<think>", "</think>", "<think>\nwhy\n</think>\n\nyes", "< think >", "<think", "think>", "<|EOT|>", "<|EOT|", "<｜User", "｜User｜>",
    "<<｜User｜>>", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "<｜fim▁begin｜>a<｜fim▁hole｜>b<｜fim▁end｜>", "<｜▁pad▁｜>", "<|User|>", "<｜user｜>", " <｜User｜> ", "\n<｜User｜>\n", "1<｜User｜>2",
    "https://example.org/a?b=c&d=e#f", "me@example.org", "2025-03-01T12:34:56Z", "0x7fff", "1e-9", "−5 ± 3 × 2 ÷ 4 ≠ ∞",
    "{\"a\": [1, 2.5, null, true]}", "SELECT * FROM t WHERE x >= 10;", "#include <vector>\nint main() { return 0; }\n",
    "    def f(x):\n        return x ** 2\n", "a" * 64, " " * 64, "\n" * 20, "1" * 50, "=" * 50, "-=" * 20, "哈" * 30, "!?" * 15,
]
REPEATED = [("a", 20000), (" ", 20000), ("\n", 5000), ("9", 10000), ("ab ", 5000), ("你好", 5000), ("😀", 3000), ("<", 5000),
            ("<｜User｜>", 500), ("e\u0301", 3000), ("\r\n", 4000), (" x\t", 3000)]
BYTES = [b"\xff", b"a\xffb", b"\xc3", b"\xc3(", b"\xe4\xb8", b"\xe4\xb8\xe4\xb8\xad", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
         b"ok \x80\x81 ok", bytes(range(256)), b"<\xefUser>", b"<\xef\xbd\x9cUser\xef\xbd\x9c\xff>"]

CLASSES = ["abcXYZ", "0123456789", " \t", "\r\n", "你好世界龥〇", "ひらカナー", "한글", "éñü", "\u0301\u0308\u200d", "😀👍🏽🇩🇪",
           "'\".,;:!?-_/\\|<>｜▁", "٣٤½²", "\u00a0\u3000\u2028", "\0\x7f", "कषไ", "∑≤€"]
PIECES = ["<｜User｜>", "</think>", "<think>", "'s", "'ll", "```", "<|EOT|>", "<｜", "｜>", "http://", "  ", "\r\n"]


def corpus():
    cases = [{"text": t} for t in FIXED] + [{"unit": u, "times": n} for u, n in REPEATED] + [{"hex": b.hex()} for b in BYTES]
    rng = random.Random(7)
    for _ in range(250):
        text = ""
        for _ in range(rng.randint(1, 14)):
            if rng.random() < 0.12:
                text += rng.choice(PIECES)
            else:
                text += "".join(rng.choice(rng.choice(CLASSES)) if rng.random() < 0.3 else c
                                for c in rng.choices(rng.choice(CLASSES), k=rng.randint(1, 5)))
        cases.append({"text": text})
    return cases


def case_text(case):
    if "hex" in case:
        return bytes.fromhex(case["hex"]).decode("utf-8", "replace")
    return case["text"] if "text" in case else case["unit"] * case["times"]


def fnv1a(ids):
    value = 0xCBF29CE484222325
    for i in ids:
        for byte in i.to_bytes(4, "little"):
            value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def pack(ids):
    return ids if len(ids) <= LONG else {"count": len(ids), "fnv1a": fnv1a(ids)}


def golden(folder, cases):
    text = (folder / "tokenizer.json").read_text()
    trusted = Tokenizer.from_str(text)
    data = json.loads(text)
    for token in data["added_tokens"]:
        token.update(special=True, normalized=False)
    plain = Tokenizer.from_str(json.dumps(data))
    plain.encode_special_tokens = True

    out = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "encode": [], "decode": []}
    for case in cases:
        t = case_text(case)
        a = trusted.encode(t, add_special_tokens=False).ids
        b = plain.encode(t, add_special_tokens=False).ids
        out["encode"].append({"trusted": pack(a)} if a == b else {"trusted": pack(a), "plain": pack(b)})
    rng = random.Random(11)
    size = max(trusted.get_vocab().values()) + 1
    low = [i for i in range(size) if trusted.id_to_token(i) is not None and len(trusted.decode([i])) == 1
           and trusted.decode([i]) == "\ufffd"]
    added = [token["id"] for token in data["added_tokens"]]
    for _ in range(60):
        ids = [rng.choice(low) if rng.random() < 0.35 else rng.choice(added) if rng.random() < 0.1
               else rng.randrange(size + 5) for _ in range(rng.randint(1, 20))]
        out["decode"].append({"ids": ids, "text": trusted.decode(ids, skip_special_tokens=False),
                              "skipped": trusted.decode(ids, skip_special_tokens=True)})
    return out


KIMI_PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def tiktoken_golden(cases):
    import tiktoken
    small = Tokenizer.from_file(str(FIXTURES / "small/tokenizer.json"))
    printable = [c for c in range(256) if 33 <= c <= 126 or 161 <= c <= 172 or 174 <= c <= 255]
    to_byte = {chr(c): c for c in printable}
    to_byte.update({chr(256 + i): c for i, c in enumerate(c for c in range(256) if c not in printable)})
    added = small.get_added_tokens_decoder()
    vocab = sorted((i, t) for t, i in small.get_vocab().items() if i not in added)
    ranks = {bytes(to_byte[c] for c in t): i for i, t in vocab}
    assert sorted(ranks.values()) == list(range(len(ranks)))

    names = ["[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<think>", "<｜User｜>"]
    first = len(ranks)
    folder = FIXTURES / "tiktoken"
    folder.mkdir(exist_ok=True)
    (folder / "tiktoken.model").write_text("".join(f"{base64.b64encode(t).decode()} {r}\n" for t, r in ranks.items()))
    decoder = {str(first + i): {"content": t, "special": t != "<think>"} for i, t in enumerate(names)}
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "added_tokens_decoder": decoder, "bos_token": "[BOS]", "eos_token": "[EOS]", "tokenizer_class": "TikTokenTokenizer"},
        ensure_ascii=False, indent=1) + "\n")
    special = {(names[i] if i < len(names) else f"<|reserved_token_{first + i}|>"): first + i for i in range(256)}
    encoding = tiktoken.Encoding("kimi", pat_str=KIMI_PATTERN, mergeable_ranks=ranks, special_tokens=special)
    out = {"encode": [], "decode": []}
    for case in cases:
        a = encoding.encode(case_text(case), allowed_special="all")
        b = encoding.encode(case_text(case), allowed_special=set(), disallowed_special=())
        out["encode"].append({"trusted": pack(a)} if a == b else {"trusted": pack(a), "plain": pack(b)})
    rng = random.Random(13)
    for _ in range(40):
        ids = [rng.randrange(first + 256) if rng.random() < 0.5 else rng.randrange(256) for _ in range(rng.randint(1, 20))]
        kept = [i for i in ids if i < first or i == special["<think>"]]
        out["decode"].append({"ids": ids, "text": encoding.decode(ids), "skipped": encoding.decode(kept)})
    return out


def write(name, value):
    lines = ",\n".join(json.dumps(k) + ":" + ("[\n" + ",\n".join(json.dumps(x, ensure_ascii=True, separators=(",", ":"))
                       for x in v) + "\n]" if isinstance(v, list) else json.dumps(v)) for k, v in value.items())
    (FIXTURES / name).write_text("{\n" + lines + "\n}\n")
    print(name, (FIXTURES / name).stat().st_size, "bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deepseek", type=pathlib.Path, help="folder with DeepSeek-V3's tokenizer.json")
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("--tiktoken", action="store_true")
    args = parser.parse_args()
    cases = corpus()
    if args.deepseek:
        write("golden_deepseek_v3.json", golden(args.deepseek, cases))
    elif args.demo:
        write("golden_demo.json", golden(pathlib.Path(__file__).parents[2] / "models/demo", cases))
    elif args.tiktoken:
        write("golden_tiktoken.json", tiktoken_golden(cases))
    else:
        write("corpus.json", {"cases": cases})
        write("golden_small.json", golden(FIXTURES / "small", cases))


if __name__ == "__main__":
    main()
