#!/usr/bin/env bash
# Makes the fixture beside it with the program of an older version: ./make.sh PROGRAM VERSION
#
# Every answer in expected.json is the older program's own. It gives them about a copy, because a start ends the turn that
# the kill left open.
set -euo pipefail

program=$(realpath "$1")
version=$2
here=$(realpath "$(dirname "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/project/.git" "$work/home" "$work/tools"
cd "$work/project"

# Without the environment of whoever calls this: no key, no configuration.
old() {
    env -i HOME="$work/home" MEERKAT_TOOLS__TEST_DIR="$work/tools" MEERKAT_JOURNAL__MIN_RECORD_AGE_MS=0 \
        "$program" --quiet --json --data-dir "${data:-$work/data}" "$@"
}
begin() { old run --label "case=$1" "${@:2}" | jq -r .session_id; }
search() { old memory search "$1" --role assistant | jq '[.items[] | del(.score, .lanes)]'; }
go_on() { old run --session "$1" "${@:2}" > "$work/turn.json"; }

declare -A ids

many=$(begin many --system 'You keep a garden.' '@say The passphrase is persimmon. @usage in=1000 out=1')
ids[many]=$many
for turn in 1 2 3 4 5 6 7 8 9 10; do
    go_on "$many" "@think Which bed is bed $turn? @say Bed $turn has tulips. @usage in=${turn}00 out=$turn cached=10"
done
go_on "$many" '@call test_echo {"text":"a"} @call test_set {"name":"a","value":"1"} @say Both are back.'
go_on "$many" '@call test_fail {"message":"no such bed"} @say It failed.'
! go_on "$many" '@say Half an answer. @fail rejected' 2> "$work/refused"
go_on "$many" --idempotency-key turn-14 '@say Umlauts: äöü, signs: 猫 🌷, a null: \u{0}.'
old sessions pin "$many" 'Never dig on Fridays.' > "$work/pin.json"
old sessions remind "$many" environment 'It rains.' > "$work/remind.json"

ids[fork]=$(old sessions fork "$many" --turn 5 | jq -r .session_id)
go_on "${ids[fork]}" '@say The fork went another way: dahlias.'

ids[blobs]=$(begin blobs '@say A long answer follows. @long 140000')
go_on "${ids[blobs]}" '@call test_huge {"bytes":33000} @say It was read.'

ids[compacted]=$(begin compacted '@say The gate code is 4711. @compaction @say Summary: the gate code is 4711.')
for turn in 1 2 3 4 5; do
    go_on "${ids[compacted]}" "@say Row $turn was dug, weeded, watered and sown with the seeds that were in shed $turn."
done
old compact "${ids[compacted]}" --compact-keep-turns 1 > "$work/compact.json"
go_on "${ids[compacted]}" '@echo first'

deleted=$(begin deleted '@say Nobody should find this mandrake.')
old sessions delete "$deleted" --yes > "$work/delete.json"

ids[archived]=$(begin archived '@say This is done.')
old sessions update "${ids[archived]}" --title 'A title: Gärten' --label case=archived --label team=dig > "$work/update.json"
old sessions archive "${ids[archived]}" > "$work/archive.json"

ids[keyed]=$(begin keyed --idempotency-key make-keyed '@say Made once.')

forgotten=$(begin forgetful '@say The forgotten word is quince.')
ids[forgetful]=$forgotten
until search quince | grep -q quince; do :; done
old memory forget --session "$forgotten" --source assistant --yes > "$work/forget.json"
[ "$(jq .forgotten "$work/forget.json")" = 1 ]

ids[pruned]=$(begin pruned '@call test_echo {"text":"early"} @say Early words.')
for count in 1 2 3 4 5 6; do
    old sessions remind "${ids[pruned]}" environment "It is day $count." > "$work/remind.json"
done
go_on "${ids[pruned]}" '@say Later words.'

old readers create audit > "$work/reader.json"
old readers acknowledge audit "$many" 12 > "$work/acknowledged.json"
last=$(old sessions show "${ids[pruned]}" | jq .last_seq)
old readers acknowledge audit "${ids[pruned]}" "$last" > "$work/acknowledged.json"
# The built-in readers follow a moment later.
until [ "$(old journal compact "${ids[pruned]}" --dry-run | jq .dropped)" -gt 5 ]; do :; done
old journal compact "${ids[pruned]}" > "$work/compacted.json"

ids[killed]=$(begin killed '@say Before the kill.')
coproc chat {
    exec env -i HOME="$work/home" MEERKAT_TOOLS__TEST_DIR="$work/tools" \
        "$program" --quiet --json --data-dir "$work/data" chat "${ids[killed]}"
}
chat_pid=$chat_PID
chat_in=${chat[1]} chat_out=${chat[0]}
ask() { echo "$1" >&"$chat_in" && read -r answer <&"$chat_out"; }
read -r answer <&"$chat_out"
ask "/turn --detach '@say Words before the end. @call test_sleep {\"ms\":600000} @say Never.'"
ask '/events 0 --until tool_started'
ask "/turn --policy queue --detach '@say Queued.'"
killed_after=$(jq .seq <<< "$answer")
kill -KILL "$chat_pid"
wait "$chat_pid" || true

# What is left out is the owner's (lock, socket, token), room for a full disk (reserve), or emptied at every start.
rm -rf "$here/data" && mkdir "$here/data"
(cd "$work/data" && find . -type f ! -path ./lock ! -path ./reserve ! -path ./token ! -path './new/*' ! -path './trash/*') |
    while read -r file; do install -D -m 644 "$work/data/$file" "$here/data/$file"; done

data=$work/copy
cp -a "$work/data" "$data"
rm -f "$data/socket"
collect() {
    for name in many fork blobs compacted archived keyed forgetful pruned killed; do
        id=${ids[$name]}
        jq -n --arg name "$name" --arg id "$id" \
            --slurpfile view <(old sessions show "$id") --slurpfile events <(old events "$id" --limit 1000) \
            --slurpfile history <(old sessions history "$id" --limit 1000) \
            --slurpfile queue <(old sessions queue "$id") --slurpfile pins <(old sessions pins "$id") \
            --slurpfile reminders <(old sessions reminders "$id") \
            '{($name): {session_id: $id, view: $view[0], events: $events[0], history: $history[0],
                queue: $queue[0], pins: $pins[0], reminders: $reminders[0]}}'
    done | jq -s add
}
blobs() {
    jq -r '.. | .blob? // empty' <(old sessions history "${ids[blobs]}" --limit 1000) | while read -r blob; do
        old sessions blob "${ids[blobs]}" "$blob" | jq -r .data | base64 -d > "$work/text"
        jq -n --arg blob "$blob" --argjson bytes "$(wc -c < "$work/text")" \
            --arg sha256 "$(sha256sum "$work/text" | cut -d ' ' -f 1)" '{blob: $blob, bytes: $bytes, sha256: $sha256}'
    done | jq -s .
}
jq -n --indent 1 --arg version "$version" --arg deleted "$deleted" --argjson killed_after "$killed_after" \
    --slurpfile sessions <(collect) --slurpfile list <(old sessions list --limit 1000) \
    --slurpfile archived <(old sessions list --archived --limit 1000) \
    --slurpfile readers <(old readers list) \
    --slurpfile unacknowledged <(old readers fetch audit --limit 1000 | jq '[.items[].idempotency_key]') \
    --slurpfile checkpoint <(old readers wait audit "$many" 12) \
    --slurpfile persimmon <(search persimmon) \
    --slurpfile quince <(search quince) \
    --slurpfile blobs <(blobs) --slurpfile doctor <(old doctor) \
    '{version: $version, deleted: $deleted, killed_after: $killed_after, list: $list[0], archived: $archived[0], readers: $readers[0],
        checkpoint: $checkpoint[0], unacknowledged: $unacknowledged[0], memory: {persimmon: $persimmon[0], quince: $quince[0]},
        blobs: $blobs[0], doctor: $doctor[0], sessions: $sessions[0]}' > "$here/expected.json"
