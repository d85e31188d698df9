package doctor

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sightline-router/sightline/app/admin"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/envoy/check"
)

// lookAtLife asks Envoy and Sightline whether they answer. It takes as long as Options.Patience.
func (s *collected) lookAtLife(ctx context.Context) {
	l := &s.Life
	if at := cmp.Or(s.o.Envoy, "http://"+s.Config.Envoy.Admin); s.envoyRead() && strings.Contains(at, "://") {
		l.Envoy = at
		if u, err := url.Parse(at); err == nil {
			l.Here = admin.IsLoopback(u.Host)
		}
		// What Envoy says of its Sightlines counts only if it checks their health.
		if !slices.ContainsFunc(s.Envoy, func(f check.Finding) bool { return f.Name == "sightline_health" }) {
			l.Hosts, l.Healthy = s.envoyNow.Endpoints("sightline", s.sightlines())
		}
	} else if c, err := s.clientOf(cmp.Or(s.o.URL, "http://"+dialable(s.Config.Envoy.Listen))); err == nil && answersAt(c.addr()) {
		l.Envoy, l.Here = c.addr(), true
	}
	addrs := s.sightlines()
	states := make([]string, len(addrs))
	var all sync.WaitGroup
	for i, at := range addrs {
		all.Go(func() { states[i] = greet(ctx, at, s.o.Patience) })
	}
	all.Wait()
	for i, at := range addrs {
		switch states[i] {
		case answered:
			l.Answered = append(l.Answered, at)
		case silent:
			l.Silent = append(l.Silent, at)
		default:
			l.Refused = append(l.Refused, at)
		}
	}
}

// sightlines returns the addresses at which Envoy asks for decisions.
func (s *collected) sightlines() []string {
	if len(s.Config.Envoy.Sightlines) > 0 {
		return s.Config.Envoy.Sightlines
	}
	return []string{dialable(s.Config.Listen)}
}

// dialable replaces a wildcard by this machine's loopback address.
func dialable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return addr
}

// What greet returns.
const (
	answered = "answered"
	silent   = "silent"
	refused  = "refused"
)

// greet reports whether an address answers rules.Greet.
func greet(ctx context.Context, addr string, patience time.Duration) string {
	_, err := rules.Greet(ctx, addr, patience)
	dialled, failed := errors.AsType[*net.OpError](err)
	switch {
	case failed && dialled.Op == "dial":
		return refused
	case isTimeout(err):
		return silent
	}
	return answered
}

// isTimeout reports whether nothing came in time.
func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
