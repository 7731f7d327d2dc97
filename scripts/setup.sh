# Sourced by the other scripts, after `root` is set to the checkout: a virtual environment in $root/.venv.
#
# `prepare EXTRAS` installs autotune with these extras, unless that was done before for the same pyproject.toml,
# Python and folder. PYTHON names the interpreter to begin with; none is needed when one is on the PATH.

# What a caller's shell sets for other programs must not reach the virtual environment.
unset PYTHONHOME PYTHONPATH OCL_ICD_FILENAMES
export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1

venv="$root/.venv"
python="$venv/bin/python"

fail() {
    printf '%s: error: %s\n' "${0##*/}" "$1" >&2
    exit 1
}

# Prints the first interpreter that is new enough and can make a virtual environment.
find_python() {
    found=""
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
        found="$candidate"
        "$candidate" -c 'import ensurepip, venv' 2>/dev/null || continue
        command -v "$candidate"
        return
    done
    [ -z "$found" ] || fail "$found has no ensurepip or venv (Debian, Ubuntu: apt install python3-venv)"
    fail "needs Python 3.11 or newer (install one, or name it: PYTHON=/path/to/python3.12 ${0##*/})"
}

# Prints what a finished installation depends on; fails when the environment's interpreter does not run.
fingerprint() {
    "$python" -c 'import sys; print(sys.version)' 2>/dev/null || return 1
    cksum <"$root/pyproject.toml"
    printf '%s\n' "$root"
}

prepare() {
    stamp="$venv/.autotune-$(printf '%s' "$1" | tr ',' '-')"
    if now=$(fingerprint) && [ "$now" = "$(cat "$stamp" 2>/dev/null)" ]; then
        return
    fi
    if [ -z "$now" ]; then
        base=$(find_python)
        printf 'Making a virtual environment in %s with %s\n' "$venv" "$base" >&2
        "$base" -m venv --clear "$venv" || fail "cannot make a virtual environment in $venv"
    fi
    printf 'Installing autotune with %s; this takes some minutes the first time\n' "$1" >&2
    "$python" -m pip install --quiet --editable "$root[$1]" >&2 || fail "pip could not install autotune with $1 (see above)"
    fingerprint >"$stamp"
}

# An installed driver could be a second CPU device, or a broken one. PyOpenCL's wheel finds the PoCL beside it
# besides what lies in this folder, which has none, so PoCL is the one and only device.
use_only_pocl() {
    if ls "$venv"/lib/python*/site-packages/pyopencl/.libs/pocl.icd >/dev/null 2>&1; then
        mkdir -p "$venv/no-other-drivers"
        export OCL_ICD_VENDORS="$venv/no-other-drivers"
    else
        printf 'PyPI has no PoCL for this system: using the OpenCL drivers installed on it\n' >&2
    fi
}
