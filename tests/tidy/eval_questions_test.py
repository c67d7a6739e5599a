"""The evaluation questions of the built-in model: made by the checked-in script, answered rightly, and none of them a training one."""
import json
import pathlib
import random
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/train_demo"))
import lessons  # noqa: E402
import make_eval  # noqa: E402

ITEMS = [json.loads(line) for line in (ROOT / "models/demo/eval.jsonl").read_text().splitlines()]
SUM = re.compile(r"(-?\d+) ([-+×]) (\d+) = (-?\d+)\.")
TRAINING_DRAWS = 30_000


def test_the_script_makes_the_same_questions():
    kinds = [kind for kind in lessons.MIX if kind not in lessons.EXERCISES]
    count = len(ITEMS) // len(kinds)
    assert count >= 200 and [item for kind in kinds for item in make_eval.questions(kind, count)] == ITEMS


def test_the_expected_answers_are_right():
    checked = 0
    for item in ITEMS:
        if item["kind"] not in ("add", "sub", "mul"):
            continue
        (a, sign, b, result), = SUM.findall(item["answer"])
        assert int(result) == {"+": int(a) + int(b), "-": int(a) - int(b), "×": int(a) * int(b)}[sign], item
        checked += 1
    assert checked >= 600


def test_no_training_question_is_among_them():
    """By what is asked, whatever the wording or the order of the numbers; and by the words of single questions."""
    def sums(answer):
        return {(sign, *sorted((a, b))) for a, sign, b, _ in SUM.findall(answer)}

    asked = set().union(*(sums(item["answer"]) for item in ITEMS))
    words = {item["messages"][-1]["content"] for item in ITEMS if item["kind"] not in ("turns", "tool_answer")}
    rng, trained, known = random.Random(7), set(), set()
    for _ in range(TRAINING_DRAWS):
        lesson = lessons.lesson(rng)
        trained |= sums(lesson.answer)
        known.add(lesson.messages[-1]["content"])
    assert len(asked) > 700 and len(trained) > 5_000
    assert not asked & trained and not words & known
