"""What `fathom serve` says of itself at the start: every choice and limit, and what it was asked for but could not give."""
import re

from conftest import Server


def start_up_text(*args):
    server = Server(*args)
    try:
        return "".join(server.log)
    finally:
        assert server.stop() == 0


def test_the_summary_names_every_choice_and_limit():
    text = start_up_text("--weights", "int4", "--kv-memory", "64M", "--max-running", "7", "--requests-max", "33",
                         "--connections-max", "44", "--body-max", "5M", "--answer-max", "96M", "--stall-timeout", "21",
                         "--bodies-max", "77M", "--large-bodies-max", "9", "--queue-timeout", "12")
    lines = dict(line.split(None, 1) for line in text.splitlines() if line and not line.startswith(("ready", "try")))
    assert "fathom-demo" in lines["model"] and "weights linear layers int4" in lines["precision"]
    assert re.search(r"weights .* \+ KV 64\.0 MiB \+ activations .* \+ tokenizing .* \+ reserve .* = .* of .* available", lines["memory"])
    assert "blocks of 64 tokens" in lines["KV"] and "running 7" in lines["limits"]
    assert "no key asked for; requests 33, connections 44, body 5.0 MiB, bodies 77.0 MiB, large bodies 9, answer 96.0 MiB" == lines["clients"]
    assert "queue 12 s, stall 21 s" in lines["time-outs"] and "header 10 s" in lines["time-outs"]


def test_a_context_beyond_the_models_positions_is_lowered_aloud():
    text = start_up_text("--max-context", "100000")
    assert "--max-context 100000 is more than the model's 8192 positions" in text and "context 8192" in text


def test_debug_logs_every_answer():
    server = Server("--log-level", "debug")
    try:
        server.get("/health")
        server.get("/nowhere")
        log = ""

        def both_logged():
            nonlocal log
            log += server.process.stdout.read() or ""
            return "GET /health 200" in log and "GET /nowhere 404" in log

        server.wait_until(5, both_logged)
    finally:
        assert server.stop() == 0
