package zmq

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Address converts the endpoint that a worker binds into one that can be dialled for data-parallel rank rank. A wildcard host (*,
// 0.0.0.0, ::) becomes host, and the rank is added to the port, as vLLM and SGLang do for publishing and replay. Endpoints that a
// worker lists by rank (GET /kv_event_sources) have their own port already: pass rank 0.
func Address(endpoint, host string, rank int) (string, error) {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		if strings.HasPrefix(endpoint, "ipc://") && rank == 0 {
			return endpoint, nil
		}
		return "", fmt.Errorf("endpoint %q: want tcp://host:port (or ipc://path without ranks)", endpoint)
	}
	at := strings.LastIndexByte(rest, ':')
	if at < 0 {
		return "", fmt.Errorf("endpoint %q: no port (want tcp://host:port, such as tcp://*:5557)", endpoint)
	}
	port, err := strconv.Atoi(rest[at+1:])
	if err != nil || port <= 0 || rank < 0 || port+rank > 65535 {
		return "", fmt.Errorf("endpoint %q, rank %d: no port between 1 and 65535", endpoint, rank)
	}
	bound := strings.Trim(rest[:at], "[]")
	switch bound {
	case "*", "0.0.0.0", "::", "":
		if host == "" {
			return "", fmt.Errorf("endpoint %q: a wildcard cannot be dialled and no host was given", endpoint)
		}
		bound = strings.Trim(host, "[]")
	}
	return "tcp://" + net.JoinHostPort(bound, strconv.Itoa(port+rank)), nil
}

// minClaimedPort is the first port that is dialled because an answer names it: below are other services than engines' sockets.
const minClaimedPort = 1024

// Claimed is Address for an endpoint that a worker's answer, its pod or a record names: it says the port alone, since whoever answers must
// not decide which host or file is dialled. An error says that it is no tcp endpoint, or that its port is below 1024.
func Claimed(endpoint, host string, rank int) (string, error) {
	at := strings.LastIndexByte(endpoint, ':')
	if !strings.HasPrefix(endpoint, "tcp://") {
		return "", fmt.Errorf("endpoint %.100q: want tcp://host:port", endpoint)
	}
	claimed, err := Address("tcp://*"+endpoint[at:], host, rank)
	if err != nil {
		return "", err
	}
	return claimed, CheckClaimed(claimed, host)
}

// CheckClaimed returns an error for an endpoint that is not a tcp port from 1024 of this host.
func CheckClaimed(endpoint, host string) error {
	address, _ := strings.CutPrefix(endpoint, "tcp://")
	got, port, err := net.SplitHostPort(address)
	n, _ := strconv.Atoi(port)
	if err != nil || got != strings.Trim(host, "[]") || n < minClaimedPort {
		return fmt.Errorf("endpoint %.100q is not dialled: want tcp://%s and a port from %d, since a worker names sockets of its own", endpoint,
			host, minClaimedPort)
	}
	return nil
}

// dialable splits an endpoint into the arguments of net.Dial and net.Listen; host replaces a wildcard.
func dialable(endpoint, host string) (network, address string, err error) {
	if path, ok := strings.CutPrefix(endpoint, "ipc://"); ok && path != "" {
		return "unix", path, nil
	}
	endpoint, err = Address(endpoint, host, 0)
	return "tcp", strings.TrimPrefix(endpoint, "tcp://"), err
}
