"""Tables and what is printed."""

import subprocess
import sys
from pathlib import Path

EVAL = Path(__file__).parents[4] / "eval"


def test_a_reader_may_leave():
    code = f"""
import sys
sys.path.insert(0, {str(EVAL)!r})
from lib.tables import reader_may_leave
with reader_may_leave():
    for number in range(100_000):
        print(number)
print("the program goes on", file=sys.stderr)
"""
    command = f"{sys.executable} - | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], input=code, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "the program goes on\n")
