package discover

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/zap"
)

// TestDNS lists each answer of a resolver and what is known after it; "-" for no change.
func TestDNS(t *testing.T) {
	none := &net.DNSError{Err: "no such host", IsNotFound: true}
	broken := &net.DNSError{Err: "server misbehaving", IsTemporary: true}
	steps := []struct {
		addrs []string
		err   error
		want  string
	}{
		{nil, broken, "-"},
		{nil, none, "-"},
		{[]string{"10.0.0.1"}, nil, "=10.0.0.1:80"},
		{[]string{"10.0.0.2", "10.0.0.1"}, nil, "=10.0.0.1:80 =10.0.0.2:80"},
		{[]string{"10.0.0.2"}, nil, "-"}, // perhaps a part of the answer
		{[]string{"10.0.0.1"}, nil, "-"},
		{nil, broken, "-"}, {nil, broken, "-"}, {nil, broken, "-"}, {nil, errors.New("time-out"), "-"},
		{nil, none, "-"}, // second without .2
		{nil, none, "=10.0.0.1:80"},
		{nil, none, ""},
		{[]string{"fd00::1", "::ffff:10.0.0.3"}, nil, "=10.0.0.3:80"},
	}
	ctx, cancel := context.WithCancel(t.Context())
	at, got := -1, "-"
	d := &DNS{Host: "vllm", Port: 80, Every: time.Microsecond, Log: zap.NewNop(), Lookup: func(_ context.Context,
		host string) ([]netip.Addr, error) {
		if at >= 0 && got != steps[at].want {
			t.Errorf("step %d: %q, want %q", at, got, steps[at].want)
		}
		got = "-"
		at++
		if at == len(steps) || host != "vllm" {
			cancel()
			return nil, context.Canceled
		}
		var out []netip.Addr
		for _, a := range steps[at].addrs {
			out = append(out, netip.MustParseAddr(a))
		}
		return out, steps[at].err
	}}
	d.Follow(ctx, func(list []Endpoint) { got = show(list) })
	if at != len(steps) {
		t.Errorf("%d look-ups, want %d", at, len(steps))
	}
}
