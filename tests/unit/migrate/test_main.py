"""The command: what it writes, prints and refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

from openrlhf_sagc.migrate.__main__ import main

OLD = "python -m openrlhf.cli.train_ppo_ray --pretrain m --perf\n"
NEW = "python -m openrlhf_sagc --actor.model_name_or_path m\n"


@pytest.fixture
def migrate(tmp_path, monkeypatch, capsys):
    """migrate(*arguments) -> what it prints on stdout and on stderr, in a folder with run.sh."""
    (tmp_path / "run.sh").write_text(OLD)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[str, str]:
        monkeypatch.setattr("sys.argv", ["migrate", *arguments])
        main()
        return capsys.readouterr()

    return run


def test_the_new_script_lies_beside_the_old_one_and_its_diff_is_shown(migrate):
    Path("run.sh").chmod(0o755)
    diff, said = migrate("run.sh")
    assert Path("run.0.11.2.sh").read_text() == NEW and Path("run.sh").read_text() == OLD
    assert Path("run.0.11.2.sh").stat().st_mode & 0o777 == 0o755
    assert diff.splitlines() == [
        "--- run.sh",
        "+++ run.0.11.2.sh",
        "@@ -1 +1 @@",
        f"-{OLD.strip()}",
        f"+{NEW.strip()}",
    ]
    lines = said.splitlines()
    assert all(line.startswith("openrlhf_sagc.migrate: ") for line in lines)
    assert lines[0] == "openrlhf_sagc.migrate: --perf is dropped: it had lost its effect"
    assert lines[-1] == "openrlhf_sagc.migrate: run.0.11.2.sh is written: 2 of 2 flags are those of 0.11.2"


def test_the_diff_makes_the_new_script_of_the_old_one(migrate):
    diff, _ = migrate("run.sh", "--output", "new.sh")
    subprocess.run(
        ["git", "apply", "--no-index", "-p0", "-"], input=diff.replace("new.sh", "run.sh"), text=True, check=True
    )
    assert Path("run.sh").read_text() == Path("new.sh").read_text() == NEW


def test_several_scripts(migrate):
    Path("job").write_text(OLD)
    migrate("run.sh", "job")
    assert Path("job.0.11.2").read_text() == Path("run.0.11.2.sh").read_text() == NEW
    with pytest.raises(SystemExit, match="--output x is for one script, not for 2: drop it"):
        migrate("run.sh", "job", "--output", "x")


def test_nothing_is_overwritten_untold(migrate):
    Path("run.0.11.2.sh").write_text("mine")
    with pytest.raises(SystemExit, match="run.0.11.2.sh is there already: give another --output, or --overwrite"):
        migrate("run.sh")
    assert Path("run.0.11.2.sh").read_text() == "mine"
    migrate("run.sh", "--output", "run.sh", "--overwrite")
    assert Path("run.sh").read_text() == NEW


def test_a_script_of_today_is_not_written(migrate):
    Path("run.sh").write_text(NEW)
    diff, said = migrate("run.sh")
    assert diff == "" and "run.sh needs no change, nothing is written" in said
    assert list(Path().iterdir()) == [Path("run.sh")]


def test_a_key_in_a_script_is_not_printed(migrate):
    key = "0123456789abcdef0123456789abcdef01234567"
    Path("run.sh").write_text(f"{OLD.strip()} --use_wandb {key} --remote_rm_url http://u:secret@host/x\n")
    diff, said = migrate("run.sh")
    assert key in Path("run.0.11.2.sh").read_text() and "--logger.wandb.key" in diff
    assert not [secret for secret in (key, "secret") if secret in diff + said]


@pytest.mark.parametrize(
    "text, line",
    [
        (None, "run.sh cannot be read: No such file or directory"),
        (b"\0ELF", "run.sh is not a text: give a bash script"),
        (b"#" * 1_000_001, "run.sh has more than 1,000,000 bytes, which no launch script has"),
        (
            b"python -m openrlhf.cli.train_sft --pretrain m",
            "run.sh does not start openrlhf.cli.train_ppo_ray: give the script",
        ),
    ],
)
def test_what_is_no_launch_script_is_refused_in_one_line(migrate, text, line):
    Path("run.sh").unlink() if text is None else Path("run.sh").write_bytes(text)
    with pytest.raises(SystemExit) as ended:
        migrate("run.sh")
    assert line in str(ended.value) and "\n" not in str(ended.value)
    assert not Path("run.0.11.2.sh").exists()


def test_an_output_that_cannot_be_written_is_one_line(migrate):
    with pytest.raises(SystemExit, match="no/run.sh cannot be written: No such file or directory"):
        migrate("run.sh", "--output", "no/run.sh")


def test_without_its_parser_the_command_says_what_to_install(migrate, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        SystemExit, match="needs tree_sitter and tree_sitter_bash to read bash: pip install tree-sitter tree"
    ):
        migrate("run.sh")


def test_the_module_is_a_command(tmp_path):
    (tmp_path / "run.sh").write_text(OLD)
    command = [sys.executable, "-m", "openrlhf_sagc.migrate", str(tmp_path / "run.sh")]
    assert subprocess.run(command, capture_output=True).returncode == 0
    assert (tmp_path / "run.0.11.2.sh").read_text() == NEW
