"""A real server process on loopback for each test module, and small helpers to look at it from outside."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("FATHOM_BINARY", ROOT / "build/release/fathom")).resolve()
# How much slower than a release build the binary may be: time limits grow with it. `make test-san` sets it.
SLOWER = float(os.environ.get("FATHOM_TIME_FACTOR", "1"))
START_TIMEOUT_S = float(os.environ.get("FATHOM_START_TIMEOUT_S", "60")) * SLOWER
# Where servers run: the binary carries what it needs, so any folder will do, an empty one that is not the tree's included.
ELSEWHERE = tempfile.TemporaryDirectory(prefix="fathom-e2e-")


class Server:
    """`fathom serve` with the built-in model (or --model) on a free port."""

    def __init__(self, *args, env=None):
        self.process = subprocess.Popen(
            [str(BINARY), "serve", "--port", "0", *map(str, args)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd=ELSEWHERE.name,
            env={**os.environ, **(env or {})},
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))  # the tests themselves may run under nohup
        self.log = []
        deadline = time.monotonic() + START_TIMEOUT_S
        self.port = None
        while self.port is None:
            line = self.process.stdout.readline()
            if not line or time.monotonic() > deadline:
                self.process.kill()
                raise RuntimeError("the server did not start:\n" + "".join(self.log))
            self.log.append(line)
            if match := re.search(r"ready on http://127\.0\.0\.1:(\d+)", line):
                self.port = int(match.group(1))
        os.set_blocking(self.process.stdout.fileno(), False)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def get(self, path, timeout=10):
        return request(self.url + path, timeout=timeout * SLOWER)

    def post(self, path, body, timeout=60, headers=None):
        data = body if isinstance(body, (bytes, bytearray)) else json.dumps(body).encode()
        return request(self.url + path, data=data, timeout=timeout * SLOWER,
                       headers={"Content-Type": "application/json", **(headers or {})})

    def metrics(self):
        """{name: sum over label sets} of /metrics."""
        values = {}
        for line in self.get("/metrics").text.splitlines():
            if line.startswith("#"):
                continue
            name, value = line.rsplit(" ", 1)
            values[name.split("{")[0]] = values.get(name.split("{")[0], 0.0) + float(value)
        return values

    def is_idle(self):
        m = self.metrics()
        return (m["fathom_requests_queued"] == m["fathom_requests_prefilling"] == m["fathom_requests_decoding"] == 0
                and m["fathom_kv_blocks_free"] + m["fathom_kv_blocks_cached"] == m["fathom_kv_blocks_total"])

    def wait_until_idle(self, seconds):
        self.wait_until(seconds, self.is_idle)

    def wait_until(self, seconds, condition):
        deadline = time.monotonic() + seconds * SLOWER
        while not condition():
            assert time.monotonic() < deadline, f"not so after {seconds * SLOWER} s: {self.metrics()}"
            time.sleep(0.02)

    def memory_bytes(self):
        """Resident memory now."""
        return int(pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def reset_peak_memory(self):
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def peak_memory_bytes(self):
        """The most since reset_peak_memory()."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) * 1024

    def stop(self, timeout=30):
        """The exit code; anything but 0 comes with what the server wrote last, a sanitizer's report for one."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout * SLOWER)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        else:
            if code != 0:
                print(self.process.stdout.read())
        finally:
            self.process.stdout.close()
        return code


def cpu_seconds(server):
    """Of all the process's threads."""
    fields = pathlib.Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def text(self):
        return self.body.decode()

    @property
    def json(self):
        return json.loads(self.body)


def request(url, data=None, headers=None, timeout=10, method=None):
    req = urllib.request.Request(url, data=data, headers=headers or {}, method=method)
    try:
        with urllib.request.urlopen(req, timeout=timeout) as reply:
            return Answer(reply.status, reply.headers, reply.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.headers, error.read())


def raw_exchange(port, data, timeout=10, half_close=False):
    """Sends bytes as they are and returns everything that comes back until the server closes or the time is up."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout * SLOWER) as sock:
        try:
            sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass
        if half_close:
            sock.shutdown(socket.SHUT_WR)
        received = b""
        try:
            while chunk := sock.recv(65536):
                received += chunk
        except (TimeoutError, ConnectionResetError):
            pass
        return received


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    assert server.stop() == 0
