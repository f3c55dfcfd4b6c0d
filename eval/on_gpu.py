"""What a GPU that is there for ten minutes has to say, without Ray, vLLM, DeepSpeed or OpenRLHF.

    python eval/on_gpu.py             # on the GPU
    python eval/on_gpu.py --dry-run   # the same in small on a CPU, in Triton's interpreter

The kernel's tests come first, then a policy step in buckets against the step at once, then the kernel's benchmark against
eager torch and torch.compile. Tables are written to group_advantage/NAME.csv and buckets/NAME.csv below --results, with the
GPU's name. A dry run writes none of the GPU's. It needs torch, triton, numpy, pandas, rich and pytest.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("tests/kernels/test_benchmark.py", "tests/kernels/test_group_advantage.py")


def run_tests(dry_run: bool) -> None:
    """The kernel against float64 arithmetic; a dry run takes the tests of one variant."""
    files = [str(ROOT / file) for file in TESTS] + ["-k", "parity and lengths"] * dry_run
    # Not the configuration of the other tests, which need the whole stack.
    options = ["-q", "-c", os.devnull, "--rootdir", str(ROOT / "tests/kernels"), "-p", "no:cacheprovider"]
    path = os.pathsep.join([str(ROOT), str(ROOT / "eval"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "pytest", *options, "--confcutdir", str(ROOT / "tests/kernels"), *files]
    if subprocess.run(command, env=os.environ | {"PYTHONPATH": path}).returncode:
        sys.exit("eval/on_gpu.py: the kernel's tests fail: nothing is timed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="in small, on a CPU")
    parser.add_argument("--results", type=Path, default=ROOT / "eval/studies/overhead", help="folder of the tables")
    arguments = parser.parse_args()
    if arguments.dry_run:
        os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}  # before Triton and torch are imported
    import torch

    if not arguments.dry_run and not torch.cuda.is_available():
        sys.exit("eval/on_gpu.py: PyTorch sees no GPU here: --dry-run tries the script on a CPU")
    run_tests(arguments.dry_run)

    sys.path.insert(0, str(ROOT))
    from lib.benchmarks import buckets, gpu
    from lib.tables import show

    device, shape = ("cpu", buckets.CPU) if arguments.dry_run else ("cuda", buckets.GPU)
    table = buckets.measure(device, shape, repeats=1 if arguments.dry_run else 3)
    name = "a CPU, in small" if arguments.dry_run else torch.cuda.get_device_name()
    show(f"A policy step in buckets, on {name}: difference of the gradient, and seconds", table)
    is_same = (table.difference < buckets.TOLERANCE).all()
    if is_same and not arguments.dry_run:
        folder = arguments.results / "buckets"
        folder.mkdir(parents=True, exist_ok=True)
        table.to_csv(folder / f"{name.replace(' ', '-')}.csv", index=False, float_format="%.6g")
    gpu.run(arguments.results / "group_advantage", show)
    if not is_same:
        sys.exit(
            f"eval/on_gpu.py: the gradient of a step in buckets differs by more than {buckets.TOLERANCE}: its table is not "
            "written"
        )


if __name__ == "__main__":
    main()
