# Sourced by the commands beside it. Sets `root`, `environment` (the active one, else .venv in the root)
# and `python`, its interpreter; `make_environment` sees to it that this one exists, `find_environment` settles
# for the Python on PATH. Packages: _install.py.
# shellcheck shell=bash
set -euo pipefail
unset PYTHONINSPECT # every Python below would wait at a prompt

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
own=$root/.venv
environment=${VIRTUAL_ENV:-${CONDA_PREFIX:-$own}}
python=$environment/bin/python

# Without it (cron, systemd, docker exec) Open MPI 5 starts nothing. So ~ is what the password file says.
[[ -n ${HOME+set} ]] || export HOME=~

say() { printf 'launch: %s\n' "$*" >&2; }

fail() {
    say "$@"
    exit 2
}

usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; } # the comment that a command begins with

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

# A PYTHONHOME without this Python's library: it prints its version all the same, and starts nothing.
check_home() {
    if [[ -n ${PYTHONHOME:-} ]] && (unset PYTHONHOME && new_enough "$1"); then
        fail "$1 does not start with PYTHONHOME=$PYTHONHOME, where its library is not: unset PYTHONHOME"
    fi
}

find_python() {
    local name
    for name in python3 python3.{15..10}; do
        command -v "$name" >/dev/null || continue
        if new_enough "$name"; then
            command -v "$name"
            return
        fi
        check_home "$(command -v "$name")"
    done
    fail "no Python 3.10 or newer on PATH (python3, python3.15 to python3.10): install one" \
        "(Debian, Ubuntu: apt-get install python3; RHEL: dnf install python3.12)"
}

make_environment() {
    if [[ ! -e $environment && $environment == "$own" ]]; then
        local base
        base=$(find_python)
        say "making $environment with $("$base" --version)"
        # Debian's Python cannot make one with pip unless python3-venv is installed; _install.py brings pip.
        "$base" -m venv --without-pip "$environment" || fail "$base -m venv failed (above)"
    fi
    check_environment
}

find_environment() { # nothing is active and there is no .venv: in a container, say, with all in its one Python
    [[ -e $environment || $environment != "$own" ]] || python=$(find_python)
    check_environment
}

check_environment() {
    [[ -x $python ]] ||
        fail "$environment has no working bin/python: deactivate that environment, or remove it if it is .venv"
    new_enough "$python" || check_home "$python"
    new_enough "$python" ||
        fail "$environment has $("$python" --version 2>&1), 3.10 or newer is needed: deactivate that environment"
}

need_scaling() { # before a study starts: its first import would end in a traceback
    "$python" -c 'import msgspec, mpi4py, typer' 2>/dev/null ||
        fail "scaling is not installed for $python: ./launch/install torch installs it, or activate its environment"
}

# From the root, where Python finds the package `launch`, if nothing forbids it.
install_packages() { (cd "$root" && unset PYTHONSAFEPATH && exec "$python" -m launch._install "$@"); }
install_frameworks() { (cd "$root" && unset PYTHONSAFEPATH && exec "$python" -m launch._frameworks "$@"); }
