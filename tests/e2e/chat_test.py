"""`fathom chat` from outside: on a pipe, on a terminal, interrupted, refused; its output and its exit codes."""
import http.server
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import threading
import time

import pytest

from conftest import BINARY, SLOWER, START_TIMEOUT_S, Server


def chat(*args, stdin="", env=None):
    return subprocess.run([str(BINARY), "chat", *map(str, args)], input=stdin, capture_output=True, text=True,
                          timeout=START_TIMEOUT_S, env={**os.environ, **(env or {})})


STATISTICS = re.compile(r"^\[(\d+) tokens, [\d.]+ tokens/s, first after \d+ ms, (\d+) of (\d+) prompt tokens from the cache", re.M)


def test_an_answer_on_a_pipe_has_working_text_and_figures(server):
    result = chat("--url", server.url, stdin="What is 347 + 586?")  # no line break at the end
    assert result.returncode == 0 and result.stderr == "", result
    reasoning, answer, figures = result.stdout.rstrip("\n").rsplit("\n", 2)
    assert "933" in answer and "347" in reasoning and STATISTICS.match(figures)
    assert "\x1b" not in result.stdout and "<think>" not in result.stdout


def test_turns_build_on_one_another_until_cleared(server):
    lines = "What is 2 + 2?\nWhat is 3 + 3?\n\n/clear\nWhat is 4 + 4?\n/quit\nWhat is 5 + 5?\n"
    result = chat("--url", server.url, "--system", "Be brief.", stdin=lines)
    assert result.returncode == 0, result
    prompts = [int(total) for _, _, total in STATISTICS.findall(result.stdout)]
    assert len(prompts) == 3 and prompts[1] > prompts[0] + 5 and prompts[2] == prompts[0]


def test_a_failed_question_makes_the_exit_code_1_and_the_talk_goes_on():
    server = Server("--max-context", "192")
    try:
        result = chat("--url", server.url, stdin="7 " * 400 + "\nWhat is 2 + 2?\n")
        assert result.returncode == 1
        assert len(result.stderr.splitlines()) == 1 and "maximum context length is 192" in result.stderr
        assert len(STATISTICS.findall(result.stdout)) == 1
    finally:
        assert server.stop() == 0


def test_a_conversation_that_outgrows_the_context_is_said_to_and_can_be_cleared():
    server = Server("--max-context", "192")
    try:
        long = "7 " * 150
        result = chat("--url", server.url, stdin=f"What is 2 + 2?\n{long}\n{long}\n/clear\nWhat is 3 + 3?\n{long}\n")
    finally:
        assert server.stop() == 0
    full = "fathom chat: the conversation no longer fits the model's context; /clear starts anew"
    assert result.stderr.splitlines() == [full, "fathom chat: still too long; /clear starts anew", full], result.stderr
    assert result.returncode == 1 and len(STATISTICS.findall(result.stdout)) == 2, result


def test_a_server_that_goes_away_is_one_line_and_exit_code_1(server):
    mortal = Server()
    process = subprocess.Popen([str(BINARY), "chat", "--url", mortal.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    process.stdin.write("What is 2 + 2?\n")
    process.stdin.flush()
    while not STATISTICS.match(process.stdout.readline()):
        assert process.poll() is None
    assert mortal.stop() == 0
    _, errors = process.communicate("What is 3 + 3?\n", timeout=START_TIMEOUT_S)
    assert process.returncode == 1 and len(errors.splitlines()) == 1 and mortal.url in errors


def test_a_key_is_asked_for_and_given(tmp_path):
    (tmp_path / "keys").write_text("a-secret-key someone\n")
    server = Server("--api-key-file", tmp_path / "keys")
    try:
        refused = chat("--url", server.url, stdin="hi\n")
        assert refused.returncode == 2 and "API key" in refused.stderr and refused.stdout == ""
        for args, env in ((("--api-key", "a-secret-key"), {}), ((), {"FATHOM_API_KEY": "a-secret-key"})):
            result = chat("--url", server.url, *args, stdin="hi\n", env=env)
            assert result.returncode == 0 and STATISTICS.search(result.stdout), result
    finally:
        assert server.stop() == 0


class FixedAnswer(http.server.BaseHTTPRequestHandler):
    """What listens on the default port, and is no server of ours."""
    status, body = 401, b'{"error":{"message":"keys are asked for"}}'

    def do_GET(self):
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("status,code,words", [(401, 2, "keys are asked for"), (500, 2, "keys are asked for"),
                                               (404, 0, "starting an engine here"), (200, 0, "not a list of models")])
def test_what_listens_on_the_default_port_is_asked_first(status, code, words):
    try:
        other = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), type("Fixed", (FixedAnswer,), {"status": status}))
    except OSError:
        pytest.skip("port 8000 is in use")
    threading.Thread(target=other.serve_forever, daemon=True).start()
    try:
        result = chat("--max-tokens", "3", stdin="hi\n")
    finally:
        other.shutdown()
        other.server_close()
    assert result.returncode == code and words in result.stderr and len(result.stderr.splitlines()) == 1, result
    assert bool(STATISTICS.search(result.stdout)) == (code == 0), result


def test_with_nothing_on_the_default_port_an_engine_of_its_own_answers():
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 8000)) == 0:
            pytest.skip("port 8000 is in use")
    result = chat(stdin="What is 347 + 586?\n")
    assert result.returncode == 0 and "933" in result.stdout and result.stderr == "", result


def test_an_engine_of_its_own_answers_on_a_pipe():
    result = chat("--served-model-name", "own", "--max-tokens", "5", stdin="What is 1 + 1?\n",
                  env={"HOME": "/nonexistent"})
    assert result.returncode == 0, result
    (tokens, _, _), = STATISTICS.findall(result.stdout)
    assert tokens == "5" and "cut off at the limit" in result.stdout


def test_without_a_standard_input_nobody_has_asked_anything():
    done = subprocess.run([str(BINARY), "chat", "--threads", "1", "--max-tokens", "3"], capture_output=True, text=True,
                          timeout=START_TIMEOUT_S, preexec_fn=lambda: os.close(0))
    assert done.returncode == 0 and "tokens" not in done.stdout, done.stdout


def test_lines_of_a_file_may_end_with_a_carriage_return(server):
    text = "What is 2 + 3?\r\n  \r\n\r\n/clear\r\n/exit\r\nWhat is 4 + 4?\r\n"
    done = subprocess.run([str(BINARY), "chat", "--url", server.url], input=text.encode(), capture_output=True,
                          timeout=60 * SLOWER)
    assert done.returncode == 0 and done.stdout.count(b"prompt tokens from the cache") == 1, done.stdout


def test_without_flags_or_a_server_it_answers_in_a_terminal():
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 8000)) == 0:
            pytest.skip("port 8000 is in use")
    master, slave = pty.openpty()
    process = subprocess.Popen([str(BINARY), "chat"], stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    try:
        assert b"fathom-demo" in read_terminal(master, b"> ")
        os.write(master, b"What is 347 + 586?\n")
        screen = read_terminal(master, b"tokens/s")
        assert b"933" in screen.rpartition(b"\x1b[0m\r\n")[0], screen
        os.write(master, b"/exit\n")
        assert process.wait(START_TIMEOUT_S) == 0
    finally:
        process.kill()
        os.close(master)


def read_terminal(fd, word, received=b""):
    deadline = time.monotonic() + START_TIMEOUT_S
    while word not in received:
        assert time.monotonic() < deadline, received
        if select.select([fd], [], [], 0.1)[0]:
            try:
                received += os.read(fd, 65536)
            except OSError:  # the other end is closed
                break
    return received


def test_a_terminal_shows_a_bar_while_a_model_is_loaded():
    master, slave = pty.openpty()
    process = subprocess.Popen([str(BINARY), "serve", "--port", "0"], stdin=slave, stdout=slave, stderr=slave,
                               start_new_session=True)
    os.close(slave)
    try:
        screen = read_terminal(master, b"ready on").decode()
        steps = [(len(bar), int(percent)) for bar, percent in re.findall(r"\r\w+ \[(#*) *\] +(\d+) %", screen)]
        assert steps and steps[-1] == (40, 100), screen
        assert steps == sorted(steps) and all(length == percent * 40 // 100 for length, percent in steps), screen
        process.terminate()
        assert process.wait(START_TIMEOUT_S) == 0
    finally:
        process.kill()
        os.close(master)


def test_a_terminal_shows_reasoning_dimmer_and_ctrl_c_stops_an_answer():
    # A slow server leaves time to interrupt; a sanitizer's is slow as it is.
    server = Server("--threads", "1", env={"FATHOM_ISA": "ref"} if SLOWER == 1 else {})
    master, slave = pty.openpty()
    process = subprocess.Popen([str(BINARY), "chat", "--url", server.url, "--temperature", "0"], stdin=slave, stdout=slave,
                               stderr=slave, start_new_session=True)
    os.close(slave)
    try:
        screen = read_terminal(master, b"> ")
        assert b"Ctrl-C stops an answer" in screen
        os.write(master, b"What is 98 * 97?\n")
        screen = read_terminal(master, b"\x1b[2m")
        process.send_signal(signal.SIGINT)
        screen = read_terminal(master, b"> ", screen.split(b"\x1b[2m", 1)[1])
        assert b"[interrupted]" in screen
        server.wait_until_idle(2)
        os.write(master, b"What is 347 + 586?\n")
        screen = read_terminal(master, b"tokens/s")
        dim, _, rest = screen.partition(b"\x1b[2m")[2].partition(b"\x1b[0m")
        assert b"743" in dim and b"933" in rest, "the working is dim, the answer is not"
        os.write(master, b"half a line")
        read_terminal(master, b"half a line")
        process.send_signal(signal.SIGINT)
        assert b"half" not in read_terminal(master, b"> ", b"").rpartition(b"\n")[2]
        os.write(master, b"Who are you?\n")
        assert b"arithmetic" in read_terminal(master, b"tokens/s"), "Ctrl-C drops a line, not the conversation"
        os.write(master, b"\x04")
        assert process.wait(START_TIMEOUT_S) == 0
    finally:
        process.kill()
        os.close(master)
        assert server.stop() == 0


class BrokenOffAnswer(FixedAnswer):
    """A server that gives up midway, as ours does when a request's time is over."""
    status, body = 200, b'{"data":[{"id":"m"}]}'

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for delta, reason in (({"content": "half an"}, None), ({}, "insufficient_system_resource")):
            chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
            self.wfile.write(b"data: %s\n\n" % json.dumps(chunk).encode())
        self.wfile.write(b"data: [DONE]\n\n")


def test_an_answer_that_the_server_breaks_off_is_said_to_be():
    other = http.server.ThreadingHTTPServer(("127.0.0.1", 0), BrokenOffAnswer)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    try:
        result = chat("--url", f"http://127.0.0.1:{other.server_port}", stdin="hi\n")
    finally:
        other.shutdown()
        other.server_close()
    assert result.returncode == 1 and "half an" in result.stdout and "cut off by the server" in result.stdout, result


def test_flags_for_an_engine_of_ones_own_do_not_go_with_a_server(server):
    result = chat("--url", server.url, "--threads", "1", stdin="What is 2 + 2?\n")
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr == "fathom chat: --threads is for an engine of one's own and cannot go with --url\n"
