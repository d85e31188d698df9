package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/sightline-router/sightline/router/account"
)

// Departure is where prompts of a model depart from earlier ones that go on alike, and what that cost.
type Departure struct {
	Model string `json:"model"`
	account.Change
	Tokens   int     `json:"tokens"`            // that were computed again
	Seconds  float64 `json:"seconds,omitempty"` // of prefill that they took, as far as workers' rates are known
	Requests int     `json:"requests"`
	Advice   string  `json:"advice,omitempty"` // what would avoid it
	Example  string  `json:"example"`          // the id of a decision
}

// String returns the departure for people, with what would avoid it.
func (p Departure) String() string {
	text := cmp.Or(p.Kind, "a change")
	if text == "order" {
		text = "another order"
	}
	if p.Token >= 0 {
		text += fmt.Sprintf(" at token %d of", p.Token)
	} else {
		text += " in"
	}
	text += fmt.Sprintf(" %s of model %s", p.Part, p.Model)
	if p.Advice != "" {
		text += " (" + p.Advice + ")"
	}
	return text
}

const (
	maxDepartures   = 64 // of a period; the cheapest is dropped for another
	shownDepartures = 10
)

type departureKey struct {
	model  string
	change account.Change
}

// departures are those of a period, as JSON a list.
type departures map[departureKey]*Departure

// MarshalJSON returns the list.
func (t departures) MarshalJSON() ([]byte, error) { return json.Marshal(t.sorted()) }

// UnmarshalJSON reads one, with no more than a period has.
func (t *departures) UnmarshalJSON(text []byte) error {
	var list []*Departure
	if err := json.Unmarshal(text, &list); err != nil {
		return err
	}
	*t = departures{}
	for _, p := range list[:min(len(list), maxDepartures)] {
		if p != nil {
			(*t)[departureKey{p.Model, p.Change}] = p
		}
	}
	return nil
}

func (t *departures) add(r *Request) {
	if tokens := r.Uncached[account.Changed]; r.Changed != nil && tokens > 0 {
		p := Departure{Model: r.Model, Change: r.Changed.General(), Tokens: tokens, Requests: 1, Advice: r.Changed.Advice(), Example: r.ID}
		if r.Rate > 0 {
			p.Seconds = float64(tokens) / r.Rate
		}
		t.put(&p)
	}
}

// put adds a departure. If there are too many, the cheapest goes.
func (t *departures) put(p *Departure) {
	key := departureKey{p.Model, p.Change}
	if one := (*t)[key]; one != nil {
		one.also(p)
		one.Example = p.Example
		return
	}
	if *t == nil {
		*t = departures{}
	}
	if len(*t) >= maxDepartures {
		list := t.sorted()
		delete(*t, departureKey{list[maxDepartures-1].Model, list[maxDepartures-1].Change})
	}
	own := *p
	(*t)[key] = &own
}

// also adds what another one like it cost.
func (p *Departure) also(o *Departure) {
	p.Tokens, p.Requests, p.Seconds = p.Tokens+o.Tokens, p.Requests+o.Requests, p.Seconds+o.Seconds
}

// merge adds others, and keeps as many as a period has: the dearest.
func (t *departures) merge(o departures) {
	if *t == nil {
		*t = departures{}
	}
	for key, p := range o {
		if one := (*t)[key]; one != nil {
			one.also(p)
		} else {
			own := *p
			(*t)[key] = &own
		}
	}
	if len(*t) > maxDepartures {
		for _, p := range t.sorted()[maxDepartures:] {
			delete(*t, departureKey{p.Model, p.Change})
		}
	}
}

// sorted returns the departures, the dearest first.
func (t departures) sorted() (list []Departure) {
	for _, p := range t {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b Departure) int {
		return cmp.Or(cmp.Compare(b.Tokens, a.Tokens), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Part, b.Part), cmp.Compare(a.Token, b.Token),
			cmp.Compare(a.Kind, b.Kind))
	})
	return list
}

// dearest returns those that cost most.
func (t departures) dearest() []Departure {
	list := t.sorted()
	return list[:min(len(list), shownDepartures)]
}
