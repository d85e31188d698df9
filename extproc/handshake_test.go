package extproc

import (
	"context"
	"net"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sightline-router/sightline/internal/secure"
)

// A client without TLS at a listener with it is logged once.
func TestFailedHandshakesAreLogged(t *testing.T) {
	config, err := (&secure.Listener{Cert: secure.SelfSigned}).Config(zap.NewNop(), "h2")
	if err != nil {
		t.Fatal(err)
	}
	core, logged := observer.New(zap.WarnLevel)
	s, err := New(always(pick), nil, Options{TLS: config, Log: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	lis, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, lis) }()
	for range 3 {
		c, err := net.Dial("tcp", lis.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		for one := make([]byte, 64); err == nil; { // until the server closes it
			_, err = c.Read(one)
		}
		c.Close()
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	list := logged.FilterMessageSnippet("a TLS handshake failed at listen").All()
	if len(list) != 1 || list[0].ContextMap()["client"] == "" {
		t.Errorf(`logged: got %v, want len(list) == 1, list[0].ContextMap()["client"] != ""`, logged.All())
	}
}
