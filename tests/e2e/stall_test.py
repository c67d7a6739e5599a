"""Streams and health when work is slow or stands still: a long prefill, a stalled engine, a client that reads nothing."""
import contextlib
import ctypes
import json
import os
import pathlib
import signal
import socket
import time

import pytest
from conftest import SLOWER, Server

CHAT = "/v1/chat/completions"
QUESTION = {"messages": [{"role": "user", "content": "What is 347 + 586?"}], "temperature": 0}
# The reference kernels: the slowest processor there is, on every machine that runs this. A sanitizer's are slow as they are.
SLOW_KERNELS = {"FATHOM_ISA": "ref"} if SLOWER == 1 else {}
PTRACE_ATTACH, PTRACE_DETACH, WALL = 16, 17, 0x40000000


def open_request(server, path, body):
    data = json.dumps(body).encode()
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=60 * SLOWER)
    sock.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    return sock


def read_until(sock, word, received=b""):
    while word not in received:
        chunk = sock.recv(65536)
        assert chunk, received
        received += chunk
    return received


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_disconnect_in_a_long_prefill_is_noticed_at_the_next_chunk(stream):
    server = Server("--threads", "1", "--max-context", "8192", env=SLOW_KERNELS)
    prompt = [100 + i * 7 % 1800 for i in range(8000)]
    try:
        before = server.metrics()
        sock = open_request(server, "/v1/completions", {"prompt": prompt, "max_tokens": 5, "stream": stream})
        prefilled = lambda: server.metrics()["fathom_prefill_tokens_total"] - before["fathom_prefill_tokens_total"]
        server.wait_until(60, lambda: prefilled() > 0)
        assert server.metrics()["fathom_requests_prefilling"] == 1
        sock.close()
        server.wait_until_idle(1.0)
        stopped_at = prefilled()
        assert stopped_at < 6000, "the prompt was computed to its end"
        time.sleep(0.5)
        assert prefilled() == stopped_at
        assert server.metrics()["fathom_generated_tokens_total"] == before["fathom_generated_tokens_total"]
        assert server.post(CHAT, {**QUESTION, "max_tokens": 2}).status == 200
    finally:
        assert server.stop() == 0


def cpu_ticks(pid):
    """{thread: processor time} of a process."""
    ticks = {}
    for folder in pathlib.Path(f"/proc/{pid}/task").iterdir():
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        ticks[int(folder.name)] = int(fields[11]) + int(fields[12])
    return ticks


def busiest_thread(pid):
    before = cpu_ticks(pid)
    time.sleep(0.3)
    after = cpu_ticks(pid)
    return max(after, key=lambda thread: after[thread] - before.get(thread, 0))


@contextlib.contextmanager
def held_still(thread):
    """One thread of another process stands still, as a debugger would hold it; the others run on."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(PTRACE_ATTACH, thread, None, None) != 0:
        pytest.skip(f"this system lets nobody hold a thread: {os.strerror(ctypes.get_errno())}")
    os.waitpid(thread, WALL)
    try:
        yield
    finally:
        libc.ptrace(PTRACE_DETACH, thread, None, None)


def test_a_stalled_engine_ends_streams_with_an_error_and_health_tells():
    stall_s = 8
    server = Server("--threads", "1", "--keep-alive-interval", "0.2", "--stall-timeout", stall_s, env=SLOW_KERNELS)
    try:
        sock = open_request(server, CHAT, {**QUESTION, "stream": True, "ignore_eos": True, "max_tokens": 2000})
        received = read_until(sock, b'"reasoning_content"')
        assert b'"error"' not in received and server.get("/health").json["status"] == "ok"
        with held_still(busiest_thread(server.process.pid)):
            stalled_at = time.monotonic()
            time.sleep(stall_s - 2)
            assert server.get("/health").json["status"] == "ok", "a step may take a while"
            assert server.get("/ready").status == 200
            received = read_until(sock, b"data: [DONE]", received)
            took_s = time.monotonic() - stalled_at
            health = server.get("/health")
            assert (health.status, health.json["status"]) == (503, "stalled")
            assert server.get("/ready").status == 503, "a balancer looks elsewhere meanwhile"
        sock.close()
        assert stall_s - 1 < took_s < stall_s + 2 * SLOWER, took_s
        *_, error, done = [line for line in received.split(b"\n") if line.startswith(b"data: ")]
        assert json.loads(error[6:])["error"]["code"] == "stalled" and done == b"data: [DONE]"
        silence = received.rsplit(b'"delta"', 1)[1]
        assert silence.count(b": keep-alive") >= 5, "a gap is filled while there is hope"
        # It moves again: the request is gone, everything is free, others are served.
        server.wait_until_idle(2)
        assert server.get("/health").status == server.get("/ready").status == 200
        assert server.post(CHAT, {**QUESTION, "max_tokens": 2}).status == 200
    finally:
        assert server.stop() == 0


def test_a_stalled_engine_ends_requests_that_are_not_streamed():
    stall_s = 2 * SLOWER
    server = Server("--threads", "1", "--stall-timeout", stall_s, env=SLOW_KERNELS)
    try:
        sock = open_request(server, CHAT, {**QUESTION, "ignore_eos": True, "max_tokens": 2000})
        server.wait_until(20, lambda: server.metrics()["fathom_requests_decoding"] == 1)
        with held_still(busiest_thread(server.process.pid)):
            stalled_at = time.monotonic()
            sock.settimeout(3 * stall_s + 5)
            received = read_until(sock, b"}}")
            took_s = time.monotonic() - stalled_at
        sock.close()
        head, _, body = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503") and json.loads(body)["error"]["code"] == "stalled"
        assert stall_s - 1 < took_s < 2 * stall_s + 1, took_s
        server.wait_until_idle(2)
        assert server.post(CHAT, {**QUESTION, "max_tokens": 2}).status == 200
    finally:
        assert server.stop() == 0


def wait_for_exit(server, thread, seconds):
    """The exit code of a server of which this process holds a thread: that one is ours to collect first."""
    deadline = time.monotonic() + seconds
    collected = False
    while server.process.poll() is None:
        assert time.monotonic() < deadline, "it does not exit"
        if not collected:
            with contextlib.suppress(ChildProcessError):
                collected = os.waitpid(thread, WALL | os.WNOHANG)[0] == thread
        time.sleep(0.02)
    return server.process.returncode


def test_sigterm_ends_a_server_whose_engine_hangs():
    drain_s = 1
    server = Server("--threads", "1", "--drain-timeout", drain_s, env=SLOW_KERNELS)
    try:
        requests = [open_request(server, CHAT, {**QUESTION, "stream": stream, "ignore_eos": True, "max_tokens": 2000})
                    for stream in (False, True)]
        server.wait_until(20, lambda: server.metrics()["fathom_requests_decoding"] == 2)
        thread = busiest_thread(server.process.pid)
        with held_still(thread):
            stopped_at = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            requests[0].settimeout(20 * SLOWER)
            whole = read_until(requests[0], b"}}")
            streamed = read_until(requests[1], b"data: [DONE]")
            assert wait_for_exit(server, thread, 20 * SLOWER) == 0
            took_s = time.monotonic() - stopped_at
        head, _, body = whole.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503") and json.loads(body)["error"]["code"] == "shutting_down"
        *_, error, done = [line for line in streamed.split(b"\n") if line.startswith(b"data: ")]
        assert json.loads(error[6:])["error"]["code"] == "shutting_down" and done == b"data: [DONE]"
        assert took_s < drain_s + 3 + 2 * SLOWER, took_s
        for sock in requests:
            sock.close()
    finally:
        server.process.kill()
        server.process.wait()
        server.process.stdout.close()


def test_slow_work_is_no_stall():
    """For longer than the stall time-out there is a prompt to compute, then token after token: progress, so no error."""
    stall_s = 3 if SLOWER == 1 else 8
    server = Server("--threads", "1", "--keep-alive-interval", "0.1", "--stall-timeout", stall_s, "--max-context", "8192",
                    env=SLOW_KERNELS)
    try:
        end = time.monotonic() + 1.5 * stall_s
        prompt = [100 + i * 7 % 1800 for i in range(3000)]
        sock = open_request(server, "/v1/completions", {"prompt": prompt, "max_tokens": 5000, "n": 8, "ignore_eos": True, "stream": True})
        received = b""
        while time.monotonic() < end:
            received += sock.recv(65536)
        sock.close()
        assert b'"error"' not in received and b"[DONE]" not in received
        assert b": keep-alive" in received, "the prompt was computed too fast to tell"
        server.wait_until_idle(1)
    finally:
        assert server.stop() == 0


def test_a_client_that_never_reads_is_cut_off_and_its_memory_stays_small():
    server = Server("--write-timeout", "1", "--max-context", "8192")
    body = {**QUESTION, "stream": True, "ignore_eos": True, "max_tokens": 4000, "n": 16, "logprobs": True, "top_logprobs": 20}
    try:
        assert server.post(CHAT, {**QUESTION, "max_tokens": 2}).status == 200
        server.reset_peak_memory()
        before = server.peak_memory_bytes()
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        data = json.dumps(body).encode()
        sock.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        server.wait_until(20, lambda: server.metrics()["fathom_requests_decoding"] > 0)
        server.wait_until(30, lambda: server.metrics()["fathom_http_disconnects_total"] == 1)
        server.wait_until_idle(1)
        assert server.metrics()["fathom_generated_tokens_total"] < 16 * 4000, "it ran on to max_tokens"
        assert server.peak_memory_bytes() - before < 64e6 * SLOWER
        sock.close()
        assert server.post(CHAT, {**QUESTION, "max_tokens": 2}).status == 200
    finally:
        assert server.stop() == 0


def test_a_pause_of_the_whole_process_is_no_stall():
    """Stopped for longer than the stall time-out, as a frozen container is, and then let go on: so do its streams."""
    stall_s = 1
    server = Server("--threads", "1", "--keep-alive-interval", "0.1", "--stall-timeout", stall_s, env=SLOW_KERNELS)
    try:
        socks = [open_request(server, CHAT, {**QUESTION, "stream": True, "ignore_eos": True, "max_tokens": 120})
                 for _ in range(8)]
        received = [read_until(sock, b'"reasoning_content"') for sock in socks]
        for _ in range(3):
            server.process.send_signal(signal.SIGSTOP)
            time.sleep(2.2 * stall_s)
            server.process.send_signal(signal.SIGCONT)
            time.sleep(0.05)
        for sock, part in zip(socks, received):
            whole = read_until(sock, b"data: [DONE]", part)
            assert b'"finish_reason":"length"' in whole and b'"error"' not in whole, whole[-300:]
            sock.close()
    finally:
        assert server.stop() == 0
