#!/usr/bin/env bash
# Drives `meerkat acp` with the protocol's official clients for Python and TypeScript: over its own data directory, attached
# to a server that owns it, and over a WebSocket. Ends with 3 if a client cannot be had on this machine.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
cd "$here/../../.."
target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
source .ci/packages.sh

venv="$target/acp-client"
python_packages "$venv" "$here/requirements.txt"
export ACP_PACKAGES="$target/acp-packages"
npm_packages "$ACP_PACKAGES" "$here"

[ -n "${MEERKAT:-}" ] || cargo build --locked --quiet
export MEERKAT="${MEERKAT:-$target/debug/meerkat}"
"$venv/bin/python" "$here/drive.py"
node "$here/drive.mjs"
