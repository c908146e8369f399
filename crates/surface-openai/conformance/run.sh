#!/usr/bin/env bash
# Drives a server of its own with OpenAI's Python package, and kills it in between. It ends with 3 if the package cannot
# be had here; with MEERKAT_REQUIRE=all that is a failure.
set -euo pipefail
cd "$(dirname "$0")/../../.."
here=crates/surface-openai/conformance
python3 -c 'import openai' 2>/dev/null || {
  echo "openai is not here: pip install -r $here/requirements.txt"
  [ "${MEERKAT_REQUIRE:-}" = all ] && exit 1
  exit 3
}
cargo build --locked --quiet
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export MEERKAT_TOKEN=a-token-of-16-characters-or-more MEERKAT_PROJECTION__DIR="$work/files" MEERKAT_MODEL__NAME=scripted
exec_name="${CARGO_TARGET_DIR:-target}/debug/meerkat"
python3 "$here/drive.py" "$(realpath "$exec_name")" "$work/data"
