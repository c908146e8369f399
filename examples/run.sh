#!/usr/bin/env bash
# Runs the examples and their tests against a built meerkat, which MEERKAT may name. What they install stays under the
# target folder. It ends with 3 if the packages of Python or npm cannot be had here; the other language runs anyway.
set -euo pipefail
# Only this script says 3: pytest has a meaning of its own for it.
trap 'exit 1' ERR
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
work=$target/examples/clients
export MEERKAT=${MEERKAT:-$target/debug/meerkat}
[ -x "$MEERKAT" ] || { echo "$MEERKAT is not there: run cargo build"; exit 1; }
mkdir -p "$work"
status=0

echo "== Python"
had() {
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' && python3 -m venv "$work/venv" &&
    export PATH="$work/venv/bin:$PATH" PIP_QUIET=1 PIP_DISABLE_PIP_VERSION_CHECK=1 &&
    pip install -r examples/python/requirements.txt &&
    pip install ./clients/python
}
if had; then
  export MYPY_CACHE_DIR=$work/mypy RUFF_NO_CACHE=true PYTHONDONTWRITEBYTECODE=1
  python clients/python/generate.py --check
  ruff format --check --quiet --config clients/python/pyproject.toml clients/python examples/python
  ruff check --quiet --config clients/python/pyproject.toml clients/python examples/python
  mypy --strict clients/python/generate.py clients/python/meerkat
  mypy --strict examples/python/*.py clients/python/tests
  # A test that waits in vain ends after two minutes, and an error in a thread fails its test.
  pytest -q -p no:cacheprovider --timeout 120 -W error::pytest.PytestUnhandledThreadExceptionWarning \
    clients/python examples/python
else
  echo "Python 3.11 or newer, or the packages of examples/python, cannot be had here"
  status=3
fi

echo "== TypeScript"
# A copy, so that nothing is written beside the sources.
rm -rf "$work"/examples/typescript/{src,test}
mkdir -p "$work/docs" "$work/examples"
cp docs/openapi.json "$work/docs"
cp -r examples/typescript "$work/examples"
cd "$work/examples/typescript"
had() { cmp -s package-lock.json node_modules/installed || { npm ci && cp package-lock.json node_modules/installed; }; }
if had; then
  npm run types
  npm run check
  npm test
else
  echo "npm, or the packages of examples/typescript, cannot be had here"
  status=3
fi
exit $status
