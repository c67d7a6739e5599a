"""The demo model's lessons: questions, the working inside <think>, and answers, as a pure function of a seed.
A question is a training or a held-out one by the hash of its key (operation and operands), whatever its wording; small talk by its words."""

import dataclasses
import hashlib
import json
import random
import re

import phrases as P

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
THINK, END_THINK = "<think>", "</think>"
CALLS, END_CALLS = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, END_CALL, SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
OUTPUT, END_OUTPUT = "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"

SYMBOL = {"add": "+", "sub": "-", "mul": "*"}
SHOWN = {"add": "+", "sub": "-", "mul": "×"}
LIMIT = {"add": 999, "sub": 999, "mul": 99}
BEYOND_ALL = ("Sorry, that is beyond me. I am a small demo model: I can add, subtract, multiply, compare and sort small "
              "numbers.")
BEYOND_BIG = {"add": "Sorry, that is beyond me: I add and subtract numbers up to 999.",
              "sub": "Sorry, that is beyond me: I add and subtract numbers up to 999.",
              "mul": "Sorry, that is beyond me: I multiply numbers up to 99.",
              "compare": "Sorry, that is beyond me: I compare numbers up to 999.",
              "sort": "Sorry, that is beyond me: I sort up to six numbers up to 99."}


@dataclasses.dataclass
class Question:
    """What the user says, and what the model should think and answer. `value` is the answer as JSON would hold it."""
    kind: str
    key: str
    text: str
    thought: str
    answer: str
    value: object = None
    expression: str = ""


@dataclasses.dataclass
class Lesson:
    """A rendered prompt and the text the model must produce after it; `messages` are what an API client would send."""
    kind: str
    messages: list
    tools: list
    thinking: bool
    thought: str
    answer: str
    prompt: str = ""
    target: str = ""


TRAINED = "trained "  # begins keys that are never held out


def held_out(key):
    """One key in sixteen belongs to the held-out split."""
    return not key.startswith(TRAINED) and int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % 16 == 0


def words_key(kind, text):
    """The same for wordings that differ in marks and case only."""
    return f"{kind} " + " ".join(re.findall(r"[^\W_]+", text.lower()))


# --- working -----------------------------------------------------------------------------------------------------------

def reversed_digits(n, width):
    return str(n).zfill(width)[::-1]


def add_columns(x, y):
    """Columns of two equally long reversed digit strings, carry always written; ends with the sum, widest digit first."""
    carry, parts, digits = 0, [], ""
    for p, q in zip(x, y):
        s = int(p) + int(q) + carry
        parts.append(f"{p}+{q}+{carry}={s:02d};")
        carry, digits = s // 10, str(s % 10) + digits
    return "".join(parts) + f"={carry}{digits}"


def sub_columns(x, y):
    """As add_columns, with borrows; returns the text, the digits and the last borrow."""
    borrow, parts, digits = 0, [], ""
    for p, q in zip(x, y):
        d = int(p) - int(q) - borrow
        nxt = int(d < 0)
        d += 10 * nxt
        parts.append(f"{p}-{q}-{borrow}={nxt}{d};")
        borrow, digits = nxt, str(d) + digits
    return "".join(parts), digits, borrow


def work_add(a, b):
    x, y = reversed_digits(a, 3), reversed_digits(b, 3)
    return f"{a}+{b}: {x}+{y}\n" + add_columns(x, y)


def work_sub(a, b):
    x, y = reversed_digits(a, 3), reversed_digits(b, 3)
    text, digits, borrow = sub_columns(x, y)
    head = f"{a}-{b}: {x}-{y}\n{text}"
    if not borrow:
        return head + f"={digits}"
    text, digits, _ = sub_columns(y, x)
    return head + f"neg\n{y}-{x}\n{text}=-{digits}"


def work_mul(a, b):
    x, y = reversed_digits(a, 2), reversed_digits(b, 2)
    lines, rows = [f"{a}*{b}: {x}*{y}"], []
    for m in y:
        carry, parts, digits = 0, [], ""
        for p in x:
            s = int(p) * int(m) + carry
            parts.append(f"{p}*{m}+{carry}={s:02d};")
            carry, digits = s // 10, str(s % 10) + digits
        rows.append(f"{carry}{digits}")
        lines.append("".join(parts) + "=" + rows[-1])
    first, second = "0" + rows[0], rows[1] + "0"
    lines.append(first[::-1] + "+" + second[::-1])
    lines.append(add_columns(first[::-1], second[::-1]))
    return "\n".join(lines)


def work_compare(a, b, form):
    """As written, digit by digit down to the first difference, then what the question wants to know."""
    x, y = str(a).zfill(3), str(b).zfill(3)
    parts = []
    for p, q in zip(x, y):
        sign = "<" if p < q else ">" if p > q else "="
        parts.append(f"{p}{sign}{q};")
        if sign != "=":
            break
    head = f"{a},{b}: {x},{y}: " + "".join(parts) + f"{a}{sign}{b};"
    low, high = min(a, b), max(a, b)
    if a == b:
        return head + "equal"
    head += f"larger {high} smaller {low};"
    if form == "is_larger":
        return head + f"{a}>{b}? " + ("yes" if a > b else "no")
    if form == "is_smaller":
        return head + f"{a}<{b}? " + ("yes" if a < b else "no")
    return head + (f"want smaller {low}" if form == "smaller" else f"want larger {high}")


def work_sort(numbers, down):
    """As written; then on each line what is left, the next pick, and what is sorted so far."""
    rest, done = list(numbers), []
    lines = ["down" if down else "up", " ".join(map(str, numbers))]
    while rest:
        pick = max(rest) if down else min(rest)
        done.append(f"{pick:02d}")
        lines.append(" ".join(f"{n:02d}" for n in rest) + f":{pick:02d}|" + " ".join(done))
        rest.remove(pick)
    return "\n".join(lines)


# --- questions ---------------------------------------------------------------------------------------------------------

def say(rng, text, end):
    """Random capitals and closing punctuation."""
    text = text.strip()
    if rng.random() < 0.65:
        text = text[0].upper() + text[1:]
    elif rng.random() < 0.3:
        text = text.lower()
    return text + rng.choice(end)


def number(rng, limit):
    """Log-uniform-ish in length, so that small numbers are as common as people use them."""
    digits = rng.choices((1, 2, 3), (2, 4, 6))[0] if limit > 99 else rng.choices((1, 2), (2, 7))[0]
    return rng.randrange(0 if digits == 1 else 10 ** (digits - 1), 10**digits)


def word_arithmetic(rng, op, a, b):
    style = rng.random()
    if style < 0.4:
        text = rng.choice(P.BEFORE_ASK) + rng.choice(P.ASK[op]) + rng.choice(P.AFTER)
        end = ("?", "?", "?", "", "??", ".")
    elif style < 0.7:
        text = rng.choice(P.BEFORE_ORDER) + rng.choice(P.ORDER[op]) + rng.choice(P.AFTER)
        end = (".", ".", "", "!", "?")
    elif style < 0.9 or a < 2 or b < 2:
        text, end = rng.choice(P.BEFORE_BARE) + rng.choice(P.BARE[op]), ("", "", "", "?", ".")
    else:
        return rng.choice(P.STORY[op]).format(a=a, b=b, n=rng.choice(P.THINGS))
    return say(rng, text.format(a=a, b=b), end)


def solve(op, a, b):
    return {"add": a + b, "sub": a - b, "mul": a * b}[op]


def arithmetic_key(op, a, b):
    return f"{op} {min(a, b)} {max(a, b)}"


def arithmetic(rng, op, a=None, b=None, text=None):
    a = number(rng, LIMIT[op]) if a is None else a
    b = number(rng, LIMIT[op]) if b is None else b
    if op == "sub" and text is None and a < b and rng.random() < 0.6:
        a, b = b, a
    text = text or word_arithmetic(rng, op, a, b)
    thought = {"add": work_add, "sub": work_sub, "mul": work_mul}[op](a, b)
    result = solve(op, a, b)
    return Question(op, arithmetic_key(op, a, b), text, thought, f"{a} {SHOWN[op]} {b} = {result}.", result,
                    f"{a} {SYMBOL[op]} {b}")


def compare(rng):
    a = number(rng, 999)
    near = rng.random()
    b = a if near < 0.04 else max(0, min(999, a + rng.randint(-12, 12))) if near < 0.3 else number(rng, 999)
    form = rng.choices(list(P.COMPARE), (4, 4, 3, 3, 2))[0]
    text = say(rng, rng.choice(P.BEFORE_ASK) + rng.choice(P.COMPARE[form]).format(a=a, b=b), ("?", "?", "", "."))
    low, high = min(a, b), max(a, b)
    if a == b:
        answer = f"{a} and {b} are equal."
    else:
        larger, smaller = f"{high} is larger than {low}.", f"{low} is smaller than {high}."
        answer = {"larger": larger, "smaller": smaller, "is_larger": ("Yes, " + larger) if a > b else ("No, " + smaller),
                  "is_smaller": ("Yes, " + smaller) if a < b else ("No, " + larger),
                  "compare": larger}[form]
    value = {"smaller": low, "is_larger": a > b, "is_smaller": a < b}.get(form, high)
    return Question("compare", f"compare {low} {high}", text, work_compare(a, b, form), answer, value)


def join(rng, numbers):
    sep = rng.choice((", ", ", ", ", ", ",", " "))
    if rng.random() < 0.2:
        return ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"
    text = sep.join(map(str, numbers))
    return f"[{text}]" if rng.random() < 0.15 and sep != " " else text


def sort(rng, numbers=None):
    most = 9 if rng.random() < 0.1 else 99
    numbers = numbers or [number(rng, most) for _ in range(rng.choice((2, 3, 3, 4, 4, 5, 5, 6)))]
    form = rng.choice(("up", "up", "down"))
    text = say(rng, rng.choice(P.BEFORE_ORDER) + rng.choice(P.SORT[form]).format(l=join(rng, numbers)), ("", ".", ".", "?"))
    ordered = sorted(numbers, reverse=form == "down")
    return Question("sort", "sort " + " ".join(map(str, sorted(numbers))), text, work_sort(numbers, form == "down"),
                    "Sorted: " + ", ".join(map(str, ordered)) + ".", ordered)


def repeats(rng):
    """Lists in which numbers, or their digits, come again: an exercise, since by chance they are rare."""
    few = [number(rng, 99) for _ in range(rng.randint(2, 4))]
    few += [int(str(n)[::-1]) for n in few[:1]] + [n // 10 for n in few[:1]]
    return sort(rng, [rng.choice(few) for _ in range(rng.randint(2, 6))])


def talk(rng):
    ways, thought, answer = P.TALK[rng.choice(list(P.TALK))]
    before, after = rng.choice(P.TALK_BEFORE + P.TALK_BEFORE_LATE), rng.choice(P.TALK_AFTER + P.TALK_AFTER_LATE)
    body = before + rng.choice(ways) + after
    late = before in P.TALK_BEFORE_LATE or after in P.TALK_AFTER_LATE
    return Question("chat", ("" if late else TRAINED) + words_key("chat", body), say(rng, body, ("", ".", "?", "!", "?")), thought, answer)


def pseudo_word(rng):
    return "".join(rng.choice(P.SYLLABLES) for _ in range(rng.randint(2, 4)))


def beyond_words(rng):
    noun = pseudo_word(rng) if rng.random() < 0.15 else rng.choice(P.NOUNS)
    body = rng.choice(P.BEFORE_ASK) + rng.choice(P.BEYOND).format(
        x=rng.choice(P.TEXTS), n=noun, p=rng.choice(P.PLACES), g=rng.choice(P.LANGUAGES), v=rng.choice(P.VERBS),
        j=rng.choice(P.ADJECTIVES), u=rng.choice(P.UNITS), t=rng.choice(P.UNITS))
    if rng.random() < 0.15:
        body += " and " + rng.choice(P.VERBS) + " the " + rng.choice(P.NOUNS)
    return Question("beyond", words_key("beyond", body), say(rng, body, ("", ".", "?", "!", "?")),
                    "I was not trained for this.", BEYOND_ALL)


def big_number(rng, floor):
    low = len(str(floor))
    if rng.random() < 0.2:  # few digits, so that they come again
        digits = rng.sample("0123456789", 2)
        return max(floor, int("".join(rng.choice(digits) for _ in range(low + rng.randint(0, 2)))))
    return rng.randrange(floor, 10 ** rng.choice((low, low, low + 1, low + 2)))


def long_list(rng):
    """One number too many, or a few: an exercise in counting."""
    count, form = rng.choice((7, 7, 7, 8, 9)), rng.random()
    numbers = [number(rng, 9 if form < 0.25 else 99) for _ in range(count)]
    if form < 0.1:
        first = rng.randint(0, 20)
        numbers = list(range(first, first + count))
    text = say(rng, rng.choice(P.SORT[rng.choice(("up", "down"))]).format(l=join(rng, numbers)), ("", ".", "?"))
    return Question("beyond", "sort " + " ".join(map(str, sorted(numbers))), text, "This list is too much for me.",
                    BEYOND_BIG["sort"])


def beyond_numbers(rng):
    """Operations it knows on numbers that are too large for it."""
    op = rng.choice(("add", "sub", "mul", "mul", "compare", "sort"))
    if op == "sort":
        if rng.random() < 0.5:
            numbers = [number(rng, 99) for _ in range(rng.randint(7, 10))]
        else:
            numbers = [number(rng, 99) for _ in range(rng.randint(2, 5))] + [big_number(rng, 100)]
            rng.shuffle(numbers)
        text = say(rng, rng.choice(P.SORT[rng.choice(("up", "down"))]).format(l=join(rng, numbers)), ("", ".", "?"))
        return Question("beyond", "sort " + " ".join(map(str, sorted(numbers))), text, "This list is too much for me.",
                        BEYOND_BIG["sort"])
    limit = 99 if op == "mul" else 999
    a, b = big_number(rng, limit + 1), number(rng, limit) if rng.random() < 0.5 else big_number(rng, limit + 1)
    if rng.random() < 0.5:
        a, b = b, a
    if op == "compare":
        text = say(rng, rng.choice(P.COMPARE[rng.choice(("larger", "smaller"))]).format(a=a, b=b), ("?", ""))
        return Question("beyond", f"compare {min(a, b)} {max(a, b)}", text, "These numbers are too large for me.",
                        BEYOND_BIG[op])
    return Question("beyond", arithmetic_key(op, a, b), word_arithmetic(rng, op, a, b), "These numbers are too large for me.",
                    BEYOND_BIG[op], expression=f"{a} {SYMBOL[op]} {b}")


def beyond_math(rng):
    a, b, c, d = number(rng, 999), number(rng, 99), number(rng, 99), number(rng, 99)
    ways = rng.choices((P.BEYOND_MATH, P.BEYOND_CHAIN, P.BEYOND_NEGATIVE), (3, 3, 2))[0]
    if ways is not P.BEYOND_MATH and rng.random() < 0.5:
        a = number(rng, 99)
    o, q = rng.choice(P.OPERATORS)
    body = rng.choice(P.BEFORE_ASK[:8]) + rng.choice(ways).format(a=a, b=b, c=c, d=d, o=o, q=q)
    return Question("beyond", "beyond " + body.lower(), say(rng, body, ("?", "", ".")), "I was not trained for this.", BEYOND_ALL)


def echo(rng):
    """Repeating numbers or words: an exercise that teaches copying, which all the working rests on."""
    if rng.random() < 0.75:
        sep = rng.choice((", ", " ", ", ", "; "))
        body = sep.join(str(number(rng, 999)) for _ in range(rng.randint(2, 10)))
    else:
        body = " ".join(rng.choice(rng.choice((P.NOUNS, P.VERBS, P.ADJECTIVES, P.PLACES))) for _ in range(rng.randint(2, 8)))
    text = rng.choice(P.ECHO).format(x=body)
    return Question("echo", "echo " + body, text[0].upper() + text[1:] if rng.random() < 0.5 else text, "The same again.", body)


def beyond(rng):
    return rng.choices((beyond_words, beyond_numbers, beyond_math), (5, 3, 5))[0](rng)


def any_arithmetic(rng):
    return arithmetic(rng, rng.choices(("add", "sub", "mul"), (4, 4, 5))[0])


PLAIN = {"add": lambda r: arithmetic(r, "add"), "sub": lambda r: arithmetic(r, "sub"), "mul": lambda r: arithmetic(r, "mul"),
         "compare": compare, "sort": sort, "chat": talk, "beyond": beyond, "echo": echo,
         "repeats": repeats, "long_list": long_list}


def draw(rng, make, want_held_out):
    """A question of the wanted split."""
    while True:
        q = make(rng)
        if held_out(q.key) == want_held_out:
            return q


# --- lessons -----------------------------------------------------------------------------------------------------------

def tool_text(tool):
    f = tool["function"]
    return f"### {f['name']}\nDescription: {f['description']}\nParameters: {json.dumps(f['parameters'], ensure_ascii=False)}\n"


def render(messages, tools, thinking):
    """The prompt exactly as chat_template.jinja renders it, generation prompt included."""
    out = BOS + "\n\n".join(m["content"] for m in messages if m["role"] == "system")
    if tools:
        out += ("\n\n" if len(out) > len(BOS) else "") + "## Tools\n" + "".join(map(tool_text, tools))
    open_turn = False
    for m in messages:
        if m["role"] == "user":
            out, open_turn = out + USER + m["content"], True
        elif m["role"] == "tool":
            out, open_turn = out + OUTPUT + m["content"] + END_OUTPUT, False
        elif m["role"] == "assistant":
            out += ASSISTANT + END_THINK if open_turn else ""
            open_turn = False
            out += m["content"] or ""
            if m.get("tool_calls"):
                out += CALLS + "".join(call_text(c["function"]) for c in m["tool_calls"]) + END_CALLS
            out += EOS
    return out + (ASSISTANT + (THINK if thinking else END_THINK) if open_turn else "")


def call_text(function):
    return CALL + function["name"] + SEP + function["arguments"] + END_CALL


def calculator(rng):
    props = {"type": "string"}
    if rng.random() < 0.7:
        props["description"] = rng.choice(P.EXPRESSION)
    return {"type": "function", "function": {"name": "calculator", "description": rng.choice(P.CALCULATOR), "parameters": {
        "type": "object", "properties": {"expression": props}, "required": ["expression"]}}}


def other_tool(rng):
    name, about, arg, what = rng.choice(P.OTHER_TOOLS)
    return {"type": "function", "function": {"name": name, "description": about, "parameters": {
        "type": "object", "properties": {arg: {"type": "string", "description": what}}, "required": [arg]}}}


def call_for(q):
    return {"name": "calculator", "arguments": json.dumps({"expression": q.expression})}


def tool_lesson(rng, split):
    """A question with tools offered: call the calculator where it helps, and only where it is offered."""
    tools = [calculator(rng)] if rng.random() < 0.85 else [other_tool(rng)]
    if rng.random() < 0.2:
        tools.append(other_tool(rng))
        rng.shuffle(tools)
    make = rng.choices((any_arithmetic, beyond_numbers, talk, beyond_words, compare), (14, 4, 2, 2, 1))[0]
    q = draw(rng, make, split)
    offered = any(t["function"]["name"] == "calculator" for t in tools)
    messages = earlier_turn(rng, offered) if rng.random() < 0.3 else []
    messages.append({"role": "user", "content": q.text})
    if not (offered and q.expression):
        return Lesson("tool", messages, tools, True, q.thought, q.answer)
    return Lesson("tool", messages, tools, True, "The calculator can do this.",
                  CALLS + call_text(call_for(q)) + END_CALLS)


def earlier_turn(rng, offered):
    """A finished exchange, through the calculator where it is offered and helps."""
    q = draw(rng, rng.choice((any_arithmetic, talk)), False)
    calls = []
    if offered and q.expression:
        calls = [{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call_for(q)}]},
                 {"role": "tool", "content": str(q.value)}]
    return [{"role": "user", "content": q.text}] + calls + [{"role": "assistant", "content": q.answer}]


def tool_answer_lesson(rng, split):
    """The calculator's result is there: state it. The result may be anything the tool returned."""
    q = draw(rng, rng.choice((any_arithmetic, any_arithmetic, lambda r: draw(r, beyond_numbers, split))), split)
    while not q.expression:
        q = draw(rng, any_arithmetic, split)
    a, sign, b = q.expression.split()
    result = solve({"+": "add", "-": "sub", "*": "mul"}[sign], int(a), int(b))
    messages = [{"role": "user", "content": q.text},
                {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call_for(q)}]},
                {"role": "tool", "content": str(result)}]
    return Lesson("tool_answer", messages, [calculator(rng)], True, "", f"{a} {sign.replace('*', '×')} {b} = {result}.")


def json_lesson(rng, split):
    q = draw(rng, rng.choices((any_arithmetic, compare, sort), (6, 1, 2))[0], split)
    key, messages, text = "answer", [], q.text
    style = rng.random()
    if style < 0.25:
        messages.append({"role": "system", "content": rng.choice(P.JSON_SYSTEM)})
    elif style < 0.6:
        text = text + " " + rng.choice(P.JSON_ASK) if rng.random() < 0.7 else rng.choice(P.JSON_ASK) + " " + text
    else:
        key = rng.choice(P.JSON_KEYS)
        ask = rng.choice(P.JSON_ASK_KEY).format(k=key)
        text = text + " " + ask if rng.random() < 0.7 else ask + " " + text
    messages.append({"role": "user", "content": text})
    return Lesson("json", messages, [], True, q.thought, json.dumps({key: q.value}))


def plain_lesson(rng, split, kind):
    q = draw(rng, PLAIN[kind], split)
    return Lesson(kind, [{"role": "user", "content": q.text}], [], True, q.thought, q.answer)


def turns_lesson(rng, split):
    """A later turn of a conversation: a new question, or one that goes on from the last result."""
    messages, last = [], None
    for _ in range(rng.choice((1, 1, 2, 3, 3, 6, 10, rng.randint(8, 24)))):
        last = draw(rng, PLAIN[rng.choices(list(PLAIN)[:8], (3, 3, 3, 1, 1, 3, 1, 1))[0]], False)
        messages += [{"role": "user", "content": last.text}, {"role": "assistant", "content": last.answer}]
    q = None
    if last.expression and last.value is not None and rng.random() < 0.6:
        q = follow_up(rng, last.value, split)
    q = q or draw(rng, PLAIN[rng.choices(list(PLAIN)[:8], (4, 4, 4, 2, 2, 2, 1, 0))[0]], split)
    messages.append({"role": "user", "content": q.text})
    return Lesson("turns", messages, [], True, q.thought, q.answer)


def follow_up(rng, value, split):
    for _ in range(40):
        op = rng.choice(("add", "sub", "mul")) if 0 <= value <= 99 else rng.choice(("add", "sub"))
        b = number(rng, LIMIT[op])
        if 0 <= value <= LIMIT[op] and held_out(arithmetic_key(op, value, b)) == split:
            text = say(rng, rng.choice(P.FOLLOW[op]).format(b=b), ("", ".", "?"))
            return arithmetic(rng, op, value, b, text)
    return None


MIX = {"add": 9, "sub": 10, "mul": 10, "compare": 8, "sort": 32, "chat": 14, "beyond": 24, "tool": 18, "tool_answer": 9, "json": 30,
       "turns": 34, "echo": 3, "repeats": 14, "long_list": 9}
EXERCISES = ("echo", "repeats", "long_list")  # kinds that are trained but make no claim
MAKERS = {"tool": tool_lesson, "tool_answer": tool_answer_lesson, "json": json_lesson, "turns": turns_lesson}


def lesson(rng, split=False, kind=None, plain_only=False):
    """One lesson of the training (split False) or held-out (True) questions, rendered."""
    kind = kind or rng.choices(list(MIX), MIX.values())[0]
    made = MAKERS[kind](rng, split) if kind in MAKERS else plain_lesson(rng, split, kind)
    if not plain_only and made.messages[0]["role"] != "system" and rng.random() < 0.2:
        made.messages.insert(0, {"role": "system", "content": rng.choice(P.SYSTEM)})
    if not plain_only and kind != "tool_answer" and rng.random() < (0.25 if kind == "tool" else 0.07):
        made.thinking = False
    made.prompt = render(made.messages, made.tools, made.thinking)
    if kind == "tool_answer":
        made.target = made.answer + EOS
    elif made.thinking:
        made.target = made.thought + END_THINK + made.answer + EOS
    else:  # without a thinking block, numbers are worked out in the open; nothing else has working worth showing
        open_work = made.thought + "\n" if any(ch in made.thought for ch in "=:") else ""
        if CALLS in made.answer or made.answer.startswith("{"):
            open_work = "" if CALLS in made.answer else open_work
        made.target = open_work + made.answer + EOS
    return made


if __name__ == "__main__":
    generator = random.Random(1)
    for name in MIX:
        shown = lesson(generator, False, name)
        print(f"--- {name}\n{shown.prompt}⟦{shown.target}⟧")
