#!/usr/bin/env bash
# Runs README's commands for a machine without a GPU on a fresh one: a minimal Debian that debootstrap makes, in a chroot.
#   tests/fresh_machine.sh [SUITE]     trixie (Python 3.13) unless bookworm (3.11) or another is named
# It installs what the set-up's check names and nothing else, so it fails if that line is not all. For the checklist of a
# release: as root, with debootstrap, 20 GB of disk in build/ and half an hour. What is committed is tested.
# The settings of pip, uv and TLS in the environment hold in there too, and /etc/pip.conf and the machine's certificates.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=/dev/null
. train_scripts/values.sh

suite=${1:-trixie}
root=$PWD/build/fresh/$suite
fail() { echo "tests/fresh_machine.sh: $1" >&2; exit 1; }
stage() { echo "[fresh $suite, minute $((SECONDS / 60))] $*"; }
[ "$(id -u)" = 0 ] || fail "needs root, for chroot and debootstrap"
command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap"
[ ! -e "$root" ] || fail "$root is there, of an earlier run: rm -r --one-file-system $root"

stage "a minimal Debian"
mkdir -p "$root"
debootstrap --variant=minbase "$suite" "$root" >"$root.log" 2>&1 || fail "no $suite, see $root.log"
echo "127.0.0.1 localhost" >"$root/etc/hosts" # as every installer and container engine does
git clone --quiet . "$root/project"
mapfile -t settings < <(env | grep -E '^(PIP_|UV_|SSL_CERT_|REQUESTS_CA_BUNDLE=|(https?|no)_proxy=)' || true)

# inside COMMAND...: in the chroot, with its own /proc, /dev, /dev/shm and /sys (which vLLM reads), which go with the command.
inside() {
    # shellcheck disable=SC2016 # expanded in there
    unshare --mount --pid --fork --kill-child bash -c 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" &&
        mount -t sysfs -o ro sysfs "$0/sys" && mount -t tmpfs tmpfs "$0/dev/shm" && exec chroot "$0" "$@"' "$root" \
        env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "${settings[@]}" "$@"
}
project() { inside env --chdir=/project "$@"; }

stage "what it lacks"
line=$(project bash train_scripts/setup.sh 2>&1) && fail "the set-up finds nothing missing on a minimal Debian"
echo "$line"
[[ $line == *"apt-get install "* ]] || fail "that line has no apt-get install"
{
    inside apt-get update
    # shellcheck disable=SC2086 # packages
    inside apt-get install -y --no-install-recommends ${line##*apt-get install }
} >>"$root.log" 2>&1 || fail "apt-get failed, see $root.log"
for file in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do # apt-get has written the latter
    [ ! -e $file ] || install -D --mode=644 $file "$root$file"
done

used() { df --output=used -BM "$root" | tail -n 1 | tr -dc 0-9; }
before=$(used) started=$SECONDS
check_numbers 0 before
for command in "bash train_scripts/quickstart.sh" "bash tests/run.sh --fast"; do
    stage "$command"
    # shellcheck disable=SC2086 # words
    project $command || fail "$command failed; to look: chroot $root"
    after=$(used)
    check_numbers 0 after
    stage "$command took $((SECONDS - started)) s; $((after - before)) MB of disk are in use by both so far"
    started=$SECONDS
done
stage "passed with $(project .venv/bin/python --version); to delete it: rm -r --one-file-system $root"
