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
# A copy, so that nothing is written beside the sources. The examples get the package as it is packed for others.
rm -rf "$work"/{clients,examples}/typescript/{src,test,scripts,build,dist}
mkdir -p "$work"/{docs,clients/typescript,examples/typescript}
cp docs/openapi.json "$work/docs"
cp -r clients/typescript/{.npmrc,*.json,README.md,src,test,scripts} "$work/clients/typescript"
cp -r examples/typescript/{.npmrc,*.json,src,test} "$work/examples/typescript"
packages() { cmp -s package-lock.json node_modules/installed || { npm ci && cp package-lock.json node_modules/installed; }; }
had() {
  cd "$work/clients/typescript" && packages && cd "$work/examples/typescript" && packages
}
if had; then
  cd "$work/clients/typescript"
  package=$(npm pack --silent --pack-destination "$work")
  npm test
  cd "$work/examples/typescript"
  rm -rf node_modules/meerkat-client
  npm install --no-save --no-package-lock --offline --silent "$work/$package"
  [ ! -L node_modules/meerkat-client ] || { echo "the examples do not use the packed package"; exit 1; }
  npm test
else
  echo "npm, or the packages of clients/typescript and examples/typescript, cannot be had here"
  status=3
fi
exit $status
