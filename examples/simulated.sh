# Sourced by the run.sh of the examples: simulated workers, Sightline and Envoy on loopback, as many and at the ports that
# the example's own variables say. Sends one conversation with an image twice and fails unless the second time finds it
# cached. STAY=1 keeps everything running until Ctrl-C.
#
#   WORKERS BLOCK_SIZE HTTP_PORT WORKER_PORT EVENTS_PORT  how many; tokens a block; clients come in; first of n ports each
#   MODEL                                                 what clients call the model: sim-vl
#   ENGINE METRICS_PORT                                   vllm, trtllm, or standalone with its first port of load
#   ENGINE_BLOCK_SIZE                                     what the workers have, to see what Sightline says of a wrong BLOCK_SIZE
set -euo pipefail
: "${MODEL:=sim-vl}" "${ENGINE:=vllm}" "${METRICS_PORT:=0}" "${ENGINE_BLOCK_SIZE:=$BLOCK_SIZE}"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
: "${SIGHTLINE:=$here/../bin/sightline}" "${SIGHTLINE_LAB:=$(dirname "$SIGHTLINE")/sightline-lab}"
for binary in "$SIGHTLINE" "$SIGHTLINE_LAB"; do
  [ -x "$binary" ] || { echo "no $binary (make build, or SIGHTLINE=path of sightline, with sightline-lab beside it or at SIGHTLINE_LAB)" >&2; exit 2; }
done
work=$(mktemp -d)
pids=()
cleanup() {
  [ ${#pids[@]} = 0 ] || { kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null || true; }
  rm -rf "$work"
}
trap cleanup EXIT
start() { "$@" >>"$work/log" 2>&1 & pids+=($!); }
fail() { echo "$1" >&2; tail -n 20 "$work/log" >&2; exit 1; }
model=$here/models/qwen2.5-vl
admin=127.0.0.1:$((HTTP_PORT + 1))

{
  echo "listen: unix:$work/s"
  echo "admin: $admin"
  echo "drain: 0s"
  echo "models: [{name: \"$MODEL\", dir: $model, block_size: $BLOCK_SIZE$([ $ENGINE = vllm ] || echo ", engine: trtllm, engine_version: 1.3.0")}]"
  echo "envoy: {listen: \"127.0.0.1:$HTTP_PORT\", admin: \"127.0.0.1:$((HTTP_PORT + 2))\"}"
  echo "workers:"
} >"$work/sightline.yaml"
for ((i = 0; i < WORKERS; i++)); do
  addr=127.0.0.1:$((WORKER_PORT + i)) events=127.0.0.1:$((EVENTS_PORT + i)) replay=127.0.0.1:$((EVENTS_PORT + WORKERS + i))
  start "$SIGHTLINE_LAB" worker-sim --model-dir "$model" --served-name "$MODEL" --listen "$addr" --events "$events" --replay "$replay" --block-size "$ENGINE_BLOCK_SIZE" --engine $ENGINE --load 127.0.0.1:$((METRICS_PORT + i))
  case $ENGINE in
    vllm) echo "  - {name: worker-$i, addr: \"$addr\", events: {zmq: \"tcp://$events\", replay: \"tcp://$replay\"}}" ;;
    standalone) echo "  - {name: worker-$i, addr: \"$addr\", events: {zmq: \"tcp://$events\", load: \"tcp://127.0.0.1:$((METRICS_PORT + i))\"}}" ;;
    trtllm) echo "  - {name: worker-$i, addr: \"$addr\", events: {http: \"http://$addr\"}}" ;;
  esac >>"$work/sightline.yaml"
done
start "$SIGHTLINE" serve --config "$work/sightline.yaml"
"$SIGHTLINE" envoy --config "$work/sightline.yaml" >"$work/envoy.yaml"
envoy=$("$SIGHTLINE_LAB" envoy) || fail "no Envoy"
start "$envoy" -c "$work/envoy.yaml" --disable-hot-restart --concurrency 2

# Live workers, and an Envoy that has found Sightline healthy.
ready() {
  [ "$(curl -sf "http://$admin/workers" | grep -o '"events":"live"' | wc -l)" = "$WORKERS" ] &&
    curl -sf "http://127.0.0.1:$((HTTP_PORT + 2))/stats?filter=cluster.sightline.membership_healthy" | grep -q ': 1'
}
for ((i = 0; ; i++)); do
  ready && break
  [ $i -lt 300 ] || fail "not ready after 30 s"
  sleep 0.1
done

image=$(base64 <"$here/picture.png" | tr -d "\n")
ask() {
  curl -sf "http://127.0.0.1:$HTTP_PORT/v1/chat/completions" -H 'content-type: application/json' -d '{"model":"'"$MODEL"'","max_tokens":4,"messages":[
    {"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,'"$image"'"}},{"type":"text","text":"What is this?"}]}]}' ||
    fail "a request failed"
}
cached() { grep -o '"cached_tokens":[0-9]*' | head -n 1 | cut -d: -f2; }
curl -sf "http://127.0.0.1:$HTTP_PORT/health" >/dev/null || fail "/health is not answered"
curl -sf "http://127.0.0.1:$HTTP_PORT/v1/models" | grep -qF "\"$MODEL\"" || fail "/v1/models does not name $MODEL"
first=$(ask | cached)
for ((i = 0; i < 200; i++)); do # Envoy tells of an end 20 ms later; until then an idle worker is the better choice
  curl -sf "http://$admin/workers" | grep -oE '"(in_flight|backlog_tokens)":[^,}]*' | grep -qv ':0$' || break
  sleep 0.05
done
second=$(ask | cached)
echo "the same image twice: $first tokens cached, then $second"
other=$(curl -sf "http://$admin/workers" | grep -o '"other_block_size":[0-9]*' | head -n 1 | cut -d: -f2 || true)
if [ -n "$other" ]; then
  for ((i = 0; i < 100; i++)); do grep -q SL0107 "$work/log" && break || sleep 0.1; done # what Sightline says of it
  grep SL0107 "$work/log" | head -n 1
  echo "BLOCK_SIZE is $BLOCK_SIZE, but the workers' events carry blocks of $other tokens: theirs are used"
fi
[ "$second" -ge 64 ] || fail "the second request did not find the image"
if [ -n "${STAY:-}" ]; then
  echo "clients: http://127.0.0.1:$HTTP_PORT  Sightline's page: http://$admin  (Ctrl-C ends it)"
  wait "${pids[0]}"
fi
