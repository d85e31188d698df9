package stream

import (
	"net"
	"testing"
)

// TestClaimedSocketsAreTheWorkersOwn: where a worker's own answer names its sockets, the dialler itself refuses another host, a
// file, and a port of other services, however the endpoint came there.
func TestClaimedSocketsAreTheWorkersOwn(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	_, port, _ := net.SplitHostPort(lis.Addr().String())
	for _, at := range []string{"ipc:///tmp/x", "tcp://127.0.0.1:" + port, "tcp://localhost:" + port, "tcp://169.254.169.254:80",
		"tcp://127.0.0.2:22", "tcp://[::ffff:127.0.0.1]:" + port, "tcp://127.0.0.2:0",
		"tcp://127.0.0.2:65536", "tcp://127.0.0.2@127.0.0.1:" + port, "tcp://", ""} {
		z := ZMQ{Endpoint: at, ReplayEndpoint: at, Host: "127.0.0.2"}
		run := z.Run(t.Context(), &Feed{})
		replay := z.Replay(t.Context(), 0, nil)
		if run == nil || replay == nil {
			t.Errorf("%q: Run %v, Replay %v; want both refused before a connection", at, run, replay)
		}
	}
}
