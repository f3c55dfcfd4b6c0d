"""What a node says of itself; tests/stack/test_nodes.py asks two."""

import runpy
from types import SimpleNamespace
from unittest import mock

import pytest
from cpu_stack import ROOT
from nvidia_smi import write_nvidia_smi


@pytest.fixture
def node(monkeypatch, tmp_path):
    """node(*memory of each GPU, counted=1, ...): what such a node says, whose compilers and attention are as given."""
    script = runpy.run_path(str(ROOT / "train_scripts" / "nodes.py"))

    def describe(*memory, counted=1, attention=("sdpa", ""), toolchain=("nvcc 13.0", [], []), module="m", **more):
        asked = []
        parts = script["this_node"].__globals__
        monkeypatch.setitem(parts, "attention_of", lambda settings: asked.append(settings) or attention)
        monkeypatch.setitem(parts, "toolchain_of", lambda *given: asked.append(given) or toolchain)
        monkeypatch.setitem(parts, "driver_problems", lambda: iter(["too old"] if "header" in more else []))
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        write_nvidia_smi(tmp_path, *memory, **more)
        return SimpleNamespace(**script["this_node"](counted, module, ["--ds.attn_implementation", "x"])), asked

    return describe


def test_cards_driver_compilers_and_attention_are_named(node):
    settings = {"--ds.attn_implementation": ["x"]}
    found, asked = node((1, 81559), (1, 81559), (1, 24564), names=("H100", "H100", "RTX 4090"), counted=3)
    assert found.cards == "2 x H100, 86 GB, 1 x RTX 4090, 26 GB" and found.driver == "CUDA 13.0"
    assert (found.toolchain, found.attention) == ("nvcc 13.0", "sdpa") and found.problems == found.notes == []
    assert asked == [settings, (settings, False)]
    assert node((1, 81559), module="openrlhf_sagc.unpatched")[1][1] == (settings, True)


def test_each_thing_that_is_wrong_is_a_line(node):
    attention, toolchain = ("a kernel", "no kernel"), ("no nvcc", ["no Python.h"], ["another AdamW"])
    found, _ = node((60000, 81559), counted=2, attention=attention, toolchain=toolchain, header="CUDA Version: 12.8")
    assert found.driver == "CUDA 12.8" and found.notes == ["another AdamW"]
    assert found.problems == [
        "GPU 0 has 59 of 80 GiB in use: end what runs there (nvidia-smi)",
        "CUDA shows 1 GPUs, Ray counts 2: ray start with --num-gpus 1",
        "too old",
        "no kernel",
        "no Python.h",
    ]


def test_a_node_without_a_driver_says_so_and_the_rest(node):
    found, _ = node(text="Failed to initialize NVML")
    (problem,) = found.problems
    assert problem.startswith("nvidia-smi does not tell its GPUs: it says 'Failed to initialize NVML'")
    assert found.cards == "none" and found.driver == "CUDA unknown" and found.attention == "sdpa"


def test_a_node_that_does_not_answer_or_cannot_is_named(monkeypatch):
    """Of the nodes that live and have GPUs."""
    ask = runpy.run_path(str(ROOT / "train_scripts" / "nodes.py"))["ask_nodes"]
    monkeypatch.setitem(ask.__globals__, "__spec__", SimpleNamespace(name="asked_of_nodes.train_scripts.nodes"))
    names = ["right", "silent", "broken", "dead", "cpus"]
    nodes = [
        {
            "NodeID": name.encode().hex().ljust(56, "0"),
            "NodeManagerHostname": name,
            "NodeManagerAddress": "10.0.0.1",
            "Alive": name != "dead",
            "Resources": {"CPU": 4.0} if name == "cpus" else {"GPU": 8.0},
        }
        for name in names
    ]

    def get(reference):
        if reference == "broken":
            raise ImportError("a traceback\nModuleNotFoundError: No module named x")
        return {"cards": f"{reference}'s"}

    described = mock.Mock()
    named = lambda place: bytes.fromhex(place.node_id).rstrip(b"\0").decode()  # noqa: E731
    described.options = lambda scheduling_strategy: SimpleNamespace(remote=lambda counted: named(scheduling_strategy))
    monkeypatch.setattr("ray.init", mock.Mock())
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    monkeypatch.setattr("ray.remote", lambda **settings: lambda function: described)
    monkeypatch.setattr(
        "ray.wait", lambda asked, num_returns, timeout: ([x for x in asked if x != "silent"], ["silent"])
    )
    monkeypatch.setattr("ray.get", get)
    assert ask(30, "m", []) == [
        {"cards": "right's", "node": "right (10.0.0.1)"},
        {"error": "no answer in 30 s", "node": "silent (10.0.0.1)"},
        {"error": "ImportError ModuleNotFoundError: No module named x", "node": "broken (10.0.0.1)"},
    ]
