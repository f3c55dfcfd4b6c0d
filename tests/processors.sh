#!/usr/bin/env bash
# Passes the tests that compare floating-point numbers as other processors would compute them; ends with a table.
#   tests/processors.sh [TEST...]    needs the CPU stack (train_scripts/setup.sh)
# oneDNN and MKL choose their own instructions, by other variables than torch. One thread and two sum up in other orders.
set -euo pipefail
cd "$(dirname "$0")/.."

settings=(
    OMP_NUM_THREADS=1 # as the CPU stack runs, with all that this processor has
    OMP_NUM_THREADS=2
    ATEN_CPU_CAPABILITY=default
    ATEN_CPU_CAPABILITY=avx2
    ONEDNN_MAX_CPU_ISA=AVX2
    MKL_CBWR=COMPATIBLE
    "ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE"
    "ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_CBWR=AVX2"
)
if grep -q avx512f /proc/cpuinfo; then # torch would try them on any processor
    settings+=("ATEN_CPU_CAPABILITY=avx512 ONEDNN_MAX_CPU_ISA=AVX512_CORE MKL_CBWR=AVX512")
fi
tests=("$@")
[ $# -gt 0 ] || tests=(tests/deepspeed tests/unit/advantages tests/unit/training/test_step_weights.py tests/unit/flags/test_dapo.py
    tests/unit/driver/test_experience.py)

unset PYTHONDONTWRITEBYTECODE
export DS_ACCELERATOR=cpu TORCHDYNAMO_DISABLE=1 OMP_NUM_THREADS=1 VLLM_NO_USAGE_STATS=1
export OMP_WAIT_POLICY=PASSIVE # two ranks of two threads on two cores would mostly wait for each other, busily
export TORCH_EXTENSIONS_DIR=$PWD/build/torch_extensions PATH=$PWD/.venv/bin:$PATH PYTHONPATH=$PWD/build/cpu-patched

# compute SETTING...: the tests in a process of their own, whose libraries read the settings as they are loaded.
compute() {
    local own=$BASHPID word # the server of its processes ends with it
    for word in "$@"; do export "${word?}"; done
    WARM_PYTHON=$(.venv/bin/python tests/warm_python.py --start "$own")
    export WARM_PYTHON
    "$WARM_PYTHON" -m pytest "${tests[@]}"
}
# shellcheck source=/dev/null
. tests/stages.sh
trap table EXIT
grep -m 1 'model name' /proc/cpuinfo
for setting in "${settings[@]}"; do
    read -ra words <<<"$setting"
    name=$setting
    [ ${#words[@]} = 1 ] || name="${words[*]#*=}" # of torch, oneDNN and MKL
    stage "$name" compute "${words[@]}"
done
all_passed
