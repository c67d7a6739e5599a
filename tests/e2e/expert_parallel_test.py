"""Expert parallelism on a running server: answers are those of one rank, whatever the degrees, on the built-in model and at
DeepSeek's own degrees on a tiny model with 256 experts."""
import concurrent.futures
import re
import time

import pytest
from checkpoints import random_model
from conftest import SLOWER, Server, cpu_seconds

PROMPTS = [("What is 347 + 586?", 0, 0), ("Compute 12*34.", 0, 0), ("Sort 42, 7, 19.", 0.7, 5), ("Hello, who are you?", 1, 6)]


def chat(server, question, temperature, seed, max_tokens):
    answer = server.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": question}], "temperature": temperature, "seed": seed,
        "max_tokens": max_tokens, "return_token_ids": True}, timeout=120)
    assert answer.status == 200, answer.text
    return answer.json["choices"][0]["token_ids"], answer.json["choices"][0]["message"]["content"]


def answers(*args, max_tokens=400):
    """[(token ids, content)] of all prompts at once, and the server's summary."""
    server = Server(*args)
    try:
        with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
            got = list(pool.map(lambda prompt: chat(server, *prompt, max_tokens), PROMPTS))
        server.wait_until_idle(5)
        return got, "".join(server.log)
    finally:
        assert server.stop() == 0


@pytest.fixture(scope="module")
def one_rank():
    got, summary = answers("--deterministic", "--threads", "1")
    assert "prefill EP1, decode EP1, 16 experts + 0 redundant" in summary
    assert "933" in got[0][1] and "408" in got[1][1]
    return got


@pytest.mark.parametrize("extra", [[], ["--numa", "off"], ["--numa", "auto", "--threads", "2"]],
                         ids=lambda extra: " ".join(extra) or "plain")
def test_the_built_in_model_over_ranks(one_rank, extra):
    got, summary = answers("--deterministic", "--prefill-ep", "4", "--decode-ep", "8", "--redundant-experts", "8", *extra)
    assert "prefill EP4, decode EP8, 16 experts + 8 redundant" in summary
    assert got == one_rank


def test_fp8_dispatch_is_served_and_says_so(one_rank):
    """It rounds what travels to the experts, so tokens may differ; the sums may not."""
    got, _ = answers("--dispatch", "fp8", "--prefill-ep", "4", "--decode-ep", "8", "--redundant-experts", "8")
    assert "933" in got[0][1] and "408" in got[1][1]


def test_copies_of_experts_go_where_tokens_ask_for_them():
    server = Server("--prefill-ep", "4", "--redundant-experts", "8", "--prefill-chunk", "256")
    try:
        def placed():
            return int(re.search(r"^fathom_expert_layers_placed_total\S* (\d+)$", server.get("/metrics").text, re.M)[1])
        assert placed() == 0
        for i in range(3):
            body = {"prompt": f"{i}. " + "one and two are three; " * 60, "max_tokens": 2}
            assert server.post("/v1/completions", body).status == 200
        assert placed() > 0
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize("args,words", [
    (["--decode-ep", "7"], ["16", "7"]), (["--prefill-ep", "4", "--redundant-experts", "3"], ["19", "4"]),
])
def test_slots_that_do_not_divide_are_refused(args, words):
    with pytest.raises(RuntimeError) as refused:
        Server(*args)
    line = str(refused.value).splitlines()[-1]
    assert line.startswith("fathom serve: ") and all(word in line for word in words), line


def test_256_experts_and_32_redundant_at_ep_32_and_144(tmp_path):
    folder = random_model(tmp_path / "model")
    args = ["--model", folder, "--deterministic", "--kv-memory", "64M"]
    tokens = 32 if SLOWER == 1 else 3
    want, _ = answers(*args, max_tokens=tokens)
    got, summary = answers(*args, "--prefill-ep", "32", "--decode-ep", "144", "--redundant-experts", "32", max_tokens=tokens)
    assert "prefill EP32, decode EP144, 256 experts + 32 redundant" in summary
    assert got == want and all(len(ids) > 0 for ids, _ in got)
    assert len({tuple(ids) for ids, _ in got}) == len(PROMPTS), "the model tells prompts apart"


def test_waiting_ranks_park(tmp_path):
    """176 ranks in all: idle they take no processor time, and at work no more than the threads they were given."""
    server = Server("--model", random_model(tmp_path / "model"), "--kv-memory", "64M", "--threads", "1", "--prefill-ep", "32",
                    "--decode-ep", "144", "--redundant-experts", "32")
    try:
        time.sleep(0.5)
        before = cpu_seconds(server)
        time.sleep(2)
        assert cpu_seconds(server) - before < 0.3
        before, start = cpu_seconds(server), time.monotonic()
        chat(server, *PROMPTS[0], max_tokens=32 if SLOWER == 1 else 3)
        took_s = time.monotonic() - start
        # One processor's worth, and what the threads of the HTTP side and the hand-over from rank to rank add.
        assert cpu_seconds(server) - before < 1.3 * took_s + 0.1
    finally:
        assert server.stop() == 0
