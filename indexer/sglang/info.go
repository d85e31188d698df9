package sglang

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
)

// ServerInfo is what a worker tells of its KV events (GET /server_info, member kv_events; SGLang 0.5.23). The answer also
// holds the server's API keys: nothing else of it is read, and none of it may be logged.
type ServerInfo struct {
	Publisher string `json:"publisher"`
	Port      int    `json:"endpoint_port_base"` // of rank 0; rank r is at port + r
	Replay    int    `json:"replay_endpoint_port_base"`
	Topic     string `json:"topic"`
	BlockSize int    `json:"block_size"` // the page size
	Ranks     int    `json:"dp_size"`
}

// ErrNoEvents says that a worker publishes no events: it was started without --kv-events-config, or not over TCP.
var ErrNoEvents = errors.New("the worker publishes no KV events (start it with --kv-events-config)")

const maxInfo = 4 << 20

// Ask asks the worker at addr (host:port).
func Ask(ctx context.Context, client *http.Client, addr string) (info ServerInfo, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/server_info", nil)
	if err != nil {
		return info, err
	}
	res, err := client.Do(req)
	if err != nil {
		return info, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return info, fmt.Errorf("GET /server_info: status %d (want 200; SGLang 0.5.22 or later has it)", res.StatusCode)
	}
	var all struct {
		Events *ServerInfo `json:"kv_events"`
	}
	if json.NewDecoder(io.LimitReader(res.Body, maxInfo)).Decode(&all) != nil { // its text may quote what was sent
		return info, errors.New("GET /server_info: no JSON object of less than 4 MiB")
	}
	if all.Events == nil || all.Events.Publisher != "zmq" || all.Events.Port < 1 || all.Events.Port > 65535 {
		return info, ErrNoEvents
	}
	return *all.Events, nil
}

// Endpoints are a rank's sockets on a worker's host; replay is "" if it has none. The host that the worker binds is often
// a wildcard, so it is never used.
func (i ServerInfo) Endpoints(host string, rank int) (pub, replay string) {
	pub = "tcp://" + net.JoinHostPort(host, strconv.Itoa(i.Port+rank))
	if i.Replay > 0 {
		replay = "tcp://" + net.JoinHostPort(host, strconv.Itoa(i.Replay+rank))
	}
	return pub, replay
}
