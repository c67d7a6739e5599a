"""Bad, odd and hostile requests: a clear 4xx each, never a 5xx or a crash, and the server lives on."""
import http.client
import json
import random
import re
import select
import socket
import time

import pytest
from conftest import SLOWER, Server, raw_exchange

GOOD = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
CHAT = "/v1/chat/completions"


def with_(**fields):
    return {**GOOD, **fields}


BAD_FIELDS = [
    ("messages", {}), ("messages", {"messages": []}), ("messages", {"messages": "hi"}),
    ("messages", {"messages": [1]}), ("messages[0].role", {"messages": [{"role": "wizard", "content": "x"}]}),
    ("messages[0].content", {"messages": [{"role": "user"}]}),
    ("messages[1]", {"messages": [*GOOD["messages"], {"role": "assistant", "content": "5"}]}),
    ("messages[0]", {"messages": [{"role": "assistant", "content": None}]}),
    ("messages[0]", {"messages": [{"role": "system", "content": "Be brief."}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": 5}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}),
    ("messages[0].tool_calls", {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}),
    ("temperature", with_(temperature=3)), ("temperature", with_(temperature=-0.1)), ("temperature", with_(temperature="hot")),
    ("top_p", with_(top_p=1.5)), ("top_k", with_(top_k=1.5)), ("min_p", with_(min_p=2)),
    ("n", with_(n=0)), ("n", with_(n=5_000_000)), ("n", with_(n=2.5)),
    ("max_tokens", with_(max_tokens=0)), ("max_tokens", with_(max_tokens=-1)), ("max_tokens", with_(max_tokens=10**30)),
    ("presence_penalty", with_(presence_penalty=9)), ("frequency_penalty", with_(frequency_penalty=-9)),
    ("logit_bias", with_(logit_bias={"99999999": 1})), ("logit_bias", with_(logit_bias={"-1": 1})),
    ("logit_bias", with_(logit_bias={"x": 1})), ("logit_bias", with_(logit_bias={"1": 101})), ("logit_bias", with_(logit_bias=[1])),
    ("top_logprobs", with_(logprobs=True, top_logprobs=10**6)), ("top_logprobs", with_(top_logprobs=2)),
    ("stop", with_(stop=5)), ("stop", with_(stop=["a"] * 100)), ("stop", with_(stop=[""])), ("stop", with_(stop=[{}])),
    ("stop_token_ids", with_(stop_token_ids=[10**9])), ("seed", with_(seed="abc")), ("stream", with_(stream="yes")),
    ("stream_options", with_(stream_options={"include_usage": True})),
    ("stream_options.include_usage", with_(stream=True, stream_options={"include_usage": 3})),
    ("tools", with_(tools=[{"type": "function", "function": {"name": "f"}}])),
    ("tool_choice", with_(tool_choice="required")), ("response_format", with_(response_format={"type": "json_object"})),
    ("thinking.budget_tokens", with_(thinking={"type": "enabled", "budget_tokens": 5})),
    ("thinking.flibber", with_(thinking={"type": "disabled", "flibber": None})),
    ("response_format.json_schema", with_(response_format={"type": "text", "json_schema": {}})),
    ("response_format.flibber", with_(response_format={"type": "text", "flibber": 1})),
    ("messages[0].content[1].flibber", {"messages": [{"role": "user", "content": [
        {"type": "text", "text": "a"}, {"type": "text", "text": "b", "flibber": 1}]}]}),
    ("messages[0].flibber", {"messages": [{"role": "user", "content": "a", "flibber": 1}]}),
    ("stream_options.flibber", with_(stream=True, stream_options={"flibber": 1})),
    ("metadata", with_(metadata={"a": {"flibber": 1}})), ("logit_bias", with_(logit_bias={"5": {}})),
    ("tools", with_(tools=[{}])), ("tool_choice", with_(tool_choice={"type": "auto"})),
    ("functions", with_(functions=[{"name": "f"}])), ("flibber", with_(flibber=1)), ("thinking", with_(thinking="on")),
]


@pytest.mark.parametrize("param,body", BAD_FIELDS, ids=lambda v: v if isinstance(v, str) else "")
def test_a_bad_field_is_named(server, param, body):
    answer = server.post(CHAT, body)
    assert answer.status == 400, answer.text
    error = answer.json["error"]
    assert error["param"] == param and error["message"] and error["type"] == "invalid_request_error"


def test_context_length_has_the_numbers(server):
    window = server.get("/v1/models").json["data"][0]["max_model_len"]
    answer = server.post(CHAT, with_(max_tokens=window))
    error = answer.json["error"]
    assert answer.status == 400 and error["code"] == "context_length_exceeded"
    assert str(window) in error["message"] and f"{window} in the completion" in error["message"]
    long = server.post("/v1/completions", {"prompt": [5] * (window + 1), "max_tokens": 1})
    assert long.status == 400 and long.json["error"]["code"] == "context_length_exceeded"
    assert (error["param"], long.json["error"]["param"]) == ("messages", "prompt")
    full = server.post("/v1/completions", {"prompt": [5] * (window - 1), "max_tokens": 1})
    assert full.status == 200


# The byte, counted from 1, at which a reader knows that the body is wrong.
MALFORMED = [
    (b"", 1), (b"{", 2), (b"nonsense", 2), (b'{"messages": [}', 15), (b'{"a":1}x', 8), (b"\xff\xfe{}", 1),
    (b'{"messages": "\xc3("}', 16), (b'{"temperature": 1e999}', 17), (b'{"a": "1e999", "b": -1e999}', 21), (b'{"a": \x00}', 7),
    (b'{"prompt": "\\ud800"}', 19), (b"{" * 100, 65), (b"[" * 100, 65), (b"\x00" * 64, 1), (b'{"a": 01}', 8),
    (b'{"prompt": "a\nb"}', 14), (b'{"a": "\xed\xa0\x80"}', 9),
]


@pytest.mark.parametrize("body,position", MALFORMED, ids=lambda v: repr(v[:24]) if isinstance(v, bytes) else "")
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/tokenize", "/detokenize"])
def test_malformed_json_is_a_400_with_a_position(server, path, body, position):
    answer = server.post(path, body)
    error = answer.json["error"]
    assert answer.status == 400 and error["code"] == "invalid_json", answer.text
    assert re.search(rf"\bbyte {position}\b", error["message"]), error["message"]


@pytest.mark.parametrize("body", [b"[]", b"null", b"7", b'"x"'])
def test_a_body_that_is_no_object_is_a_400_that_says_so(server, body):
    for path in (CHAT, "/v1/completions", "/tokenize", "/detokenize"):
        answer = server.post(path, body)
        assert answer.status == 400 and "must be a JSON object" in answer.json["error"]["message"], answer.text


def test_deep_nesting_is_refused_fast_and_flat(server):
    """At the first level that is too deep, whatever follows: no later than a body of that size that is wrong at once."""
    deep = b'{"prompt": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"
    schema = b'{"properties":{"a":' * 10_000 + b"{}" + b"}}" * 10_000
    deep_schema = (b'{"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema","json_schema":'
                   + schema + b"}}")

    def fastest_s(path, body):
        times = []
        for _ in range(5):
            start = time.monotonic()
            assert server.post(path, body).status == 400
            times.append(time.monotonic() - start)
        return min(times)

    assert "nested deeper" in server.post("/v1/completions", deep).json["error"]["message"]
    server.reset_peak_memory()
    before = server.peak_memory_bytes()
    for path, body in (("/v1/completions", deep), (CHAT, deep_schema)):
        wrong_at_once_s = fastest_s(path, b"]" * len(body))
        assert fastest_s(path, body) < 3 * wrong_at_once_s + 0.02 * SLOWER
    assert server.peak_memory_bytes() - before < 32e6 * SLOWER, "a few copies of two million bytes"


@pytest.mark.parametrize("prompt", [[], [-1], [2**40], [1.5], ["a", []], [[]], {}, 7, [[10**9]], ["a"] * 1000, [None]])
def test_bad_prompts(server, prompt):
    assert server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1}).status == 400


def test_wrong_paths_and_methods(server):
    assert server.get("/nope").status == 404
    answer = server.get(CHAT)
    assert answer.status == 405 and answer.headers["Allow"] == "POST"


def test_invalid_http(server):
    for data in (b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n",
                 b"GET / HTTP/9.9\r\n\r\n", b"GET /health HTTP/1.1\r\n" + b"X: " + b"a" * 100_000 + b"\r\n\r\n"):
        reply = raw_exchange(server.port, data, timeout=5)
        assert reply == b"" or reply.split(b" ")[1][:1] == b"4", reply[:100]
    huge = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n"
    assert b" 413 " in raw_exchange(server.port, huge, timeout=5)


def test_random_garbage_never_gets_a_5xx(server):
    rng = random.Random(7)
    base = json.dumps(with_(temperature=0.5, stop=["x"], stream=True, logit_bias={"5": 1})).encode()
    for _ in range(300):
        body = bytearray(base)
        for _ in range(rng.randint(1, 8)):
            at = rng.randrange(len(body))
            action = rng.randrange(3)
            if action == 0:
                body[at] = rng.randrange(256)
            elif action == 1:
                del body[at:at + rng.randint(1, 9)]
            else:
                body[at:at] = bytes(rng.choice(b'{}[]",:0123456789etrufalsn\\') for _ in range(rng.randint(1, 5)))
        assert server.post(CHAT, bytes(body)).status < 500
    assert server.get("/health").status == 200


def test_half_open_connections_do_not_block_others():
    server = Server("--header-timeout", "2")
    sockets = []
    try:
        for i in range(300):
            sock = socket.create_connection(("127.0.0.1", server.port))
            sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" if i % 2 else b"")
            sockets.append(sock)
        start = time.monotonic()
        assert server.post(CHAT, GOOD).status == 200
        assert time.monotonic() - start < 2 * SLOWER
        time.sleep(2.5)
        sockets[0].settimeout(2 * SLOWER)
        sockets[1].settimeout(2 * SLOWER)
        assert sockets[0].recv(1000) == b""
        assert b" 408 " in sockets[1].recv(1000)
    finally:
        for sock in sockets:
            sock.close()
        assert server.stop() == 0


def test_client_request_ids_are_labels_only(server):
    headers = {"X-Request-Id": "same"}
    ids = {server.post(CHAT, GOOD, headers=headers).json["id"] for _ in range(4)}
    assert len(ids) == 4


def test_prompts_that_no_window_can_hold_are_refused_before_they_cost_anything(server):
    server.post("/tokenize", {"prompt": "x"})
    before = server.memory_bytes()
    long = "hello " * 1_000_000
    for path, body in ((CHAT, {"messages": [{"role": "user", "content": long}]}), ("/v1/completions", {"prompt": long}),
                       ("/tokenize", {"prompt": long})):
        answer = server.post(path, body)
        assert answer.status == 400 and answer.json["error"]["code"] == "context_length_exceeded", answer.text[:200]
    assert server.post("/detokenize", {"tokens": [5] * 1_000_000}).status == 400
    assert server.memory_bytes() - before < 200e6 * SLOWER


def test_small_requests_do_not_wait_behind_large_ones(server):
    """Large bodies are parsed a few at a time; meanwhile health answers and streams go on."""
    body = b'{"prompt":[' + b"[]," * 500_000 + b"1]}"
    sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
    for sock in sockets:
        sock.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    checks_s, pending = [], list(sockets)
    begin = time.monotonic()
    while pending:
        start = time.monotonic()
        assert server.get("/health", timeout=60).status == 200
        checks_s.append(time.monotonic() - start)
        ready, _, _ = select.select(pending, [], [], 0)
        for sock in ready:
            assert b" 400 " in sock.recv(100)
            pending.remove(sock)
    all_s = time.monotonic() - begin
    for sock in sockets:
        sock.close()
    told = f"{len(checks_s)} health checks in {all_s:.2f} s, while 40 large bodies were parsed; the slowest took {max(checks_s):.2f} s"
    assert len(checks_s) > 10 and max(checks_s) < all_s / 4, told
    assert sorted(checks_s)[len(checks_s) // 2] < all_s / 40, f"{told}: most wait for a whole body"


def test_a_client_that_is_still_sending_gets_its_refusal(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60 * SLOWER)
    connection.request("POST", "/tokenize", body=b"x" * (40 << 20))
    reply = connection.getresponse()
    assert reply.status == 413 and json.loads(reply.read())["error"]["code"] == "body_too_large"


def test_more_answers_than_the_server_ever_holds_are_a_400(server):
    answer = server.post("/v1/completions", {"prompt": ["a"] * 64, "n": 16, "max_tokens": 1})
    assert answer.status == 400 and answer.json["error"]["param"] == "n"


def test_forms_of_a_target():
    server = Server("--served-model-name", "org/my model")
    try:
        for path in ("/v1/models/org/my%20model", "/v1/models/org%2Fmy%20model"):
            assert server.get(path).json["id"] == "org/my model"
        absolute = b"GET http://x/health?a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        assert b" 200 OK" in raw_exchange(server.port, absolute)
        assert server.get("/%zz%").status == 404
    finally:
        assert server.stop() == 0


def test_expect_100_continue(server):
    body = b'{"prompt":"x"}'
    head = "POST /tokenize HTTP/{}\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n"
    for version, first in (("1.1", b"HTTP/1.1 100 Continue"), ("1.0", b"HTTP/1.1 200 OK")):
        assert raw_exchange(server.port, head.format(version, len(body)).encode() + body).startswith(first)
