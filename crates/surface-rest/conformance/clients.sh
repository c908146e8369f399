#!/usr/bin/env bash
# Generates a Python client from docs/openapi.json, and drives it against a server of its own. It ends with 3 if the
# generator cannot be had here. examples/run.sh does this for TypeScript: the example is written on generated types.
set -euo pipefail
cd "$(dirname "$0")/../../.."
here=crates/surface-rest/conformance
openapi-python-client --version 2>/dev/null ||
  { echo "openapi-python-client is not here: pip install openapi-python-client"; exit 3; }

work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT

cargo build --locked --quiet
mkdir "$work/tools"
export MEERKAT_TOOLS__TEST_DIR="$work/tools"
export MEERKAT_TOKEN=a-token-of-16-characters-or-more MEERKAT_PROJECTION__DIR="$work/files" MEERKAT_MODEL__NAME=scripted
: >"$work/said"
"${CARGO_TARGET_DIR:-target}/debug/meerkat" serve --rest --data-dir "$work/data" --listen 127.0.0.1:0 \
  >"$work/said" 2>"$work/logs" &
server=$!
url=
for _ in $(seq 600); do
  url=$(sed -n 's/^listening on \([^ ]*\) .*/\1/p' "$work/said")
  [ -z "$url" ] || break
  kill -0 "$server" 2>/dev/null || break
  sleep 0.1
done
[ -n "$url" ] || { cat "$work/logs"; exit 1; }
export MEERKAT_URL=$url

openapi-python-client generate --path docs/openapi.json --meta none --output-path "$work/meerkat_client" >"$work/generated" 2>&1 \
  || { cat "$work/generated"; exit 1; }
# The generator's own interpreter has what its clients need.
python=$(sed -n '1s/^#!//p' "$(command -v openapi-python-client)")
PYTHONPATH=$work "$python" "$here/drive.py"
