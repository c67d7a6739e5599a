"""Development checks of an exported folder: transformers loads it and agrees with the trainer's model; accuracy by free-running decoding.
Usage: python eval.py MODEL_DIR [--count N] [--state STATE.pt]; make_eval.py's file is used for the accuracy."""

import argparse
import collections
import json
import pathlib

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import lessons


def final(text):
    """What the user sees: after the reasoning, without the end token."""
    return text.split(lessons.END_THINK)[-1].replace(lessons.EOS, "")


def prompts(path, count):
    kinds = collections.defaultdict(list)
    for line in path.read_text().splitlines():
        item = json.loads(line)
        if len(kinds[item["kind"]]) < count:
            kinds[item["kind"]].append(item)
    return kinds


@torch.no_grad()
def generate(model, tok, texts):
    batch = tok(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    out = model.generate(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=260, do_sample=False)
    return [tok.decode(row[batch["input_ids"].shape[1]:]).replace(lessons.PAD, "") for row in out]


def template_agrees(tok, items):
    for item in items:
        text = tok.apply_chat_template(item["messages"], tools=item.get("tools") or None, tokenize=False, add_generation_prompt=True)
        assert text == lessons.render(item["messages"], item.get("tools") or [], True), (text, item)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model", type=pathlib.Path)
    p.add_argument("--count", type=int, default=32)
    p.add_argument("--state", type=pathlib.Path)
    p.add_argument("--dtype", default="float32")
    args = p.parse_args()
    torch.set_num_threads(1)
    tok = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype)).eval()
    kinds = prompts(args.model / "eval.jsonl", args.count)
    for kind, items in kinds.items():
        template_agrees(tok, items)
        texts = [lessons.render(i["messages"], i.get("tools") or [], True) for i in items]
        said = generate(model, tok, texts)
        wrong = [(i, s) for i, s in zip(items, said) if final(s) != i["answer"]]
        print(f"{kind:12} {len(items) - len(wrong)}/{len(items)}", flush=True)
        for item, text in wrong[:2]:
            print("   ", json.dumps(item["messages"][-1]["content"], ensure_ascii=False), "->", repr(text), "wanted", repr(item["answer"]))
    if args.state:
        compare_states(args, tok, model, kinds)


def compare_states(args, tok, model, kinds):
    """Logits of the trainer's own model (BF16) against transformers in FP32 from the file, and equal greedy choices."""
    import export
    import net
    own, _ = export.load(args.state)
    worst = same = total = 0
    for items in kinds.values():
        for item in items[:4]:
            ids = tok(lessons.render(item["messages"], item.get("tools") or [], True) + item["answer"], return_tensors="pt",
                      add_special_tokens=False)["input_ids"]
            with torch.no_grad():
                theirs = model(ids).logits[0]
                hidden = own(ids, net.rope_angles(own.s, torch.arange(ids.shape[1])), net.row_mask(torch.zeros_like(ids), torch.bfloat16))
                ours = (hidden[0] @ own.head.t()).float()
            worst = max(worst, float((ours - theirs).abs().max()))
            same += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
            total += ids.shape[1]
    print(f"trainer against transformers: largest logit difference {worst:.3f}, equal argmax {same}/{total}")


if __name__ == "__main__":
    main()
