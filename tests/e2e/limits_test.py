"""The limits of a connection and of a request's time: reaching each is a defined answer, and others do not feel it."""
import contextlib
import json
import socket
import subprocess
import time

import pytest
from conftest import BINARY, SLOWER, Server, raw_exchange

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
# The reference kernels: the slowest processor there is, on every machine that runs this. A sanitizer's are slow as they are.
SLOW_KERNELS = {"FATHOM_ISA": "ref"} if SLOWER == 1 else {}


@contextlib.contextmanager
def serving(*args, env=None):
    server = Server(*args, env=env)
    try:
        yield server
    finally:
        assert server.stop() == 0


def connect(server, data=b""):
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=30 * SLOWER)
    sock.sendall(data)
    return sock


def request_bytes(path, body):
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def seconds_until_closed(sock, start):
    """(bytes that came, seconds from `start` until the server closed)."""
    received = b""
    while chunk := sock.recv(65536):
        received += chunk
    return received, time.monotonic() - start


def test_bodies_that_never_come_are_given_up_and_hold_nobody():
    """Complete headers, then a body byte by byte or not at all: 300 of them, while others are served."""
    limit_s = 2
    with serving("--body-timeout", limit_s, "--header-timeout", "60", "--idle-timeout", "60") as server:
        start = time.monotonic()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
        sockets = [connect(server, head + b'{"mess'[:i % 7]) for i in range(300)]
        opened = time.monotonic()
        assert server.post(CHAT, HI).status == 200
        assert time.monotonic() - opened < 1 * SLOWER
        # One of them trickles: progress is no excuse, the whole body has its time.
        for _ in range(4):
            time.sleep(limit_s / 8)
            sockets[0].sendall(b" ")
        for sock in sockets:
            received, took_s = sock.recv(65536), time.monotonic() - start
            assert received.startswith(b"HTTP/1.1 408 ") and b'"request_timeout"' in received
            assert limit_s - 0.1 < took_s < 5 * limit_s * SLOWER, took_s
            sock.close()
        assert server.post(CHAT, HI).status == 200


def test_an_idle_connection_is_closed_without_a_word():
    limit_s = 1
    with serving("--idle-timeout", limit_s, "--header-timeout", "60") as server:
        with connect(server, HEALTH) as sock:
            first = sock.recv(65536)
            assert first.startswith(b"HTTP/1.1 200 ") and b"close" not in first.lower().split(b"\r\n\r\n")[0]
            time.sleep(limit_s / 2)
            sock.sendall(HEALTH)  # in time: the wait begins again
            start = time.monotonic()
            received, took_s = seconds_until_closed(sock, start)
            assert received.count(b"HTTP/1.1 200 ") == 1 and b" 408 " not in received
            assert limit_s - 0.1 < took_s < 5 * limit_s * SLOWER, took_s


def test_more_connections_than_the_limit_are_closed_at_once():
    with serving("--connections-max", "4", "--header-timeout", "60") as server:
        held = [connect(server, HEALTH) for _ in range(4)]
        for sock in held:
            assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
        for _ in range(3):
            with contextlib.suppress(ConnectionResetError, BrokenPipeError), connect(server, HEALTH) as extra:
                assert extra.recv(65536) == b""
        held[0].sendall(HEALTH)
        assert held[0].recv(65536).startswith(b"HTTP/1.1 200 "), "who is inside is served"
        held.pop().close()
        deadline = time.monotonic() + 10 * SLOWER
        while not (reply := raw_or_nothing(server)):
            assert time.monotonic() < deadline, "a place is free again"
            time.sleep(0.02)
        assert reply.startswith(b"HTTP/1.1 200 ")
        for sock in held:
            sock.close()


def raw_or_nothing(server):
    try:
        return raw_exchange(server.port, HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    except OSError:
        return b""


def test_a_request_that_ran_out_of_time_before_its_first_token_is_a_504():
    with serving("--request-timeout", "0.5", "--threads", "1", "--max-context", "8192", env=SLOW_KERNELS) as server:
        body = {"prompt": [100 + i * 7 % 1800 for i in range(8000)], "max_tokens": 5}
        answer = server.post("/v1/completions", body)
        assert answer.status == 504, answer.text
        assert answer.json["error"]["code"] == "deadline_exceeded" and answer.json["error"]["type"] == "server_error"
        server.wait_until_idle(2)
        streamed = server.post("/v1/completions", {**body, "stream": True})
        assert streamed.status == 200 and streamed.text.endswith("data: [DONE]\n\n")
        assert streamed.text.count('"finish_reason":"insufficient_system_resource"') == 1
        server.wait_until_idle(2)
        assert server.get("/health").status == 200


def test_a_request_that_ran_out_of_time_later_keeps_what_it_has():
    with serving("--request-timeout", "1", "--threads", "1", env=SLOW_KERNELS) as server:
        body = {**HI, "max_tokens": 3900, "ignore_eos": True, "n": 4}
        start = time.monotonic()
        answer = server.post(CHAT, body)
        took_s = time.monotonic() - start
        assert answer.status == 200 and 0.9 < took_s < 10 * SLOWER
        assert {choice["finish_reason"] for choice in answer.json["choices"]} == {"insufficient_system_resource"}
        assert 4 < answer.json["usage"]["completion_tokens"] < 4 * 3900
        server.wait_until_idle(2)
        assert server.post(CHAT, HI).status == 200


def test_a_request_that_waited_too_long_in_the_queue_is_a_503():
    with serving("--max-running", "1", "--queue-timeout", "1", env=SLOW_KERNELS) as server:
        slow = {"messages": HI["messages"], "max_tokens": 4000, "ignore_eos": True}
        with connect(server, request_bytes(CHAT, slow)):
            server.wait_until(10 * SLOWER, lambda: server.metrics()["fathom_requests_decoding"] == 1)
            start = time.monotonic()
            reply = server.post(CHAT, HI)
            took_s = time.monotonic() - start
        assert reply.status == 503 and "waited 1 s" in reply.json["error"]["message"]
        assert int(reply.headers["Retry-After"]) >= 1
        assert 0.9 < took_s < 5 * SLOWER, took_s
        server.wait_until_idle(5 * SLOWER)


def test_all_bodies_together_have_a_limit():
    with serving("--body-max", "1M", "--bodies-max", "1M") as server:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
        with connect(server, head + b" " * 900_000):
            time.sleep(0.5)
            refused = raw_exchange(server.port, head + b" " * 900_000)
            assert refused.startswith(b"HTTP/1.1 503 ") and b"Retry-After" in refused and b"request bodies" in refused
            assert server.post(CHAT, HI).status == 200, "small ones still fit"
        time.sleep(0.5)
        assert raw_exchange(server.port, head + b" " * 1_000_000).startswith(b"HTTP/1.1 400 "), "room again"


def test_bodies_max_holds_at_least_one_body():
    done = subprocess.run([str(BINARY), "serve", "--port", "0", "--body-max", "2M", "--bodies-max", "1M"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--bodies-max" in done.stderr and "--body-max" in done.stderr


def test_unsent_bytes_have_a_limit_of_their_own():
    """The client reads nothing, and no write time-out ends it: what its answers may pile up on the connection is bounded, and
    beyond that it is cut off."""
    with serving("--write-timeout", "600") as server:
        body = {**HI, "stream": True, "ignore_eos": True, "max_tokens": 1000, "n": 4, "logprobs": True, "top_logprobs": 20}
        assert server.post(CHAT, HI).status == 200
        server.reset_peak_memory()
        before = server.peak_memory_bytes()
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        sock.sendall(request_bytes(CHAT, body))
        server.wait_until(60, lambda: server.metrics()["fathom_http_disconnects_total"] == 1)
        server.wait_until_idle(2)
        assert server.peak_memory_bytes() - before < 128e6 * SLOWER
        sock.close()
        assert server.post(CHAT, HI).status == 200


@pytest.mark.parametrize("isa", ["ref", "avx2"])
def test_the_summary_names_the_instruction_set_asked_for(isa):
    with serving(env={"FATHOM_ISA": isa}) as server:
        processor, = [line for line in server.log if line.startswith("processor ")]
        assert f", {isa}, " in processor
        answer = server.post(CHAT, {"messages": [{"role": "user", "content": "What is 347 + 586?"}], "temperature": 0})
        assert "933" in answer.json["choices"][0]["message"]["content"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("flags", [["--requests-per-key", "1"], ["--requests-max", "1"],
                                   ["--max-running", "1", "--max-queued", "0"]], ids=lambda flags: flags[0][2:])
def test_a_client_that_waits_for_each_answer_is_never_refused(flags, stream, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret-key-one alice\n")
    with serving("--api-key-file", keys, "--threads", "1", *flags) as server:
        body = json.dumps({"prompt": [5, 6, 7], "max_tokens": 1, "stream": stream}).encode()
        request = (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret-key-one\r\n"
                   b"Content-Length: %d\r\n\r\n" % len(body)) + body
        with connect(server) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for i in range(500):
                sock.sendall(request)
                received = b""
                while not received.endswith(b"0\r\n\r\n" if stream else b"}}"):
                    received += sock.recv(65536)
                    assert received.startswith(b"HTTP/1.1 200"), (i, received)


def test_an_answer_has_a_limit_and_is_held_as_little_more_than_its_text():
    completions, value_bytes = "/v1/completions", 128
    with serving("--answer-max", "16M", "--threads", "1") as server:
        many = {"prompt": [[5 + i] for i in range(20)], "logprobs": 20, "n": 16, "ignore_eos": True}
        assert server.post(completions, {**many, "n": 1, "max_tokens": 2}).status == 200
        most = (16 << 20) // (20 * 16 * 22 * value_bytes)
        refused = server.post(completions, {**many, "max_tokens": most + 1})
        assert refused.status == 400 and refused.json["error"]["param"] == "max_tokens"
        assert f"at most {most} tokens" in refused.json["error"]["message"]
        for path, body, choices in ((completions, many, 320), (CHAT, {**HI, "max_tokens": None, "logprobs": True,
                                                                       "top_logprobs": 20, "n": 16, "ignore_eos": True}, 16)):
            most = (16 << 20) // (choices * 22 * value_bytes)
            before = server.memory_bytes()
            server.reset_peak_memory()
            answer = server.post(path, body, timeout=120)
            assert answer.status == 200 and answer.json["usage"]["completion_tokens"] == choices * most
            assert {choice["finish_reason"] for choice in answer.json["choices"]} == {"length"}
            if SLOWER == 1:  # a sanitizer's shadow and its kept blocks are memory too
                assert server.peak_memory_bytes() - before < (16 << 20) * 1.5
