"""Texts whose tokenizing takes seconds: who left, who waits too long and a server that ends do not wait for them."""
import json
import select
import signal
import socket
import time

import pytest
from checkpoints import DEMO
from conftest import SLOWER, Server, cpu_seconds, raw_exchange

CHAT = "/v1/chat/completions"
MEGABYTE = 1_000_000
ARGS = ("--max-context", "400000", "--kv-memory", "400M", "--threads", "1")


@pytest.fixture(scope="module")
def long_context(tmp_path_factory):
    """The built-in model with positions for a long context."""
    return copy_of_demo(tmp_path_factory.mktemp("long") / "model")


@pytest.fixture(scope="module")
def in_one_go(tmp_path_factory):
    """The same with a tokenizer that must see the whole text at once: a sequence within a sequence is left to the library."""
    folder = copy_of_demo(tmp_path_factory.mktemp("whole") / "model")
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [tokenizer["pre_tokenizer"]]}
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def copy_of_demo(folder):
    folder.mkdir()
    for file in DEMO.iterdir():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file)
    config = json.loads((DEMO / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1 << 20}))
    return folder


def tokenize_bytes(megabytes):
    body = b'{"prompt":"' + b"1" * int(megabytes * MEGABYTE) + b'"}'
    return b"POST /tokenize HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def chat_bytes(megabytes):
    body = b'{"messages":[{"role":"user","content":"' + b"1" * int(megabytes * MEGABYTE) + b'"}]}'
    return b"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body


def send(server, data):
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=60 * SLOWER)
    sock.sendall(data)
    return sock


def answer_of(sock):
    """Without the `100 Continue` that asks whether a client is there."""
    received = b""
    while chunk := sock.recv(1 << 20):
        received += chunk
    return received.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")


def test_a_large_text_is_tokenized_whole(long_context):
    server = Server("--model", long_context, *ARGS)
    try:
        answer = server.post("/tokenize", {"prompt": "12 " * 100_000, "add_special_tokens": False})
        tokens = answer.json["tokens"]
        assert len(tokens) == answer.json["count"] == 300_000
        assert server.post("/detokenize", {"tokens": tokens}).json["prompt"] == "12 " * 100_000
    finally:
        assert server.stop() == 0


def test_a_text_of_too_many_tokens_is_refused_before_all_are_counted(long_context):
    server = Server("--model", long_context, *ARGS)
    try:
        before = cpu_seconds(server)
        reply = raw_exchange(server.port, chat_bytes(7.5), timeout=60)
        assert reply.startswith(b"HTTP/1.1 400") and b'"context_length_exceeded"' in reply and b'"messages"' in reply
        assert cpu_seconds(server) - before < 2 * SLOWER
        server.wait_until(2, lambda: server.metrics()["fathom_http_requests_in_flight"] == 0)
    finally:
        assert server.stop() == 0


def test_nobody_waits_for_the_texts_of_clients_that_left(long_context):
    server = Server("--model", long_context, *ARGS)
    try:
        before = cpu_seconds(server)
        left = [send(server, tokenize_bytes(7.5)) for _ in range(6)]
        time.sleep(0.3)  # the first is being tokenized
        for sock in left:
            sock.close()
        answer = raw_exchange(server.port, tokenize_bytes(0.3), timeout=60)
        assert answer.startswith(b"HTTP/1.1 200")
        assert cpu_seconds(server) - before < 4 * SLOWER, "a fraction of what six such texts take"
        server.wait_until(10, lambda: server.metrics()["fathom_http_disconnects_total"] > 0)
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize("kind", ["in pieces", "in one go"])
def test_sigterm_does_not_wait_for_a_text(kind, request):
    """One that is being tokenized and one that waits for its turn."""
    drain_s = 1
    folder = request.getfixturevalue("long_context" if kind == "in pieces" else "in_one_go")
    server = Server("--model", folder, *ARGS, "--drain-timeout", drain_s)
    with send(server, chat_bytes(7.5)) as first, send(server, tokenize_bytes(7.5)) as second:
        time.sleep(0.5)
        assert server.get("/health").status == 200
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        for sock in (first, second):
            answer = answer_of(sock)
            assert answer.startswith(b"HTTP/1.1 503") and b"Retry-After" in answer and b"shutting_down" in answer, answer
        assert server.process.wait(30 * SLOWER) == 0
        took_s = time.monotonic() - start
        assert took_s < drain_s + 3 + 1 * SLOWER, took_s
    assert server.stop() == 0


def test_large_bodies_wait_a_limited_time_and_in_limited_numbers(in_one_go):
    wait_s = 3
    server = Server("--model", in_one_go, *ARGS, "--drain-timeout", "0.1", "--large-bodies-max", "3", "--queue-timeout", wait_s)
    with send(server, tokenize_bytes(7.5)) as first:
        time.sleep(0.5)
        start = time.monotonic()
        with send(server, tokenize_bytes(1)) as second, send(server, tokenize_bytes(1)) as third:
            time.sleep(0.2)
            refused = raw_exchange(server.port, tokenize_bytes(1), timeout=10)
            assert refused.startswith(b"HTTP/1.1 503") and b"Retry-After" in refused and b"too many large" in refused
            assert server.post("/tokenize", {"prompt": "hi"}).status == 200, "small ones do not wait"
            assert time.monotonic() - start < wait_s, "neither waits"
            for sock in (second, third):
                answer = answer_of(sock)
                assert answer.startswith(b"HTTP/1.1 503") and b"Retry-After" in answer and b"waited too long" in answer
            assert wait_s - 0.1 < time.monotonic() - start < wait_s + 2 * SLOWER
        # Who leaves makes room for others at once, not when it would be its turn.
        for sock in [send(server, tokenize_bytes(1)) for _ in range(2)]:
            sock.close()
        time.sleep(1)
        with send(server, tokenize_bytes(1)) as another:
            assert select.select([another], [], [], 0.2)[0] == [], "it waits"
        assert select.select([first], [], [], 0)[0] == [], "it is still being read"
        assert server.stop() == 0
