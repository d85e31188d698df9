package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/sightline-router/sightline/router/account"
)

// Place is where prompts of a model depart from earlier ones that go on alike, and what that cost.
type Place struct {
	Model string `json:"model"`
	account.Change
	Tokens   int     `json:"tokens"`            // that were computed again
	Seconds  float64 `json:"seconds,omitempty"` // of prefill that they took, as far as workers' rates are known
	Requests int     `json:"requests"`
	Advice   string  `json:"advice,omitempty"` // what would avoid it
	Example  string  `json:"example"`          // the id of a decision
}

// String returns the place for people, with what would avoid it.
func (p Place) String() string {
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
	maxPlaces   = 64 // of a period; the cheapest is dropped for another
	shownPlaces = 10
)

type placeKey struct {
	model  string
	change account.Change
}

// places are the places of a period, as JSON a list.
type places map[placeKey]*Place

// MarshalJSON returns the list.
func (t places) MarshalJSON() ([]byte, error) { return json.Marshal(t.sorted()) }

// UnmarshalJSON reads one, with no more than a period has.
func (t *places) UnmarshalJSON(text []byte) error {
	var list []*Place
	if err := json.Unmarshal(text, &list); err != nil {
		return err
	}
	*t = places{}
	for _, p := range list[:min(len(list), maxPlaces)] {
		if p != nil {
			(*t)[placeKey{p.Model, p.Change}] = p
		}
	}
	return nil
}

func (t *places) add(r *Request) {
	if tokens := r.Uncached[account.Changed]; r.Changed != nil && tokens > 0 {
		p := Place{Model: r.Model, Change: r.Changed.Place(), Tokens: tokens, Requests: 1, Advice: r.Changed.Advice(), Example: r.ID}
		if r.Rate > 0 {
			p.Seconds = float64(tokens) / r.Rate
		}
		t.put(&p)
	}
}

// put adds a place. If there are too many, the cheapest goes.
func (t *places) put(p *Place) {
	key := placeKey{p.Model, p.Change}
	if one := (*t)[key]; one != nil {
		one.also(p)
		one.Example = p.Example
		return
	}
	if *t == nil {
		*t = places{}
	}
	if len(*t) >= maxPlaces {
		list := t.sorted()
		delete(*t, placeKey{list[maxPlaces-1].Model, list[maxPlaces-1].Change})
	}
	own := *p
	(*t)[key] = &own
}

// also adds what another one of the place cost.
func (p *Place) also(o *Place) {
	p.Tokens, p.Requests, p.Seconds = p.Tokens+o.Tokens, p.Requests+o.Requests, p.Seconds+o.Seconds
}

// merge adds others, and keeps as many as a period has: the dearest.
func (t *places) merge(o places) {
	if *t == nil {
		*t = places{}
	}
	for key, p := range o {
		if one := (*t)[key]; one != nil {
			one.also(p)
		} else {
			own := *p
			(*t)[key] = &own
		}
	}
	if len(*t) > maxPlaces {
		for _, p := range t.sorted()[maxPlaces:] {
			delete(*t, placeKey{p.Model, p.Change})
		}
	}
}

// sorted returns the places, the dearest first.
func (t places) sorted() (list []Place) {
	for _, p := range t {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b Place) int {
		return cmp.Or(cmp.Compare(b.Tokens, a.Tokens), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Part, b.Part), cmp.Compare(a.Token, b.Token),
			cmp.Compare(a.Kind, b.Kind))
	})
	return list
}

// dearest returns those that cost most.
func (t places) dearest() []Place {
	list := t.sorted()
	return list[:min(len(list), shownPlaces)]
}
