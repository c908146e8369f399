#!/usr/bin/env bash
# Drives `meerkat acp` with the protocol's official clients for Python and TypeScript: over its own data directory, and
# attached to a server that owns it. Ends with 3 if a client cannot be had on this machine.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
cd "$here/../../.."
target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
cannot=3

venv="$target/acp-client"
if ! cmp --silent "$here/requirements.txt" "$venv/installed"; then
  python3 -m venv "$venv" 2>/dev/null || { echo "Python with venv is not here" >&2; exit "$cannot"; }
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt" >"$venv/pip.log" 2>&1 ||
    { tail -n 1 "$venv/pip.log" >&2; exit "$cannot"; }
  cp "$here/requirements.txt" "$venv/installed"
fi

export ACP_PACKAGES="$target/acp-packages"
mkdir -p "$ACP_PACKAGES"
if ! command -v npm >/dev/null || ! command -v node >/dev/null; then
  echo "npm or node is not here" >&2
  exit "$cannot"
fi
if ! cmp --silent "$here/package-lock.json" "$ACP_PACKAGES/installed"; then
  cp "$here/package.json" "$here/package-lock.json" "$ACP_PACKAGES/"
  if ! npm ci --prefix "$ACP_PACKAGES" --ignore-scripts --no-audit --no-fund --fetch-retries=1 --fetch-timeout=60000 \
    >"$ACP_PACKAGES/npm.log" 2>&1; then
    grep --max-count=3 "^npm error" "$ACP_PACKAGES/npm.log" >&2 || true
    # A lock file that does not fit is our mistake; anything else is taken for a network that is not there.
    ! grep --quiet --extended-regexp 'EUSAGE|EINTEGRITY' "$ACP_PACKAGES/npm.log" || exit 1
    exit "$cannot"
  fi
  cp "$here/package-lock.json" "$ACP_PACKAGES/installed"
fi

[ -n "${MEERKAT:-}" ] || cargo build --locked --quiet
export MEERKAT="${MEERKAT:-$target/debug/meerkat}"
"$venv/bin/python" "$here/drive.py"
node "$here/drive.mjs"
