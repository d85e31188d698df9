#!/bin/sh
# aiperf sends the first requests of a trace with images, twice, streamed: aiperf.sh URL MODEL IMAGE.
set -e
traces=$PWD/../examples/traces tokenizer=$PWD/../examples/models/qwen2.5-vl work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 "$traces/load.py" "$traces/images.jsonl.gz" --to aiperf -n 6 > once
cat once once > requests.jsonl
"$CLIENTS/aiperf/bin/aiperf" profile --model "$2" --url "$1" --endpoint-type chat --streaming --custom-dataset-type mooncake_trace \
  --input-file requests.jsonl --concurrency 1 --tokenizer "$tokenizer" --ui none --artifact-dir out
