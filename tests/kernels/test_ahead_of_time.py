"""What the compiled kernel needs of an A100, H100 or H200, and B200 (sm_80, 90, 100), without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("compiled")  # one worker compiles, with all cores
HERE = Path(__file__).parent
CAPABILITIES = [80, 90, 100]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    environment["TRITON_DEFAULT_FP_FUSION"] = "1"  # Triton warns that its default will change
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, HERE / "compile_variants.py", *map(str, CAPABILITIES)]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return {tuple(variant.pop("variant")): variant for variant in json.loads(output)}


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_nothing_is_spilled(compiled, capability):
    mine = {variant: needs for variant, needs in compiled.items() if variant[0] == capability}
    assert len(mine) == (28 if capability == 90 else 16)
    for variant, needs in mine.items():
        assert needs["STACK"] == needs["LOCAL"] == needs["spills"] == 0, variant
        assert 16 <= needs["REG"] <= (64 if variant[-1] else 128), variant


def test_rows_are_stored_16_bytes_at_a_time(compiled):
    """Whatever the number of tokens; the narrow stores are the standard deviation's."""
    for variant, needs in compiled.items():
        assert "STG.E.128" in needs["stores"], variant
        assert needs["stores"].count("STG.E") <= 1, variant
