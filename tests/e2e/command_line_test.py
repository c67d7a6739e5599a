"""The command line from outside: exit codes, one clear line, signals, and `fathom chat` on a pipe."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time

import pytest
from conftest import BINARY, ELSEWHERE, ROOT, SLOWER, START_TIMEOUT_S, Server


def fathom(*args, stdin="", timeout=START_TIMEOUT_S, env=None):
    return subprocess.run([str(BINARY), *map(str, args)], input=stdin, capture_output=True, text=True, timeout=timeout,
                          cwd=ELSEWHERE.name, env={**os.environ, **(env or {})})


@pytest.mark.parametrize("args,word", [
    ((), "subcommand"), (("serve", "--flibber"), "--flibber"), (("serve", "--port", "99999"), "--port"),
    (("serve", "--host", "nohost"), "--host"), (("serve", "--kv-memory", "1X"), "--kv-memory"),
    (("serve", "--model", "/nonexistent"), "/nonexistent"), (("serve", "--api-key-file", "/nonexistent"), "/nonexistent"),
    (("serve", "--api-key-file", ""), "--api-key-file"), (("serve", "--keep-alive-interval", "1e-9"), "--keep-alive-interval"),
    (("serve", "--request-timeout", "1e300"), "--request-timeout"), (("--config", "/nonexistent", "serve"), "/nonexistent"),
    (("serve", "--prefill-chunk", "100"), "--prefill-chunk: 100 is not a multiple of 64"),
    (("serve", "--kv-memory", "1K"), "--kv-memory: 1024 bytes hold 0 blocks"),
    (("chat", "--url", "http://127.0.0.1:9"), "127.0.0.1:9"),
])
def test_a_wrong_command_ends_with_2_and_says_why(args, word):
    result = fathom(*args)
    assert result.returncode == 2 and word in result.stderr, result
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("args,want", [
    (("bogus",), "bogus: no such subcommand, there are: chat, serve, "), (("serv", "--port", "0", "--host", "x"), "serv: no such subcommand"),
    (("model", "bogus", "x"), "model: bogus: no such subcommand, there are: inspect, convert"), (("--flibber",), "a subcommand is required: chat, "),
])
def test_a_word_that_is_no_command_is_named(args, want):
    result = fathom(*args)
    assert result.returncode == 2 and result.stderr.startswith(f"fathom: {want}") and len(result.stderr.splitlines()) == 1, result


@pytest.mark.parametrize("command", [(), ("serve",), ("chat",), ("version",), ("model",), ("model", "inspect"), ("model", "convert"), ("eplb",),
                                     ("simulate",), ("plan",)])
def test_the_help_of_every_command_names_the_configuration_file(command):
    result = fathom(*command, "--help")
    assert result.returncode == 0 and "--config FILE" in result.stdout, result.stdout


@pytest.mark.parametrize("command", [("serve", "--host", "nohost"), ("version",), ("model", "inspect", ROOT / "tests/fixtures/v3")])
@pytest.mark.parametrize("text,want", [
    ("[serve]\nweights = \"int8\"\n[chat]\ntemperature = 9\n", "fathom.toml:4: --temperature: "),
    ("[chat]\nweights = \"int8\"\n[model.convert]\nweights = \"int9\"\n", "fathom.toml:4: --weights: int9 not in {"),
    ("[model.convert]\nweights = \"native\"\n", "fathom.toml:2: --weights: native changes nothing"),
    ("[plan]\n\nttft = \"x\"\n", "fathom.toml:3: "),
])
def test_a_wrong_value_for_another_command_is_named_with_the_place(tmp_path, command, text, want):
    config = tmp_path / "fathom.toml"
    config.write_text(text)
    result = fathom("--config", config, *command)
    assert result.returncode == 2 and want in result.stderr and len(result.stderr.splitlines()) == 1, result.stderr


def test_a_wrong_flag_is_not_blamed_on_another_command_s_table(tmp_path):
    config = tmp_path / "fathom.toml"
    config.write_text("[chat]\nweights = \"int8\"\n")
    result = fathom("--config", config, "serve", "--weights", "int9")
    assert result.returncode == 2 and result.stderr.startswith("fathom: --weights: int9 not in {"), result.stderr


@pytest.mark.parametrize("text,want", [
    ("[serve]\nprot = 1\n", "fathom.toml: unknown key serve.prot"), ("[serve\nport = 1\n", "fathom.toml:1:7: "),
    ("[serve]\nport = 1\nport = 2\n", "fathom.toml:3:"), ("[serve]\n\nport = \"x\"\n", "fathom.toml:3: cannot read"),
    ("[serve]\nport = 70000\n", "fathom.toml:2: cannot read the value of --port"), ("[serve]\nkv-memory = \"1X\"\n", "fathom.toml:2: --kv-memory: "),
    ("[serve]\nprefill-chunk = 100\n", "fathom.toml:2: --prefill-chunk: 100 is not a multiple of 64"),
    ("[model]\n[serve]\nweights = \"int5\"\n", "fathom.toml:3: --weights: "),
])
def test_a_wrong_config_file_is_named_with_the_place(tmp_path, text, want):
    config = tmp_path / "fathom.toml"
    config.write_text(text)
    result = fathom("--config", config, "serve")
    assert result.returncode == 2 and want in result.stderr and len(result.stderr.splitlines()) == 1, result.stderr


def test_a_wrong_flag_is_not_blamed_on_the_config_file(tmp_path):
    config = tmp_path / "fathom.toml"
    config.write_text("[serve]\nport = 70000\n")
    result = fathom("--config", config, "serve", "--port", "70001")
    assert result.returncode == 2 and "--port = 70001" in result.stderr and "fathom.toml" not in result.stderr, result.stderr


def listed_model(server):
    model, = server.get("/v1/models").json["data"]
    return model["id"], model["max_model_len"]


def test_a_config_file_sets_what_the_flags_would_and_a_flag_wins(tmp_path):
    config = tmp_path / "fathom.toml"
    config.write_text("[serve]\nserved-model-name = \"from the file\"\nmax-context = 1024\nmax-running = 3\n"
                      "deterministic = true\nkv-memory = \"64M\"\n")
    for flags, want in (([], ("from the file", 1024)), (["--served-model-name", "from a flag"], ("from a flag", 1024)),
                        (["--max-context=2048"], ("from the file", 2048))):
        server = Server("--config", config, *flags)
        try:
            assert listed_model(server) == want
            summary = "".join(server.log)
            assert "running 3," in summary and "; deterministic" in summary and "KV 64.0 MiB" in summary, summary
        finally:
            assert server.stop() == 0


@pytest.mark.parametrize("isa", ["neon", "AVX2", "avx512_"])
def test_an_unknown_instruction_set_is_refused(isa):
    result = fathom("serve", "--port", "0", env={"FATHOM_ISA": isa})
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1, result
    assert "FATHOM_ISA" in result.stderr and f"'{isa}'" in result.stderr and "known: ref, avx2, " in result.stderr


def test_an_instruction_set_that_this_machine_lacks_is_refused():
    flags = pathlib.Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n", 1)[0].split()
    if {"avx512_bf16", "avx512vbmi", "avx512_vnni"} <= set(flags):
        pytest.skip("this machine has them all")
    result = fathom("serve", "--port", "0", env={"FATHOM_ISA": "avx512_bf16"})
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1, result
    assert "FATHOM_ISA=avx512_bf16 asks for more than this processor has" in result.stderr


def test_a_taken_port_is_known_before_the_model_is_read():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = fathom("serve", "--port", port, "--model", "/nonexistent")
    assert result.returncode == 2 and f"cannot listen on 127.0.0.1:{port}" in result.stderr


def test_a_signal_during_the_start_ends_the_process(tmp_path):
    # A FIFO in place of the key file, which is read first, holds the start up for ever.
    os.mkfifo(tmp_path / "keys")
    process = subprocess.Popen([str(BINARY), "serve", "--port", "0", "--api-key-file", str(tmp_path / "keys")],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=ELSEWHERE.name)
    time.sleep(0.5)
    assert process.poll() is None, process.stderr.read()
    process.send_signal(signal.SIGTERM)
    assert process.wait(START_TIMEOUT_S) == 0


def test_the_line_to_try_works_as_it_stands(tmp_path):
    (tmp_path / "keys").write_text("a-secret-key someone\n")
    for flags in ((), ("--api-key-file", tmp_path / "keys")):
        server = Server(*flags)
        try:
            os.set_blocking(server.process.stdout.fileno(), True)
            line = server.process.stdout.readline()  # after the one that says "ready"
            assert line.startswith("try: curl "), line
            done = subprocess.run(["sh", "-c", line[len("try: "):]], capture_output=True, text=True, timeout=START_TIMEOUT_S,
                                  env={**os.environ, "FATHOM_API_KEY": "a-secret-key"})
            assert "933" in json.loads(done.stdout)["choices"][0]["message"]["content"], done
        finally:
            assert server.stop() == 0


def test_the_readme_lists_the_libraries_that_the_binary_needs():
    listed = subprocess.run(["ldd", str(BINARY)], capture_output=True, text=True, timeout=60).stdout
    readme = (ROOT / "README.md").read_text()
    direct = subprocess.run(["readelf", "-d", str(BINARY)], capture_output=True, text=True, timeout=60, check=True).stdout
    names = re.findall(r"NEEDED.*\[(.+?)\.so", direct)
    always_there = {"libc", "libm", "libgcc_s", "libstdc++", "ld-linux-x86-64", "libasan", "libubsan", "libtsan"}
    packages = {"libcurl": "libcurl4", "libcrypto": "libssl3", "libssl": "libssl3",
                "libspdlog": "libspdlog1.10", "libfmt": "libfmt9",
                "libprometheus-cpp-core": "libprometheus-cpp-core1.0", "libnuma": "libnuma1"}
    assert "not found" not in listed and "libspdlog" in names
    missing = [name for name in names if name not in always_there and f"`{packages.get(name)}`" not in readme]
    assert not missing, missing


def test_a_second_signal_ends_at_once():
    server = Server("--drain-timeout", "60")
    body = b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":4000,"ignore_eos":true,"stream":true,"n":16}'
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert b"200 OK" in sock.recv(1000)
        server.process.send_signal(signal.SIGTERM)
        while server.get("/ready").status == 200:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10 * SLOWER) == -signal.SIGTERM


@pytest.mark.parametrize("tail", ["", "/", "/v1", "/v1/"])
def test_chat_on_a_pipe_talks_to_a_server(server, tail):
    result = fathom("chat", "--url", server.url + tail, "--max-tokens", "3", stdin="What is 1 + 1?\n/clear\n\nhi\n/exit\nno\n")
    assert result.returncode == 0, result
    assert result.stdout.count("prompt tokens from the cache") == 2 and "\x1b" not in result.stdout


HELPED = [
    ((), ("serve", "chat", "model", "version", "--config")),
    (("serve",), ("--host", "--port", "--api-key-file", "--served-model-name", "--threads", "--kv-memory", "--max-context", "--max-running",
                  "--drain-timeout", "--stall-timeout", "--deterministic")),
    (("chat",), ("--url", "--api-key", "--system", "--temperature", "--max-tokens", "--model", "--weights")),
    (("model",), ("inspect", "convert")), (("model", "inspect"), ("--json",)), (("model", "convert"), ("--weights",)), (("version",), ()),
]


@pytest.mark.parametrize("command,words", HELPED, ids=["-".join(("fathom", *command)) for command, _ in HELPED])
def test_help_tells_what_a_command_takes(command, words):
    for flag in ("--help", "-h"):
        result = fathom(*command, flag)
        assert result.returncode == 0 and result.stderr == "", result
        usage = " ".join(("Usage: fathom", *command))
        assert any(line.startswith(usage) for line in result.stdout.splitlines()), result.stdout
        assert all(re.search(rf"^ +{word}\b", result.stdout, re.M) for word in words), result.stdout
        flags = re.findall(r"^  (?:-\w,)?(--[\w-]+)", result.stdout, re.M)
        assert "--help" in flags and len(set(flags)) == len(flags)


def test_more_kv_memory_than_there_is_is_refused_with_the_arithmetic():
    result = fathom("serve", "--port", "0", "--kv-memory", "1000G")
    assert result.returncode == 2 and result.stdout == "" and len(result.stderr.splitlines()) == 1, result
    assert re.search(r"does not fit in memory: weights [\d.]+ MiB \+ KV 1000\.00 GiB \+ activations [\d.]+ MiB \+ tokenizing [\d.]+ MiB \+ reserve [\d.]+ MiB = "
                     r"100\d\.\d\d GiB of [\d.]+ GiB available", result.stderr), result.stderr


def test_chat_runs_a_model_of_its_own():
    result = fathom("chat", "--served-model-name", "own", "--max-tokens", "2", stdin="hi\n")
    assert result.returncode == 0 and "tokens/s" in result.stdout
