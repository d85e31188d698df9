package report

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/sightline-router/sightline/router/account"
)

// Place is where prompts of a model depart from earlier ones that go on alike, and what that cost.
type Place struct {
	Model string `json:"model"`
	account.Change
	Tokens   int    `json:"tokens"` // that were computed again
	Requests int    `json:"requests"`
	Advice   string `json:"advice,omitempty"` // what would avoid it
	Example  string `json:"example"`          // the id of a decision
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

// places are the places of a period.
type places map[placeKey]*Place

func (t *places) add(r *Request) {
	if tokens := r.Uncached[account.Changed]; r.Changed != nil && tokens > 0 {
		t.put(&Place{Model: r.Model, Change: r.Changed.Place(), Tokens: tokens, Requests: 1, Advice: r.Changed.Advice(), Example: r.ID})
	}
}

func (t *places) put(p *Place) {
	key := placeKey{p.Model, p.Change}
	if one := (*t)[key]; one != nil {
		one.Tokens, one.Requests, one.Example = one.Tokens+p.Tokens, one.Requests+p.Requests, p.Example
		return
	}
	if *t == nil {
		*t = places{}
	}
	if len(*t) >= maxPlaces {
		least, tokens := placeKey{}, -1
		for key, one := range *t {
			if tokens < 0 || one.Tokens < tokens {
				least, tokens = key, one.Tokens
			}
		}
		delete(*t, least)
	}
	own := *p
	(*t)[key] = &own
}

func (t *places) merge(o places) {
	for _, p := range o {
		t.put(p)
	}
}

// dearest returns those that cost most.
func (t *places) dearest() (list []Place) {
	for _, p := range *t {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b Place) int { return cmp.Or(b.Tokens-a.Tokens, cmp.Compare(a.String(), b.String())) })
	return list[:min(len(list), shownPlaces)]
}
