"""Bounds of checks, and what a report may say of a machine."""

import socket

import pytest
from lib.gpu_checks.outcomes import FAIL, LONGEST, PASS, for_strangers, measured


def test_a_number_keeps_its_bound_or_fails():
    assert measured(2, "GPUs", least=2).status == PASS and measured(1, "GPUs", least=2).status == FAIL
    assert measured(2, "GB", most=2).status == PASS and measured(2.1, "GB", most=2).status == FAIL
    assert measured(float("nan"), "GB", most=2).status == measured(float("nan"), "GB", least=2).status == FAIL
    assert measured(2, "GB", most=2.5).bound == "<= 2.5" and measured(3, "", least=2, kl=0.5).details == {"kl": 0.5}


@pytest.mark.parametrize(
    "text, said",
    [
        ("no module vllm", "no module vllm"),
        ("/home/ann/x/lib.so: cannot open", ".../lib.so: cannot open"),
        ("cannot open '/home/ann/x'", "cannot open '.../x'"),
        ("16 bytes a logit, 152,064 x 22,528 / 2", "16 bytes a logit, 152,064 x 22,528 / 2"),
        ("kernels-community/flash-attn2@v2 does not load", "kernels-community/flash-attn2@v2 does not load"),
        ("two\nlines  here", "two lines here"),
        ("on 10.1.2.3, of CUDA 13.0", "on ADDRESS, of CUDA 13.0"),
        ("https://ann:secret@example.org/x", "***"),
    ],
)
def test_paths_addresses_and_secrets_stay_here(text, said):
    assert for_strangers(text) == said


def test_the_machines_name_stays_here(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "node-17")
    monkeypatch.setattr(socket, "getfqdn", lambda: "node-17.example.org")
    assert for_strangers("node-17.example.org lost node-17") == "HOST lost HOST"
    assert len(for_strangers("long " * 1000)) == LONGEST
