package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

// life is what answers: Envoy, and Sightline where Envoy asks it. If Envoy answers and Sightline does not, requests go on undecided,
// uncleaned and to any worker, and no client notices.
type life struct {
	envoy    string   // where Envoy answers; "": nowhere
	here     bool     // that is on this machine
	answered []string // addresses of envoy.sightlines, or listen, that answer
	silent   []string // those that take connections and say nothing, and the admin port
	refused  []string // those where nothing listens
	// What Envoy knows of its connections to Sightline: how many it has, how many of them are healthy. 0: it was not asked.
	hosts, healthy int
}

// lookAtLife asks Envoy and Sightline whether they answer. It takes as long as Options.Patience.
func (s *collected) lookAtLife(ctx context.Context) {
	l := &s.life
	if at := cmp.Or(s.o.Envoy, "http://"+s.cfg.Envoy.Admin); s.envoyAsked && strings.Contains(at, "://") && s.envoyErr == nil {
		l.envoy = at
		if u, err := url.Parse(at); err == nil {
			l.here = admin.IsLoopback(u.Host)
		}
		// What Envoy says of its Sightlines counts only if it checks their health.
		if !slices.ContainsFunc(s.envoy, func(f check.Finding) bool { return f.Name == "sightline_health" }) {
			l.hosts, l.healthy = s.envoyNow.Endpoints("sightline", s.sightlines())
		}
	} else if c, err := s.clientOf(cmp.Or(s.o.URL, "http://"+dialable(s.cfg.Envoy.Listen))); err == nil && answersAt(c.addr()) {
		l.envoy, l.here = c.addr(), true
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
			l.answered = append(l.answered, at)
		case silent:
			l.silent = append(l.silent, at)
		default:
			l.refused = append(l.refused, at)
		}
	}
}

// sightlines returns the addresses at which Envoy asks for decisions.
func (s *collected) sightlines() []string {
	if len(s.cfg.Envoy.Sightlines) > 0 {
		return s.cfg.Envoy.Sightlines
	}
	return []string{dialable(s.cfg.Listen)}
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

// dead returns what is wrong if Envoy answers and Sightline does not, or if Sightline is frozen; "": neither is the case.
func (l *life) dead(admin string, running bool) string {
	switch known := l.hosts > 0; {
	case len(l.silent) > 0:
		return fmt.Sprintf("%s takes connections and does not answer: Sightline is frozen, or has no time; requests go on undecided",
			strings.Join(l.silent, ", "))
	case known && l.healthy == 0:
		return fmt.Sprintf("Envoy at %s has no healthy Sightline: requests go anywhere, uncleaned", l.envoy)
	case l.envoy == "" || running || len(l.answered) > 0 || known && !l.here:
		return ""
	}
	return fmt.Sprintf("Envoy answers at %s, and no Sightline at %s nor at admin, %q: requests go anywhere, uncleaned",
		l.envoy, strings.Join(l.refused, ", "), admin)
}

// isTimeout reports whether nothing came in time.
func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
