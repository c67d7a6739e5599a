"""HTTP that is cut short, ambiguous, endless or abandoned: each request is answered or closed, and costs little."""
import json
import re
import socket
import threading
import time

import pytest
from conftest import SLOWER, Server, raw_exchange

CHAT = "/v1/chat/completions"
BODY = json.dumps({"messages": [{"role": "user", "content": "What is 1 + 1?"}], "max_tokens": 4}).encode()
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n"


def post(body=BODY, extra="", path=CHAT, length=None, close=True, host="Host: x\r\n"):
    size = "" if length is False else f"Content-Length: {len(body) if length is None else length}\r\n"
    close_line = "Connection: close\r\n" if close else ""
    return f"POST {path} HTTP/1.1\r\n{host}{size}{close_line}{extra}\r\n".encode() + body


def chunks(*parts, end=b"0\r\n\r\n"):
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + end


def chunked(framed, extra="Transfer-Encoding: chunked\r\n"):
    return post(framed, extra, length=False)


def statuses(reply):
    return [int(s) for s in re.findall(rb"HTTP/1\.1 (\d\d\d)", reply)]


def long_body(**fields):
    return json.dumps({"messages": [{"role": "user", "content": "Hi"}], "ignore_eos": True, "max_tokens": 3000,
                       **fields}).encode()


@pytest.mark.parametrize("data", [HEALTH + b"\r\n", post(), post(close=False), post(b'{"prompt":"x"}', path="/tokenize"),
                                  b"GET /health HTTP/1.0\r\n\r\n"])
def test_a_client_that_is_done_sending_gets_its_answer(server, data):
    start = time.monotonic()
    reply = raw_exchange(server.port, data, half_close=True, timeout=20)
    assert statuses(reply)[-1:] == [200] and reply.endswith(b"}"), reply[:200]
    assert time.monotonic() - start < 5 * SLOWER, "the connection ends with the answer"


def test_a_stream_and_pipelined_requests_outlive_the_clients_last_byte(server):
    stream = post(json.dumps({**json.loads(BODY), "stream": True}).encode())
    assert b"data: [DONE]" in raw_exchange(server.port, stream, half_close=True, timeout=20)
    assert statuses(raw_exchange(server.port, (HEALTH + b"\r\n") * 5, half_close=True)) == [200] * 5
    slow = raw_exchange(server.port, post(long_body(max_tokens=600)), half_close=True, timeout=60)
    assert statuses(slow)[-1] == 200 and set(statuses(slow)[:-1]) <= {100}, "a probe may come before, nothing else"


@pytest.mark.parametrize("data", [post(length=len(BODY) + 5), b"GET /heal", chunked(b"ff\r\nabc"), chunked(b"5"),
                                  HEALTH])
def test_a_request_that_ends_too_early_is_a_400(server, data):
    assert statuses(raw_exchange(server.port, data, half_close=True, timeout=5)) == [400]


def test_a_client_that_left_is_noticed_however_it_left(server):
    for stream, pipelined in ((False, b""), (True, b""), (False, b"G" * 900_000), (True, b"G" * 900_000)):
        sock = socket.create_connection(("127.0.0.1", server.port))
        sock.sendall(post(long_body(stream=stream, n=4), close=False))
        server.wait_until(10, lambda: server.metrics()["fathom_requests_decoding"] > 0)
        sender = threading.Thread(target=lambda: sock.sendall(pipelined))
        sender.start()
        sender.join(10 * SLOWER)
        assert not sender.is_alive(), "what is pipelined beyond the limit is taken and dropped"
        sock.close()
        server.wait_until_idle(2)


def test_too_much_behind_a_running_request_ends_the_connection_after_its_answer(server):
    data = post(long_body(max_tokens=50), close=False) + (HEALTH + b"\r\n") * 20_000
    assert statuses(raw_exchange(server.port, data, timeout=20)) == [200]
    few = raw_exchange(server.port, post(close=False) + (HEALTH + b"\r\n") * 100 + HEALTH + b"Connection: close\r\n\r\n")
    assert statuses(few) == [200] * 102


SMUGGLED = HEALTH + b"\r\n"


@pytest.mark.parametrize("extra,status", [
    ("Transfer-Encoding: xchunked\r\n", 501), ("Transfer-Encoding: chunked, gzip\r\n", 501),
    ("Transfer-Encoding: gzip, chunked\r\n", 501), ("Transfer-Encoding: gzip\r\n", 501), ("Transfer-Encoding: identity\r\n", 501),
    ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", None),
    ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", 400), ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400),
    ("Content-Length: 5\r\nContent-Length: 5\r\n", 400), ("Content-Length: 5\r\nContent-Length: 6\r\n", 400),
])
def test_a_body_of_unclear_length_is_refused_and_the_connection_closed(server, extra, status):
    reply = raw_exchange(server.port, post(chunks(BODY) + SMUGGLED, extra, length=False, close=False), timeout=5)
    assert len(statuses(reply)) == 1 and statuses(reply)[0] in ([status] if status else [400, 501]), reply[:300]
    assert b"Connection: close" in reply


def test_chunked_bodies_as_they_should_be(server):
    for framed in (chunks(BODY), chunks(*[BODY[i:i + 1] for i in range(len(BODY))]),
                   b'%x;a=b;c="d"\r\n%s\r\n0\r\n\r\n' % (len(BODY), BODY), chunks(BODY, end=b"0\r\nX: y\r\n\r\n")):
        assert statuses(raw_exchange(server.port, chunked(framed))) == [200]
    assert statuses(raw_exchange(server.port, chunked(chunks(BODY), "Transfer-Encoding: CHUNKED\r\n"))) == [200]


@pytest.mark.parametrize("start,unit", [
    (b"1\r\n{\r\n0\r\n", b"X: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n"), (b"1\r\n{\r\n0\r\nX: ", b"y" * 1000), (b"1;", b"y" * 1000),
    (b"", b"1;" + b"e" * 1000 + b"\r\n{\r\n"), (b"", b"0" * 1000), (b"", b"1\r\n{\r\n"),
], ids=["trailers", "one trailer", "extension", "extensions", "zeros", "tiny chunks"])
def test_endless_framing_ends_at_a_limit(server, start, unit):
    server.reset_peak_memory()
    before = server.peak_memory_bytes()
    block, sent, reply = unit * (65536 // len(unit)), 0, b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10 * SLOWER) as sock:
        sock.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + start)
        sock.setblocking(False)
        while sent < 64 << 20 and not reply:
            try:
                sent += sock.send(block[sent % len(unit):])
            except BlockingIOError:
                time.sleep(0.001)
            try:
                reply = sock.recv(1000)
            except BlockingIOError:
                pass
    assert statuses(reply)[0] in (400, 413, 431), reply[:100]
    assert sent < 16 << 20 and server.peak_memory_bytes() - before < 32e6 * SLOWER


def test_a_wrong_key_is_told_before_the_body(tmp_path):
    (tmp_path / "keys").write_text("secret-key-one alice\n")
    server = Server("--api-key-file", tmp_path / "keys")
    try:
        head = post(b"", length=8_000_000)
        for data, status in ((head, 401), (head.replace(CHAT.encode(), b"/nope"), 404),
                             (head.replace(b"POST", b"PUT"), 405), (head.replace(b"Host", b"Expect: 100-continue\r\nHost"), 401)):
            reply = raw_exchange(server.port, data, timeout=1)
            assert statuses(reply) == [status] and b"Connection: close" in reply
        known = head.replace(b"Host", b"Authorization: Bearer secret-key-one\r\nHost")
        assert raw_exchange(server.port, known, timeout=0.5) == b"", "it waits for the body"
        assert server.post(CHAT, BODY).status == 401
        assert server.post(CHAT, BODY, headers={"Authorization": "Bearer secret-key-one"}).status == 200
    finally:
        assert server.stop() == 0


def test_all_bodies_together_have_a_limit(server):
    server.reset_peak_memory()
    before = server.peak_memory_bytes()
    head, part = post(b"", length=8 << 20), b"x" * (7 << 20)
    sockets, refused = [], 0
    try:
        while not refused and len(sockets) < 64:
            sock = socket.create_connection(("127.0.0.1", server.port), timeout=10 * SLOWER)
            sockets.append(sock)
            try:
                sock.sendall(head + part)
            except (BrokenPipeError, ConnectionResetError):
                pass
            sock.settimeout(0.05)
            try:
                refused = statuses(sock.recv(1000))[0]
            except TimeoutError:
                pass
        assert refused == 503 and len(sockets) > 30
        if SLOWER == 1:  # a sanitizer keeps books of every byte
            assert server.peak_memory_bytes() - before < 600e6
        assert server.get("/health").status == 200, "requests without a body go on"
    finally:
        for sock in sockets:
            sock.close()
    server.wait_until(5, lambda: server.post("/tokenize", {"prompt": "a"}).status == 200)


@pytest.mark.parametrize("data,status", [
    (b"GET /health HTTP/1.1\r\n\r\n", 400), (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    (b"GET /health HTTP/1.0\r\n\r\n", 200), (b"\r\n\r\n" + HEALTH + b"Connection: close\r\n\r\n", 200),
    (b"\r\n" * 50_000, 400), (post(extra="Expect: foo\r\n"), 417), (post(extra="Content-Encoding: gzip\r\n"), 415),
    (post(extra="Content-Encoding: identity\r\n"), 200),
    (b"GET https://x/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 200),
    (b"GET HTTP://x/health?a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 200),
    (b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
])
def test_headers_and_targets(server, data, status):
    reply = raw_exchange(server.port, data, timeout=5)
    assert statuses(reply) == [status], reply[:300]
    assert len(reply) < 2000


def test_a_served_model_has_one_birthday(server):
    first = server.get("/v1/models").json["data"][0]["created"]
    time.sleep(1.1)
    assert server.get("/v1/models").json["data"][0]["created"] == first <= time.time()
