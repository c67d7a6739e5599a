"""Disconnects, limits, overload and shutdown: whatever happens, every block is back in its pool."""
import concurrent.futures
import json
import random
import re
import signal
import socket
import threading
import time

from conftest import SLOWER, Server, raw_exchange

CHAT = "/v1/chat/completions"


def chat_bytes(body, extra=""):
    data = json.dumps(body).encode()
    return (f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{extra}"
            f"Content-Length: {len(data)}\r\n\r\n").encode() + data


# The reference kernels, so that what is to be under way still is: on a quick processor 1,500 tokens take a third of a second.
SLOW = {"env": {"FATHOM_ISA": "ref"} if SLOWER == 1 else {}}


def long_request(stream, tokens=400, **fields):
    return {"messages": [{"role": "user", "content": "What is 1 + 1?"}], "max_tokens": tokens, "ignore_eos": True,
            "stream": stream, **fields}


def test_a_disconnect_frees_everything_within_a_second(server):
    for stream in (True, False):
        before = server.metrics()["fathom_generated_tokens_total"]
        sock = socket.create_connection(("127.0.0.1", server.port))
        sock.sendall(chat_bytes(long_request(stream, tokens=1500)))
        server.wait_until(10, lambda: server.metrics()["fathom_generated_tokens_total"] > before)
        sock.close()
        server.wait_until_idle(1.0)
        stopped_at = server.metrics()["fathom_generated_tokens_total"]
        time.sleep(0.3)
        assert server.metrics()["fathom_generated_tokens_total"] == stopped_at
        assert stopped_at - before < 1500, "it ran on to max_tokens"


def test_a_disconnect_in_a_long_prefill_that_others_share_frees_its_blocks_within_a_second():
    """Two long prompts are computed in steps of a second and a half together; one client leaves early in a step."""
    server = Server("--max-context", "8192", **SLOW)
    try:
        waits = []
        for round_ in range(3):
            socks = []
            for which in range(2):
                prompt = [100 + (i * 7 + 13 * which + 29 * round_) % 1800 for i in range(7800)]
                data = json.dumps({"prompt": prompt, "max_tokens": 2, "user_id": f"{which} {round_}"}).encode()
                socks.append(socket.create_connection(("127.0.0.1", server.port)))
                socks[-1].sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
            server.wait_until(20, lambda: server.metrics()["fathom_requests_prefilling"] == 2)
            steps = server.metrics()["fathom_prefill_steps_total"]
            server.wait_until(20, lambda: server.metrics()["fathom_prefill_steps_total"] > steps)
            start = time.monotonic()
            socks[1].close()
            server.wait_until(10, lambda: server.metrics()["fathom_requests_prefilling"] == 1)
            waits.append(time.monotonic() - start)
            socks[0].close()
            server.wait_until_idle(2)
        assert sorted(waits)[1] < 1 * SLOWER, waits
    finally:
        assert server.stop() == 0


def test_200_streams_with_random_disconnects_leave_nothing_behind(server):
    rng = random.Random(3)
    plans = [(rng.random() < 0.5, rng.uniform(0, 1.5), rng.randint(5, 60)) for _ in range(200)]

    def run(plan):
        leaves, after_s, tokens = plan
        body = long_request(True, tokens=tokens, temperature=1.0)
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.sendall(chat_bytes(body, extra="Connection: close\r\n"))
            sock.settimeout(after_s if leaves else 120 * SLOWER)
            received = b""
            try:
                while chunk := sock.recv(65536):
                    received += chunk
            except TimeoutError:
                return None
            return received

    with concurrent.futures.ThreadPoolExecutor(200) as pool:
        results = list(pool.map(run, plans))
    for (leaves, _, tokens), received in zip(plans, results):
        if received is not None:
            assert b"data: [DONE]" in received and b'"finish_reason":"length"' in received
        else:
            assert leaves
    server.wait_until_idle(2.0)
    assert server.get("/health").status == 200


def test_cancelling_four_rounds_of_300_requests_leaks_nothing(server):
    for _ in range(4):
        sockets = []
        for i in range(300):
            sock = socket.create_connection(("127.0.0.1", server.port))
            sock.sendall(chat_bytes(long_request(i % 3 > 0, tokens=1500)))
            sockets.append(sock)
        running = lambda: sum(v for k, v in server.metrics().items() if re.search("queued$|prefilling$|decoding$", k))
        server.wait_until(20, lambda: running() == 300)
        for sock in sockets:
            sock.close()
        server.wait_until(5, lambda: running() == 0)
    server.wait_until_idle(5.0)
    assert server.get("/health").json["status"] == "ok"
    answer = server.post(CHAT, {"messages": [{"role": "user", "content": "What is 2 + 2?"}], "temperature": 0})
    assert answer.status == 200


def test_a_client_that_stops_reading_does_not_grow_the_server_or_hold_others(server):
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", server.port))
    sock.sendall(chat_bytes(long_request(True, tokens=1000, logprobs=True, top_logprobs=20)))
    answer = server.post(CHAT, {"messages": [{"role": "user", "content": "What is 2 + 2?"}], "temperature": 0})
    assert answer.status == 200
    server.wait_until_idle(60)
    sock.settimeout(20 * SLOWER)
    received = b""
    while b"data: [DONE]" not in received and (chunk := sock.recv(65536)):
        received += chunk
    assert b'"finish_reason":"length"' in received, "a slow reader still gets its whole answer"
    sock.close()


def test_limits_of_a_key_and_of_the_server(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# comment\nsecret-key-one alice\nsecret-key-two bob\n")
    server = Server("--api-key-file", keys, "--requests-per-key", "2", "--requests-max", "3", **SLOW)
    auth = lambda key: {"Authorization": f"Bearer {key}"}
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    try:
        assert server.post(CHAT, body).status == 401
        assert server.post(CHAT, body, headers=auth("secret-key-onx")).status == 401
        assert server.post(CHAT, body, headers=auth("secret-key-one")).status == 200
        assert server.get("/health").status == 200, "probes need no key"
        sockets = []
        def hold(key):
            sock = socket.create_connection(("127.0.0.1", server.port))
            sock.sendall(chat_bytes(long_request(True, tokens=1500), extra=f"Authorization: Bearer {key}\r\n"))
            assert b"200 OK" in sock.recv(100)
            sockets.append(sock)
        hold("secret-key-one")
        hold("secret-key-one")
        refused = server.post(CHAT, body, headers=auth("secret-key-one"))
        assert refused.status == 429 and int(refused.headers["Retry-After"]) >= 1
        assert refused.json["error"]["code"] == "rate_limit_exceeded"
        hold("secret-key-two")
        full = server.post(CHAT, body, headers=auth("secret-key-two"))
        assert full.status == 503 and int(full.headers["Retry-After"]) >= 1
        for sock in sockets:
            sock.close()
        server.wait_until_idle(2)
        assert server.post(CHAT, body, headers=auth("secret-key-one")).status == 200
    finally:
        assert server.stop() == 0


def test_a_full_queue_is_a_503(tmp_path):
    server = Server("--max-running", "1", "--max-queued", "1", **SLOW)
    try:
        sockets = []
        for _ in range(2):
            sock = socket.create_connection(("127.0.0.1", server.port))
            sock.sendall(chat_bytes(long_request(True, tokens=1500)))
            assert b"200 OK" in sock.recv(100)
            sockets.append(sock)
            time.sleep(0.2)
        refused = server.post(CHAT, {"messages": [{"role": "user", "content": "hi"}]})
        assert refused.status == 503 and refused.headers["Retry-After"]
        for sock in sockets:
            sock.close()
    finally:
        assert server.stop() == 0


def test_keep_alive_comments_while_queued():
    server = Server("--max-running", "1", "--keep-alive-interval", "0.2", **SLOW)
    try:
        first = socket.create_connection(("127.0.0.1", server.port))
        first.sendall(chat_bytes(long_request(True, tokens=1500)))
        time.sleep(0.2)
        second = socket.create_connection(("127.0.0.1", server.port))
        second.sendall(chat_bytes(long_request(True, tokens=2)))
        second.settimeout(5 * SLOWER)
        received = b""
        while b": keep-alive" not in received:
            received += second.recv(4096)
        first.close()
        while b"data: [DONE]" not in received:
            received += second.recv(4096)
        second.close()
    finally:
        assert server.stop() == 0


def test_sigterm_finishes_streams_and_exits_with_0():
    server = Server("--drain-timeout", 20 * SLOWER, **SLOW)
    result = {}

    def run():
        result["reply"] = raw_exchange(server.port, chat_bytes(long_request(True, tokens=400), "Connection: close\r\n"),
                                       timeout=60)

    thread = threading.Thread(target=run)
    thread.start()
    while server.metrics()["fathom_requests_decoding"] == 0:
        time.sleep(0.02)
    server.process.send_signal(signal.SIGTERM)
    while server.get("/ready", timeout=2).status == 200:
        time.sleep(0.01)
    statuses = set()
    while server.process.poll() is None:
        try:
            statuses.add(("ready", server.get("/ready", timeout=2).status))
            statuses.add(("new", server.post(CHAT, {"messages": [{"role": "user", "content": "hi"}]}, timeout=2).status))
        except OSError:
            pass
        time.sleep(0.02)
    thread.join()
    assert server.process.wait() == 0
    assert ("ready", 200) not in statuses and ("new", 200) not in statuses
    assert b"data: [DONE]" in result["reply"] and b'"finish_reason":"length"' in result["reply"]


def test_sigterm_ends_what_does_not_finish_by_the_deadline():
    server = Server("--drain-timeout", "0.3", **SLOW)
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(chat_bytes(long_request(True, tokens=1900)))
        sock.recv(100)
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        received = b""
        sock.settimeout(10 * SLOWER)
        while chunk := sock.recv(65536):
            received += chunk
        assert b"insufficient_system_resource" in received and b"data: [DONE]" in received
    assert server.process.wait(10 * SLOWER) == 0
    assert time.monotonic() - start < 5 * SLOWER


def test_pipelined_and_kept_alive_requests(server):
    body = chat_bytes({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2})
    get = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    reply = raw_exchange(server.port, body + get + body + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert reply.count(b"HTTP/1.1 200 OK") == 4


def test_sigterm_answers_a_request_that_is_still_coming_in():
    server = Server("--drain-timeout", "30")
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n".encode()
    socks = [socket.create_connection(("127.0.0.1", server.port), timeout=10 * SLOWER) for _ in range(3)]
    for sock, data in zip(socks, (head + b'\r\n{"messages"', head, b"")):
        sock.sendall(data)
    server.wait_until(10, lambda: server.get("/health").status == 200)  # the bytes have arrived by then
    time.sleep(0.2)
    start = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    for sock in socks[:2]:
        answer = b""
        while chunk := sock.recv(65536):
            answer += chunk
        assert answer.startswith(b"HTTP/1.1 503") and b'"shutting_down"' in answer and b"Retry-After" in answer
        sock.close()
    assert socks[2].recv(100) == b"", "nothing was asked, so nothing is answered"
    assert server.process.wait(10 * SLOWER) == 0
    assert time.monotonic() - start < 3 * SLOWER
