"""Where a bash script has the flags of its training."""

import pytest

from openrlhf_sagc.migrate.shell import find_training

MODULE = "openrlhf.cli.train_ppo_ray"


def words_of(script: str) -> list[str]:
    """All words of the training, in the script's order."""
    return [word.text.decode() for words in find_training(script.encode()).lists for word in words]


@pytest.mark.parametrize(
    "script",
    [
        f"python -m {MODULE} --a 1",
        f"RAY=x nohup python -u -m {MODULE} --a 1 2>&1 | tee log &",
        f"if true; then\n  torchrun --n 1 -m {MODULE} \\\n  --a 1 \\\n\nfi",
        f'bash -c "cd /x && python -m {MODULE} --a 1; python -m other --b 2"',
        f"ssh host 'python -m {MODULE} --a 1 && other --b'",
        f'C="python -m {MODULE}"\n$C --a 1',
        f"M={MODULE}\npython -m $M --a 1\nother --b",
        f"read -r -d '' C <<EOF\n{MODULE} --a 1\nEOF\ndeepspeed --module $C",
        f"read -r -d '' C <<'EOF'\n{MODULE}\n--a\n1\nEOF\ndeepspeed --module $C",
        f"C=$(cat <<EOF\n{MODULE} --a 1\nEOF\n)\n",
        f"cat >run.sh <<EOF\npython -m {MODULE} --a 1\nEOF\n",
        f'C=(python -m {MODULE} --a 1)\n"${{C[@]}}"',
        f'A=(--a 1)\nB=(--b 1)\npython -m {MODULE} "${{A[@]}}"',
        f"A='--a 1'\nC=\"$A\"\npython -m {MODULE} $C",
        f'run() {{\n  python -m {MODULE} "$@"\n}}\nrun --a 1\nother --b 1',
        f'set -- --a 1\npython -m {MODULE} "$@"',
        f"for F in '--a 1' ''; do python -m {MODULE} $F; done",
        f'srun bash -c "python -m {MODULE} --a 1"',
        f"# python -m {MODULE} --b 2\npython -m {MODULE} --a 1",
        f"p=`comm <(seq 1) <(ss | cut -d':')`\nray start --head --port=$p\npython -m {MODULE} --a 1",  # is not parsed
    ],
)
def test_a_training_in_every_form_has_its_words(script):
    assert [word for word in words_of(script) if not word.startswith(("$", '"$'))] == ["--a", "1"]


def test_a_word_that_the_parser_parts_is_one():
    assert words_of(f"python -m {MODULE} --a $X/$Y/z --b") == ["--a", "$X/$Y/z", "--b"]


def test_words_before_the_double_dash_are_those_of_ray():
    script = f"ray job submit --address x --runtime-env-json '{{}}' -- python -m {MODULE} --a 1"
    assert words_of(script) == ["--a", "1"]


def test_places_are_those_in_the_source():
    source = f"É=1; python -m {MODULE} --a É --b\n".encode()
    training = find_training(source)
    assert all(source[word.start : word.end] == word.text for words in training.lists for word in words)
    assert [word.text for word in training.modules] == [MODULE.encode()]


@pytest.mark.parametrize(
    "script", ["", "\n", "echo", "(((", "if then `$(<<EOF", "\x80\xff", f"'{MODULE} --a", f'"{MODULE} --a $(', "<<EOF"]
)
def test_broken_bash_is_no_error(script):
    find_training(script.encode(errors="surrogateescape"))


def test_the_line_that_could_not_be_read_is_told():
    assert find_training(b"echo\nif then (\n").broken_line > 0 and find_training(b"echo").broken_line == 0


def test_nothing_is_executed(tmp_path):
    find_training(
        f"touch {tmp_path}/file; X=$(touch {tmp_path}/file) python -m {MODULE} `touch {tmp_path}/file`".encode()
    )
    assert not list(tmp_path.iterdir())
