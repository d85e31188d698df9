#!/usr/bin/env bash
# One streaming chat request: ping.sh [host:port]
curl -sN "http://${1:-127.0.0.1:24100}/v1/chat/completions" -H 'content-type: application/json' \
  -d '{"model":"sim-vl","stream":true,"max_tokens":16,"messages":[{"role":"user","content":"ping"}]}'
