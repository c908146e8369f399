#!/usr/bin/env bash
# Checks what our adapters send to vendors by the types of the vendors' own Python packages. Its argument is a folder with
# the requests that the tests kept there (MEERKAT_REQUESTS); without one it runs these tests. It ends with 3 if the
# packages cannot be had here.
set -euo pipefail
cd "$(dirname "$0")/../../../.."
here=crates/service/tests/vendors
python3 -c 'import anthropic, google.genai, openai' 2>/dev/null ||
  { echo "the vendors' packages are not here: pip install -r $here/requirements.txt"; exit 3; }

requests=${1:-}
if [ -z "$requests" ]; then
  requests=$(mktemp -d)
  trap 'rm -rf "$requests"' EXIT
  MEERKAT_REQUESTS=$requests cargo test --locked --quiet -p meerkat-service --test sdk -- vendors::
fi
python3 "$here/accepted.py" "$requests"
