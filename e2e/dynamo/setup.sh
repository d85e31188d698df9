#!/bin/sh
# Installs NVIDIA Dynamo's runtime, front end and mock workers, for tests against real processes: setup.sh DIR VERSION.
# About 0.7 GB; no GPU, etcd or NATS is needed.
set -eu
dir=$1 version=$2
test -e "$dir/ready" && exit 0
rm -rf "$dir" && mkdir -p "$dir"
for python in python3.12 python3.11 python3; do "$python" -c '' 2> /dev/null && break; done
"$python" -m venv "$dir"
pip="$dir/bin/pip install -q --disable-pip-version-check"
$pip "ai-dynamo-runtime==$version" && $pip --no-deps "ai-dynamo==$version" || { # it asks for a placeholder that is on no public index
	echo "ai-dynamo $version cannot be had from the package index" >&2; exit 1; }
$pip aiohttp msgspec prometheus-client pyzmq zstandard tqdm transformers msgpack nats-py redis 'kubernetes<33' pillow xxhash 'pydantic<=2.13.5' uvloop
touch "$dir/ready"
