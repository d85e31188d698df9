package sglang

import (
	"context"
	"net"
	"net/http"
	"strconv"

	"github.com/sightline-router/sightline/engine/rules"
)

// ServerInfo is what a server answers about its KV events (GET /server_info, member kv_events; SGLang 0.5.23). The answer also
// has the server's API keys: nothing else of it is read, and none of it may be logged.
type ServerInfo struct {
	Publisher string `json:"publisher"`
	Port      int    `json:"endpoint_port_base"` // rank 0's; rank r has port + r
	Replay    int    `json:"replay_endpoint_port_base"`
	Topic     string `json:"topic"`
	BlockSize int    `json:"block_size"` // the page size
	Ranks     int    `json:"dp_size"`
}

// FetchServerInfo asks the server at addr (host:port). One that publishes nothing is rules.ErrNoEvents.
func FetchServerInfo(ctx context.Context, client *http.Client, addr string) (info ServerInfo, err error) {
	var all struct {
		Events *ServerInfo `json:"kv_events"`
	}
	if err := rules.GetJSON(ctx, client, addr, "/server_info", "SGLang 0.5.22", &all); err != nil {
		return info, err
	}
	if all.Events == nil || all.Events.Publisher != "zmq" || all.Events.Port < 1 || all.Events.Port > 65535 {
		return info, rules.ErrNoEvents
	}
	return *all.Events, nil
}

// Endpoints are a rank's sockets on a worker's host; replay is "" if it has none. The host that the worker binds is not used,
// because it is often a wildcard.
func (i ServerInfo) Endpoints(host string, rank int) (pub, replay string) {
	pub = "tcp://" + net.JoinHostPort(host, strconv.Itoa(i.Port+rank))
	if i.Replay > 0 {
		replay = "tcp://" + net.JoinHostPort(host, strconv.Itoa(i.Replay+rank))
	}
	return pub, replay
}
