#!/usr/bin/env bash
# The example's own variables, those that have a meaning here: MODEL, NUM_WORKERS, BLOCK_SIZE, HTTP_PORT.
WORKERS=${NUM_WORKERS:-2} BLOCK_SIZE=${BLOCK_SIZE:-16} HTTP_PORT=${HTTP_PORT:-24200} WORKER_PORT=$((${HTTP_PORT:-24200} + 10)) EVENTS_PORT=$((${HTTP_PORT:-24200} + 40))
. "$(dirname "$0")/../simulated.sh"
