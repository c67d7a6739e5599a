"""Hostile flags, files, folders and servers: one clear line and the right exit code each, never a crash or a guess."""
import fcntl
import http.server
import json
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time

import pytest
from conftest import BINARY, ROOT, SLOWER, START_TIMEOUT_S, Server

SMALL = ROOT / "tests/fixtures/v3"
DEMO = ROOT / "models/demo"


def fathom(*args, stdin=b"", prefix=(), **more):
    return subprocess.run([*prefix, str(BINARY), *[a if isinstance(a, bytes) else str(a) for a in args]], input=stdin,
                          capture_output=True, timeout=START_TIMEOUT_S, **more)


def assert_one_line(result, code, *words):
    text = result.stderr.decode("utf-8", "replace")
    assert result.returncode == code, (result.returncode, text)
    assert len(text.splitlines()) == 1 and "\x1b" not in text, text
    for word in words:
        assert word in text, text


def refused_host(*args):
    """A command line that ends when its flags have been read."""
    return ("serve", "--host", "nohost", *args)


# --- flags

@pytest.mark.parametrize("args,words", [
    (("serve", "--port", ""), ("--port", "missing")), (("serve", "--threads", " "), ("--threads", "missing")),
    (("serve", "--header-timeout", "nan"), ("--header-timeout", "finite")),
    (("serve", "--drain-timeout", "nan"), ("--drain-timeout", "finite")),
    (("serve", "--stall-timeout", "inf"), ("--stall-timeout", "finite")),
    (("serve", "--queue-timeout", "100000"), ("--queue-timeout", "0.1", "86400")),
    (("chat", "--temperature", "nan"), ("--temperature", "finite")), (("chat", "--temperature", ""), ("--temperature", "missing")),
    (("plan", "--price", ""), ("--price", "missing")), (("plan", "--ttft", "nan"), ("ttft", "nan")), (("plan", "--price", "nan"), ("--price", "nan")),
    (("serve", "--body-max", "0"), ("--body-max", "from 1 to 4G")), (("serve", "--body-max", "-1"), ("--body-max", "from 1 to 4G")),
    (("serve", "--kv-memory", "-5M"), ("--kv-memory: -5M is not a size",)),
    (("serve", "--kv-memory", "18446744073709551615"), ("--kv-memory", "from 1 to 1P")),
    (("serve", "--kv-memory", "8E"), ("--kv-memory", "from 1 to 1P")),
    (("serve", "--requests-max", "0"), ("--requests-max", "not in range 1 to 1048576")),
    (("serve", "--deterministic=5"), ("--deterministic: 5 is neither true nor false",)),
    (("model", "inspect", "--json=5", SMALL), ("--json: 5 is neither true nor false",)),
    (("serve", "--thread", "1"), ("--thread: no such flag",)), (("serve", "extra"), ("extra: not expected here",)),
    (("serve", "--redundant-experts", "4096", "--kv-memory", "8M"), ("--redundant-experts 4096", "--prefill-ep")),
    (("chat", "--max-tokens", "0"), ("--max-tokens",)), (("chat", "--max-tokens", "-1"), ("--max-tokens",)),
    (("chat", "--api-key", "a\r\nX-Evil: 1"), ("--api-key", "control character")),
    (("serve", "--served-model-name", "a\nb"), (r"a\x0ab", "control character")),
    (("serve", "--served-model-name", b"a\xff"), ("--served-model-name a\ufffd: is not UTF-8",)),
    (("serve", "--host", "a\nb"), (r"a\x0ab: not an IP address",)), (("serve", "--model", "x\ny\x1b[2J"), (r"x\x0ay\x1b[2J",)),
    (("--config", "a\nb", "serve"), (r"a\x0ab: No such file",)), (("--config", "/tmp", "serve"), ("/tmp: is a folder",)),
    (("serve", "--model", ""), ("--model", "empty")), (("serve", "--served-model-name", ""), ("--served-model-name", "empty")),
    (("chat", "--url", ""), ("--url", "empty")), (("serve", "--api-key-file", ""), ("--api-key-file", "empty")),
    (("--config", "", "serve"), ("--config", "names no file")), (("serve", "--api-key-file", "a\nb"), (r"a\x0ab",)),
    (("serve", "--api-key-file", "/tmp"), ("/tmp: cannot be read",)),
    (("serve", "--api-key-file", "/dev/zero"), ("more than 1048576 bytes",)),
    (("--config", "/dev/zero", "serve"), ("more than 1048576 bytes",)), (("eplb", "a\nb"), (r"a\x0ab",)),
    (("plan", "--profile", "a\nb"), (r"a\x0ab",)),
])
def test_an_odd_flag_is_refused_in_one_line(args, words):
    assert_one_line(fathom(*args), 2, *words)


@pytest.mark.parametrize("url", ["gopher://127.0.0.1:9", "file:///etc/passwd", "127.0.0.1:9", "http://", "dict://127.0.0.1:9/",
                                 "http://a b", "http://a\nb", "-"])
def test_only_web_addresses_are_chatted_with(url):
    assert_one_line(fathom("chat", "--url", url), 2, "--url")


@pytest.mark.parametrize("args", [("serve", "--port", "0", "--threads", "1024", "--kv-memory", "8M"),
                                  ("chat", "--threads", "1024", "--kv-memory", "8M"),
                                  ("model", "convert", SMALL, "OUT", "--weights", "int8", "--threads", "1024")])
def test_threads_that_cannot_be_made_are_one_line(args, tmp_path):
    if SLOWER > 1:
        pytest.skip("a sanitizer reserves more address space than the limit")
    args = [tmp_path / "out" if a == "OUT" else a for a in args]
    assert_one_line(fathom(*args, prefix=("prlimit", "--as=1500000000", "--")), 2, "--threads")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(SLOWER > 1, reason="a sanitizer reserves the address space of its shadow")
@pytest.mark.parametrize("kib", [130_000, 150_000, 170_000])
def test_an_address_space_too_small_is_one_line(kib):
    result = fathom("serve", "--port", "0", "--kv-memory", "64M", prefix=("prlimit", f"--as={kib * 1024}", "--"))
    assert_one_line(result, 2, "memory")


@pytest.mark.skipif(SLOWER > 1, reason="a sanitizer needs descriptors of its own")
def test_descriptors_that_cannot_be_had_are_one_line():
    result = fathom("serve", "--port", "0", prefix=("prlimit", "--nofile=4", "--"))
    assert_one_line(result, 2, "cannot start the HTTP server", "Too many open files")


def test_sizes_are_read_with_their_units(tmp_path):
    for text in ("8M", "8m", "8MiB", "8mb", "8192K", "8388608"):
        assert_one_line(fathom(*refused_host("--kv-memory", text)), 2, "nohost: not an IP address")
    for text in ("8X", "M", "8 M", "1.5G", "1e9", "0"):
        assert_one_line(fathom(*refused_host("--kv-memory", text)), 2, "--kv-memory")


# --- the configuration file

def with_config(tmp_path, text, *args):
    config = tmp_path / "fathom.toml"
    config.write_bytes(text if isinstance(text, bytes) else text.encode())
    return fathom("--config", config, *(args or ("serve",)))


# The host is refused after everything else was read, and says how it was read.
@pytest.mark.parametrize("text,host", [
    ('[serve]\nhost="a\\u0041"\n', "aA"), ('[serve]\nhost="a\\tb"\n', r"a\x09b"), ('serve={host="h"}\n', "h"), ('serve.host="h"\n', "h"),
    ('[serve]\nhost="""\nh"""\n', "h"), ("[serve]\nhost='''h'''\n", "h"), ("[serve]\nhost='a\\nb'\n", r"a\nb"),
    ('\ufeff[serve]\nhost="h"\n', "h"), ('[serve]\r\nhost="h"\r\n', "h"), ('[serve]\nhost="a#b;c" # d\n', "a#b;c"),
    ('[serve]\nhost="\\"q\\""\n', '"q"'), ('[serve]\nhost="[a,b]"\n', "[a,b]"), ('[serve]\n"host"="h"\n', "h"),
    ('[serve]\nport=18_101\nkv-memory=0x800000\nheader-timeout=1e1\ndeterministic=true\nhost="h"\n', "h"),
    ('[chat]\nurl="http://127.0.0.1:1"\n[model.inspect]\njson=true\n[serve]\nhost="h"\n', "h"),
])
def test_toml_is_read_as_toml(tmp_path, text, host):
    assert_one_line(with_config(tmp_path, text), 2, f"--host {host}: not an IP address")


@pytest.mark.parametrize("text,want", [
    ("[nope]\nx=1\n", "unknown table nope (line 1)"), ("[serve]\nx=1\n", "unknown key serve.x (line 2)"), ("port=1\n", "unknown key port"),
    ("[Serve]\nport=1\n", "unknown table Serve"), ("[serve]\nPort=1\n", "unknown key serve.Port"), ('[serve]\n"--port"=1\n', "unknown key"),
    ("[serve]\ndeterministic=-1\n", "serve.deterministic: expected true or false"), ("[serve]\ndeterministic=5\n", "expected true or false"),
    ('[serve]\ndeterministic="yes"\n', "expected true or false"), ("[serve]\ndeterministic=[true]\n", "expected one value"),
    ("[[serve]]\nport=1\n[[serve]]\nport=2\n", "serve is a table"), ("serve=5\n", "serve is a table"), ("[serve]\nport=[1]\n", "one value"),
    ('[serve]\nport=""\n', "--port"), ("[serve]\nport=true\n", "expected a number"), ("[serve]\nport=1979-05-27\n", "expected a number"),
    ("[serve]\nport={a=1}\n", "serve.port"), ("[serve]\nserved-model-name=5\n", "expected a string"), ("[serve]\nheader-timeout=nan\n", "finite"),
    ("help=true\n", "unknown key help"), ("a=" + "[" * 5000, "fathom.toml:1:"), (b'[serve]\nhost="\xff"\n', "fathom.toml:2:"),
    (b"\0\1\2", "fathom.toml:1:"), ('[serve]\n"a\\nb"=1\n', r"serve.a\x0ab"), ("x='" + "a" * (1 << 20) + "'\n", "more than"),
])
def test_toml_that_means_nothing_is_refused_with_its_place(tmp_path, text, want):
    assert_one_line(with_config(tmp_path, text), 2, "fathom.toml" if "--port" not in want and want != "finite" else "", want)


def test_a_configuration_may_come_through_a_pipe():
    result = fathom("--config", "/dev/stdin", "serve", stdin=b'[serve]\nhost="from-stdin"\n')
    assert_one_line(result, 2, "--host from-stdin")


def test_a_flag_wins_over_the_file(tmp_path):
    assert_one_line(with_config(tmp_path, '[serve]\nhost="a"\n', "serve", "--host", "b"), 2, "--host b")


# --- keys

@pytest.mark.parametrize("text,want", [
    (b"\xef\xbb\xbflongsecret12 a\n", ":1: begins with a byte-order mark"), (b"longsecret12 a\nabcd\0efghij\n", ":2: a control character"),
    (b"longsecret12 a\x1b[2J\n", ":1: a control character"), (b"longsecret12 name extra\n", ":1: a third word, 'extra'"),
    (b"short\n", ":1: a key has at least 8"), (b"longsecret12#1 a\nlongsecret12#1 b\n", ":2: the key"), (b"# only\n  # comments\n", "holds no key"),
    ("longsecret12 a\n".encode("utf-16"), ":1: "), (b"longsecret12 a\n" + b"x" * 16385 + b" b\n", ":2: a key of 16385 characters"),
])
def test_a_key_file_is_refused_by_line(tmp_path, text, want):
    (tmp_path / "keys").write_bytes(text)
    assert_one_line(fathom("serve", "--port", "0", "--api-key-file", tmp_path / "keys"), 2, "keys" + want if want[0] == ":" else want)


def test_a_key_may_hold_a_hash_and_be_long(tmp_path):
    longest = "x" * 16384
    (tmp_path / "keys").write_text(f"# first\nlongsecret12#3456 carol # of marketing\r\nlongsecret12 dave\n{longest} eve\n")
    server = Server("--kv-memory", "16M", "--threads", "1", "--api-key-file", tmp_path / "keys")
    try:
        def status(key):
            return server.post("/v1/completions", {"prompt": "hi", "max_tokens": 1}, headers={"Authorization": f"Bearer {key}"}).status
        assert [status(key) for key in ("longsecret12#3456", "longsecret12", longest, "longsecret12#", "#3456")] == [200, 200, 200, 401, 401]
    finally:
        assert server.stop() == 0


# --- chat with an odd server

DONE = b"data: [DONE]\n\n"
OK_CHUNK = b'{"choices":[{"delta":{"content":"ok"},"finish_reason":"stop"}]}'


def event(text):
    return b"data: " + text + b"\n\n"


@pytest.fixture(scope="module")
def odd_server():
    class Handler(http.server.BaseHTTPRequestHandler):
        models = (200, b'{"data":[{"id":"m"}]}')
        answer = (200, b"")
        hold_s = 0

        def log_message(self, *_):
            pass

        def reply(self, status, body):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            self.reply(*Handler.models)

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            try:
                self.reply(*Handler.answer)
                time.sleep(Handler.hold_s)
            except OSError:
                pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Handler.url = f"http://127.0.0.1:{server.server_port}"
    yield Handler
    server.shutdown()


@pytest.mark.parametrize("models,want", [
    ((200, b'{"data":[{"id":5}]}'), "not a list of models"), ((200, b'{"data":[{}]}'), "not a list of models"),
    ((200, b"x" * (2 << 20)), "more than 1048576 bytes"), ((400, b'{"error":{"message":{"a":1}}}'), '{"a":1}'),
    ((400, b'{"error":{"message":"a\\nb\\u001b[2J"}}'), r"a\x0ab\x1b[2J"), ((302, b""), "HTTP status 302"), ((400, b'{"error":"no"}'), "no"),
])
def test_chat_refuses_odd_models(odd_server, models, want):
    odd_server.models = models
    assert_one_line(fathom("chat", "--url", odd_server.url, stdin=b"hi\n"), 2, want)


@pytest.mark.parametrize("answer,want", [
    (event(b'{"choices":[],"usage":{"prompt_tokens":"x"}}') + DONE, "prompt_tokens"), (event(b"{{{") + DONE, "not an answer of a chat API"),
    (event(b'{"choices":[],"usage":{"completion_tokens":1e300}}') + DONE, "completion_tokens"), (event(b"[]") + DONE, "not an answer"),
    (event(b'{"choices":5}') + DONE, "without choices"), (event(b'{"choices":[5]}') + DONE, "no object"), (b"hello\n", "without [DONE]"),
    (event(b'{"choices":[{"delta":{"content":5}}]}') + DONE, "content"), (event(OK_CHUNK), "without [DONE]"), (b"", "without [DONE]"),
    (event(b'{"error":{"message":{"a":1}}}') + DONE, '{"a":1}'), (event(b'{"error":{"message":"boom"}}') + DONE, "boom"),
    (b"data: " + b"x" * (20 << 20), "a line over"),
])
def test_chat_says_what_is_odd_about_an_answer(odd_server, answer, want):
    odd_server.models, odd_server.answer = (200, b'{"data":[{"id":"m"}]}'), (200, answer)
    assert_one_line(fathom("chat", "--url", odd_server.url, stdin=b"hi\n"), 1, want)


@pytest.mark.parametrize("answer", [b"data:" + OK_CHUNK + b"\n\ndata:[DONE]\n\n", b"data: " + OK_CHUNK + b"\r\n\r\ndata: [DONE]\r\n\r\n",
                                    b": comment\n\nevent: x\n" + event(OK_CHUNK) + DONE])
def test_chat_reads_events_as_they_may_be_written(odd_server, answer):
    odd_server.models, odd_server.answer = (200, b'{"data":[{"id":"m"}]}'), (200, answer)
    result = fathom("chat", "--url", odd_server.url, stdin=b"hi\n")
    assert result.returncode == 0 and result.stdout.startswith(b"ok\n") and result.stderr == b"", result


def test_chat_prints_no_escape_sequence_of_a_server(odd_server):
    text = event(b'{"choices":[{"delta":{"content":"a\\u001b]0;pwn\\u0007\\u001b[2J\\u009b2J\\n\\tb"}}],"usage":{"completion_tokens":50}}')
    odd_server.models, odd_server.answer = (200, b'{"data":[{"id":"m"}]}'), (200, text + DONE)
    result = fathom("chat", "--url", odd_server.url, stdin=b"hi\n")
    assert result.returncode == 0 and result.stdout.startswith(b"a]0;pwn[2J2J\n\tb\n"), result
    rate = float(result.stdout.decode().split(" tokens, ")[1].split(" tokens/s")[0])
    assert 0 < rate < 50 / 0.0005  # all came at once: over the whole time, not over nothing


def test_chat_without_counts_has_a_rate_of_zero(odd_server):
    odd_server.models, odd_server.answer = (200, b'{"data":[{"id":"m"}]}'), (200, event(OK_CHUNK) + DONE)
    assert b"[0 tokens, 0.0 tokens/s" in fathom("chat", "--url", odd_server.url, stdin=b"hi\n").stdout


def test_chat_stops_when_nobody_reads(odd_server):
    odd_server.models, odd_server.answer = (200, b'{"data":[{"id":"m"}]}'), (200, event(OK_CHUNK) + DONE)
    read_end, write_end = os.pipe()
    chat = subprocess.Popen([str(BINARY), "chat", "--url", odd_server.url], stdin=subprocess.PIPE, stdout=write_end, stderr=subprocess.PIPE)
    os.close(write_end)
    os.close(read_end)
    _, errors = chat.communicate(b"hi\n" * 5000, timeout=START_TIMEOUT_S)
    assert chat.returncode == 1 and errors == b""


# --- output

@pytest.mark.parametrize("args", [("version",), ("model", "inspect", SMALL), ("--help",), ("--version",),
                                  ("eplb", "--json", ROOT / "tests/fixtures/eplb/eplb_golden.json")])
def test_output_that_cannot_be_written_is_an_error(args):
    with open("/dev/full", "wb") as full:
        result = subprocess.run([str(BINARY), *map(str, args)], stdout=full, stderr=subprocess.PIPE, timeout=START_TIMEOUT_S)
    assert_one_line(result, 1, "No space left on device")


# --- model folders

def copy_of(folder, tmp_path, name="model"):
    return pathlib.Path(shutil.copytree(folder, tmp_path / name, copy_function=shutil.copyfile))


def convert(folder, out, *args, **more):
    return fathom("model", "convert", folder, out, "--weights", "int8", "--threads", "1", *args, **more)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_a_nul_does_not_end_a_json_file(tmp_path, name):
    folder = copy_of(SMALL, tmp_path)
    with open(folder / name, "ab") as file:
        file.write(b"\0garbage")
    assert_one_line(fathom("model", "inspect", folder), 2, name, "NUL")
    assert_one_line(convert(folder, tmp_path / "out"), 2, name, "NUL")
    assert not (tmp_path / "out").exists()


def test_a_nul_does_not_end_a_safetensors_header(tmp_path):
    folder = copy_of(ROOT / "tests/fixtures/v2-lite", tmp_path)
    data = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = data[8:8 + size] + b"\0x"
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size:])
    assert_one_line(fathom("model", "inspect", folder), 2, "model.safetensors", "NUL")


@pytest.mark.parametrize("name", ["config.json", "model-00001-of-00002.safetensors"])
def test_a_link_to_itself_is_bad_input(tmp_path, name):
    folder = copy_of(SMALL, tmp_path)
    (folder / name).unlink()
    (folder / name).symlink_to(name)
    assert_one_line(fathom("model", "inspect", folder), 2, name)


def test_a_place_that_cannot_be_written_to_is_bad_input(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "file").write_text("x")
    for out in ("", tmp_path / "loop", tmp_path / "dangling", tmp_path / "file", tmp_path / "file/x", tmp_path / ("x" * 300)):
        assert_one_line(convert(SMALL, out), 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dangling", "file", "loop"]


def test_a_conversion_appears_whole_or_not_at_all(tmp_path):
    result = convert(SMALL, tmp_path / "out", prefix=("prlimit", "--fsize=20000", "--"))
    assert_one_line(result, 1, "File too large")
    assert not list(tmp_path.iterdir())
    (tmp_path / "out.partial").mkdir()  # as a killed one leaves it
    assert_one_line(convert(SMALL, tmp_path / "out"), 2, "out.partial", "cut off")
    (tmp_path / "out.partial").rmdir()
    (tmp_path / "out").mkdir()
    assert convert(SMALL, tmp_path / "out/").returncode == 0
    assert fathom("model", "inspect", tmp_path / "out").returncode == 0
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_names_in_an_index_are_shown_on_one_line(tmp_path):
    folder = copy_of(SMALL, tmp_path)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["a\nb"] = "c\nd.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_one_line(fathom("model", "inspect", folder), 2, r"c\x0ad.safetensors")


def test_a_folder_with_an_odd_name_is_shown_on_one_line(tmp_path):
    folder = copy_of(SMALL, tmp_path, "a\nb\x1b[2J")
    assert fathom("model", "inspect", folder).stdout.splitlines()[0].endswith(rb"/a\x0ab\x1b[2J")
    result = convert(folder, tmp_path / "c\nd")
    assert result.returncode == 0 and rb"/c\x0ad: " in result.stdout and (tmp_path / "c\nd/config.json").exists()


def test_a_folder_whose_name_is_no_text_is_served_by_the_name_that_is_listed(tmp_path):
    folder = tmp_path / os.fsdecode(b"a\xff\xfe")
    shutil.copytree(DEMO, folder, copy_function=shutil.copyfile)
    server = Server("--model", folder, "--kv-memory", "16M", "--threads", "1")
    try:
        model, = (entry["id"] for entry in server.get("/v1/models").json["data"])
        assert model == "a\ufffd\ufffd"
        assert server.post("/v1/completions", {"model": model, "prompt": "hi", "max_tokens": 1}).status == 200
    finally:
        assert server.stop() == 0


def test_a_conversion_at_work_is_told_from_one_that_was_cut_off(tmp_path):
    partial = tmp_path / "out.partial"
    partial.mkdir()
    at_work = os.open(partial, os.O_RDONLY)
    fcntl.flock(at_work, fcntl.LOCK_EX)  # as a conversion holds it until it ends, however it ends
    assert_one_line(convert(SMALL, tmp_path / "out"), 2, f"{partial}: another conversion is writing it")
    os.close(at_work)
    assert_one_line(convert(SMALL, tmp_path / "out"), 2, f"{partial}: is there, left by a conversion that was cut off")
    partial.rmdir()
    assert convert(SMALL, tmp_path / "out").returncode == 0


def test_a_configuration_of_too_many_keys_is_refused_soon(tmp_path):
    folder = copy_of(SMALL, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config.update({f"k{i}": 1 for i in range(100_000)})
    (folder / "config.json").write_text(json.dumps(config))
    assert_one_line(convert(folder, tmp_path / "out"), 2, "config.json: more than 4096 keys")


# --- serving odd folders

def edited_demo(tmp_path, name, edit):
    folder = copy_of(DEMO, tmp_path)
    content = json.loads((folder / name).read_text())
    replaced = edit(content)
    (folder / name).write_text(replaced if isinstance(replaced, str) else json.dumps(content))
    return folder


def start_log(folder):
    server = Server("--model", folder, "--threads", "1", "--kv-memory", "16M", "--max-context", "256")
    assert server.stop() == 0
    return [line for line in server.log if " warning " in line]


@pytest.mark.parametrize("name,edit,words", [
    ("tokenizer_config.json", lambda c: c.update(chat_template="{{ messages|foo }}"), ("tokenizer_config.json", "filter foo is unknown")),
    ("tokenizer_config.json", lambda c: c.update(chat_template="{% if tools %}{{ tools|foo }}{% endif %}hi"), ("filter foo is unknown",)),
    ("tokenizer_config.json", lambda c: c.update(chat_template="{{ raise_exception('no\nway') }}"), (r"no\x0away",)),
    ("tokenizer_config.json", lambda c: c.update(chat_template=""), ("tokenizer_config.json", "renders nothing")),
    ("tokenizer_config.json", lambda c: json.dumps(c) + "\0x", ("tokenizer_config.json", "NUL")),
    ("tokenizer.json", lambda c: c["model"]["vocab"].update(zzz=5), ("tokenizer.json", "two tokens of the vocabulary have the id 5")),
    ("generation_config.json", lambda c: "", ("generation_config.json", "empty")),
    ("config.json", lambda c: c.update(max_position_embeddings=1), ("config.json: max_position_embeddings: 1",)),
])
def test_a_folder_that_could_answer_nothing_right_does_not_start(tmp_path, name, edit, words):
    folder = edited_demo(tmp_path, name, edit)
    assert_one_line(fathom("serve", "--port", "0", "--model", folder, "--threads", "1", "--kv-memory", "16M"), 2, *words)


def test_what_a_folder_lacks_is_said_at_the_start(tmp_path):
    folder = copy_of(DEMO, tmp_path)
    (folder / "tokenizer_config.json").unlink()
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    lines = start_log(folder)
    assert len(lines) == 2 and "tokenizer_config.json: missing or empty" in lines[0] and "no chat template" in lines[1], lines


def test_a_special_token_that_is_none_is_said_at_the_start(tmp_path):
    lines = start_log(edited_demo(tmp_path, "tokenizer_config.json", lambda c: c.update(bos_token="<nope>")))
    assert len(lines) == 1 and "bos_token: '<nope>' is no token" in lines[0], lines


# --- the end of a server

def test_a_hangup_lets_streams_end():
    server = Server("--threads", "1", "--kv-memory", "16M", env={"FATHOM_ISA": "ref"} if SLOWER == 1 else {})
    done = []
    body = {"prompt": "hi", "max_tokens": 60, "ignore_eos": True, "stream": True}
    client = threading.Thread(target=lambda: done.append(server.post("/v1/completions", body).text))
    try:
        client.start()
        server.wait_until(10, lambda: server.metrics()["fathom_requests_decoding"] > 0)
        server.process.send_signal(signal.SIGHUP)
        assert server.process.wait(START_TIMEOUT_S) == 0
        client.join()
        assert done[0].rstrip().endswith("[DONE]")
    finally:
        server.stop()


def test_a_hangup_means_nothing_under_nohup():
    process = subprocess.Popen(["nohup", str(BINARY), "serve", "--port", "0", "--threads", "1", "--kv-memory", "16M"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        while not process.stdout.readline().startswith(b"try:"):
            assert process.poll() is None
        process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(START_TIMEOUT_S) == 0
    finally:
        process.kill()
        process.stdout.close()
