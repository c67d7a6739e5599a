#!/usr/bin/env python3
"""Trains tests/fixtures/tokenizer/small: a byte-level BPE tokenizer of DeepSeek's shape and a small vocabulary.

It has DeepSeek-V3's pre-tokenizer, special and added tokens, and R1's reasoning tags; the training text is made
here, so that the file depends on nothing else. Needs the Python package `tokenizers`.
"""
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = pathlib.Path(__file__).parents[2] / "tests/fixtures/tokenizer/small"
VOCAB_SIZE = 1800

# The three splits of DeepSeek-V3's tokenizer.json.
SPLITS = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^" "\r\n" r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[" "\r\n" r"]*|\s*[" "\r\n" r"]+|\s+(?!\S)|\s+",
]

SPECIAL = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
ADDED = [
    "<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜User｜>", "<｜Assistant｜>", "<|EOT|>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
    "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>",
    "<｜tool▁sep｜>", "<think>", "</think>",
]

PHRASES = """
The cache keeps blocks of sixty-four tokens, and every block knows its parent.
A request waits in a queue until a rank has room for its prompt.
What is 12 plus 30? It is 42. Compare 7 and 19, then sort 5, 3, 8.
She said: "I don't know what it's worth, but we'll see." They've gone; he'd stay.
def add(a, b):\n    return a + b\nfor (int i = 0; i < n; ++i) { sum += x[i]; }
{"name": "calculator", "arguments": {"expression": "3 * (4 + 5)"}}
Größe, Straße, café, naïve, señor, São Paulo, Čeština, ελληνικά, русский язык, עברית, العربية, हिन्दी
模型把提示词分成小块，每块六十四个词元。今天天气很好，我们去公园散步吧。
東京は大きな町です。カタカナとひらがなを使います。
한국어 문장도 있습니다. 오늘은 날씨가 좋아요.
Tokens travel between experts; the gate picks eight of them for each token.
https://example.org/path?query=1&other=two  mail@example.org  #tag  @name  50%  $3.14  €20
""".strip().split("\n")


def training_text():
    rng = random.Random(20250301)
    words = [w for p in PHRASES for w in p.replace("\\n", "\n").split(" ")]
    for _ in range(4000):
        yield rng.choice(PHRASES).replace("\\n", "\n")
        yield " ".join(rng.choice(words) for _ in range(rng.randint(3, 12)))


def main():
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.Sequence([])
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(s), "isolated") for s in SPLITS]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE, special_tokens=[], show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tok.train_from_iterator(training_text(), trainer)
    tok.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL])
    tok.add_tokens([AddedToken(t, normalized=True, special=t == "<|EOT|>") for t in ADDED])

    OUT.mkdir(parents=True, exist_ok=True)
    data = json.loads(tok.to_str())
    (OUT / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False, indent=None, separators=(",", ":")) + "\n")
    token = lambda text: {"__type": "AddedToken", "content": text, "lstrip": False, "normalized": True,
                          "rstrip": False, "single_word": False}
    config = {"add_bos_token": True, "add_eos_token": False, "bos_token": token(SPECIAL[0]),
              "eos_token": token(SPECIAL[1]), "pad_token": token(SPECIAL[1]), "unk_token": None,
              "clean_up_tokenization_spaces": False, "model_max_length": 4096,
              "tokenizer_class": "LlamaTokenizerFast"}
    (OUT / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=2) + "\n")
    print(f"{tok.get_vocab_size()} tokens, {(OUT / 'tokenizer.json').stat().st_size} bytes")


if __name__ == "__main__":
    main()
