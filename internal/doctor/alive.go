package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/internal/admin"
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
		s.askEnvoyOfSightline(ctx, at)
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

// preface is what an HTTP/2 client sends first: its magic and empty settings.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// greet reports whether an address answers anything, an HTTP/2 server its settings, a TLS server an alert: no key or certificate is
// needed to see that a process lives. The kernel accepts connections for a process that is stopped.
func greet(ctx context.Context, addr string, patience time.Duration) string {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	network := "tcp"
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		network, addr = "unix", path
	}
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return refused
	}
	defer c.Close()
	end, _ := ctx.Deadline()
	_ = c.SetDeadline(end)
	_, _ = io.WriteString(c, preface)
	if _, err := c.Read(make([]byte, 1)); isTimeout(err) {
		return silent
	}
	return answered
}

// askEnvoyOfSightline asks Envoy's admin page whether it has a healthy Sightline. What it says counts only if it checks their health.
func (s *collected) askEnvoyOfSightline(ctx context.Context, at string) {
	for _, f := range s.envoy {
		if f.Name == "sightline_health" {
			return
		}
	}
	var said struct {
		Clusters []struct {
			Name  string `json:"name"`
			Hosts []struct {
				Address struct {
					Socket struct {
						Address string `json:"address"`
						Port    int    `json:"port_value"`
					} `json:"socket_address"`
				} `json:"address"`
				Health map[string]any `json:"health_status"`
			} `json:"host_statuses"`
		} `json:"cluster_statuses"`
	}
	if getJSON(ctx, rules.NewClient(s.o.Patience, nil), strings.TrimRight(at, "/")+"/clusters?format=json", "", &said) != nil {
		return
	}
	addrs := s.sightlines()
	for _, c := range said.Clusters {
		for _, h := range c.Hosts {
			addr := net.JoinHostPort(h.Address.Socket.Address, fmt.Sprint(h.Address.Socket.Port))
			if c.Name != "sightline" && !slices.Contains(addrs, addr) {
				continue
			}
			s.life.hosts++
			if eds, _ := h.Health["eds_health_status"].(string); len(h.Health) == 0 || len(h.Health) == 1 && eds == "HEALTHY" {
				s.life.healthy++
			}
		}
	}
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
