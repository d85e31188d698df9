package ledger

import "time"

// Work that tenants were given counts half after each fadeAfter.
const (
	fadeAfter  = 30 * time.Second
	maxTenants = 4096 // of all models whose work is remembered; that of others counts as none
	mostAhead  = 1 << 40
)

// work is what tenants were given, by model.
type work struct {
	of      map[string]*given
	tenants int       // of all models
	faded   time.Time // when it counted half for the last time
}

// given is the work that a model's tenants were given.
type given struct {
	of  map[string]float64 // tokens
	sum float64
}

// give adds what a request asks of its slot to its tenant's work.
func (l *work) give(b *Booking, now time.Time) {
	if !b.Counted || b.Tokens <= 0 {
		return
	}
	l.fade(now)
	g := l.of[b.Model]
	if g == nil {
		g = &given{of: make(map[string]float64)}
	}
	if _, known := g.of[b.Tenant]; !known {
		if l.tenants >= maxTenants { // other replicas name models too
			return
		}
		l.tenants++
	}
	l.of[b.Model] = g
	g.of[b.Tenant] += float64(b.Tokens)
	g.sum += float64(b.Tokens)
}

// fade takes time linear in the tenants, once in fadeAfter.
func (l *work) fade(now time.Time) {
	for ; len(l.of) > 0 && now.Sub(l.faded) >= fadeAfter; l.faded = l.faded.Add(fadeAfter) {
		for model, g := range l.of {
			g.sum = 0
			for tenant, n := range g.of {
				if n < 2 {
					delete(g.of, tenant)
					l.tenants--
					continue
				}
				g.of[tenant] = n / 2
				g.sum += n / 2
			}
			if len(g.of) == 0 {
				delete(l.of, model)
			}
		}
	}
	if len(l.of) == 0 {
		l.faded = now
	}
}

// Ahead returns by how many tokens of work a tenant was recently given more than a model's tenants on average.
func (l *Ledger) Ahead(model, tenant string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.work.fade(l.now())
	g := l.work.of[model]
	if g == nil {
		return 0
	}
	return int(min(mostAhead, max(0, g.of[tenant]-g.sum/float64(len(g.of)))))
}
