#!/bin/sh
# Fetches what contract.py needs for one release: setup.sh DIR RELEASE. The wheel's Python files are kept (60 MB), the wheel is not;
# torch, kernels and everything else that is large are not fetched at all.
set -e
dir=$1 release=$2
case $release in # the newest transformers that the release's own requirements allow; 0.30 has no upper bound, and gets 0.31's
0.30.* | 0.31.*) transformers=5.17.0 ;;
0.32.*) transformers=5.19.0 ;;
0.33.*) transformers=5.20.2 ;;
*) echo "contract: vLLM $release is not known here: add its transformers to $0" >&2; exit 2 ;;
esac
[ -d "$dir/vllm" ] || {
  echo "contract: fetching vLLM $release (once)"
  rm -rf "$dir" "$dir.part" && mkdir -p "$dir.part"
  python3 -m pip download -q --disable-pip-version-check --no-deps --no-cache-dir --only-binary :all: -d "$dir.part" "vllm==$release"
  (cd "$dir.part" && python3 -m zipfile -e vllm-*.whl all && find all -type f ! -name '*.py' ! -name '*.json' ! -name '*.jinja' ! -name METADATA -delete)
  rm "$dir.part"/*.whl && mv "$dir.part/all" "$dir" && rm -r "$dir.part"
}
[ -x "$dir/python/bin/python" ] || {
  rm -rf "$dir/python.part" && python3 -m venv "$dir/python.part"
  "$dir/python.part/bin/python" -m pip install -q --disable-pip-version-check "transformers==$transformers" numpy==2.3.5 pillow==13.0.0 blake3==1.0.11 \
    jinja2==3.1.6 pydantic msgspec==0.22.0 pybase64 cbor2 mistral-common==1.13.1 orjson==3.13.0 openai==3.57.0 fastapi psutil cachetools aiohttp \
    prometheus-client cloudpickle anthropic partial-json-parser openai-harmony jsonschema
  mv "$dir/python.part" "$dir/python"
}
