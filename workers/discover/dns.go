package discover

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/internal/retry"
)

// DNS follows the addresses behind a name, such as a compose service or a headless Service. If a name has IPv4 and IPv6
// addresses, only the IPv4 ones are used, since both usually lead to the same servers.
type DNS struct {
	Host   string
	Port   uint16
	Every  time.Duration                                                // interval of lookups; 0: 5 s
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error) // nil: the system's resolver
	Log    *zap.Logger

	failing atomic.Pointer[error]
}

// Failing returns why the name does not resolve now; nil: it does, or has not been looked up yet.
func (d *DNS) Failing() error {
	if err := d.failing.Load(); err != nil {
		return *err
	}
	return nil
}

// missesToRemove is how many answers in a row must lack an address before it is removed: a balancing server returns a part each time.
const missesToRemove = 3

const lookupTime = 5 * time.Second

// Follow calls found with the whole set after each change, until ctx ends. A lookup that fails changes nothing; a name that does
// not exist counts as an answer without addresses.
func (d *DNS) Follow(ctx context.Context, found func([]Endpoint)) {
	every, lookup := d.Every, d.Lookup
	if every <= 0 {
		every = 5 * time.Second
	}
	if lookup == nil {
		lookup = Lookup
	}
	absent := make(map[netip.Addr]int) // answers since an address was last seen
	said := ""
	for ctx.Err() == nil {
		within, cancel := context.WithTimeout(ctx, lookupTime)
		addrs, err := lookup(within, d.Host)
		cancel()
		if err == nil {
			d.failing.Store(nil)
		} else if ctx.Err() == nil {
			d.failing.Store(&err)
		}
		var not *net.DNSError
		if none := errors.As(err, &not) && not.IsNotFound; err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			d.Log.Warn("a worker's name does not resolve", zap.String("host", d.Host), zap.Bool("exists", !none), zap.Error(err))
		}
		if err == nil || not != nil && not.IsNotFound {
			if err == nil {
				said = ""
			}
			if applyAnswer(absent, ofOneFamily(addrs)) {
				found(d.endpoints(absent))
			}
		}
		retry.Sleep(ctx, every)
	}
}

// Lookup asks the system's resolver for the addresses of a name that are used: those of one family.
func Lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	return ofOneFamily(addrs), err
}

// applyAnswer applies one answer and reports whether the set of addresses changed.
func applyAnswer(absent map[netip.Addr]int, answer []netip.Addr) (changed bool) {
	for a := range absent {
		absent[a]++
		if absent[a] >= missesToRemove && !slices.Contains(answer, a) {
			delete(absent, a)
			changed = true
		}
	}
	for _, a := range answer {
		if _, known := absent[a]; !known {
			if len(absent) >= maxEndpoints {
				break
			}
			changed = true
		}
		absent[a] = 0
	}
	return changed
}

func ofOneFamily(addrs []netip.Addr) (out []netip.Addr) {
	for _, a := range addrs {
		out = append(out, a.Unmap().WithZone(""))
	}
	if slices.ContainsFunc(out, netip.Addr.Is4) {
		out = slices.DeleteFunc(out, netip.Addr.Is6)
	}
	return out
}

func (d *DNS) endpoints(absent map[netip.Addr]int) (out []Endpoint) {
	for a := range absent {
		out = append(out, Endpoint{Addr: netip.AddrPortFrom(a, d.Port), Ready: true})
	}
	slices.SortFunc(out, func(a, b Endpoint) int { return a.Addr.Compare(b.Addr) })
	return out
}
