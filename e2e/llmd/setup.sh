#!/bin/sh
# Builds llm-d's sidecar, for tests against the real one: setup.sh DIR VERSION. A module made here requires it, since "go install" asks
# for a list of its versions, which not every module proxy has.
set -eu
dir=$1 version=$2 module=github.com/llm-d/llm-d-inference-scheduler
test -x "$dir/pd-sidecar" && exit 0
mkdir -p "$dir" && cd "$dir"
printf 'module sidecar\n\ngo 1.26\n\nrequire %s v%s\n' "$module" "$version" > go.mod
go build -mod=mod -o pd-sidecar "$module/cmd/pd-sidecar" || { echo "$module $version cannot be had or built" >&2; exit 1; }
