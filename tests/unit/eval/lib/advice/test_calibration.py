"""What is said of an engine file's calibration."""

import json

import pytest
from lib.advice.calibration import COMPARED, calibration_of
from lib.paths import ENGINES, ROOT


@pytest.fixture
def engine(tmp_path):
    """engine(measured, predicted) -> a file that names a table of these seconds, of sizes 4, 8, ..."""

    def make(measured, predicted):
        rows = [f"{4 * 2**i},samples,{m},{p}" for i, (m, p) in enumerate(zip(measured, predicted))]
        (tmp_path / "table.csv").write_text("\n".join(["size,hold,measured,predicted", *rows, "4,prompts,1,9"]))
        path = tmp_path / "engine.json"
        path.write_text(json.dumps({"calibration": str(tmp_path / "table.csv")}))
        return path

    return make


def test_the_error_is_that_of_a_ratio_between_the_policies(engine):
    found = calibration_of(engine([1.0, 2.0, 4.0], [1.1, 2.0, 3.6]), "samples")
    assert found.measured and found.error == pytest.approx(1.1 / 0.9 - 1)
    assert "of group sizes 4, 8, 16 within 10 %, the ratio of two within 22 %" in found.words
    assert calibration_of(engine([1.0, 2.0], [1.5, 3.0]), "samples").error == pytest.approx(0)  # the same for both


def test_an_engine_that_was_never_measured_is_as_wrong_as_one_that_was():
    fast, slow = (calibration_of(ENGINES / name, "samples") for name in ("h100-7b.json", "cpu-2-cores.json"))
    assert not fast.measured and slow.measured and fast.error == slow.error > 0
    assert fast.words.startswith("not calibrated: no step was measured") and slow.words.startswith("calibrated: ")
    assert str(COMPARED.relative_to(ROOT)) in fast.words


def test_a_calibration_that_is_not_there_is_refused(engine, tmp_path):
    path = engine([1.0], [1.0])
    (tmp_path / "table.csv").unlink()
    with pytest.raises(
        ValueError, match=f"--engine {path} names .*table.csv as its calibration, and that is not there"
    ):
        calibration_of(path, "samples")
