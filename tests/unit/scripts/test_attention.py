"""What attention.py makes of what loading ends with. tests/unit/rehearsal loads it by the packages' own code."""

import importlib.util
import subprocess
import sys
from types import SimpleNamespace

import pytest
from cpu_stack import ROOT

FLAG = "--ds.attn_implementation"
KERNEL = "kernels-community/flash-attn2@v2"
PACKED = "--ds.packing_samples"


@pytest.fixture
def attention(monkeypatch):
    """attention(flags, *modules, cause=, offline=) -> its words and what is wrong, where these modules are and loading ends so."""
    monkeypatch.syspath_prepend(str(ROOT / "train_scripts"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    import attention as module
    from flag_words import settings_of

    def of(flags, *modules, cause="", offline=None):
        find = importlib.util.find_spec
        known = ("flash_attn", "ring_flash_attn", "kernels")
        monkeypatch.setattr(
            module, "find_spec", lambda name: (name in modules or None) if name in known else find(name)
        )
        of.loaded = []

        def ends_with(name, environment):
            of.loaded.append((name, environment))
            return cause if not environment or offline is None else offline

        monkeypatch.setattr(module, "_cause", ends_with)
        module.why_not.cache_clear()
        return module.attention_of(settings_of(flags.split()))

    yield of
    module.why_not.cache_clear()


@pytest.mark.parametrize(
    ("flags", "modules", "loaded"),
    [
        ("", ["kernels"], KERNEL),
        ("", ["flash_attn", "kernels"], "flash_attention_2"),
        (f"{FLAG} flash_attention_3", [], "flash_attention_3"),
        (f"{FLAG} kernels-community/x@v1", ["kernels"], "kernels-community/x@v1"),
    ],
)
def test_what_the_models_will_run_with_is_loaded(attention, flags, modules, loaded):
    assert attention(flags, *modules) == (f"{loaded}, which loads here", "")
    assert attention.loaded == [(loaded, {})]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (f"{FLAG} sdpa", "sdpa"),
        (f"{FLAG} flex_attention", "flex_attention"),
        (f"{FLAG} sdpa {PACKED}", "sdpa, which costs the square of a whole pack"),
        (f"{FLAG} eager --train.dynamic_batch_enable", "eager, which costs the square of a whole pack"),
    ],
)
def test_torchs_own_needs_nothing(attention, flags, words):
    assert attention(flags, cause="it does not load") == (words, "") and not attention.loaded


@pytest.mark.parametrize("word", ["flash-attn", "flash_attention", "flash2"])
def test_a_mistyped_attention_is_named(attention, word):
    wrong = attention(f"{FLAG} {word}")[1]
    assert (
        wrong == f"{FLAG} {word} is no attention: {KERNEL}, flash_attention_2, sdpa, eager, flex_attention"
        and not attention.loaded
    )


NO_BUILD = "ValueError An error occurred: Cannot find a build variant for this system in kernels-community/flash-attn2 (revision: v1)"
NO_NETWORK = "ValueError Kernel repository 'kernels-community/flash-attn2' could not verify publisher trust status."


@pytest.mark.parametrize(
    ("flags", "cause", "offline", "line"),
    [
        (
            f"{FLAG} kernels-community/flash-attn2@v1",
            NO_BUILD,
            None,
            f"has no build for this torch, of CUDA : {FLAG} {KERNEL}, or",
        ),
        ("", NO_BUILD, None, "MAX_JOBS=4 pip install flash-attn==2.8.3 --no-build-isolation (needs nvcc) and"),
        (
            "",
            NO_NETWORK,
            "",
            "is in the cache of this node, but the hub does not answer: export HF_HUB_OFFLINE=1, or on a cluster RUNTIME_ENV_JSON=",
        ),
        (
            "",
            NO_NETWORK,
            "nothing",
            "neither in the cache of this node nor can the hub be reached: python3 train_scripts/attention.py --fetch where",
        ),
        (
            "",
            "ImportError undefined symbol: _ZN3c10",
            None,
            f"{KERNEL} does not load (ImportError undefined symbol: _ZN3c10): MAX_JOBS",
        ),
    ],
)
def test_a_cause_becomes_one_line_with_what_would_work(attention, flags, cause, offline, line):
    wrong = attention(flags, "kernels", cause=cause, offline=offline)[1]
    assert line in wrong and "\n" not in wrong and wrong.startswith(f"{FLAG} kernels-community/flash-attn2@v")


def test_the_package_kernels_is_needed_for_its_kernels_alone(attention):
    assert f"{KERNEL} needs the package kernels: pip install 'kernels>=0.16,<0.17', or" in attention("")[1]
    assert attention("", "flash_attn")[1] == ""


def test_a_ring_needs_flash_attn(attention):
    assert attention("--ds.ring_attn_size 2", "flash_attn", "ring_flash_attn") == ("flash_attention_2 in a ring", "")
    assert attention("--ds.ring_attn_size 2")[1] == "--ds.ring_attn_size needs flash_attn and ring_flash_attn"


def test_a_process_that_dies_is_named_by_its_last_line(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "train_scripts"))
    import attention as module

    monkeypatch.setattr(module, "SECONDS", 0.1)
    monkeypatch.setattr(module, "LOAD", "import time; time.sleep(60)")
    assert module._cause("x", {}) == "it has not ended after 0.1 s"
    monkeypatch.setattr(module, "SECONDS", 60)
    for code, said in (
        ("import sys; sys.exit('a library does not fit')", "a library does not fit"),
        ("import os; os._exit(9)", "exit code 9"),
    ):
        monkeypatch.setattr(module, "LOAD", code)
        assert module._cause("x", {}) == said


def test_the_kernel_is_fetched_by_its_branch(monkeypatch, capsys):
    asked = []
    kernels = SimpleNamespace(install_kernel=lambda name, revision: asked.append((name, revision)))
    monkeypatch.setitem(sys.modules, "kernels", kernels)
    monkeypatch.syspath_prepend(str(ROOT / "train_scripts"))
    import attention as module

    module.fetch(module.RECIPES)
    assert asked == [("kernels-community/flash-attn2", "v2")] and module.RECIPES == KERNEL


def test_install_sh_says_that_it_cannot_fetch(tmp_path):
    """pip has installed all; the hub is out of reach."""
    program = tmp_path / "python"
    program.write_text(
        f'#!/bin/bash\n[[ " $* " != *" pip "* && $1 != -c ]] || exit 0\n[[ $1 != *toolchain.py ]] || exit 2\nexec {sys.executable} "$@"\n'
    )
    program.chmod(0o755)
    node = str(ROOT / "tests/helpers/gpu_node")
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": str(program), "PYTHONPATH": node, "HUB": "away"}
    run = subprocess.run(["bash", ROOT / "install.sh"], env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 3 and run.stdout.startswith(
        f"train_scripts/attention.py: {KERNEL} was not fetched: it is neither in the cache"
    )
    run = subprocess.run(
        ["bash", ROOT / "install.sh"], env=environment | {"HUB": ""}, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0 and run.stdout == f"train_scripts/attention.py: {KERNEL} is here\n"
