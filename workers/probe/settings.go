package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/workers/inspect"
)

// Settings compares what a server reports about itself (inspect.AskOpenly) with the configuration. How large its blocks are is known by
// its events. A missing endpoint, or one that wants a key, is a finding that says what was not compared. release is the engine and its
// release, such as vllm 0.32.0, as the server tells it; "": it does not.
func Settings(ctx context.Context, client *http.Client, w *Worker, m *engine.Model) (found []Finding, release string) {
	wrong := func(key, format string, args ...any) {
		found = append(found, Finding{What: key, Verdict: Configuration, Detail: fmt.Sprintf(format, args...)})
	}
	failed := func(path string, err error) {
		one := Finding{What: path, Verdict: verdictOf(err), Fault: rules.FaultOf(err), Detail: err.Error()}
		if one.Verdict == Refused { // of a question about its settings, this is no answer
			one.Verdict = Absent
		}
		found = append(found, one)
	}
	f, err := w.Facts, error(nil)
	if f == nil {
		f = new(rules.Facts)
		*f, err = inspect.AskOpenly(ctx, client, w.Addr)
	}
	if err == nil {
		compareModels(f, w, m, wrong)
	} else {
		failed(Asked, err)
		if found[0].Verdict == Unreachable {
			return found, ""
		}
	}
	for _, u := range f.Unknown {
		switch {
		case u.What != "version" || !m.Rules().ReportsSettings:
		case errors.Is(u.Err, rules.ErrNoRelease):
			wrong("engine_version", "configured %s: %v", m.Server.EngineVersion, u.Err)
		default:
			failed("/version", u.Err)
		}
	}
	if f.Version != "" {
		compareRelease(f, m, wrong)
		release = fmt.Sprintf("%s %.40s", cmp.Or(f.Engine, m.Server.Engine), f.Version)
	}
	compareSwitches(f, w, m, wrong)
	return found, release
}

// compareSwitches compares what a server says that it was started with.
func compareSwitches(f *rules.Facts, w *Worker, m *engine.Model, wrong func(key, format string, args ...any)) {
	off := func(is *bool) bool { return is != nil && !*is }
	if off(f.Publishes) {
		wrong(Events, "%v", rules.ErrNoEvents)
	}
	if off(f.PrefixCaching) {
		wrong(PrefixCaching, "its prefix cache is off: no request finds anything there")
	}
	if f.Ranks > 0 && f.Ranks != max(1, w.Ranks) {
		wrong("ranks", "configured are %d, the worker has %d data-parallel ranks", w.Ranks, f.Ranks)
	}
	if f.Revision != "" && f.Revision != m.Server.Revision {
		wrong("revision", "configured %q, the worker has %.100q", m.Server.Revision, f.Revision)
	}
	if held := f.Blocks * f.BlockSize; held > 0 && f.MaxModelLen > held {
		wrong(Cache, "its KV cache holds %d tokens, a prompt may have %d", held, f.MaxModelLen)
	}
}

func compareModels(f *rules.Facts, w *Worker, m *engine.Model, wrong func(key, format string, args ...any)) {
	serves := func(name string) bool {
		return slices.ContainsFunc(f.Served, func(one rules.Served) bool { return one.ID == name })
	}
	for _, name := range w.Names {
		if !serves(name) {
			wrong("name", "the worker serves no model called %q", name)
		}
	}
	for _, one := range f.Served {
		if one.Parent != "" && !slices.Contains(w.Adapters, one.ID) {
			wrong("adapters", "the worker serves the adapter %.200q, which adapters does not name: requests for it are routed by load", one.ID)
		}
	}
	for _, name := range w.Adapters {
		if !serves(name) {
			wrong("adapters", "the worker serves no adapter called %q", name)
		}
	}
	if len(f.Served) == 0 {
		return
	}
	base, s := f.Served[0], &m.Server
	if theirs := engine.ByOwner(f.Owner); theirs == "" && f.Owner != "" {
		wrong("engine", "configured %s, and owned_by of /v1/models is %.100q: no engine answers, but a proxy or a front end", s.Engine, f.Owner)
	} else if theirs != "" && theirs != s.Engine {
		wrong("engine", "configured %s, the worker is %s", s.Engine, theirs)
	}
	if m.Rules().ReportsSettings && base.Root != "" && base.Root != s.EngineModel {
		wrong("engine_model", "configured %q, the worker reports %.200q: its image hashes differ from Sightline's", s.EngineModel, base.Root)
	}
	if s.MaxModelLen > 0 && base.MaxLen > 0 && base.MaxLen != s.MaxModelLen {
		wrong("max_model_len", "configured %d, the worker reports %d", s.MaxModelLen, base.MaxLen)
	}
}

func compareRelease(f *rules.Facts, m *engine.Model, wrong func(key, format string, args ...any)) {
	ours, _ := rules.ParseVersion(m.Server.EngineVersion)
	if theirs, err := rules.ParseVersion(f.Version); err != nil || theirs != ours {
		wrong("engine_version", "configured %s, the worker reports %.100q (%s)", m.Server.EngineVersion, f.Version,
			cmp.Or(engine.RulesOf(m.Server.Engine, f.Version).TooOld, "give it a class with its engine_version"))
	}
}
