#!/usr/bin/env bash
# One worker is what the example starts; NUM_WORKERS makes more. The simulated workers tell their cache as trtllm-serve does.
WORKERS=${NUM_WORKERS:-1} BLOCK_SIZE=${BLOCK_SIZE:-32} HTTP_PORT=${HTTP_PORT:-24300} WORKER_PORT=$((${HTTP_PORT:-24300} + 10)) EVENTS_PORT=$((${HTTP_PORT:-24300} + 40))
ENGINE=trtllm
. "$(dirname "$0")/../simulated.sh"
