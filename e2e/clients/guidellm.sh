#!/bin/sh
# guidellm sends the first requests of a trace with images, twice, streamed: guidellm.sh URL MODEL IMAGE.
set -e
traces=$PWD/../examples/traces tokenizer=$PWD/../examples/models/qwen2.5-vl work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 "$traces/load.py" "$traces/images.jsonl.gz" --to guidellm -n 6 > once
cat once once > requests.jsonl
"$CLIENTS/guidellm/bin/guidellm" run --backend "kind=openai_http,target=$1,model=$2" --profile kind=synchronous \
  --constraint kind=max_requests,count=12 --data kind=json_file,path=requests.jsonl --tokenizer "kind=hf_auto,model=$tokenizer"
