package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/engine/sglang"
	"github.com/sightline-router/sightline/engine/trtllm"
	"github.com/sightline-router/sightline/engine/vllm"
)

// names lists the engines by the names that the configuration uses.
var names = []string{"vllm", "sglang", "trtllm"}

// ByOwner returns the engine whose servers report this owned_by in /v1/models; "" if none is known.
func ByOwner(owner string) string {
	i := slices.IndexFunc(names, func(name string) bool { return RulesOf(name, "").Owner == owner })
	if i < 0 || owner == "" {
		return ""
	}
	return names[i]
}

// ByLabel returns an engine's name by the label engine-type of its pod, such as trtllm-serve; "": unknown.
func ByLabel(label string) string {
	name := strings.TrimSuffix(strings.ToLower(label), "-serve")
	if !slices.Contains(names, name) {
		return ""
	}
	return name
}

// RulesOf returns the rules of an engine's release. It is the only place that switches on engines' names. A release that does not
// parse counts as older than all; the rules of an unknown engine are the zero value.
func RulesOf(name, release string) rules.Rules {
	v, err := rules.ParseVersion(release)
	var r rules.Rules
	switch name {
	case "vllm":
		r = vllm.Rules(v)
	case "sglang":
		r = sglang.Rules(v)
	case "trtllm":
		r = trtllm.Rules(v)
	}
	if err == nil && !v.AtLeast(r.Oldest[0], r.Oldest[1], r.Oldest[2]) {
		r.TooOld = fmt.Sprintf("%s %s is older than %d.%d.%d, the first release that is read (update it, or keep Sightline 0.1.0, the last "+
			"that reads older ones)", name, release, r.Oldest[0], r.Oldest[1], r.Oldest[2])
		r.TakesSalt, r.TakesUUID = false, false
		r.EventsIncludeMedia, r.EventsIncludeAdapter = false, false
	}
	return r
}

// Rules returns the rules of the server's engine and release. Each call parses the release, so keep the result on the hot path.
func (s *Server) Rules() rules.Rules {
	if s.OwnRules != nil {
		return s.OwnRules(s.EngineVersion)
	}
	return RulesOf(s.Engine, s.EngineVersion)
}
