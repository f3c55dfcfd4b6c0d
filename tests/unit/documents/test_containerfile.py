"""The Containerfile has the versions of the package's pins, and copies what is there."""

import tomllib

from cpu_stack import ROOT

LINES = (ROOT / "Containerfile").read_text().replace("\\\n", " ").splitlines()


def test_the_image_has_the_vllm_that_is_pinned():
    pins = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["gpu"]
    (version,) = (pin.removeprefix("vllm==") for pin in pins if pin.startswith("vllm=="))
    (image,) = (line.split(":")[-1] for line in LINES if line.startswith("FROM "))
    assert image == f"v{version}"


def test_what_is_copied_is_there_and_is_all_that_a_wheel_is_made_of():
    copied = {name for line in LINES if line.startswith("COPY ") for name in line.split()[1:-1]}
    assert all((ROOT / name).exists() for name in copied)
    assert {
        "install.sh",
        "pyproject.toml",
        "MANIFEST.in",
        "README.md",
        "LICENSE",
        "patches",
        "openrlhf_sagc",
    } <= copied
