#!/usr/bin/env bash
# Runs tests/sglang in an environment that has the released SGLang, and sets that environment up the first time.
# Usage: scripts/test-sglang.sh ENVIRONMENT VERSION FREE_GB WHEEL_FOLDER [pytest arguments]
set -euo pipefail
environment=$1 version=$2 needed=$3 wheels=$4
shift 4

skip() {
    printf '\n**** SKIPPED: tests with SGLang %s. %s ****\n\n' "$version" "$1"
    exit 0
}

[ "${QSA_GROUP_SKIP_SGLANG:-0}" != 1 ] || skip 'QSA_GROUP_SKIP_SGLANG=1 is set.'
[ -d tests/sglang ] || skip 'There is no tests/sglang.'

if [ ! -e "$environment/.ready-$version" ]; then
    free=$(df --output=avail -B1G . | tail -n 1 | tr -d ' ')
    [ "$free" -ge "$needed" ] || skip "It takes about 11 GB; $free GB are free, $needed are asked for."
    "${PYTHON:-python3}" -m venv "$environment"
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check uv
    "$environment/bin/uv" pip install --quiet --python "$environment/bin/python" "sglang==$version" \
        'hypothesis>=6.100' 'numpy>=1.26' 'pytest>=8' 'pytest-timeout>=2.3'
    touch "$environment/.ready-$version"
fi
"$environment/bin/uv" pip install --quiet --python "$environment/bin/python" --reinstall --no-deps "$wheels"/qsa_group-*.whl
exec "$environment/bin/python" -m pytest tests/sglang "$@"
