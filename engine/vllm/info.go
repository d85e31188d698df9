package vllm

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/indexer/source/zmq"
)

// EventSource is what a server answers about one rank's events (GET /kv_event_sources, from 0.31 on).
type EventSource struct {
	Enabled   bool   `json:"enable_kv_cache_events"`
	Publisher string `json:"publisher"`
	Pub       string `json:"endpoint"` // as the rank binds it, such as tcp://*:5557; the port is the rank's own
	Replay    string `json:"replay_endpoint"`
	Topic     string `json:"topic"`
}

// FetchEventSource asks the server at addr (host:port) where a rank publishes. The endpoints that it returns can be dialled on
// host; Replay is "" if there is no replay socket. A server that publishes nothing is rules.ErrNoEvents.
func FetchEventSource(ctx context.Context, client *http.Client, addr, host string, rank int) (s EventSource, err error) {
	var ranks map[string]EventSource
	if err := rules.GetJSON(ctx, client, addr, "/kv_event_sources", "vLLM 0.31", &ranks); err != nil {
		return s, err
	}
	s, ok := ranks[strconv.Itoa(rank)]
	if !ok && len(ranks) > 0 {
		return s, fmt.Errorf("GET /kv_event_sources: %d ranks, rank %d is none of them (is ranks of the worker its data-parallel size?)", len(ranks), rank)
	}
	if !s.Enabled || s.Publisher != "zmq" {
		return s, rules.ErrNoEvents
	}
	if s.Pub, err = onHost(host, s.Pub); err == nil && s.Replay != "" {
		s.Replay, err = onHost(host, s.Replay)
	}
	return s, err
}

// onHost moves an endpoint to another host and keeps its port: the bound host is often a wildcard, and an answer must not
// decide which host we connect to.
func onHost(host, endpoint string) (string, error) {
	at := strings.LastIndexByte(endpoint, ':')
	if !strings.HasPrefix(endpoint, "tcp://") {
		return "", fmt.Errorf("endpoint %.100q: want tcp://host:port", endpoint)
	}
	return zmq.Address("tcp://*"+endpoint[at:], host, 0)
}
