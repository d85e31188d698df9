package dynamo

import (
	"cmp"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/engine/rules"
)

// Endpoint is an endpoint of a deployment, as its workers' model cards describe it.
type Endpoint struct {
	Scope
	Prefill  bool     // its workers prefill for those of another component
	Workers  int      // those that have a card
	Cards    []Card   // the distinct cards; workers of one deployment share one
	Adapters []string // LoRA adapters
	Plane    string   // the plane of its KV events: zmq or nats; "" if unknown
}

// Card holds what a configuration needs of a worker's model card (ModelDeploymentCard of Dynamo 1.6). The card does not name the
// engine or its release.
type Card struct {
	Model, Aliases string // names that clients use; one alias per line
	Path           string // where the worker loads the model from: a path or a repository's name
	BlockSize      int
	MaxModelLen    int // 0: not in the card
	Eagle          bool
}

// Endpoints returns the endpoints for which a discovery folder has cards at now, sorted by name.
func Endpoints(root string, now time.Time) (list []*Endpoint, err error) {
	found := map[Scope]*Endpoint{}
	read := func(r gjson.Result) {
		s := Scope{rules.CleanText(r.Get("namespace").Str), rules.CleanText(r.Get("component").Str), rules.CleanText(r.Get("endpoint").Str)}
		e, c := cmp.Or(found[s], &Endpoint{Scope: s}), r.Get("card_json")
		found[s] = e
		if lora := rules.CleanText(c.Get("lora.name").Str); lora != "" {
			if !slices.Contains(e.Adapters, lora) {
				e.Adapters = append(e.Adapters, lora)
			}
			return
		}
		e.Workers++
		e.Prefill = c.Get("worker_type").Str == "prefill"
		var aliases []string
		for _, a := range c.Get("aliases").Array() {
			aliases = append(aliases, rules.CleanText(a.Str))
		}
		card := Card{rules.CleanText(c.Get("display_name").Str), strings.Join(aliases, "\n"), rules.CleanText(c.Get("source_path").Str),
			rules.CleanCount(int(c.Get("kv_cache_block_size").Int())), rules.CleanCount(int(c.Get("context_length").Int())),
			c.Get("runtime_config.enable_eagle").Bool()}
		if !slices.Contains(e.Cards, card) {
			e.Cards = append(e.Cards, card)
		}
	}
	if err := eachRecord(filepath.Join(root, "v1", "mdc"), "", now, read); err != nil {
		return nil, err
	}
	for s, e := range found {
		err = cmp.Or(err, eachRecord(filepath.Join(root, "v1", "event_channels"), s.events(), now, func(r gjson.Result) {
			e.Plane = strings.ToLower(rules.CleanText(r.Get("transport.kind").Str))
		}))
	}
	return slices.SortedFunc(maps.Values(found), func(a, b *Endpoint) int { return strings.Compare(a.String(), b.String()) }), err
}

// String returns the endpoint as Dynamo writes it.
func (s Scope) String() string { return s.Namespace + "/" + s.Component + "/" + s.Endpoint }

// events returns the key prefix of the publishers of an endpoint's KV events.
func (s Scope) events() string {
	return "namespace/" + s.Namespace + "/component/" + s.Component + "/endpoint/" + s.Endpoint + "/topic/" + topic + "/"
}
