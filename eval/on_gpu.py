"""What a GPU that is there for ten minutes has to say, most likely faults first.

    python eval/on_gpu.py             # on the GPU
    python eval/on_gpu.py --dry-run   # the same in small on a CPU, in Triton's interpreter

1. Where vLLM is installed, a launch script in small on one GPU: CUDA graphs, sleep, weight sync, packed attention.
2. The kernel's tests.
3. A step of packed samples of a 1.5B model, with and without the forward pass for old log-probabilities.
4. A step in buckets against the step at once, with advantages from the kernel.
5. The kernel's times, against eager torch and torch.compile.

The first needs what install.sh installs, the others torch, triton, numpy, pandas, rich and pytest. A part that fails does not end
the others, but for 4 and 5, which need a kernel that is right. Tables are written to packed/NAME.csv, buckets/NAME.csv and
group_advantage/NAME.csv below --results, with the GPU's name. A dry run writes none and starts no launch script.
"""

import argparse
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("tests/kernels/test_benchmark.py", "tests/kernels/test_group_advantage.py")
RECIPE = ("bash", "train_scripts/smoke.sh", "dapo_qwen2.5_7b.sh")
STEPS, RECIPE_SECONDS, ENDING_SECONDS = "4", 300, 30  # of the launch script


def run_recipe(dry_run: bool) -> str:
    """A launch script in small on this GPU; what is wrong, which is empty if nothing is."""
    if not dry_run and importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed here, so no launch script is tried: bash install.sh")
        return ""
    # torch's own attention, where flash-attn would have to be fetched.
    command = [*RECIPE, *([] if importlib.util.find_spec("flash_attn") else ["--ds.attn_implementation", "sdpa"])]
    environment = {"DEVICE": "gpu", "STEPS": STEPS, "OUTPUT": str(ROOT / "build/on_gpu")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    print("+", " ".join(f"{name}={environment[name]}" for name in ("DEVICE", "STEPS", "OUTPUT")), *command, flush=True)
    if dry_run:
        return ""
    run = subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, start_new_session=True)
    try:
        code = run.wait(RECIPE_SECONDS)
    except subprocess.TimeoutExpired:
        run.terminate()  # the script ends its training
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(ENDING_SECONDS)
        return f"the launch script has not ended in {RECIPE_SECONDS} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)  # nothing of it may hold memory that the next part needs
    return f"the launch script ended with code {code}" if code else ""


def run_tests(dry_run: bool) -> str:
    """The kernel against float64 arithmetic; a dry run takes the tests of one variant."""
    files = [str(ROOT / file) for file in TESTS] + ["-k", "parity and lengths"] * dry_run
    # Not the configuration of the other tests, which need the whole stack.
    options = ["-q", "-c", os.devnull, "--rootdir", str(ROOT / "tests/kernels"), "-p", "no:cacheprovider"]
    path = os.pathsep.join([str(ROOT), str(ROOT / "eval"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "pytest", *options, "--confcutdir", str(ROOT / "tests/kernels"), *files]
    code = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}).returncode
    return "the kernel's tests fail: it is not timed" if code else ""


def run_step(benchmark: ModuleType, folder: Path, dry_run: bool) -> str:
    """A module's step in its ways; the table is written if their gradients are the same."""
    import torch
    from lib.tables import show

    device, shape = ("cpu", benchmark.CPU) if dry_run else ("cuda", benchmark.GPU)
    table = benchmark.measure(device, shape, repeats=1 if dry_run else 3)
    name = "a CPU, in small" if dry_run else torch.cuda.get_device_name()
    show(f"{benchmark.TITLE}, on {name}: difference of the gradient, and seconds", table)
    if not (table.difference < shape.tolerance).all():
        return f"the gradient differs by more than {shape.tolerance}: the table is not written"
    if not dry_run:
        folder.mkdir(parents=True, exist_ok=True)
        table.to_csv(folder / f"{name.replace(' ', '-')}.csv", index=False, float_format="%.6g")
    return ""


def run_packed(results: Path, dry_run: bool) -> str:
    from lib.benchmarks import packed

    return run_step(packed, results / "packed", dry_run)


def run_buckets(results: Path, dry_run: bool) -> str:
    from lib.benchmarks import buckets

    return run_step(buckets, results / "buckets", dry_run)


def run_times(results: Path) -> str:
    from lib.benchmarks import gpu
    from lib.tables import show

    gpu.run(results / "group_advantage", show)
    return ""


def tried(title: str, part: Callable[[], str]) -> str:
    """Run a part and say what became of it; what is wrong with it, whatever it raises."""
    print(f"\neval/on_gpu.py: {title}", flush=True)
    start = time.monotonic()
    try:
        wrong = part()
    except (Exception, SystemExit) as error:  # the next part may have more to say
        wrong = f"{type(error).__name__}: {error}"
    print(f"eval/on_gpu.py: {title}: {wrong or 'done'}, {time.monotonic() - start:.0f} s", flush=True)
    return wrong and f"{title}: {wrong}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="in small, on a CPU")
    parser.add_argument("--results", type=Path, default=ROOT / "eval/studies/overhead", help="folder of the tables")
    arguments = parser.parse_args()
    results, dry_run = arguments.results, arguments.dry_run
    if dry_run:
        os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}  # before Triton and torch are imported
    import torch

    if not dry_run and not torch.cuda.is_available():
        sys.exit("eval/on_gpu.py: PyTorch sees no GPU here: --dry-run tries the script on a CPU")
    sys.path.insert(0, str(ROOT))
    wrong = [tried("a launch script in small", lambda: run_recipe(dry_run))]
    kernel = tried("the kernel's tests", lambda: run_tests(dry_run))
    wrong += [kernel, tried("a step of packed samples", lambda: run_packed(results, dry_run))]
    if not kernel:
        wrong += [tried("a step in buckets", lambda: run_buckets(results, dry_run))]
        wrong += [tried("the kernel's times", lambda: run_times(results))]
    if any(wrong):
        sys.exit("\n".join(["", *(f"eval/on_gpu.py: {line}" for line in wrong if line)]))


if __name__ == "__main__":
    main()
