"""What a stream says: the same as the whole answer, whatever bytes the model emits, cold and warm, with usage that adds up."""
import concurrent.futures
import http.client
import json
import statistics
import time

import pytest
from conftest import ROOT, SLOWER, Server

CHAT = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "What is 347 + 586?"}]


def byte_of_symbol():
    """The printable symbols by which byte-level BPE writes the 256 bytes in its vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


SYMBOLS = byte_of_symbol()
VOCABULARY = json.loads((ROOT / "models/demo/tokenizer.json").read_text())["model"]["vocab"]
BYTES = {id: bytes(SYMBOLS[c] for c in token) for token, id in VOCABULARY.items() if all(c in SYMBOLS for c in token)}
ID_OF_BYTE = {token[0]: id for id, token in BYTES.items() if len(token) == 1}


def events(answer):
    """The JSON of every event of a stream that ended as it should."""
    frames = [frame for frame in answer.text.split("\n\n") if frame and not frame.startswith(":")]
    assert answer.status == 200 and frames[-1] == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-1]]


def completion(server, body):
    """(text, token ids, finish reason, usage) of a completion: whole, and put together from its stream."""
    body = {**body, "return_token_ids": True}
    whole = server.post("/v1/completions", body)
    assert whole.status == 200, whole.text
    choice = whole.json["choices"][0]
    text, ids, finish, usage = "", [], [], None
    for event in events(server.post("/v1/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})):
        usage = event.get("usage") or usage
        for part in event["choices"]:
            text += part["text"]
            ids += part.get("token_ids") or []
            finish += [part["finish_reason"]] if part["finish_reason"] else []
    assert len(finish) == 1, "one finish reason, on the last chunk of the choice"
    streamed = (text, ids, finish[0], usage["completion_tokens"])
    assert streamed == (choice["text"], choice["token_ids"], choice["finish_reason"], whole.json["usage"]["completion_tokens"])
    return streamed


@pytest.mark.parametrize("byte", [0xFF, 0xC0, 0x80, 0xE2, 0xF0])
def test_bytes_that_are_no_text_end_normally(server, byte):
    text, ids, finish, count = completion(server, {"prompt": "x", "max_tokens": 7, "temperature": 0,
                                                   "logit_bias": {ID_OF_BYTE[byte]: 100}})
    assert ids == [ID_OF_BYTE[byte]] * 7 and (finish, count) == ("length", 7)
    assert text == bytes([byte] * 7).decode(errors="replace")


# Pieces of "é", "€", "한", "🙂" and of nothing, and letters to break them up.
ALPHABETS = [[0xC3, 0xA9, 0x41], [0xE2, 0x82, 0xAC], [0xED, 0x95, 0x9C, 0x20], [0xF0, 0x9F, 0x99, 0x82], [0xF4, 0x90, 0xE0, 0x9F, 0x7A]]


@pytest.mark.parametrize("alphabet", ALPHABETS, ids=lambda a: bytes(a).hex())
def test_characters_cut_anywhere_come_out_as_if_decoded_at_once(server, alphabet):
    bias = {ID_OF_BYTE[byte]: 100 for byte in alphabet}
    seen = set()
    for seed in range(6):
        text, ids, finish, _ = completion(server, {"prompt": "x", "max_tokens": 24, "temperature": 2, "seed": seed,
                                                   "presence_penalty": 2, "logit_bias": bias})
        assert finish == "length" and set(ids) <= set(bias)
        assert text == b"".join(BYTES[id] for id in ids).decode(errors="replace")
        seen |= set(ids)
    assert len(seen) > 1, "the seeds tried nothing"


def test_a_stop_string_of_several_tokens_does_not_leak(server):
    bias = {ID_OF_BYTE[b]: 100 for b in b"ab"}
    stopped = 0
    for seed in range(16):
        body = {"prompt": "x", "max_tokens": 6 + seed, "temperature": 2, "seed": seed, "presence_penalty": 2, "logit_bias": bias}
        free, *_ = completion(server, body)
        text, _, finish, _ = completion(server, {**body, "stop": ["abba", "bbb"]})
        cut = min((at for stop in ("abba", "bbb") if (at := free.find(stop)) >= 0), default=None)
        assert (text, finish) == ((free, "length") if cut is None else (free[:cut], "stop"))
        stopped += cut is not None
    assert 0 < stopped < 16, "the seeds tried one half only"


def chat(server, messages, **fields):
    answer = server.post(CHAT, {"messages": messages, "temperature": 0, "return_token_ids": True, **fields})
    assert answer.status == 200, answer.text
    choice, usage = answer.json["choices"][0], answer.json["usage"]
    assert usage["prompt_cache_hit_tokens"] + usage["prompt_cache_miss_tokens"] == usage["prompt_tokens"]
    assert usage["completion_tokens"] == len(choice["token_ids"])
    return choice, usage


@pytest.fixture(scope="module")
def exact():
    """A server whose answers do not depend on batch and cache."""
    server = Server("--deterministic")
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("salt", range(3))
def test_cold_and_warm_give_the_same_tokens(exact, salt):
    numbers = " ".join(f"{i} plus {i + salt}" for i in range(60))
    messages = [{"role": "user", "content": f"{numbers} What is {20 + salt} + 45?"}]
    cold, cold_usage = chat(exact, messages, max_tokens=80)
    warm, warm_usage = chat(exact, messages, max_tokens=80)
    assert cold_usage["prompt_cache_hit_tokens"] < 64 < warm_usage["prompt_cache_hit_tokens"]
    assert warm["token_ids"] == cold["token_ids"]


def test_reasoning_may_be_echoed_or_not_cold_and_warm(exact):
    first, _ = chat(exact, QUESTION)
    message = first["message"]
    assert message["reasoning_content"]
    follow_up = {"role": "user", "content": "What is 12 * 34?"}
    plain = [*QUESTION, {"role": "assistant", "content": message["content"]}, follow_up]
    echoed = [*QUESTION, {"role": "assistant", "content": message["content"],
                          "reasoning_content": message["reasoning_content"]}, follow_up]
    empty = [*QUESTION, {"role": "assistant", "content": message["content"], "reasoning_content": None}, follow_up]
    answers = []
    for turn in (plain, echoed, empty):
        for tenant in ("", "", f"cold {len(answers)}"):  # as it comes, warm, and one that shares nobody's cache
            choice, usage = chat(exact, turn, user_id=tenant)
            if tenant:
                assert usage["prompt_cache_hit_tokens"] == 0
            answers.append((choice["token_ids"], choice["message"]["content"], choice["message"]["reasoning_content"]))
    assert all(answer == answers[0] for answer in answers)
    assert "408" in answers[0][1]


def test_an_engine_is_warm_before_it_is_ready():
    """Nobody pays for first touches: the process says it is ready, and answers, only after its warm-up steps."""
    server = Server()
    try:
        assert server.get("/ready").status == server.get("/health").status == 200
        assert server.metrics()["fathom_requests_submitted_total"] == 0
        ask = lambda: server.post(CHAT, {"messages": QUESTION, "max_tokens": 1, "temperature": 0, "user_id": str(time.monotonic())})
        times = []
        for _ in range(6):
            start = time.monotonic()
            assert ask().status == 200
            times.append(time.monotonic() - start)
        assert times[0] < 1.0 * SLOWER and times[0] < 20 * statistics.median(times), times
    finally:
        assert server.stop() == 0


def test_ids_of_simultaneous_requests_differ_and_answers_stay_apart(server):
    def ask(i):
        reply = server.post(CHAT, {"messages": [{"role": "user", "content": f"What is {100 + i} + {i}?"}], "temperature": 0},
                            headers={"X-Request-Id": "same"})
        return reply.json["id"], f"{100 + 2 * i}" in reply.json["choices"][0]["message"]["content"]

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(ask, range(24)))
    assert len({id for id, _ in answers}) == 24
    assert sum(right for _, right in answers) >= 20, answers


@pytest.mark.slow
def test_32_clients_see_even_gaps(server):
    """The gap between two tokens stays near the median while other clients' prompts are prefilled. Timed: a neighbour on
    the machine can only make a round look worse, so the best of a few counts."""
    def client(i):
        gaps = []
        for turn in range(4):
            words = " ".join(f"{(i * 37 + turn * 101 + w * 13) % 900}" for w in range(40))
            body = {"messages": [{"role": "user", "content": f"{words} Sort 42, 7, 19."}], "stream": True, "ignore_eos": True,
                    "max_tokens": 60, "temperature": 1, "seed": i}
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
            connection.request("POST", CHAT, json.dumps(body), {"Content-Type": "application/json"})
            reply, last = connection.getresponse(), None
            while line := reply.readline():
                if line.startswith(b"data: {"):
                    now = time.monotonic()
                    if last is not None:
                        gaps.append(now - last)
                    last = now
            connection.close()
        return gaps

    rounds = []
    for _ in range(4):
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            gaps = sorted(gap for some in pool.map(client, range(32)) for gap in some)
        rounds.append((gaps[len(gaps) * 99 // 100] / statistics.median(gaps), gaps[-1]))
    assert any(ratio <= 3 and worst < 1 for ratio, worst in rounds), rounds
