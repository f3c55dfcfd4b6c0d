"""The machine that a measurement names."""

import os
import platform

from lib.machine import processor_name, usable_cores


def test_the_processor_has_its_own_name_or_its_architectures(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: A Processor 7\nmodel name\t: A Processor 7\n")
    assert processor_name(cpuinfo) == "A Processor 7"
    cpuinfo.write_text("processor\t: 0\n")
    assert processor_name(cpuinfo) == processor_name(tmp_path / "none") == platform.machine()


def test_the_cores_are_those_that_may_be_used():
    assert 1 <= usable_cores() <= os.cpu_count()
