package alias

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sightline-router/sightline/workers/fleet"
)

// pools collects the state of each model's workers when it is scraped.
type pools struct {
	fleet  *fleet.Fleet
	gauges []gauge
}

type gauge struct {
	*alias
	labels []string
	desc   *prometheus.Desc
}

// pool is the workers of one model, with the sums over those that report a current load.
type pool struct {
	model                   string
	ready, inflight         int
	queues                  []queue
	usage, waiting, running []float64
}

type queue struct {
	worker  string
	waiting float64
}

// Describe implements prometheus.Collector.
func (p *pools) Describe(ch chan<- *prometheus.Desc) {
	for _, g := range p.gauges {
		ch <- g.desc
	}
}

// Collect implements prometheus.Collector.
func (p *pools) Collect(ch chan<- prometheus.Metric) {
	for _, one := range p.look(time.Now()) {
		for _, g := range p.gauges {
			if g.pool == nil {
				for _, q := range one.queues {
					ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, q.waiting, one.model, q.worker)
				}
			} else if n, ok := g.pool(one); ok {
				ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, n, (&said{model: one.model}).values(g.labels)...)
			}
		}
	}
}

// look sums up the workers by model. For a worker with several ranks it adds the requests and averages the caches' shares.
func (p *pools) look(now time.Time) (list []*pool) {
	if p.fleet == nil {
		return nil
	}
	at := map[string]*pool{}
	for _, w := range p.fleet.Workers() {
		one := at[w.Model]
		if one == nil {
			one = &pool{model: w.Model}
			at[w.Model], list = one, append(list, one)
		}
		if w.IsHealthy() {
			one.ready++
		}
		var running, waiting float64
		var usage []float64
		tells := false
		for _, slot := range w.Slots {
			l := slot.Load(now)
			one.inflight += l.Inflight - l.OtherSenders - l.OtherReplicas
			if t, ok := slot.LastReport(now); ok {
				tells, running, waiting = true, running+float64(max(0, t.Running)), waiting+float64(t.Waiting)
				if t.Usage >= 0 {
					usage = append(usage, t.Usage)
				}
			}
		}
		if tells {
			one.queues = append(one.queues, queue{w.Name, waiting})
			one.waiting, one.running = append(one.waiting, waiting), append(one.running, running)
		}
		if share, ok := mean(usage); ok {
			one.usage = append(one.usage, share)
		}
	}
	return list
}

func mean(values []float64) (m float64, ok bool) {
	for _, v := range values {
		m += v
	}
	return m / float64(max(1, len(values))), len(values) > 0
}

// deviation returns the sample standard deviation.
func deviation(values []float64) (float64, bool) {
	m, ok := mean(values)
	sum := 0.0
	for _, v := range values {
		sum += (v - m) * (v - m)
	}
	return math.Sqrt(sum / float64(max(1, len(values)-1))), ok
}
