"""Model folders from outside: what is wrong with one is said in one line by every command that reads it, and `fathom model`
tells what a good one holds and saves it quantised."""
import json
import math
import os
import shutil
import subprocess

import pytest
from checkpoints import DEMO, FIXTURES, copy_fixture, read_header, write_header
from conftest import BINARY, ELSEWHERE, START_TIMEOUT_S, Server

SHARD = "model-00001-of-00002.safetensors"
OTHER_SHARD = "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
GATE = "model.layers.1.mlp.gate.weight"
HEAD = "lm_head.weight"  # the first tensor of the first shard


def fathom(*args):
    return subprocess.run([str(BINARY), *map(str, args)], capture_output=True, text=True, timeout=START_TIMEOUT_S,
                          cwd=ELSEWHERE.name)


def change_json(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def shard_of(folder, tensor):
    return folder / json.loads((folder / INDEX).read_text())["weight_map"][tensor]


def change_header(path, change):
    header, data = read_header(path)
    change(header)
    write_header(path, header, data)


def rename_tensor(folder, tensor):
    """The tensor is gone; another that nobody wants has its bytes."""
    shard = shard_of(folder, tensor)
    header, data = read_header(shard)
    write_header(shard, {name.replace(tensor, "unwanted"): entry for name, entry in header.items()}, data)
    change_json(folder / INDEX, lambda index: index["weight_map"].update(unwanted=index["weight_map"].pop(tensor)))


def overlap(header):
    """The second tensor begins in the first one, with the bytes its shape needs."""
    first, second = sorted(header.values(), key=lambda entry: entry["data_offsets"])[:2]
    second["data_offsets"] = [at - 4 for at in second["data_offsets"]]
    assert first["data_offsets"][1] > second["data_offsets"][0]


def cut(path, length):
    path.write_bytes(path.read_bytes()[:length])


def replace_by_loop(path):
    """A link to itself: nobody can open it, not even root."""
    path.unlink()
    path.symlink_to(path.name)


def replace_by_folder(path):
    path.unlink()
    path.mkdir()


def replace_by_broken_link(path):
    path.unlink(missing_ok=True)
    path.symlink_to("gone")


def replace_weights_by_link(folder):
    for name in (SHARD, OTHER_SHARD, INDEX):
        (folder / name).unlink()
    replace_by_broken_link(folder / "model.safetensors")


def replace_weights_by_folder(folder):
    replace_weights_by_link(folder)
    replace_by_folder(folder / "model.safetensors")


def forbid(path):
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    path.chmod(0)


def set_config(**fields):
    return lambda folder: change_json(folder / "config.json", lambda config: config.update(fields))


# What is done to a good folder, and what the line must name beside the folder.
FAULTS = {
    "missing folder": (shutil.rmtree, ["No such file"]),
    "missing config": (lambda f: (f / "config.json").unlink(), ["/config.json", "No such file"]),
    "missing weights": (lambda f: [(f / name).unlink() for name in (SHARD, OTHER_SHARD, INDEX)], ["no weights"]),
    "missing shard": (lambda f: (f / OTHER_SHARD).unlink(), ["/" + OTHER_SHARD, "No such file", INDEX]),
    "missing tensor": (lambda f: rename_tensor(f, GATE), [INDEX, GATE, "missing"]),
    "tensor not where the index says": (
        lambda f: change_json(f / INDEX, lambda index: index["weight_map"].update(extra=SHARD)), [SHARD, "extra", INDEX]),
    "wrong shape": (lambda f: change_header(shard_of(f, GATE), lambda h: h[GATE]["shape"].reverse()),
                    [GATE, "[48, 12]", "[12, 48]"]),
    "unknown element type": (lambda f: change_header(f / SHARD, lambda h: h[HEAD].update(dtype="F4")), [SHARD, HEAD, "F4"]),
    "unknown architecture": (set_config(architectures=["LlamaForCausalLM"]), ["/config.json", "LlamaForCausalLM"]),
    "unknown quantisation": (set_config(quantization_config={"quant_method": "awq"}), ["/config.json", "awq"]),
    "impossible shape": (set_config(hidden_size=-48), ["/config.json", "hidden_size", "-48"]),
    "truncated shard": (lambda f: cut(f / SHARD, 60_000), ["/" + SHARD, "truncated"]),
    "truncated header": (lambda f: cut(f / SHARD, 100), ["/" + SHARD, "beyond the end of the file"]),
    "empty shard": (lambda f: cut(f / SHARD, 0), ["/" + SHARD, "0 bytes"]),
    "overlapping tensors": (lambda f: change_header(f / SHARD, overlap), ["/" + SHARD, "embed_tokens", "overlaps", HEAD]),
    "malformed config": (lambda f: cut(f / "config.json", 200), ["/config.json", "malformed JSON"]),
    "malformed index": (lambda f: cut(f / INDEX, 200), ["/" + INDEX, "malformed JSON at byte"]),
    "malformed header": (lambda f: write_header(f / SHARD, b'{"a" 1}', b""), ["/" + SHARD, "malformed JSON at header byte"]),
    "config without permission": (lambda f: forbid(f / "config.json"), ["/config.json", "Permission denied"]),
    "shard without permission": (lambda f: forbid(f / SHARD), ["/" + SHARD, "Permission denied"]),
    "config that cannot be opened": (lambda f: replace_by_loop(f / "config.json"), ["/config.json", "symbolic links"]),
    "shard that cannot be opened": (lambda f: replace_by_loop(f / SHARD), ["/" + SHARD, "symbolic links"]),
    "folder for a config": (lambda f: replace_by_folder(f / "config.json"), ["/config.json", "not a regular file"]),
    "broken link for the weights": (replace_weights_by_link, ["/model.safetensors", "a link to nothing"]),
    "folder for the weights": (replace_weights_by_folder, ["/model.safetensors", "not a regular file"]),
    "broken link for a shard": (lambda f: replace_by_broken_link(f / SHARD), ["/" + SHARD, "a link to nothing", INDEX]),
    "folder for a shard": (lambda f: replace_by_folder(f / SHARD), ["/" + SHARD, "not a regular file"]),
}


# Inspecting needs no weights: then it counts from the config.
CASES = [(command, fault) for command in ("serve", "inspect", "convert") for fault in FAULTS
         if (command, fault) != ("inspect", "missing weights")]


@pytest.mark.parametrize("command,fault", CASES)
def test_a_wrong_folder_ends_with_2_and_one_line_that_names_it(tmp_path, command, fault):
    folder, out = copy_fixture("v3", tmp_path / "model"), tmp_path / "out"
    spoil, words = FAULTS[fault]
    spoil(folder)
    args = {"serve": ["serve", "--port", "0", "--model", folder], "inspect": ["model", "inspect", folder],
            "convert": ["model", "convert", folder, out, "--weights", "int8", "--threads", "1"]}[command]
    result = fathom(*args)
    assert result.returncode == 2, result
    assert len(result.stderr.splitlines()) == 1 and result.stdout == "", result
    missing = [word for word in [str(folder), *words] if word not in result.stderr]
    assert not missing, result.stderr
    assert not out.exists(), "a folder that cannot be converted leaves nothing behind"


def test_inspect_needs_no_weights(tmp_path):
    shutil.copy(FIXTURES / "v3/config.json", tmp_path)
    result = fathom("model", "inspect", tmp_path)
    assert result.returncode == 0 and "no weights in this folder" in result.stdout and not result.stderr, result


def test_an_untouched_folder_is_served(tmp_path):
    """What the faults above are made in is a good folder."""
    server = Server("--model", copy_fixture("v3", tmp_path / "model"), "--threads", "1")
    try:
        answer = server.post("/v1/completions", {"prompt": [3, 4, 5], "max_tokens": 3, "ignore_eos": True})
        assert answer.status == 200 and answer.json["usage"]["completion_tokens"] == 3
    finally:
        assert server.stop() == 0


def test_inspect_counts_what_the_files_hold():
    result = fathom("model", "inspect", FIXTURES / "v3", "--json")
    assert result.returncode == 0 and not result.stderr, result
    model = json.loads(result.stdout)
    config = json.loads((FIXTURES / "v3/config.json").read_text())
    sizes = {name: math.prod(entry["shape"]) for shard in (SHARD, OTHER_SHARD)
             for name, entry in read_header(FIXTURES / "v3" / shard)[0].items()}
    routed = sum(size for name, size in sizes.items() if ".mlp.experts." in name)
    idle = routed * (config["n_routed_experts"] - config["num_experts_per_tok"]) // config["n_routed_experts"]
    assert model["architecture"] == "DeepseekV3ForCausalLM"
    assert model["weights"]["checkpoint_bytes"] == 4 * sum(sizes.values()), "all F32"
    # The correction bias is a buffer, the embedding a look-up: what counts as a parameter is stated in docs.
    bias = sum(size for name, size in sizes.items() if name.endswith("e_score_correction_bias"))
    assert model["parameters"]["total"] in (sum(sizes.values()), sum(sizes.values()) - bias)
    assert model["parameters"]["total"] - model["parameters"]["active"] >= idle
    per_token = 4 * config["num_hidden_layers"] * (config["kv_lora_rank"] + config["qk_rope_head_dim"])
    assert model["kv_dtype"] == "F32" and model["kv_bytes_per_token"] == per_token
    assert {"native", "bf16", "fp8", "int8", "int4"} <= set(model["weights"]["memory_bytes"])


def test_inspect_says_the_same_to_people():
    as_json = json.loads(fathom("model", "inspect", DEMO, "--json").stdout)
    result = fathom("model", "inspect", f"{DEMO}/")
    assert result.returncode == 0 and not result.stderr, result
    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert str(DEMO) in lines["model"] and "DeepseekV3ForCausalLM" in lines["architecture"]
    assert f"{as_json['kv_bytes_per_token']} B per token" in result.stdout
    for word in ("parameters", "positions", "vocabulary", "checkpoint", "routed"):
        assert word in result.stdout, word


def greedy(server):
    answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "What is 347 + 586?"}],
                                                  "temperature": 0, "return_token_ids": True})
    assert answer.status == 200, answer.text
    return answer.json["choices"][0]


@pytest.mark.parametrize("weights", ["fp8", "int8", "int4"])
def test_a_converted_model_answers_as_one_quantised_at_load(tmp_path, weights):
    out = tmp_path / "converted"
    result = fathom("model", "convert", DEMO, out, "--weights", weights)
    assert result.returncode == 0 and weights in result.stdout and str(out) in result.stdout, result
    again = fathom("model", "convert", DEMO, out, "--weights", weights)
    assert again.returncode == 2 and f"{out}: is there and not empty" in again.stderr
    answers = []
    for args in (["--model", DEMO, "--weights", weights], ["--model", out]):
        server = Server(*args)
        try:
            answers.append(greedy(server))
        finally:
            assert server.stop() == 0
    assert answers[0]["token_ids"] == answers[1]["token_ids"] and answers[0]["message"] == answers[1]["message"]
    if weights != "int4":
        assert "933" in answers[1]["message"]["content"]
    inspected = json.loads(fathom("model", "inspect", out, "--json").stdout)
    native = json.loads(fathom("model", "inspect", DEMO, "--json").stdout)
    assert inspected["weights"]["checkpoint_bytes"] < 0.8 * native["weights"]["checkpoint_bytes"]


def test_a_folder_that_the_system_does_not_let_be_made_ends_with_1():
    result = fathom("model", "convert", FIXTURES / "v3", "/proc/out", "--weights", "int8")
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1 and "/proc/out" in result.stderr, result
