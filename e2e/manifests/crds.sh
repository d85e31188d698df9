#!/bin/sh
# Copies the CRDs that other projects' kinds are validated by out of their Go modules: crds.sh DIR. One that cannot be had is named, and
# only its kinds are not validated.
set -u
mkdir -p "$1" && dir=$(cd "$1" && pwd) && cd "$dir" || exit 1

take() { # MODULE FOLDER FILE-PREFIX NAME…
  module=$1 from=$2 prefix=$3; shift 3
  missing=
  for name; do [ -s "crd_$name.yaml" ] || missing=$name; done
  [ -n "$missing" ] || return 0
  at=$(GOFLAGS=-mod=mod go mod download -json "$module" 2>/dev/null | sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p')
  [ -n "$at" ] || { echo "crds: $module cannot be had"; return; }
  for name; do
    cp "$at/$from/${prefix}_$name.yaml" "crd_$name.yaml" && chmod u+w "crd_$name.yaml"
  done
}

gateway=sigs.k8s.io/gateway-api-inference-extension
take $gateway@v1.6.0 config/crd/bases inference.networking.k8s.io inferencepools
# 1.6 has these no more; llm-d has them as llm-d.ai, in no Go module that proxies have.
take $gateway@v1.5.0 config/crd/bases inference.networking.x-k8s.io inferenceobjectives inferencemodelrewrites
take github.com/envoyproxy/ai-gateway@v1.0.0 manifests/charts/ai-gateway-crds-helm/templates aigateway.envoyproxy.io aigatewayroutes aiservicebackends
take github.com/kserve/kserve@v0.20.0 config/crd/full/llmisvc serving.kserve.io llminferenceservices llminferenceserviceconfigs
