#!/usr/bin/env bash
# Runs the official conformance suite of the protocol: all of it against the fixtures behind the product's own service
# and guard (examples/conformance), in every dated revision that the suite knows; then what of it needs no fixtures
# against `meerkat serve --mcp` itself; then what each revision requires of a client against the pool of servers
# (examples/conformance_client of meerkat-tools). Arguments go to the suite, such as `--verbose`.
#
# Ends with 0 where all passed, with 3 where the suite cannot be had on this machine, else with what failed.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
cd "$here/../../.."
target="${CARGO_TARGET_DIR:-target}"
work="$target/mcp-conformance"
cannot=3

# Nothing is installed beside package.json, because everything in the source tree is read by the tidy tests.
mkdir -p "$work"
if [ "${BASH_VERSINFO[0]}" -lt 5 ] || ! command -v npm >/dev/null || ! command -v node >/dev/null; then
  echo "npm, node or bash 5 is not here" >&2
  exit "$cannot"
fi
# The suite needs Node 22. Where the machine's own is older, one comes with the suite.
own=(--omit=optional)
[ "$(node --print 'process.versions.node.split(".")[0]')" -ge 22 ] || own=()
if ! cmp --silent "$here/package-lock.json" "$work/installed"; then
  cp "$here/package.json" "$here/package-lock.json" "$work/"
  if ! npm ci --prefix "$work" "${own[@]}" --ignore-scripts --no-audit --no-fund --fetch-retries=1 \
    --fetch-timeout=60000 >"$work/npm.log" 2>&1; then
    grep --max-count=3 "^npm error" "$work/npm.log" >&2 || true
    # A lock file that does not fit is our mistake; anything else is taken for a network that is not there.
    ! grep --quiet --extended-regexp 'EUSAGE|EINTEGRITY' "$work/npm.log" || exit 1
    exit "$cannot"
  fi
  cp "$here/package-lock.json" "$work/installed"
fi
node=(node)
[ ! -x "$work/node_modules/.bin/node" ] || node=("$work/node_modules/.bin/node")
if [ "$("${node[@]}" --print 'process.versions.node.split(".")[0]')" -lt 22 ]; then
  echo "Node is older than 22, and npm has no newer one for this machine" >&2
  exit "$cannot"
fi

suite() {
  "${node[@]}" "$work/node_modules/@modelcontextprotocol/conformance/dist/index.js" "${role:-server}" \
    --expected-failures "$here/expected-failures.yml" "$@" >"$work/suite.log" 2>&1 ||
    { cat "$work/suite.log" && return 1; }
}

cargo build --locked --quiet --bins --examples

# It ends with its standard input, which ends with this script.
coproc FIXTURES { exec "$target/debug/examples/conformance"; }
read -r url <&"${FIXTURES[0]}"
for revision in 2025-03-26 2025-06-18 2025-11-25 2026-07-28; do
  suite --url "$url" --suite all --spec-version "$revision" "$@"
  printf '%s, all of it with fixtures: %s\n' "$revision" "$(grep '^Total' "$work/suite.log")"
done

# The suite knows no token, so there is none; the rest of the guard is on.
# A folder of files belongs to one data directory; that of the checkout may be another's.
export MEERKAT_PROJECTION__DIR="$work/files"
exec {product}< <(exec "$target/debug/meerkat" --json --quiet --data-dir "$work/data" \
  serve --mcp --no-auth --listen 127.0.0.1:0 2>"$work/product.log")
product_pid=$!
trap 'kill "$product_pid" 2>/dev/null || true' EXIT
read -r listening <&"$product" || { cat "$work/product.log" && exit 1; }
url="$("${node[@]}" --print 'JSON.parse(process.argv[1]).listening' "$listening")/mcp"
sessions=(server-initialize server-session-lifecycle ping)
every=(tools-list resources-list server-sse-multiple-streams dns-rebinding-protection)
stateless=(http-header-validation sep-2164-resource-not-found input-required-result-unsupported-methods)
passed=0
for revision in 2025-11-25 2026-07-28; do
  scenarios=("${sessions[@]}" "${every[@]}")
  [ "$revision" != 2026-07-28 ] || scenarios=("${every[@]}" "${stateless[@]}")
  for scenario in "${scenarios[@]}"; do
    suite --url "$url" --scenario "$scenario" --spec-version "$revision" "$@"
    # A scenario that this revision does not have is skipped, and counts nothing.
    count="$(sed -n 's/^Passed: \([0-9]*\).*/\1/p' "$work/suite.log")"
    passed=$((passed + ${count:-0}))
  done
done
printf '%s\n' "meerkat serve --mcp, what needs no fixtures: $passed passed, 0 failed"

# Plays servers to the pool, and says how many checks passed. All scenarios of a revision run at once, and a server of
# the suite loses a question if its client has no stream open yet; so what fails unexpectedly is run again, alone.
role=client
for revision in 2025-11-25 2026-07-28; do
  client=(--command "$target/debug/examples/conformance_client" "$@")
  if ! suite "${client[@]}" --requirements "$revision" >"$work/client.log"; then
    mapfile -t failed < <(sed -n '/Unexpected failures (not/,$ s/^  ✗ //p' "$work/client.log")
    [ "${#failed[@]}" -gt 0 ] || { cat "$work/client.log" && exit 1; }
    for scenario in "${failed[@]}"; do
      echo "$scenario failed beside the others, and runs again alone"
      suite "${client[@]}" --scenario "$scenario" --spec-version "$revision"
    done
  fi
  total="$(grep --no-filename --max-count=1 '^Total' "$work/client.log" "$work/suite.log" | head --lines=1)"
  printf '%s, what it requires of a client: %s\n' "$revision" "$total"
done
