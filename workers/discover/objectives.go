package discover

import (
	"cmp"
	"context"
	"maps"
	"slices"
)

// Objectives are what the InferenceObjectives and InferenceModelRewrites of a pool say about its requests. nil says nothing. They do not
// change.
type Objectives struct {
	priorities map[string]int      // of the objectives, by name
	urgent     bool                // one of them is above 0
	exact      map[string][]target // rewrites of a model's name
	rest       []target            // of all other names
}

// target is a name that requests for a model get instead, in proportion to its weight.
type target struct {
	ModelRewrite string
	Weight       *int
}

// Priority returns the priority of a request that names these objectives: the lowest of them, where a name without an objective
// counts as 0, so that a client's header beside the gateway's gains nothing. urgent: some objective is above 0.
func (p *Objectives) Priority(named []string) (priority int, urgent bool) {
	if p == nil {
		return 0, false
	}
	for i, name := range named {
		if of := p.priorities[name]; i == 0 || of < priority {
			priority = of
		}
	}
	return priority, p.urgent
}

// Ranks reports whether requests have different priorities.
func (p *Objectives) Ranks() bool {
	for _, priority := range p.priorities {
		if priority != 0 {
			return true
		}
	}
	return false
}

// Rewrite returns the name that a request for a model gets. share, from 0 to below 1, is asked for to choose among several names: equal
// shares give equal names.
func (p *Objectives) Rewrite(model string, share func() float64) string {
	if p == nil {
		return model
	}
	targets, named := p.exact[model]
	if !named {
		targets = p.rest
	}
	if len(targets) == 0 {
		return model
	}
	sum := 0
	for _, t := range targets {
		sum += max(0, *t.Weight)
	}
	at := int(share() * float64(sum))
	for _, t := range targets {
		at -= max(0, *t.Weight)
		if at < 0 {
			return t.ModelRewrite
		}
	}
	return model
}

// weighted gives each target a weight. Without any weights all count the same; beside weights, a target without one counts nothing.
func weighted(all []target) []target {
	own := 1
	if slices.ContainsFunc(all, func(t target) bool { return t.Weight != nil }) {
		own = 0
	}
	for i := range all {
		if all[i].Weight == nil {
			all[i].Weight = &own
		}
	}
	return all
}

// objective is the part of an InferenceObjective or an InferenceModelRewrite that is used.
type objective struct {
	described
	Spec struct {
		PoolRef  struct{ Name string }
		Priority int
		Rules    []struct {
			Matches []struct{ Model struct{ Value string } }
			Targets []target
		}
	}
}

// The groups that define the two kinds (both v1alpha2): llm-d's, and that of Gateway API's Inference Extension to 1.5. Where both have
// an object of one name, the first counts.
var objectiveGroups = []string{"llm-d.ai", "inference.networking.x-k8s.io"}

// followObjectives calls f.Objectives after each change of the pool's objects, until ctx ends.
func (f *poolFollower) followObjectives(ctx context.Context) {
	goals, renames := make([]map[string]*objective, len(objectiveGroups)), make([]map[string]*objective, len(objectiveGroups))
	for i, group := range objectiveGroups {
		for kind, known := range map[string][]map[string]*objective{"inferenceobjectives": goals, "inferencemodelrewrites": renames} {
			r := resource{group: group, version: "v1alpha2", namespace: f.Namespace, kind: kind, optional: true}
			f.running.Go(func() {
				follow(ctx, f.server, r, func(list map[string]*objective) {
					f.mu.Lock()
					defer f.mu.Unlock()
					known[i] = maps.Clone(list)
					maps.DeleteFunc(known[i], func(_ string, p *objective) bool { return p.Spec.PoolRef.Name != f.Name })
					f.Objectives(objectivesOf(goals, renames))
				})
			})
		}
	}
}

// objectivesOf merges objects. Of rules for the same name the oldest object's counts, and in it the first.
func objectivesOf(goals, renames []map[string]*objective) *Objectives {
	p := &Objectives{priorities: map[string]int{}, exact: map[string][]target{}}
	for _, group := range slices.Backward(goals) {
		for name, o := range group {
			p.priorities[name] = o.Spec.Priority
		}
	}
	for _, priority := range p.priorities {
		p.urgent = p.urgent || priority > 0
	}
	var all []*objective
	for _, group := range renames {
		all = append(all, slices.Collect(maps.Values(group))...)
	}
	slices.SortFunc(all, func(a, b *objective) int {
		return cmp.Or(cmp.Compare(a.Metadata.CreationTimestamp, b.Metadata.CreationTimestamp), cmp.Compare(a.Metadata.Name, b.Metadata.Name))
	})
	for _, o := range all {
		for _, rule := range o.Spec.Rules {
			if len(rule.Matches) == 0 && p.rest == nil {
				p.rest = weighted(rule.Targets)
			}
			for _, m := range rule.Matches {
				if _, named := p.exact[m.Model.Value]; !named {
					p.exact[m.Model.Value] = weighted(rule.Targets)
				}
			}
		}
	}
	return p
}
