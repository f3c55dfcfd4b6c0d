"""Attention that lets a sample of a pack see another one, or is wrong, is found."""

import importlib

import pytest
from cpu_stack import ROOT
from lib.gpu_checks import attention
from lib.gpu_checks.outcomes import FAIL, PASS, Node, NotHere


def test_packed_attention_has_the_gradient_of_samples_apart(tmp_path):
    outcome = attention.check(Node(tmp_path, dry_run=True))
    assert outcome.status == PASS and "stands in" in outcome.reason and outcome.number > 0.3


def test_samples_that_see_each_other_are_found(monkeypatch):
    right = attention.gradient

    def leaking(model, samples, packed=False):
        if not packed:
            return right(model, samples)
        forward = model.forward

        def of_one_sample(tokens, attention_mask, position_ids):
            import torch

            return forward(tokens, attention_mask=None, position_ids=torch.arange(tokens.shape[1])[None])

        model.forward = of_one_sample
        return right(model, samples, packed=True)

    monkeypatch.setattr(attention, "gradient", leaking)
    assert attention.compare("eager", "cpu", "").status == FAIL


def test_on_a_gpu_it_is_the_launch_scripts(monkeypatch, tmp_path):
    monkeypatch.setattr(attention, "compare", lambda *given: given)
    monkeypatch.syspath_prepend(str(ROOT / "train_scripts"))
    launched = importlib.import_module("attention")
    monkeypatch.setattr(launched, "why_not", lambda name: f"{name} does not load: what would")
    outcome = attention.check(Node(tmp_path))
    assert outcome.status == FAIL and outcome.reason.endswith("@v2 does not load: what would")
    monkeypatch.setattr(launched, "why_not", lambda name: "")
    assert attention.check(Node(tmp_path))[:2] == ("kernels-community/flash-attn2@v2", "cuda")
    monkeypatch.setattr(attention.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotHere, match="transformers"):
        attention.check(Node(tmp_path))


@pytest.mark.parametrize("name", ["no/such-kernel@v2"])
def test_a_kernel_that_does_not_load_is_no_sdpa(name, monkeypatch):
    with pytest.raises(Exception):
        attention.compare(name, "cpu", "")
