package router

import (
	"context"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/router/account"
	"github.com/sightline-router/sightline/router/forecast"
	"github.com/sightline-router/sightline/router/ledger"
	"github.com/sightline-router/sightline/workers/fleet"
)

// forecasting tells each model's forecast (package forecast) of decisions and ends. That only fills a queue: a decision pays for no more.
//
//	recordPredictions ─▶ decided ─┐
//	publish           ─▶ ended   ─┴▶ queue ── settle, a few times a second ─▶ stacks and histogram ── Forecasts
type forecasting struct {
	*state
	mu     sync.RWMutex
	models map[string]*forecast.Forecaster
	held   map[*fleet.Slot]float64 // blocks: how large its cache is, as far as events have shown
	sized  time.Time

	removals map[*fleet.Worker]forecast.Removal
	judged   time.Time
}

const (
	forecastBytes  = 8 << 20
	settleEvery    = 250 * time.Millisecond
	sizeEvery      = time.Second
	judgeEvery     = 5 * time.Second
	forecastWindow = time.Hour
	forecastDay    = 24 * time.Hour
	neededWindow   = 10 * time.Minute // of the load by which workers are needed
	drainWithin    = 5 * time.Minute  // what waits should be done by then
	sizeFades      = 1.0 / 3600       // of a cache's size, a second, while less is held
)

// serve has a forecast for each model, and forgets those of others.
func (f *forecasting) serve(models []Model) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.models
	f.models = make(map[string]*forecast.Forecaster, len(models))
	for i := range models {
		name := models[i].Name
		f.models[name] = old[name]
		if old[name] == nil {
			f.models[name] = forecast.New(forecastBytes)
		}
	}
}

func (f *forecasting) of(model string) *forecast.Forecaster {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.models[model]
}

// foreseen returns a booked request as a forecast knows it, at the slot that has it now.
func (b *bookingRecord) foreseen(slot *fleet.Slot) forecast.Request {
	return forecast.Request{Slot: uint32(slot.ID), Chain: b.chain, Size: b.blockSize, Tokens: b.promptTokens, Whole: b.whole}
}

func (f *forecasting) decided(b *bookingRecord, now time.Time) {
	m := f.of(b.model)
	if m == nil || b.promptTokens == 0 {
		return
	}
	r := b.foreseen(b.slot)
	r.Queued, r.Compute = b.queued, b.computes
	if b.account != nil && b.blockSize > 0 {
		if from, to := b.account.Evicted(); from < to {
			b.needs = &forecast.Needs{From: from / b.blockSize, To: (to + b.blockSize - 1) / b.blockSize}
			r.Needs = b.needs
		}
	}
	if !m.Decided(r, now) {
		b.needs = nil // nobody will answer
		f.opt.NoRoom("forecasts")
	}
}

// taken and left tell of another replica's request with the blocks of chain; how many tokens its worker found and generated is not shared.
func (f *forecasting) taken(b *ledger.Booking, chain []uint64, now time.Time) {
	f.told(b, chain, func(m *forecast.Forecaster, r forecast.Request) bool { return m.Decided(r, now) })
}

func (f *forecasting) left(b *ledger.Booking, chain []uint64, now time.Time) {
	f.told(b, chain, func(m *forecast.Forecaster, r forecast.Request) bool { return m.Ended(r, -1, 0, now) })
}

func (f *forecasting) told(b *ledger.Booking, chain []uint64, tell func(*forecast.Forecaster, forecast.Request) bool) {
	m := f.of(b.Slot.Worker.Model)
	if m == nil || len(chain) == 0 {
		return
	}
	r := forecast.Request{Slot: uint32(b.Slot.ID), Chain: chain, Tokens: b.Context / max(1, b.Answers)}
	if !tell(m, r) {
		f.opt.NoRoom("forecasts")
	}
}

// enlarge fills in what larger caches would have kept of a settled account's evicted tokens.
func (f *forecasting) enlarge(b *bookingRecord) {
	if b.needs == nil {
		return
	}
	if b.needs.Answer() == nil { // it has ended soon
		if m := f.of(b.model); m != nil {
			m.Settle()
		}
	}
	var needs []account.Needs
	for _, n := range b.needs.Answer() {
		needs = append(needs, account.Needs{Token: n.Block * b.blockSize, Times: n.Times, Pushed: n.Pushed})
	}
	b.account.Enlarge(needs)
}

// ended adds what the worker had cached by the engine's count, else by the prediction. A prompt of which nothing was known at the decision
// is told now, as one that no forecast covers.
func (f *forecasting) ended(e *end) {
	m, slot := f.of(e.model), e.at.Slot
	if m == nil || !e.ok() || slot == nil || e.slot == nil || slot.Worker.Class != e.slot.Worker.Class {
		return
	}
	r, cached, now := e.foreseen(slot), e.o.CachedTokens, f.opt.Now()
	if cached < 0 && slot == e.slot {
		cached = e.cachedTokens
	}
	fits := true
	switch {
	case r.Tokens > 0:
		fits = m.Ended(r, min(cached, r.Tokens), e.o.OutputTokens, now)
	case e.o.PromptTokens > 0:
		r.Tokens = e.o.PromptTokens
		fits = m.Decided(r, now)
	}
	if !fits {
		f.opt.NoRoom("forecasts")
	}
}

// run takes in what was told, until ctx ends.
func (f *forecasting) run(ctx context.Context) {
	for range retry.Every(ctx, settleEvery) {
		f.settle()
	}
}

// settle takes in what was told and, once a second, how large caches are.
func (f *forecasting) settle() {
	f.mu.RLock()
	models := maps.Clone(f.models)
	f.mu.RUnlock()
	err := guard.Call(func() error {
		f.size(models, f.opt.Now())
		for _, m := range models {
			m.Settle()
		}
		f.judge(models, f.opt.Now())
		return nil
	})
	if err != nil {
		f.opt.Log.Error("forecast: " + err.Error())
	}
}

// size says how large the slots' caches are: as many blocks as events have shown that they hold, in all tiers, at least as many as their
// engines report. While less is held, as after a restart, what events have shown fades within hours.
func (f *forecasting) size(models map[string]*forecast.Forecaster, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.sized.IsZero() && now.Sub(f.sized) < sizeEvery {
		return
	}
	fades := max(0, 1-sizeFades*now.Sub(f.sized).Seconds())
	if f.sized.IsZero() {
		fades = 1
	}
	f.sized = now
	old := f.held
	f.held = make(map[*fleet.Slot]float64, len(old))
	for name, m := range models {
		var caches []forecast.Cache
		for _, slot := range f.opt.Fleet.Slots(name) {
			if slot.Worker.Role == fleet.Decode {
				continue
			}
			held := f.opt.Index.HeldBlocks(slot.ID)
			f.held[slot] = max(float64(held), old[slot]*fades)
			one := forecast.Cache{Slot: uint32(slot.ID), Worker: workerID(slot), Blocks: int(math.Round(f.held[slot])),
				Held: held, Leaves: !slot.Worker.InService(), Rate: slot.Load(now).Rate, Used: -1}
			if _, usage, _, ok := slot.CurrentReport(now); ok {
				one.Used = usage
			}
			if f.opt.Index.OneGroup(slot.ID) { // else a block of its memory is not one of a prompt
				one.Tokens = slot.CacheTokens()
			}
			caches = append(caches, one)
		}
		m.Resize(caches, now)
	}
}

// ModelForecast is what a model's traffic of the last hour and day tells of other caches.
type ModelForecast struct {
	Model string            `json:"model"`
	Hour  forecast.Forecast `json:"hour"`
	Day   forecast.Forecast `json:"day"`
}

// Forecasts returns the models' forecasts, by name. They are of what all replicas decided that share their decisions; what engines counted
// is known of this one's.
func (r *Router) Forecasts() (list []ModelForecast) {
	f := &r.forecasting
	f.settle()
	f.mu.RLock()
	defer f.mu.RUnlock()
	now := f.opt.Now()
	for name, m := range f.models {
		list = append(list, ModelForecast{name, m.Forecast(forecastWindow, now), m.Forecast(forecastDay, now)})
	}
	slices.SortFunc(list, func(a, b ModelForecast) int { return strings.Compare(a.Model, b.Model) })
	return list
}

// Removals returns what would be lost with each worker, as far as its cache is known; some seconds old at most.
func (r *Router) Removals() map[*fleet.Worker]forecast.Removal {
	f := &r.forecasting
	f.settle()
	f.mu.RLock()
	defer f.mu.RUnlock()
	return maps.Clone(f.removals)
}

// judge says what would be lost with each worker.
func (f *forecasting) judge(models map[string]*forecast.Forecaster, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.removals != nil && now.Sub(f.judged) < judgeEvery {
		return
	}
	f.judged, f.removals = now, make(map[*fleet.Worker]forecast.Removal)
	for name, m := range models {
		of := m.Removals(now)
		for _, slot := range f.opt.Fleet.Slots(name) {
			if one, known := of[workerID(slot)]; known {
				f.removals[slot.Worker] = one
			}
		}
	}
}

// workerID is equal for the ranks of one worker.
func workerID(slot *fleet.Slot) uint32 { return uint32(slot.Worker.Slots[0].ID) }

// goals are those for which it is told how many workers are needed.
var goals = []forecast.Goal{{Busy: 0.5}, {Busy: 0.6}, {Busy: 0.7}, {Busy: 0.8}, {Busy: 0.9}, {FirstToken: 0.2}, {FirstToken: 0.5},
	{FirstToken: 1}, {FirstToken: 2}, {FirstToken: 5}}

// needed returns how many workers a model needs now for each of goals; 0: it is not known.
func (f *forecasting) needed(model string) (list []int) {
	m, now, waits := f.of(model), f.opt.Now(), 0.0
	if m == nil {
		return nil
	}
	slots, workers := 0, 0
	for _, slot := range f.opt.Fleet.Slots(model) {
		if slot.Worker.Role == fleet.Decode {
			continue
		}
		slots++
		if slot == slot.Worker.Slots[0] {
			workers++
		}
		if l := slot.Load(now); l.Rate > 0 {
			waits += l.Backlog / l.Rate
		}
	}
	lately := m.Forecast(neededWindow, now)
	caches := lately.Workers // each rank has one, and that of a worker without events is not known
	for _, goal := range goals {
		n := lately.Needed(goal, waits/drainWithin.Seconds()*float64(caches)/float64(max(1, slots)))
		list = append(list, (n*workers+max(0, caches-1))/max(1, caches))
	}
	return list
}

// showForecasts shows the last hour's forecasts, how many workers are needed, and what workers' removal would cost as gauges.
func showForecasts(of meter.Metrics, r *Router) {
	rate := meter.Desc("forecast_hit_rate",
		"Share of prompt tokens that would be cached after a change of the fleet, by the last hour; today: as it is.", "model", "change")
	needed := meter.Desc("workers_needed",
		"Workers that would compute prompts for this share of the time, or begin answers within so many seconds on average.",
		"model", "busy", "first_token")
	removal := meter.Desc("worker_removal_cost_tokens",
		"Prompt tokens that others would compute again, or not get to, if the worker left now.", "worker")
	label := func(of float64) string {
		if of == 0 {
			return ""
		}
		return strconv.FormatFloat(of, 'g', -1, 64)
	}
	of.ReadAll(func(ch chan<- prometheus.Metric) {
		for w, one := range r.Removals() {
			meter.Gauge(ch, removal, one.Cost(), w.Name)
		}
		for _, f := range r.Forecasts() {
			for i, n := range r.forecasting.needed(f.Model) {
				if n > 0 {
					meter.Gauge(ch, needed, float64(n), f.Model, label(goals[i].Busy), label(goals[i].FirstToken))
				}
			}
			if len(f.Hour.Marks) == 0 {
				continue
			}
			meter.Gauge(ch, rate, f.Hour.Today.HitRate, f.Model, "today")
			for _, m := range f.Hour.Marks {
				meter.Gauge(ch, rate, m.HitRate, f.Model, m.Name)
			}
		}
	}, rate, needed, removal)
}
