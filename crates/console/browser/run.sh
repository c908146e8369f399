#!/usr/bin/env bash
# Runs the console's trials in a browser against a built meerkat, which MEERKAT may name, and then measures the page with
# much in it; SCALE=1 only measures, with very much. What it installs stays under the target folder. It ends with 3 if
# Chromium, Node 20 or newer, or the packages of npm cannot be had here.
set -euo pipefail
cd "$(dirname "$0")/../../.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
work=$target/console-trials
export MEERKAT=${MEERKAT:-$target/debug/meerkat}
command -v chromium >/dev/null || command -v google-chrome >/dev/null || { echo "chromium is not here"; exit 3; }
node -e 'process.exit(Number(parseInt(process.versions.node) < 20))' 2>/dev/null || { echo "Node 20 or newer is not here"; exit 3; }
[ -x "$MEERKAT" ] || { echo "$MEERKAT is not there: run cargo build"; exit 1; }
mkdir -p "$work"
cp crates/console/browser/{.npmrc,package.json,package-lock.json} crates/console/browser/*.mjs "$work"
cd "$work"
cmp -s package-lock.json node_modules/installed || {
  npm ci --silent && cp package-lock.json node_modules/installed
} || { echo "the packages of crates/console/browser cannot be had from npm here"; exit 3; }
[ -n "${SCALE:-}" ] || node trials.mjs
node scale.mjs
