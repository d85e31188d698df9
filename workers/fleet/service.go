package fleet

import (
	"slices"
	"time"
)

// Service says what an operator lets a worker have.
type Service uint8

const (
	InService Service = iota
	Cordoned          // only requests of whose prompt it alone holds a part
	Draining          // nothing, but for what no other worker can serve
)

var serviceNames = [...]string{"in service", "cordoned", "draining"}

func (s Service) String() string { return serviceNames[min(int(s), len(serviceNames)-1)] }

// MarshalText writes the name.
func (s Service) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads it.
func (s *Service) UnmarshalText(text []byte) error {
	*s = Service(max(0, slices.Index(serviceNames[:], string(text))))
	return nil
}

// serviceSince is a Service, and when it was ordered.
type serviceSince struct {
	Service
	at time.Time
}

// Service returns what the worker may have now, and since when; zero: always.
func (w *Worker) Service() (Service, time.Time) {
	if s := w.service.Load(); s != nil {
		return s.Service, s.at
	}
	return InService, time.Time{}
}

// InService reports whether the worker may have everything.
func (w *Worker) InService() bool { s := w.service.Load(); return s == nil || s.Service == InService }

// IsDraining reports whether the worker should have nothing new.
func (w *Worker) IsDraining() bool { s := w.service.Load(); return s != nil && s.Service == Draining }

// SetService changes what the worker may have, as ordered at a time. It reports whether that is a change: of two orders the later counts.
// A worker that comes back after a while gets its share at first, and no more (slowstart.go).
func (w *Worker) SetService(to Service, at time.Time) bool {
	for {
		old := w.service.Load()
		if old == nil && to == InService || old != nil && (old.Service == to || at.Before(old.at)) {
			return false
		}
		if w.service.CompareAndSwap(old, &serviceSince{to, at}) {
			if to == InService && at.Sub(old.at) >= restartTime {
				w.becomeNewcomer(at)
			}
			return true
		}
	}
}

// WithoutDraining returns the slots whose workers are not draining. It costs an atomic read for each slot, and allocates only while a
// worker is draining.
func WithoutDraining(slots []*Slot) []*Slot {
	draining := func(s *Slot) bool { return s.Worker.IsDraining() }
	if !slices.ContainsFunc(slots, draining) {
		return slots
	}
	return slices.DeleteFunc(slices.Clone(slots), draining)
}
