package extproc

import "github.com/sightline-router/sightline/router"

// The headers by which NVIDIA Dynamo's front ends in direct mode (1.6) are told the worker and its rank.
const (
	HeaderInstance     = "x-dynamo-worker-instance-id"
	HeaderInstanceRank = "x-dynamo-dp-rank"
	HeaderPrefill      = "x-dynamo-prefill-instance-id"
	HeaderPrefillRank  = "x-dynamo-prefill-dp-rank"
)

// nameInstances sets these headers for a target behind a front end, and removes them for any other: then it returns false.
func (m *mutation) nameInstances(t *router.Target) bool {
	var rank, prefill, prefillRank string
	if t.Instance != "" {
		rank, prefill = number(t.Rank), t.Prefill
	}
	if prefill != "" {
		prefillRank = number(t.PrefillRank)
	}
	m.setOrRemove(HeaderInstance, t.Instance)
	m.setOrRemove(HeaderInstanceRank, rank)
	m.setOrRemove(HeaderPrefill, prefill)
	m.setOrRemove(HeaderPrefillRank, prefillRank)
	return t.Instance != ""
}
