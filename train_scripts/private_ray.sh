# shellcheck shell=bash
# Sourced by the scripts that start Ray. private_ray FOLDER: only who has the token takes part in a Ray that this shell
# starts. Makes the token in FOLDER, which only this user can enter, unless the environment names one.
# Ray knows tokens since 2.52; Ray 2.55's own `get-auth-token --generate` leaves the mode of its file to the umask.
private_ray() {
    export RAY_AUTH_MODE=token
    [ -z "${RAY_AUTH_TOKEN:-}${RAY_AUTH_TOKEN_PATH:-}" ] || return 0
    export RAY_AUTH_TOKEN_PATH=$1/token
    (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$RAY_AUTH_TOKEN_PATH")
}
