"""Nothing is compiled on CPUs."""

import os


def compile_nothing_on_cpus() -> None:
    """Have this process and those it starts run eager code where DeepSpeed trains on CPUs; call it before torch is imported.

    torch 2.13's cache of compiled graphs does not tell processors apart. What AVX-512 has written takes vectors of 16, and
    a processor with AVX2 then computes OpenRLHF's entropy from half of the vocabulary.
    """
    if os.environ.get("DS_ACCELERATOR") == "cpu":
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
