#!/bin/bash
# Runs `make bench-fleet` before real vLLM servers with random weights on this machine's GPUs: gpu.sh DIR VERSION MODEL_DIR [COMMAND…].
#
#   DIR        where vLLM is installed from pip (once; about 10 GB), and where the servers' logs are
#   MODEL_DIR  tokenizer, template and configurations of Qwen2.5-VL; the sizes are those of the 7B model, or what SIZES (JSON) says
#   SERVERS=2  servers, spread over the GPUs that nvidia-smi lists (two on one card share it)
#   KV=8589934592  bytes of KV cache of each server
#   PYTHON     another Python that has vLLM;  FLAGS  more flags of `vllm serve`
#   COMMAND    what to run then, with WORKERS and MODEL_DIR in its environment; without one, the servers run until they are interrupted
set -eu
dir=$1 version=$2 model=$3
shift 3
servers=${SERVERS:-2} kv=${KV:-8589934592}
python=${PYTHON:-$dir/bin/python}
if [ ! -x "$python" ]; then
	python3 -m venv "$dir" && "$dir/bin/pip" install -q --disable-pip-version-check "vllm==$version"
fi
gpus=$(nvidia-smi --list-gpus 2> /dev/null | wc -l)
mkdir -p "$dir/model" "$dir/log"
cp "$model"/*.json "$model"/*.jinja "$dir/model/"
SIZES=${SIZES:-} "$python" - "$dir/model" <<'PY'
import json, os, sys
sizes = json.loads(os.environ["SIZES"] or """{"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
 "num_key_value_heads": 4, "max_window_layers": 28, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
 "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "rope_theta": 1000000.0,
 "vision_config": {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584,
  "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31]}}""")
def change(name, values):
    path = os.path.join(sys.argv[1], name)
    with open(path) as f:
        all = json.load(f)
    for key, value in values.items():
        all[key] = {**all.get(key, {}), **value} if key == "vision_config" else value
    with open(path, "w") as f:
        json.dump(all, f)
change("config.json", sizes)
change("preprocessor_config.json", {"max_pixels": 1280 * 28 * 28})  # else a server's start measures itself with an image of 16,384 tokens
PY
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
pids=() workers=
trap 'kill "${pids[@]}" 2> /dev/null; wait' EXIT
share=$(awk "BEGIN { s = $servers; g = $gpus > 0 ? $gpus : 1; n = int((s + g - 1) / g); print 0.9 / n }")
for i in $(seq 0 $((servers - 1))); do
	[ "$gpus" = 0 ] || export CUDA_VISIBLE_DEVICES=$((i % gpus))
	# shellcheck disable=SC2086
	"$python" -m vllm.entrypoints.cli.main serve "$dir/model" --served-model-name bench --host 127.0.0.1 --port $((18001 + i)) --load-format dummy --seed "$i" \
		--block-size 16 --max-model-len 16384 --gpu-memory-utilization "$share" --kv-cache-memory-bytes "$kv" --limit-mm-per-prompt '{"image": 8, "video": 0}' \
		--generation-config vllm --enable-prompt-tokens-details ${FLAGS:-} --kv-events-config "{\"enable_kv_cache_events\": true,
		\"publisher\": \"zmq\", \"endpoint\": \"tcp://*:$((15601 + i))\", \"replay_endpoint\": \"tcp://*:$((15701 + i))\"}" > "$dir/log/$i.log" 2>&1 &
	pids+=($!)
	workers=${workers:+$workers,}127.0.0.1:$((18001 + i))
done
for i in $(seq 0 $((servers - 1))); do
	until curl -sf "http://127.0.0.1:$((18001 + i))/health" > /dev/null; do
		kill -0 "${pids[$i]}" 2> /dev/null || { echo "server $i ended:" >&2; tail -n 20 "$dir/log/$i.log" >&2; exit 1; }
		sleep 2
	done
done
echo "bench-gpu: $servers servers (vLLM, random weights) on ${gpus} GPUs: $(nvidia-smi --query-gpu=name --format=csv,noheader 2> /dev/null | sort | uniq -c | tr -s ' \n' ' ')"
export WORKERS=$workers MODEL_DIR=$dir/model
if [ $# -gt 0 ]; then "$@"; else echo "WORKERS=$WORKERS MODEL_DIR=$MODEL_DIR"; wait; fi
