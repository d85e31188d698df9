#!/usr/bin/env bash
# The example's own variables, those that have a meaning here: MODEL, NUM_WORKERS, BLOCK_SIZE, API_PORT.
WORKERS=${NUM_WORKERS:-2} BLOCK_SIZE=${BLOCK_SIZE:-32} HTTP_PORT=${API_PORT:-24000} WORKER_PORT=$((${API_PORT:-24000} + 10)) EVENTS_PORT=$((${API_PORT:-24000} + 40))
. "$(dirname "$0")/../simulated.sh"
