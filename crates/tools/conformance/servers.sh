#!/usr/bin/env bash
# Uses the reference servers of the protocol through the whole program: `meerkat servers check` of each, then a turn with
# one call that works and one that fails. It prints the tools, the tokens that they cost and the milliseconds of the
# check. The page that `fetch` is asked for is on this machine, so no network is needed once the servers are installed.
#
# Ends with 0 where all worked, with 3 where the servers cannot be had on this machine, else with what failed.
set -euo pipefail
cd "$(dirname "$0")/../../.."
target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
work="$target/reference-servers"
cannot=3
npm_packages=(server-everything@2026.8.31 server-filesystem@2026.8.31 server-memory@2026.8.31)
pip_packages=(mcp-server-fetch==2026.10.24 mcp-server-git==2026.10.19 mcp-server-time==2026.10.19)

for program in npm node python3 git; do
  command -v "$program" >/dev/null || { echo "$program is not here" >&2 && exit "$cannot"; }
done
mkdir -p "$work"
if [ "$(cat "$work/installed" 2>/dev/null)" != "${npm_packages[*]} ${pip_packages[*]}" ]; then
  npm install --prefix "$work" --ignore-scripts --no-audit --no-fund --no-save --fetch-retries=1 \
    "${npm_packages[@]/#/@modelcontextprotocol/}" >"$work/npm.log" 2>&1 ||
    { echo "npm cannot have the servers; see $work/npm.log" >&2 && exit "$cannot"; }
  { python3 -m venv "$work/venv" &&
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check "${pip_packages[@]}"; } >"$work/pip.log" 2>&1 ||
    { echo "pip cannot have the servers; see $work/pip.log" >&2 && exit "$cannot"; }
  echo "${npm_packages[*]} ${pip_packages[*]}" >"$work/installed"
fi

cargo build --locked --quiet --bin meerkat

home="$(mktemp -d)"
trap 'rm -rf "$home"; [ -z "${web:-}" ] || kill "$web" 2>/dev/null || true' EXIT
mkdir -p "$home/.config/meerkat" "$home/files" "$home/empty"
echo "the text of a file" >"$home/files/a.txt"
git init --quiet "$home/repo"
git -C "$home/repo" -c user.name=a -c user.email=a@example.com commit --quiet --allow-empty --message "the first commit"
exec {served}< <(cd "$home/files" && exec python3 -u -c '
import http.server
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print(server.server_port)
server.serve_forever()' 2>/dev/null)
web=$!
read -r port <&"$served"

npm_server() { printf '[servers.%s]\ncommand = "node"\nargs = ["%s/node_modules/.bin/mcp-server-%s"%s]\napproval = "allow"\n' "$1" "$work" "$1" "$2"; }
pip_server() { printf '[servers.%s]\ncommand = "%s/venv/bin/mcp-server-%s"\nargs = [%s]\napproval = "allow"\n' "$1" "$work" "$1" "$2"; }
{
  npm_server everything ''
  npm_server filesystem ", \"$home/files\""
  npm_server memory ''
  echo "env = { MEMORY_FILE_PATH = \"$home/memory.json\" }"
  pip_server fetch '"--allow-private-ips"'
  pip_server git "\"--repository\", \"$home/repo\""
  pip_server time ''
} >"$home/.config/meerkat/meerkat.toml"

meerkat() {
  (cd "$home/empty" && env -i HOME="$home" PATH="$PATH" "$target/debug/meerkat" --data-dir "$home/data" "$@" </dev/null)
}
field() { node --print 'const row = JSON.parse(process.argv[1]); row[process.argv[2]].length ?? row[process.argv[2]]' "$1" "$2"; }

failed=0
# Checks a server, lets a turn make two calls of one tool, and looks for a text in the output of each: the first works,
# the second fails.
use() {
  local server=$1 tool=$2 works=$3 expected=$4 fails=$5 reason=$6 began row outputs
  began=$(date +%s%N)
  if ! row="$(meerkat --json servers check "$server" 2>"$work/$server.log")"; then
    echo "$server: its check failed: $row; see $work/$server.log" && failed=1 && return
  fi
  local ms=$((($(date +%s%N) - began) / 1000000))
  meerkat --quiet run --model scripted "@call mcp__${server}__$tool $works @step @call mcp__${server}__$tool $fails" \
    >"$work/$server.log" 2>&1 || true
  mapfile -t outputs < <(meerkat --json events last | node --print '
    const { items } = JSON.parse(require("fs").readFileSync(0));
    const finished = items.filter(event => event.type === "tool_finished");
    finished.map(({ outcome, output }) => `${outcome}: ${output.replaceAll("\n", " ")}`).join("\n")')
  if [[ "${outputs[0]}" != "succeeded: "*"$expected"* ]]; then
    echo "$server: its tool $tool ${outputs[0]}" && failed=1 && return
  fi
  if [[ "${outputs[1]}" != "failed: "*"$reason"* ]]; then
    echo "$server: its tool $tool was to fail, but ${outputs[1]}" && failed=1 && return
  fi
  printf '%-11s %2d tools %5d tokens, checked in %4d ms; %s works, and fails with words\n' \
    "$server" "$(field "$row" tools)" "$(field "$row" tokens)" "$ms" "$tool"
}

use everything get-resource-reference '{"resourceType":"Text","resourceId":1}' 'resource' \
  '{"resourceType":"Text","resourceId":-1}' 'Invalid resourceId'
use filesystem read_text_file "{\"path\":\"$home/files/a.txt\"}" 'the text of a file' \
  "{\"path\":\"$home/memory.json\"}" 'outside allowed directories'
use memory add_observations '{"observations":[]}' '' \
  '{"observations":[{"entityName":"Nobody","contents":["x"]}]}' 'Nobody not found'
use fetch fetch "{\"url\":\"http://127.0.0.1:$port/a.txt\"}" 'the text of a file' \
  "{\"url\":\"http://127.0.0.1:$port/none\"}" '404'
use git git_log "{\"repo_path\":\"$home/repo\"}" 'Commit' "{\"repo_path\":\"$home/files\"}" "$home/files"
use time get_current_time '{"timezone":"UTC"}' 'UTC' '{"timezone":"Nowhere/City"}' 'Nowhere'
exit "$failed"
