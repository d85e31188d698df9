#!/usr/bin/env bash
# Takes the flags of the example that it replaces. Those without a meaning here are taken and named.
set -euo pipefail
WORKERS=2 BLOCK_SIZE=32 HTTP_PORT=24100 EVENTS_PORT=24140 METRICS_PORT=24180 ENGINE=standalone
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || { echo "$1: want a value" >&2; exit 2; }
  case $1 in
    --num-workers) WORKERS=$2 ;;
    --block-size) BLOCK_SIZE=$2 ;;
    --http-port) HTTP_PORT=$2 ;;
    --base-kv-events-port) EVENTS_PORT=$2 ;;
    --base-metrics-port) METRICS_PORT=$2 ;;
    --model | --model-type | --router-port) echo "$1 has no meaning with simulated workers (README.md)" >&2 ;;
    *) echo "$1: not known" >&2; exit 2 ;;
  esac
  shift 2
done
WORKER_PORT=$((HTTP_PORT + 10))
. "$(dirname "$0")/../simulated.sh"
