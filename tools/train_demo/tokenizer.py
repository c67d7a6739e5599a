"""Trains the demo model's byte-level BPE tokenizer on its own lessons and writes ordinary Hugging Face files.
Usage: python tokenizer.py OUT_DIR"""

import json
import pathlib
import random
import sys

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors, trainers

import lessons
import phrases

VOCAB_SIZE = 2048
SEED = 20250227
HERE = pathlib.Path(__file__).parent
# As DeepSeek marks them: the first three are special, the others are added tokens that decode to their text.
SPECIAL = [lessons.BOS, lessons.EOS, lessons.PAD]
ADDED = [lessons.USER, lessons.ASSISTANT, lessons.THINK, lessons.END_THINK, lessons.CALLS, lessons.END_CALLS, lessons.CALL,
         lessons.END_CALL, lessons.SEP, lessons.OUTPUT, lessons.END_OUTPUT]
WORDS = (r"[^\r\n\p{L}\p{P}\p{S}\p{N}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]|\s*[\r\n]+|\s+(?!\S)|\s+")


def corpus():
    """What the model will read and write, and every word the phrases know."""
    rng = random.Random(SEED)
    for _ in range(30000):
        made = lessons.lesson(rng)
        text = made.prompt + made.target
        for token in SPECIAL + ADDED:
            text = text.replace(token, "\n")
        yield text
    for words in (phrases.NOUNS, phrases.VERBS, phrases.ADJECTIVES, phrases.PLACES, phrases.LANGUAGES, phrases.TEXTS, phrases.THINGS):
        for word in words * 30:
            yield f"{word}\nthe {word} a {word}"


def train():
    tok = tokenizers.Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
        pre_tokenizers.Split(Regex(WORDS), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE - len(ADDED), special_tokens=SPECIAL, min_frequency=2, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tok.train_from_iterator(corpus(), trainer)
    tok.add_tokens([AddedToken(t, normalized=False, special=False) for t in ADDED])
    bos = tok.token_to_id(lessons.BOS)
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=f"{lessons.BOS} $A", pair=f"{lessons.BOS} $A $B", special_tokens=[(lessons.BOS, bos)])])
    return tok


def config():
    mark = {"__type": "AddedToken", "lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
    return {
        "add_bos_token": True, "add_eos_token": False,
        "bos_token": mark | {"content": lessons.BOS}, "eos_token": mark | {"content": lessons.EOS},
        "pad_token": mark | {"content": lessons.PAD}, "unk_token": None,
        "clean_up_tokenization_spaces": False, "legacy": True, "model_max_length": 8192, "sp_model_kwargs": {},
        "tokenizer_class": "LlamaTokenizerFast", "chat_template": (HERE / "chat_template.jinja").read_text().rstrip("\n")}


def write(out):
    out.mkdir(parents=True, exist_ok=True)
    train().save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(json.dumps(config(), ensure_ascii=False, indent=2) + "\n")


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]))
