#!/usr/bin/env bash
# Drives `meerkat serve` with OpenAI's packages for Python and TypeScript, and with the frameworks above them; the server
# is killed in between. Ends with 3 if a client cannot be had on this machine.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
cd "$here/../../.."
target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
cannot=3

venv="$target/openai-clients"
if ! cmp --silent "$here/requirements.txt" "$venv/installed"; then
  python3 -m venv "$venv" 2>/dev/null || { echo "Python with venv is not here" >&2; exit "$cannot"; }
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt" >"$venv/pip.log" 2>&1 ||
    { tail -n 1 "$venv/pip.log" >&2; exit "$cannot"; }
  cp "$here/requirements.txt" "$venv/installed"
fi

packages="$target/openai-packages"
mkdir -p "$packages"
if ! command -v npm >/dev/null || ! command -v node >/dev/null; then
  echo "npm or node is not here" >&2
  exit "$cannot"
fi
if ! cmp --silent "$here/package-lock.json" "$packages/installed"; then
  cp "$here/package.json" "$here/package-lock.json" "$packages/"
  if ! npm ci --prefix "$packages" --ignore-scripts --no-audit --no-fund --fetch-retries=1 --fetch-timeout=60000 \
    >"$packages/npm.log" 2>&1; then
    grep --max-count=3 "^npm error" "$packages/npm.log" >&2 || true
    # A lock file that does not fit is our mistake; anything else is taken for a network that is not there.
    ! grep --quiet --extended-regexp 'EUSAGE|EINTEGRITY' "$packages/npm.log" || exit 1
    exit "$cannot"
  fi
  cp "$here/package-lock.json" "$packages/installed"
fi

[ -n "${MEERKAT:-}" ] || cargo build --locked --quiet
program="${MEERKAT:-$target/debug/meerkat}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# LiteLLM would fetch prices.
export LITELLM_LOCAL_MODEL_COST_MAP=True
export MEERKAT_TOKEN=a-token-of-16-characters-or-more MEERKAT_PROJECTION__DIR="$work/files" MEERKAT_MODEL__NAME=scripted
"$venv/bin/python" "$here/drive.py" "$program" "$work/data"
"$venv/bin/python" "$here/frameworks.py" "$program" "$work/more"
node "$here/drive.mjs" "$program" "$work/typescript" "$packages"
