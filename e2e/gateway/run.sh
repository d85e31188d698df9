#!/usr/bin/env bash
# Runs the tests of this folder (make e2e-gateway) against real programs: kube-apiserver with etcd, Envoy Gateway and its
# egctl, Envoy. They are built once from the Go module proxy into SIGHTLINE_CACHE/gateway; on two cores that takes some 7
# minutes for Kubernetes and 10 for Envoy Gateway. etcd is Debian's, or the one in PATH.
#
# Everything runs in a network and a mount namespace of its own, as root: manifests keep their ports, pods have addresses
# of 10.0.0.0/24, the ServiceAccount's files lie where a pod has them, and nothing can leave it. ONLY=regexp chooses tests.
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
tools=${SIGHTLINE_CACHE:-$root/.cache}/gateway
[ "$(uname -s)" = Linux ] && [ "$(id -u)" = 0 ] || { echo "e2e-gateway: wants Linux and root (namespaces)"; exit 1; }
for command in unshare ip mount; do
  command -v $command >/dev/null || { echo "e2e-gateway: $command is missing (packages util-linux, iproute2)"; exit 1; }
done
export CGO_ENABLED=0
mkdir -p "$tools"

if ! command -v etcd >/dev/null && [ ! -x "$tools/etcd/usr/bin/etcd" ]; then
  echo "e2e-gateway: unpacking Debian's etcd"
  mkdir -p "$tools/etcd"
  (cd "$tools/etcd" && { apt-get download -qq etcd-server || { apt-get update -qq && apt-get download -qq etcd-server; }; } && dpkg -x etcd-server_*.deb .)
fi
PATH=$PATH:$tools/etcd/usr/bin

kubernetes=$(cd kubernetes && go list -m -f '{{.Version}}' k8s.io/kubernetes)
bin=$tools/kubernetes-$kubernetes
if [ ! -x "$bin/kubectl" ]; then
  echo "e2e-gateway: building Kubernetes $kubernetes (some minutes)"
  minor=${kubernetes#v1.}
  (cd kubernetes && go build -trimpath -o "$bin/" -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$kubernetes \
    -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=${minor%%.*}" \
    k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kubectl)
fi
PATH=$bin:$PATH

# The programs are of the release whose CRDs e2e/manifests validates with.
envoygateway=$(cd ../manifests && go list -m -f '{{.Version}}' github.com/envoyproxy/gateway)
bin=$tools/envoy-gateway-$envoygateway
if [ ! -x "$bin/egctl" ] || [ ! -x "$bin/envoy-gateway" ]; then
  echo "e2e-gateway: building Envoy Gateway $envoygateway (some minutes)"
  GOBIN=$bin go install -trimpath -ldflags '-s -w' "github.com/envoyproxy/gateway/cmd/"{egctl,envoy-gateway}"@$envoygateway"
fi
PATH=$bin:$PATH
helm=$(cd ../manifests && go list -m -f '{{.Version}}' helm.sh/helm/v3)
bin=$tools/helm-$helm
if [ ! -x "$bin/helm" ]; then
  echo "e2e-gateway: building Helm $helm (two minutes)"
  GOBIN=$bin go install -trimpath -ldflags '-s -w' "helm.sh/helm/v3/cmd/helm@$helm"
fi
PATH=$bin:$PATH
crds() { (cd ../manifests && go mod download "$1" && go list -m -f '{{.Dir}}' "$1"); }
GATEWAY_CRDS=$(crds github.com/envoyproxy/gateway)/charts/gateway-helm/charts/crds/crds
ISTIO_CRDS=$(crds istio.io/api)/kubernetes/customresourcedefinitions.gen.yaml

work=$(mktemp -d)
trap 'rm -rf "$work"; [ -z "${certs:-}" ] || rmdir /certs' EXIT
[ -d /certs ] || { mkdir /certs && certs=1; } # Envoy Gateway knows no other place; what is written there is gone with the namespace
(cd "$root" && go build -o "$work/sightline" ./cmd/sightline)
go test -c -o "$work/gateway.test" .
ENVOY=$(cd "$root" && go run ./cmd/sightline-lab envoy)
export PATH GATEWAY_CRDS ISTIO_CRDS ENVOY SIGHTLINE=$work/sightline SIGHTLINE_GATEWAY=1
cloud() {
  while read -r line; do echo "e2e-gateway: NOT RUN, needs a cluster with nodes or a cloud: $line"; done <<'LIST'
pods of the Deployment: image pull, probes by a kubelet, rollout, eviction, the PodDisruptionBudget at a drain
the HorizontalPodAutoscaler and KEDA, which need metrics of running pods
NetworkPolicies, which a network plugin enforces
addresses of Gateways and Services of type LoadBalancer
Envoy AI Gateway's and KServe's controllers; Istio's control plane (their manifests are validated)
llm-d's charts and guides with GPUs
a ServiceMonitor's scraping by the Prometheus operator
LIST
}
unshare --net --mount --pid --fork --kill-child --mount-proc bash -c '
  set -e
  ip link set lo up
  for n in 11 12 13 20; do ip addr add 10.0.0.$n/32 dev lo; done
  mount -t tmpfs none "$(readlink -f /var/run)"
  mount -t tmpfs none /certs
  exec "$0" -test.v -test.timeout 15m -test.run "${ONLY:-.}"' "$work/gateway.test" || code=$?
cloud
exit ${code:-0}
