"""Forms of requests and answers beside the plain ones: logprobs, token ids and paths, each whole and streamed."""
import json

import pytest

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
QUESTION = {"messages": [{"role": "user", "content": "What is 12 + 34?"}], "temperature": 0}


def whole(server, path, body):
    answer = server.post(path, body)
    assert answer.status == 200, answer.text
    return answer.json


def events(server, path, body):
    answer = server.post(path, {**body, "stream": True})
    frames = [frame for frame in answer.text.split("\n\n") if frame and not frame.startswith(":")]
    assert answer.status == 200 and frames[-1] == "data: [DONE]", answer.text
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-1]]


def choices_of(chunks, index):
    return [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


COMPLETION_LOGPROBS = [
    {"prompt": "Hello", "max_tokens": 30, "temperature": 0, "logprobs": 3},
    {"prompt": [100, 200, 300], "max_tokens": 30, "temperature": 1.5, "seed": 5, "logprobs": 20, "ignore_eos": True},
    {"prompt": "What is", "max_tokens": 12, "temperature": 1, "seed": 9, "logprobs": 0, "ignore_eos": True},
]


@pytest.mark.parametrize("body", COMPLETION_LOGPROBS, ids=["greedy", "sampled", "no alternatives"])
def test_logprobs_of_completions(server, body):
    answer = whole(server, COMPLETIONS, {**body, "return_token_ids": True})
    choice = answer["choices"][0]
    logprobs, text = choice["logprobs"], choice["text"]
    count = answer["usage"]["completion_tokens"]
    assert {name: len(values) for name, values in logprobs.items()} == dict.fromkeys(
        ("tokens", "token_logprobs", "top_logprobs", "text_offset"), count)
    assert logprobs["text_offset"][0] == 0 and logprobs["text_offset"] == sorted(logprobs["text_offset"])
    for i, (token, logprob, top) in enumerate(zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"])):
        assert logprob <= 0
        # The token itself is always there. Two tokens may be written alike (bytes that are no text), so there may be
        # fewer names than alternatives.
        assert token in top and len(top) <= body["logprobs"] + 1
        assert sorted(top.values(), reverse=True) == list(top.values()), "the likeliest first"
        if body["temperature"] == 0:
            assert top[token] == logprob == max(top.values())
        elif "�" not in token:
            assert top[token] == pytest.approx(logprob)
        if "�" not in text and i + 1 < count:
            # With ignore_eos the end of an answer may be sampled: named among the tokens, not part of the text.
            written = "" if token == "<｜end▁of▁sentence｜>" else token
            assert text[logprobs["text_offset"][i]:logprobs["text_offset"][i + 1]] == written


@pytest.mark.parametrize("body", COMPLETION_LOGPROBS, ids=["greedy", "sampled", "no alternatives"])
def test_streamed_logprobs_of_completions_are_the_whole_ones(server, body):
    want = whole(server, COMPLETIONS, body)["choices"][0]["logprobs"]
    got = {name: [] for name in want}
    for choice in choices_of(events(server, COMPLETIONS, body), 0):
        for name, values in choice["logprobs"].items():
            got[name] += values
    assert got["tokens"] == want["tokens"] and got["text_offset"] == want["text_offset"]
    assert got["token_logprobs"] == pytest.approx(want["token_logprobs"], abs=1e-5)
    assert [list(top) for top in got["top_logprobs"]] == [list(top) for top in want["top_logprobs"]]


def test_logprobs_of_a_chat_answer_are_of_its_reasoning_and_of_its_content(server):
    body = {**QUESTION, "logprobs": True, "top_logprobs": 2, "return_token_ids": True}
    choice = whole(server, CHAT, body)["choices"][0]
    parts = {part: choice["logprobs"][part] for part in ("reasoning_content", "content")}
    assert choice["finish_reason"] == "stop"
    for entry in parts["reasoning_content"] + parts["content"]:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"} and len(entry["top_logprobs"]) == 2
        assert entry["top_logprobs"][0] == {name: entry[name] for name in ("token", "logprob", "bytes")}, "greedy"
        assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"]
    for part, entries in parts.items():
        said = b"".join(bytes(entry["bytes"]) for entry in entries).decode()
        assert entries and said.rstrip("\n") == choice["message"][part].rstrip("\n")
    # Of all ids, only the one that ends the reasoning and the one that ends the answer are in neither.
    assert len(choice["token_ids"]) - 2 == sum(map(len, parts.values()))


def test_streamed_logprobs_of_a_chat_answer_are_the_whole_ones(server):
    body = {**QUESTION, "logprobs": True, "top_logprobs": 2}
    want_parts = whole(server, CHAT, body)["choices"][0]["logprobs"]
    want = want_parts["reasoning_content"] + want_parts["content"]
    got = [entry for choice in choices_of(events(server, CHAT, body), 0) for part in ("reasoning_content", "content")
           for entry in choice["logprobs"].get(part) or []]
    assert [entry["bytes"] for entry in got] == [entry["bytes"] for entry in want]
    assert [entry["logprob"] for entry in got] == pytest.approx([entry["logprob"] for entry in want], abs=1e-5)
    assert [[top["token"] for top in entry["top_logprobs"]] for entry in got] == \
        [[top["token"] for top in entry["top_logprobs"]] for entry in want]


@pytest.mark.parametrize("path,body", [(CHAT, QUESTION), (COMPLETIONS, {"prompt": "Hello", "temperature": 0})])
def test_without_asking_there_are_neither_logprobs_nor_ids(server, path, body):
    answer = whole(server, path, {**body, "max_tokens": 2})
    assert answer["choices"][0]["logprobs"] is None
    for holder in (answer, answer["choices"][0]):
        assert "prompt_token_ids" not in holder and "token_ids" not in holder
    for chunk in events(server, path, {**body, "max_tokens": 2}):
        assert "prompt_token_ids" not in chunk
        assert all(choice["logprobs"] is None and not {"token_ids", "prompt_token_ids"} & set(choice)
                   for choice in chunk["choices"])


@pytest.mark.parametrize("template", [{}, {"thinking": {"type": "disabled"}}, {"reasoning_effort": "low"},
                                      {"chat_template_kwargs": {"thinking": False}}])
def test_token_ids_of_a_chat(server, template):
    body = {**QUESTION, **template, "return_token_ids": True, "n": 2}
    prompt = server.post("/tokenize", {"messages": QUESTION["messages"], **template}).json["tokens"]
    answer = whole(server, CHAT, body)
    assert answer["prompt_token_ids"] == prompt and len(prompt) == answer["usage"]["prompt_tokens"]
    chunks = events(server, CHAT, body)
    told = [chunk for chunk in chunks if "prompt_token_ids" in chunk]
    assert all(chunk["prompt_token_ids"] == prompt for chunk in told)
    assert [chunk["choices"][0]["index"] for chunk in told] in ([0, 1], [1, 0]), "once for each choice, with its first chunk"
    for index in (0, 1):
        ids = [id for choice in choices_of(chunks, index) for id in choice["token_ids"]]
        assert ids == answer["choices"][index]["token_ids"]
        assert choices_of(told, index)[0] == choices_of(chunks, index)[0]


def test_token_ids_of_completions(server):
    prompts = [[0, 100, 200, 300], [0, 7, 8]]
    body = {"prompt": prompts, "n": 2, "max_tokens": 5, "temperature": 1, "seed": 3, "return_token_ids": True, "ignore_eos": True}
    answer = whole(server, COMPLETIONS, body)
    assert [choice["prompt_token_ids"] for choice in answer["choices"]] == [prompts[0], prompts[0], prompts[1], prompts[1]]
    assert all(len(choice["token_ids"]) == 5 for choice in answer["choices"])
    chunks = events(server, COMPLETIONS, body)
    for index, choice in enumerate(answer["choices"]):
        parts = choices_of(chunks, index)
        assert [part["prompt_token_ids"] for part in parts if "prompt_token_ids" in part] == [prompts[index // 2]]
        assert "prompt_token_ids" in parts[0]
        assert [id for part in parts for id in part["token_ids"]] == choice["token_ids"]


def test_a_seed_gives_a_prompt_the_same_answers_whatever_prompts_are_beside_it(server):
    body = {"n": 2, "max_tokens": 24, "temperature": 2, "return_token_ids": True, "ignore_eos": True}
    ids = lambda prompts, **more: [choice["token_ids"] for choice in
                                   whole(server, COMPLETIONS, {**body, "prompt": prompts, **more})["choices"]]
    alone = ids([[5, 6, 7]], seed=9)
    assert alone[0] != alone[1], "the answers to one prompt differ"
    assert ids([[9, 9], [5, 6, 7], [5, 6, 7]], seed=9)[2:] == alone + alone
    unseeded = ids([[5, 6, 7], [5, 6, 7]])
    assert len(set(map(tuple, unseeded))) == 4, "without a seed even equal prompts get different answers"


PATHS = [
    ("/chat/completions", {**QUESTION, "max_tokens": 3}), ("/completions", {"prompt": "Hello", "max_tokens": 3, "temperature": 0}),
    ("/tokenize", {"prompt": "Hello"}), ("/detokenize", {"tokens": [17, 18]}),
    ("/models", None), ("/models/fathom-demo", None), ("/health", None), ("/ready", None), ("/metrics", None),
]


def steady(answer):
    """What two equal requests have in common: no id, time or count."""
    if answer.headers["Content-Type"].startswith("text/plain"):
        return sorted({line.split()[2] for line in answer.text.splitlines() if line.startswith("# TYPE")})
    return {key: value for key, value in answer.json.items() if key not in ("id", "created", "usage", "seconds_since_progress")}


@pytest.mark.parametrize("path,body", PATHS, ids=[path for path, _ in PATHS])
def test_every_path_with_and_without_v1(server, path, body):
    long, short = (server.get(p) if body is None else server.post(p, body) for p in ("/v1" + path, path))
    assert (long.status, short.status) == (200, 200)
    assert steady(long) == steady(short) and long.headers["Content-Type"] == short.headers["Content-Type"]
    wrong = server.post(path, {}) if body is None else server.get(path)
    assert wrong.status == 405 and wrong.headers["Allow"] == ("GET" if body is None else "POST")
    assert server.get("/v1/v1" + path).status == 404


@pytest.mark.parametrize("path,body", PATHS[:2], ids=[path for path, _ in PATHS[:2]])
def test_streams_without_v1(server, path, body):
    def joined(chunks):
        return "".join(choice.get("text") or choice.get("delta", {}).get("content") or ""
                       for chunk in chunks for choice in chunk["choices"])

    assert joined(events(server, path, body)) == joined(events(server, "/v1" + path, body))
