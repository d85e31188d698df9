package serve

import (
	"context"
	"io"
	"net"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/sightline-router/sightline/indexer/source/bus"
)

// TestAgentCountsRefusals checks that a NATS server that refuses an agent shows on the agent's page, at once and for every
// attempt.
func TestAgentCountsRefusals(t *testing.T) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, Username: "router", Password: "secret", NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("the NATS server does not start, want s.ReadyForConnections(20 * time.Second)")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	admin := l.Addr().String()
	_ = l.Close()
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- Agent(ctx, AgentOptions{Worker: "w", Engine: "vllm", ZMQ: "tcp://127.0.0.1:1", Admin: admin,
			NATS: bus.Access{URL: s.ClientURL()}})
	}()
	defer func() {
		end()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	refused := regexp.MustCompile(`(?m)^sightline_agent_nats_refused_total\{rank="0"\} [1-9]`)
	page := []byte("nothing")
	for until := time.Now().Add(2 * time.Minute); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		answer, err := http.Get("http://" + admin + "/metrics")
		if err != nil {
			continue
		}
		page, _ = io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if refused.Match(page) {
			return
		}
	}
	t.Errorf("got %s, want a refusal counted", page)
}
