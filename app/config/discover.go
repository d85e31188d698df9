package config

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Kubernetes says which EndpointSlices list workers, or which InferencePool selects them. API is needed only outside a
// pod.
type Kubernetes struct {
	API string `yaml:"api"` // such as http://127.0.0.1:8001 of kubectl proxy; default: the pod's own
	// Pool is the name of an InferencePool of Gateway API's Inference Extension. Its pods are asked what they serve, so models need not
	// be given.
	Pool string `yaml:"pool"` // [NAMESPACE/]NAME
	// DeletionCost has the pool's pods annotated with what their removal costs.
	DeletionCost bool              `yaml:"deletion_cost"`
	Workers      []KubernetesGroup `yaml:"workers"`
}

// InferencePool returns the pool's namespace, "" for the pod's own, and its name.
func (k *Kubernetes) InferencePool() (namespace, name string) {
	if namespace, name, both := strings.Cut(k.Pool, "/"); both {
		return namespace, name
	}
	return "", k.Pool
}

// KubernetesGroup is a set of similar workers: where their addresses are listed, and the keys that they share.
type KubernetesGroup struct {
	Namespace string `yaml:"namespace"` // default: the pod's own
	Service   string `yaml:"service"`   // the Service that selects the workers
	Selector  string `yaml:"selector"`  // or: a label selector of EndpointSlices
	Port      string `yaml:"port"`      // name or number; may be omitted if the Service has one port
	Worker    `yaml:",inline"`
}

// LabelSelector returns the selector of the group's EndpointSlices.
func (g *KubernetesGroup) LabelSelector() string {
	if g.Service != "" {
		return "kubernetes.io/service-name=" + g.Service
	}
	return g.Selector
}

// SplitAddr parses a worker's address. If its host is a name, not an IP, name is set and addr is not.
func SplitAddr(text string) (addr netip.AddrPort, name string, port uint16, err error) {
	wrong := fmt.Errorf("%q is not what Envoy can dial (want ip:port, such as 10.0.0.5:8000, or name:port)", text)
	host, p, err := net.SplitHostPort(text)
	n, perr := strconv.ParseUint(p, 10, 16)
	if err != nil || perr != nil || n == 0 || host == "" {
		return addr, "", 0, wrong
	}
	const letters, digits = "abcdefghijklmnopqrstuvwxyz-_", "0123456789."
	ip, err := netip.ParseAddr(host)
	switch {
	case err == nil && ip.Zone() == "" && !ip.IsUnspecified():
		return netip.AddrPortFrom(ip, uint16(n)), "", uint16(n), nil
	case err == nil || len(host) > 253 || strings.Trim(strings.ToLower(host), letters+digits) != "" || strings.Trim(host, digits) == "":
		return addr, "", 0, wrong
	}
	return addr, host, uint16(n), nil
}
