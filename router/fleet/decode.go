package fleet

// Where prefill and decode are apart (NVIDIA Dynamo), a request has a worker of each kind. What its prompt costs is decided
// where it is prefilled, so the candidates are the prefill workers; the decode worker is then the one with fewest requests.

// divide gives a model's workers their parts: the slots to choose among, and those that decode, where that is another's
// work. With prefill workers alone nothing can be served.
func divide(workers []*Worker) (choose, decode []*Slot) {
	apart := false
	for _, w := range workers {
		apart = apart || w.Prefill
	}
	for _, w := range workers {
		if w.Prefill || !apart {
			choose = append(choose, w.Slots...)
		} else {
			decode = append(decode, w.Slots...)
		}
	}
	if apart && len(decode) == 0 {
		return nil, nil
	}
	return choose, decode
}

// Decode picks who decodes what is prefilled on a slot: nil where that is its own work. turn breaks ties: give a number
// that grows with each call.
func (f *Fleet) Decode(prefill *Slot, turn uint64) (best *Slot) {
	if !prefill.Worker.Prefill {
		return nil
	}
	list := f.state.Load().decode[prefill.Worker.Model]
	now, least := f.now(), 0
	for i := range list {
		s := list[(uint64(i)+turn)%uint64(len(list))]
		if n := s.Load(now).Inflight; best == nil || n < least {
			best, least = s, n
		}
	}
	return best
}
