"""Bodies made to cost time or memory, or to be taken for something else; and what log-probabilities belong to."""
import json
import socket
import threading
import time

import pytest
from conftest import SLOWER, Server, cpu_seconds

CHAT = "/v1/chat/completions"
MESSAGES = '"messages":[{"role":"user","content":"What is 2 + 3?"}]'


def keys(n):
    return ",".join(f'"k{i}":1' for i in range(n))


@pytest.mark.parametrize("more", ["{}", '"metadata":{{{}}}', '"logit_bias":{{{}}}', '"chat_template_kwargs":{{{}}}'])
def test_objects_of_many_keys_cost_nothing(server, more):
    body = "{" + MESSAGES + ',"max_tokens":1,' + more.format(keys(200_000)) + "}"
    before = cpu_seconds(server)
    answer = server.post(CHAT, body.encode())
    assert answer.status == 400 and "keys at byte" in answer.json["error"]["message"]
    assert cpu_seconds(server) - before < 1 * SLOWER


def test_a_full_context_of_token_ids_passes(server):
    window = server.get("/v1/models").json["data"][0]["max_model_len"]
    assert server.post("/v1/completions", {"prompt": [5] * (window - 1), "max_tokens": 1}).status == 200


def test_bodies_within_the_limits_cost_little_and_sigterm_does_not_wait_for_them():
    server = Server("--drain-timeout", "2")
    # As slow as a body may be: as many keys as are allowed, in few objects, and as many values.
    objects = ",".join("{" + keys(2047) + "}" for _ in range(15))
    worst = ("{" + MESSAGES + ',"metadata":[' + objects + "," + ",".join(["1"] * 1_000_000) + "]}").encode()
    before = cpu_seconds(server)
    assert server.post(CHAT, worst).status == 400
    assert cpu_seconds(server) - before < 2 * SLOWER
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(worst)}\r\n\r\n".encode()
    sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(24)]
    try:
        for sock in sockets:
            sock.sendall(head + worst)
        start = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - start < 2 + 3 * SLOWER
    finally:
        for sock in sockets:
            sock.close()


def test_stop_token_ids_are_few(server):
    for n, status in ((64, 200), (65, 400), (1_000_000, 400)):
        answer = server.post("/v1/completions", {"prompt": "a", "max_tokens": 2, "stop_token_ids": [9] * n})
        assert answer.status == status
        assert status == 200 or answer.json["error"]["param"] == "stop_token_ids"


@pytest.mark.parametrize("path,body", [(CHAT, "{" + MESSAGES + ',"max_tokens":1}'), ("/detokenize", '{"tokens":[5]}'),
                                       ("/tokenize", '{"prompt":"a"}'), ("/v1/completions", '{"prompt":"a","max_tokens":1}')])
def test_nothing_follows_the_object(server, path, body):
    assert server.post(path, body.encode()).status == 200
    for tail in (b"\0", b"\0 garbage {{{", b"\0{}"):
        answer = server.post(path, body.encode() + tail)
        assert answer.status == 400 and f"byte {len(body) + 1}" in answer.json["error"]["message"]


@pytest.mark.parametrize("param,value", [
    ("metadata", 5), ("user", {}), ("service_tier", "zzz"), ("store", "true"), ("parallel_tool_calls", "x"),
    ("logit_bias", {"5": 100, "05": -100}), ("chat_template_kwargs.thinking", None),
])
def test_a_label_of_the_wrong_type_is_named(server, param, value):
    body = json.loads("{" + MESSAGES + ',"max_tokens":1}')
    if "." in param:
        body["chat_template_kwargs"] = {"thinking": "off"}
    else:
        body[param] = value
    answer = server.post(CHAT, body)
    assert answer.status == 400 and answer.json["error"]["param"] == param


def test_errors_quote_a_little_of_what_was_sent(server):
    huge = "m" * 4_000_000
    for path, body in ((CHAT, "{" + MESSAGES + f',"model":"{huge}"}}'), (CHAT, "{" + MESSAGES + f',"{huge}":1}}'),
                       (CHAT, '{"messages":[{"role":"' + huge + '","content":"a"}]}'), (CHAT, '{"a":"' + huge)):
        answer = server.post(path, body.encode())
        assert 400 <= answer.status < 500 and len(answer.body) < 1500 and answer.json["error"]["message"]


def test_logprobs_are_those_of_the_text_beside_them(server):
    body = {"messages": [{"role": "user", "content": "What is 347 + 586?"}], "temperature": 0, "logprobs": True,
            "top_logprobs": 2, "max_tokens": 200}
    choice = server.post(CHAT, body).json["choices"][0]
    join = lambda entries: b"".join(bytes(e["bytes"]) for e in entries).decode()
    assert choice["message"]["reasoning_content"] and choice["finish_reason"] == "stop"
    assert join(choice["logprobs"]["content"]) == choice["message"]["content"]
    assert join(choice["logprobs"]["reasoning_content"]) == choice["message"]["reasoning_content"]
    events = server.post(CHAT, {**body, "stream": True}).text.split("data: ")[1:-1]
    streamed = [json.loads(event)["choices"][0]["logprobs"] for event in events]
    for part in ("content", "reasoning_content"):
        assert [e for chunk in streamed for e in chunk[part]] == choice["logprobs"][part]


def test_completions_give_the_sampled_token_among_the_top(server):
    body = {"prompt": "Hello", "max_tokens": 40, "temperature": 2, "seed": 3, "logprobs": 2}
    logprobs = server.post("/v1/completions", body).json["choices"][0]["logprobs"]
    sizes = set()
    for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]):
        assert token in top and top[token] >= value - 1e-6
        sizes.add(len(top))
    assert sizes == {2, 3}


def test_hostile_clients_that_left_do_not_hold_others_up(server):
    body = ("{" + MESSAGES + "," + keys(120_000) + "}").encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    def visit():
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.sendall(head + body)

    visitors = [threading.Thread(target=visit) for _ in range(16)]
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join()
    start = time.monotonic()
    assert server.post("/tokenize", {"prompt": "hi"}).status == 200
    assert time.monotonic() - start < 2 * SLOWER
