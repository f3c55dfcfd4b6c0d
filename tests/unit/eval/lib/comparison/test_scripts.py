"""One launch script as several arms; the script is a fake."""

import sys

import compare
import lib.comparison.scripts as scripts
import pytest

FAKE = """
echo "$SAGC $*" >>"$CALLS"
first=1
case "$*" in *--ckpt.load_enable*) first=$((FROM + 1)) ;; esac
trap 'exit 0' TERM
for ((step = first; step <= first + MOST - 1; step++)); do
    echo "INFO 11-27 08:59:15 ppo_trainer.py:555] Global step $step: {'reward': 0.5}"
    sleep 0.02
done
[ -n "${STAYS:-}" ] || exit "${CODE:-0}"
while :; do sleep 0.05; done
"""


@pytest.fixture
def train(tmp_path, monkeypatch):
    """train(arms, steps, turn, **environment) -> what the script was called with."""
    (tmp_path / "train_scripts").mkdir()
    (tmp_path / "train_scripts/dapo_x.sh").write_text(FAKE)
    monkeypatch.setattr(scripts, "ROOT", tmp_path)
    calls = tmp_path / "calls"

    def run(arms, steps, turn, **environment):
        for name, value in {"CALLS": str(calls), "MOST": "9", "FROM": "0", "STAYS": "1", **environment}.items():
            monkeypatch.setenv(name, value)
        scripts.train_arms("dapo_x.sh", arms, steps, turn, tmp_path / "out", ["--flag", "1"], False, lambda line: None)
        return calls.read_text().splitlines()

    return run


def test_one_after_the_other_up_to_a_step(train, tmp_path):
    assert train(["unpatched", "recommended"], 4, 4) == ["unpatched --flag 1", "recommended --flag 1"]
    assert (tmp_path / "out/unpatched/turn-1-4.log").read_text().count("Global step") >= 4


def test_turns_go_on_from_checkpoints(train):
    turns = train(["unpatched", "recommended"], 4, 2, FROM="2")
    assert turns == [
        "unpatched --flag 1 --ckpt.save_steps 2",
        "recommended --flag 1 --ckpt.save_steps 2",
        "unpatched --flag 1 --ckpt.save_steps 2 --ckpt.load_enable",
        "recommended --flag 1 --ckpt.save_steps 2 --ckpt.load_enable",
    ]


def test_a_run_that_fails_or_ends_early_is_named(train):
    with pytest.raises(ValueError, match="a run failed with exit code 3, see .*turn-1-9.log"):
        train(["off"], 9, 9, MOST="2", STAYS="", CODE="3")
    with pytest.raises(ValueError, match="off ended after 2 of 9 steps: give more data or episodes, or see"):
        train(["off"], 9, 9, MOST="2", STAYS="", CODE="0")


@pytest.mark.parametrize(
    "words, message",
    [
        (["none.sh"], "there is no train_scripts/none.sh"),
        (["dapo_qwen2.5_7b.sh", "--arms", "off"], "--arms off: give two or more, each once"),
        (["dapo_qwen2.5_7b.sh", "--arms", "off", "off"], "--arms off off: give two or more, each once"),
        (["dapo_qwen2.5_7b.sh", "--turns", "5"], "--turns 5: the first steps of a turn warm up, so 20 or more"),
        (["dapo_qwen2.5_7b.sh", "--steps", "0"], "--steps 0 and --turns 0 must be at least 1"),
    ],
)
def test_bad_arguments_are_named(monkeypatch, tmp_path, words, message):
    monkeypatch.setattr(sys, "argv", ["compare.py", "scripts", *words, "--output", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match=message):
        compare.main()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/file").touch()
    monkeypatch.setattr(
        sys, "argv", ["compare.py", "scripts", "dapo_qwen2.5_7b.sh", "--output", str(tmp_path / "out")]
    )
    with pytest.raises(SystemExit, match="--output .*/out is not empty: give another one, or delete it"):
        compare.main()
