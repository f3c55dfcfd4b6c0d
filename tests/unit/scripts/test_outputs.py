"""What scripts leave alone: another quickstart's folder, and a model that was warm-started before."""

import fcntl
import importlib.util
import os
import subprocess
from types import SimpleNamespace

import pytest
from cpu_stack import ROOT

SCRIPTS = ROOT / "train_scripts"


def test_a_second_quickstart_of_a_seed_is_refused(tmp_path):
    """Before it writes anything. The scripts stand in a folder of their own."""
    (tmp_path / "train_scripts").symlink_to(SCRIPTS)
    (tmp_path / "help.sh").symlink_to(SCRIPTS / "help.sh")
    script = tmp_path / "quickstart.sh"
    text = (SCRIPTS / "quickstart.sh").read_text().replace('cd "$(dirname "$0")/.."', f'cd "{tmp_path}"')
    script.write_text(text)
    out = tmp_path / "build/quickstart/seed-7"
    out.mkdir(parents=True)
    (out / "train.log").write_text("of the first one")
    (out / "warm_start.done").write_text("made by it")
    folder = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        done = subprocess.run(
            ["bash", script], env={**os.environ, "SEED": "7"}, capture_output=True, text=True, timeout=60
        )
    finally:
        os.close(folder)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "train_scripts/quickstart.sh: another quickstart of SEED=7 runs: wait for its end, or take another SEED"
    )
    assert (out / "train.log").read_text() == "of the first one" and len(list(out.iterdir())) == 2


@pytest.mark.parametrize("script", ["smoke.sh", "countdown/train.sh", "quickstart.sh", "dapo.sh", "launch.sh"])
def test_no_script_deletes_a_run(script):
    """They delete what they have made for themselves alone."""
    lines = [line for line in (SCRIPTS / script).read_text().splitlines() if "rm -" in line]
    own = ["trap 'rm -rf \"$problems\"' EXIT", 'rm -f "$out/warm_start.done"']
    assert [line.strip() for line in lines if line.strip() not in own] == []


def test_a_model_that_is_there_is_kept(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location("warm_start", SCRIPTS / "warm_start.py")
    warm_start = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(warm_start)

    def named(text):
        def save(folder):
            folder.mkdir(exist_ok=True)
            (folder / text).touch()

        return SimpleNamespace(save_pretrained=save)

    for name in "abc":
        warm_start.save(tmp_path / "model", named(name), named("tokenizer"))
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("?")}
    assert found == {"model/c", "model.earlier-1/a", "model.earlier-2/b"}
    assert len(list(tmp_path.iterdir())) == 3


def test_warm_start_moves_data_that_it_did_not_make_aside(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location("warm_start", SCRIPTS / "warm_start.py")
    warm_start = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(warm_start)
    path = tmp_path / "train.jsonl"
    path.write_text("mine")
    for _ in range(2):  # the same content is no other data
        warm_start.write_file(path, "made")
    assert path.read_text() == "made" and (tmp_path / "train.jsonl.earlier-1").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 2
