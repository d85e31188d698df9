package engine

import (
	"slices"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/engine/sglang"
	"github.com/sightline-router/sightline/engine/trtllm"
	"github.com/sightline-router/sightline/engine/vllm"
)

// names are the engines', as the configuration has them.
var names = []string{"vllm", "sglang", "trtllm"}

// ByOwner finds the engine whose servers call a model's owner so (owned_by in /v1/models); "": none that is known.
func ByOwner(owner string) string {
	i := slices.IndexFunc(names, func(name string) bool { return RulesOf(name, "").Owner == owner })
	if i < 0 || owner == "" {
		return ""
	}
	return names[i]
}

// RulesOf says what holds of an engine's release. It is the only place that goes by engines' names; a release that is no
// number counts as older than all, and of an unknown engine nothing holds.
func RulesOf(name, release string) rules.Rules {
	v, _ := rules.ParseVersion(release)
	switch name {
	case "vllm":
		return vllm.Rules(v)
	case "sglang":
		return sglang.Rules(v)
	case "trtllm":
		return trtllm.Rules(v)
	}
	return rules.Rules{}
}

// Rules are those of the server's engine and release. They cost a parse of the release: keep them where requests pass.
func (s *Server) Rules() rules.Rules {
	if s.OwnRules != nil {
		return s.OwnRules(s.EngineVersion)
	}
	return RulesOf(s.Engine, s.EngineVersion)
}
