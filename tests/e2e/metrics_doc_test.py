"""docs/metrics.md lists exactly what /metrics exports."""
import pathlib
import re


def test_every_metric_is_documented_and_exists(server):
    server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2})
    exported = set(re.findall(r"^# TYPE (\S+)", server.get("/metrics").text, re.M))
    doc = (pathlib.Path(__file__).resolve().parents[2] / "docs/metrics.md").read_text()
    documented = set(re.findall(r"`(fathom_\w+)(?:\{\w+(?:,\w+)*\})?`", "\n".join(
        line.split("|")[1] for line in doc.splitlines() if line.startswith("| `"))))
    assert documented == exported
