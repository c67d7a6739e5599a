"""`fathom model convert`: the same tokens as quantising at load, from a folder that is used as it is mapped; spoilt ones."""
import json
import pathlib
import shutil
import struct
import subprocess

import pytest
from conftest import BINARY, START_TIMEOUT_S, Server

DEMO = pathlib.Path(__file__).resolve().parents[2] / "models/demo"
QUESTION = {"messages": [{"role": "user", "content": "What is 347 + 586?"}], "temperature": 0, "max_tokens": 48,
            "return_token_ids": True}


def run(*args):
    return subprocess.run([str(BINARY), *map(str, args)], capture_output=True, text=True, timeout=START_TIMEOUT_S)


def convert(folder, weights):
    out = folder / weights
    result = run("model", "convert", DEMO, out, "--weights", weights)
    assert result.returncode == 0 and "1 file(s)" in result.stdout, result
    return out


def answer(*args):
    server = Server(*map(str, args))
    try:
        return server.post("/v1/chat/completions", QUESTION).json["choices"][0]["token_ids"]
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
def test_tokens_are_those_of_quantising_at_load(tmp_path, weights):
    plain = answer("--model", DEMO, "--weights", weights)
    converted = answer("--model", convert(tmp_path, weights))
    assert converted == plain and len(plain) > 10
    assert "packed in panels" in run("model", "inspect", tmp_path / weights).stdout


def refusal(folder):
    result = run("serve", "--model", folder, "--port", "0")
    assert result.returncode == 2 and len(result.stderr.strip().splitlines()) == 1, result
    return result.stderr


def test_spoilt_folders_are_one_line_and_exit_code_2(tmp_path):
    folder = convert(tmp_path, "int8")
    file = folder / "model.safetensors"
    good = file.read_bytes()
    header_bytes = struct.unpack("<Q", good[:8])[0]
    header = json.loads(good[8:8 + header_bytes])

    file.write_bytes(good[:-100])
    assert "model.safetensors: " in refusal(folder) and "truncated?" in refusal(folder)
    middle = len(good) // 2
    file.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1:])
    assert "do not have the checksum they were saved with" in refusal(folder)
    # The same tensors 8 bytes further on.
    file.write_bytes(struct.pack("<Q", header_bytes + 8) + good[8:8 + header_bytes] + b" " * 8 + good[8 + header_bytes:])
    assert "does not begin at a multiple of 64 bytes" in refusal(folder)
    name = "model.layers.0.mlp.up_proj.int8_panels"
    text = json.dumps({**header, name: {**header[name], "shape": [1, header[name]["shape"][0]]}}).encode()
    text += b" " * (-(len(text) + 8) % 64)
    file.write_bytes(struct.pack("<Q", len(text)) + text + good[8 + header_bytes:])
    assert name in refusal(folder) and "where the config asks for" in refusal(folder)

    file.write_bytes(good)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["layout"] = "panels-9"
    (folder / "config.json").write_text(json.dumps(config))
    assert "'panels-9' is not known" in refusal(folder)
    again = run("model", "convert", folder, tmp_path / "again", "--weights", "int4")
    assert again.returncode == 2
    shutil.rmtree(folder)
