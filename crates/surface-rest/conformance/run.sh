#!/usr/bin/env bash
# Runs schemathesis with all checks, by meerkat's own description and by that of OpenAI's protocols, against servers of
# its own, one with a store and one with sessions in memory:
# `run.sh [options of "schemathesis run"]`. It ends with 3 where schemathesis is not there.
set -euo pipefail
cd "$(dirname "$0")/../../.."
if ! schemathesis --version 2>/dev/null; then
  echo "schemathesis is not here: pip install schemathesis"
  exit 3
fi

cargo build --locked --quiet
export MEERKAT_TOKEN=a-token-of-16-characters-or-more
work=$(mktemp -d)
server=
end() { [ -z "$server" ] || kill "$server" 2>/dev/null || true; }
trap 'end; rm -rf "$work"' EXIT
# A folder of files belongs to one data directory; that of the checkout may be another's.
export MEERKAT_PROJECTION__DIR="$work/files"

for home in "" --ephemeral; do
  echo "== meerkat serve --rest $home"
  # The shell in the background empties it only later: what is read until then must not be the former server's.
  : >"$work/said"
  "${CARGO_TARGET_DIR:-target}/debug/meerkat" serve --rest ${home:+"$home"} --data-dir "$work/data" --listen 127.0.0.1:0 \
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
  schemathesis --config-file crates/surface-rest/conformance/schemathesis.toml run "$url/openapi.json" "$@"
  openai=crates/surface-openai/conformance
  schemathesis --config-file $openai/schemathesis.toml run $openai/openapi.yaml --url "$url" "$@"
  end
  wait "$server" || true
done
