"""What the 7B script's header says of memory, as the checks read it."""

import pytest
from lib.gpu_checks import header


def test_the_scripts_own_figures_are_read(tmp_path, monkeypatch):
    figure = header.figures()
    assert figure.vocabulary * figure.tokens * figure.logit_bytes / 1e9 == pytest.approx(figure.logits_gb, abs=1)
    assert 2 * figure.layers * figure.hidden * figure.tokens / 1e9 == pytest.approx(figure.checkpoints_gb, abs=1)
    assert 0 < figure.engine_share < 1 and figure.gpus > 1 and figure.other_gb > 0


def test_a_header_that_says_less_is_named(tmp_path, monkeypatch):
    (tmp_path / "train_scripts").mkdir()
    (tmp_path / "train_scripts/some.sh").write_text("# training 65 = much\n")
    monkeypatch.setattr(header, "ROOT", tmp_path)
    with pytest.raises(ValueError, match="train_scripts/some.sh does not say what logits"):
        header.figures("some.sh")
