#!/usr/bin/env bash
# Runs examples/compose on a Docker engine and its tests (this folder's). No image is pulled: Envoy's comes from the
# Envoy binary and the libraries that it names, the others from Go builds, all FROM scratch.
#
# Exit status: 0 passed, 3 no Docker engine could be had (the last line says why), anything else failed.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
work=$(mktemp -d)
engine=
cleanup() {
  if [ -n "${up:-}" ]; then compose down --volumes --timeout 1 >>"$work/log" 2>&1 || true; fi
  if [ -n "$engine" ]; then kill "$engine" 2>/dev/null && wait "$engine" 2>/dev/null || true; fi
  rm -rf "$work"
}
trap cleanup EXIT
missing() { echo "compose: NOT RUN ($1)"; exit 3; }

# A running engine, or one of our own with its files in a temporary place.
if ! docker info >/dev/null 2>&1; then
  [ "$(uname -s)" = Linux ] || missing "no Docker engine runs"
  [ "$(id -u)" = 0 ] || missing "no Docker engine runs, and starting one needs root"
  if ! command -v dockerd >/dev/null || ! command -v docker >/dev/null; then
    command -v apt-get >/dev/null || missing "no Docker engine is installed"
    echo "compose: installing a Docker engine"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends docker.io iptables docker-compose; } >"$work/log" 2>&1 ||
      missing "a Docker engine could not be installed: $(tail -n 1 "$work/log")"
  fi
  export DOCKER_HOST=unix://$work/docker.sock
  dockerd --data-root "$work/data" --exec-root "$work/exec" -H "$DOCKER_HOST" -p "$work/pid" >"$work/dockerd.log" 2>&1 &
  engine=$!
  for _ in $(seq 100); do
    docker info >/dev/null 2>&1 && break
    kill -0 "$engine" 2>/dev/null || break
    sleep 0.2
  done
  docker info >/dev/null 2>&1 || missing "a Docker engine does not start here: $(tail -n 1 "$work/dockerd.log")"
fi
if docker compose version >/dev/null 2>&1; then
  compose() { docker compose "$@"; }
  export COMPOSE="docker compose"
elif command -v docker-compose >/dev/null; then
  compose() { docker-compose "$@"; }
  export COMPOSE="docker-compose"
else
  missing "docker has no compose (want the plugin, or docker-compose)"
fi

echo "compose: building images"
image() { docker build -q -t "$1" "$2" >>"$work/log" 2>&1 || { tail -n 20 "$work/log"; exit 1; }; }
export CGO_ENABLED=0
mkdir -p "$work/sightline" "$work/nats" "$work/envoy/root/usr/local/bin"
go build -trimpath -ldflags '-s -w' -o "$work/sightline/" ./cmd/...
# The last stage of our own Dockerfile, with what its first stage makes.
sed -n '/^FROM scratch/,$ { s/--from=build //; p }' Dockerfile >"$work/sightline/Dockerfile"
mkdir -p "$work/sightline/etc/ssl/certs" "$work/sightline/empty/sightline"
touch "$work/sightline/etc/ssl/certs/ca-certificates.crt"
go build -trimpath -ldflags '-s -w' -o "$work/nats/nats-server" github.com/nats-io/nats-server/v2
printf 'FROM scratch\nCOPY nats-server /nats-server\nENTRYPOINT ["/nats-server"]\n' >"$work/nats/Dockerfile"
binary=$(SIGHTLINE_CACHE=${SIGHTLINE_CACHE:-$root/.cache} "$work/sightline/sightline-lab" envoy)
cp -L "$binary" "$work/envoy/root/usr/local/bin/envoy"
mkdir -p "$work/envoy/root/bin"
cp -L "$(command -v bash)" "$(command -v sleep)" "$(command -v cat)" "$work/envoy/root/bin/"
ldd "$binary" /bin/bash /bin/sleep /bin/cat | grep -o '/[^ :]*\.so[^ :]*' | sort -u | while read -r lib; do
  mkdir -p "$work/envoy/root$(dirname "$lib")"
  cp -L "$lib" "$work/envoy/root$lib"
done
printf 'FROM scratch\nCOPY root/ /\nENV PATH=/usr/local/bin:/bin\n' >"$work/envoy/Dockerfile"
export SIGHTLINE_IMAGE=sightline:e2e NATS_IMAGE=nats:e2e ENVOY_IMAGE=envoy:e2e
image "$SIGHTLINE_IMAGE" "$work/sightline"
image "$NATS_IMAGE" "$work/nats"
image "$ENVOY_IMAGE" "$work/envoy"

export COMPOSE_PROJECT_NAME=sightline-e2e COMPOSE_FILE=$root/examples/compose/docker-compose.yml
export ENVOY_PORT=${ENVOY_PORT:-21000} SIGHTLINE_PORT=${SIGHTLINE_PORT:-21002}
echo "compose: starting"
up=1
compose up -d >>"$work/log" 2>&1 || { tail -n 20 "$work/log"; exit 1; }
SIGHTLINE_COMPOSE=1 go test -count=1 -timeout 5m -v ./e2e/compose >"$work/test" 2>&1 || { # what failed comes last
  compose ps
  compose logs --tail 20 --no-color
  cat "$work/test"
  exit 1
}
cat "$work/test"
