package serve

import (
	"net/netip"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/registry"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/workers/discover"
	"github.com/sightline-router/sightline/workers/fleet"
)

// Replicas use the same name for a worker behind a DNS name, even if they found the addresses in different orders or knew others before.
func TestReplicasNameWorkersAlike(t *testing.T) {
	cfg, err := config.Parse([]byte(`
models: [{name: m, dir: models/m}]
workers: [{name: gpu, addr: "gpu.example:8000"}]`))
	if err != nil {
		t.Fatal(err)
	}
	at := func(hosts ...byte) (list []discover.Endpoint) {
		for _, h := range hosts {
			list = append(list, discover.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, h}), 8000), Ready: true})
		}
		return list
	}
	found := func(steps ...[]discover.Endpoint) *fleet.Fleet {
		fl, now := fleet.New(nil), served(config.Config{Models: cfg.Models})
		s, err := startSources(t.Context(), now, registry.Options{Index: indexer.New(indexer.Options{}),
			Fleet: fl, Log: zap.NewNop(), Metrics: prometheus.NewRegistry(), Changed: func([]*fleet.Worker) {}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.close)
		for _, now := range steps {
			var specs []registry.Spec
			for _, e := range now {
				spec := s.spec(&cfg.Workers[0], e)
				spec.WhileMember = nil // no other replica is running
				specs = append(specs, spec)
			}
			s.update(&runningFinder{number: 1}, specs)
		}
		return fl
	}
	for name, steps := range map[string][][]discover.Endpoint{
		"one came later":                  {at(2, 3), at(1, 2, 3)},
		"the first went, another came":    {at(1, 4), at(4), at(4, 2, 3, 1)},
		"it was alone, and others joined": {at(3), at(1, 2, 3)},
	} {
		old, fresh := found(steps...), found(at(1, 2, 3))
		for _, w := range fresh.Workers() {
			there := old.ByAddr(w.Addr)
			if slot := old.Find(w.StableName, -1); there == nil || slot == nil || slot.Worker != there {
				t.Errorf("%s: %s is %q to one, and %v of the other; got %+v, want one, one, Worker %+v", name, w.Addr, w.StableName, slot, there, there)
			}
		}
	}
}
