# shellcheck shell=bash
# Sourced by the scripts that are no launch scripts, before they do anything: --help prints their first lines, and they end.
case ${1:-} in
    --help | -h) sed -n '1d; /^#SBATCH/d; /^# shellcheck/d; /^#/!q; s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
