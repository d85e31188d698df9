package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/workers/probe"
)

// asked calls do for the workers that answered. If there are none, the result is unchecked.
func (s *collected) asked(r *report, do func(w *worker)) {
	n := 0
	for _, w := range s.workers {
		if w.err == nil {
			n++
			do(w)
		}
	}
	switch {
	case s.o.Pre:
		r.unchecked("--pre looks at files alone")
	case len(s.workers) == 0 && s.frontends != nil:
		r.unchecked("Dynamo's workers answer no HTTP")
	case len(s.workers) == 0:
		r.unchecked("no worker is configured by address, and no running Sightline lists discovered ones")
	case n == 0:
		r.unchecked("no worker answers (SL0109)")
	}
}

// canaries calls do for the workers that computed the canary.
func (s *collected) canaries(r *report, do func(w *worker, c *canary)) {
	n := 0
	s.asked(r, func(w *worker) {
		if w.canary.sent && w.canary.err == nil {
			n++
			do(w, &w.canary)
		} else if w.canary.err != nil {
			r.unchecked("%s: the canary failed: %v", w.Name, w.canary.err)
		}
	})
	if n == 0 && !s.o.Canary {
		r.unchecked("no canary is sent (--no-canary)")
	}
}

// found returns the probe's findings about these subjects, by worker.
func (s *collected) found(what ...string) (list map[string][]probe.Finding) {
	list = map[string][]probe.Finding{}
	for _, p := range s.probes {
		for _, f := range p.Findings {
			if slices.Contains(what, f.What) {
				list[p.Worker] = append(list[p.Worker], f)
			}
		}
	}
	return list
}

func configuration(s *collected, r *report) {
	if s.modelFaults != nil {
		r.bad(Error, "copy those files again from where the workers have them (git lfs pull, if one is a pointer); until then their "+
			"requests are learned", "%v", s.modelFaults)
		return
	}
	if s.configErr == nil {
		r.ok("%d models, %d workers", len(s.cfg.Models), len(s.cfg.Workers))
		return
	}
	fix := "correct the keys that are named; docs/configuration.md lists all keys"
	if errors.Is(s.configErr, os.ErrNotExist) {
		fix = "what it names is not here: correct -c, or the path of that key"
	}
	r.bad(Error, fix, "%v", s.configErr)
}

func answers(s *collected, r *report) {
	for _, w := range s.workers {
		if w.err != nil {
			fix := fmt.Sprintf("start it, or correct addr of worker %q; from here: curl http://%s/v1/models", w.Name, w.Addr)
			r.bad(Error, cmp.Or(rules.FaultOf(w.err).Fix(), fix), "%s at %s: %v", w.Name, w.Addr, w.err)
		} else if w.canary.err != nil {
			r.bad(Warning, "see its log: it answers questions and computes nothing", "%s at %s: the canary failed: %v", w.Name, w.Addr, w.canary.err)
		} else {
			r.ok("%s at %s: %s %s", w.Name, w.Addr, w.facts.Engine, w.facts.Version)
		}
	}
	for _, w := range s.frontends {
		if w.err != nil {
			r.bad(Error, cmp.Or(rules.FaultOf(w.err).Fix(), "start it, or correct dynamo.frontends"), "%s: %v", w.Name, w.err)
		} else {
			r.ok("%s", w.Name)
		}
	}
	switch d := &s.cfg.Dynamo; {
	case s.deployErr != nil:
		r.bad(Error, "dynamo.discovery: a folder that can be read", "%v", s.deployErr)
	case s.frontends != nil && len(s.deployed) == 0:
		r.bad(Error, "dynamo.discovery is the workers' DYN_FILE_KV; namespace, component and endpoint are theirs",
			"%s has no live record of a worker of %s/%s/%s", d.Discovery, d.Namespace, d.Component, d.Endpoint)
	case s.frontends != nil:
		r.ok("%d workers behind Dynamo's front ends", len(s.deployed))
	}
	s.asked(r, func(*worker) {})
}

// engines checks that every worker is the configured engine and release (SL0107): not another engine or release, and not a front
// end in place of a worker.
func engines(s *collected, r *report) {
	s.asked(r, func(w *worker) {
		f, c := &w.facts, &w.class
		switch {
		case f.FrontEnd:
			r.bad(Error, "name it under dynamo.frontends, and its workers by dynamo: {plane: …, discovery: …}",
				"%s is a front end of NVIDIA Dynamo, no worker", w.Name)
		case f.Engine == "":
			r.bad(Error, "give addr the engine's own port, not that of a proxy before it",
				"%s: owned_by of /v1/models is %q, not a known engine", w.Name, f.Owner)
		case f.Engine != c.Engine:
			r.bad(Error, "engine: "+f.Engine, "%s is %s, configured is %s", w.Name, f.Engine, c.Engine)
		case f.Version == "":
			r.unchecked("%s does not report its release", w.Name)
		case f.Version != c.EngineVersion:
			r.bad(Warning, "engine_version: "+f.Version+", of its model or of a class for it", "%s is %s %s, configured is %s",
				w.Name, f.Engine, f.Version, c.EngineVersion)
		default:
			r.ok("%s: %s %s", w.Name, f.Engine, f.Version)
		}
	})
}

// names checks that workers serve the model under its configured names (SL0103).
func names(s *collected, r *report) {
	for _, w := range s.frontends {
		if w.err == nil && !slices.ContainsFunc(w.facts.Served, func(m rules.Served) bool { return m.ID == w.Model }) {
			r.bad(Error, "models: {name: "+w.facts.Served[0].ID+"}", "%s serves no %q", w.Name, w.Model)
		}
	}
	found := s.found("name", "engine_model")
	s.asked(r, func(w *worker) {
		for _, f := range found[w.Name] {
			fix := "--served-model-name " + w.Model + " at the worker, or models: {name: " + w.facts.Served[0].ID + "}"
			if f.What == "engine_model" {
				fix = "engine_model: " + w.facts.EngineModel
			}
			r.bad(Error, fix, "%s: %s", w.Name, f.Detail)
		}
		if len(found[w.Name]) == 0 {
			r.ok("%s serves %s", w.Name, w.facts.Served[0].ID)
		}
	})
}

// adapters checks that all workers of a model have the same adapters (SL0108).
func adapters(s *collected, r *report) {
	found := s.found("adapters")
	_, _, fix := findings.OfProbe("adapters")
	s.asked(r, func(w *worker) {
		for _, f := range found[w.Name] {
			r.bad(Warning, fix, "%s: %s", w.Name, f.Detail)
		}
		if len(found[w.Name]) == 0 {
			r.ok("%s", w.Name)
		}
	})
}

// blockSizes checks that block sizes are those configured, if any are (SL0101).
func blockSizes(s *collected, r *report) {
	compare := func(who string, size int, from string, given int) {
		if given != 0 && given != size {
			r.bad(Warning, fmt.Sprintf("block_size: %d, of its model or of a class for it; or leave it out", size),
				"%s has blocks of %d tokens by %s, configured are %d: its own are used", who, size, from, given)
		} else {
			r.ok("%s: %d tokens by %s", who, size, from)
		}
	}
	for _, w := range s.deployed {
		if class, ok := s.cfg.ClassOf(s.cfg.Dynamo.Worker()); ok && w.BlockSize > 0 {
			compare(fmt.Sprintf("Dynamo's worker %d", w.ID), w.BlockSize, "its model card", class.ConfiguredBlockSize())
		}
	}
	s.asked(r, func(w *worker) {
		size, from := 0, "its events"
		for _, o := range w.canary.sockets {
			for _, f := range o.frames {
				size = f.blockSize
			}
		}
		for _, row := range w.of(s.rows()) {
			if row.BlockSize > 0 {
				size, from = row.BlockSize, "its events, as the running Sightline receives them"
			}
		}
		if size == 0 && !w.rules.BlocksByGroup {
			size, from = w.facts.BlockSize, "its own report"
		}
		if size == 0 {
			r.unchecked("no event of %s has told its block size", w.Name)
			return
		}
		compare(w.Name, size, from, w.class.ConfiguredBlockSize())
		if unit := w.facts.MatchUnit; unit > size {
			r.ok("%s hits only in multiples of %d tokens", w.Name, unit)
		}
	})
}

// prefixCaching checks that prefix caching is on (SL0102).
func prefixCaching(s *collected, r *report) {
	const fix = findings.FixCaching
	s.asked(r, func(w *worker) {
		u := w.canary.second
		switch on := w.facts.PrefixCaching; {
		case on != nil && !*on:
			r.bad(Error, fix, "%s says that its prefix cache is off", w.Name)
		case w.canary.sent && w.canary.err == nil && u.Details != nil && u.Details.Cached == 0 && u.Prompt > w.largestBlock():
			fix := fix
			if on != nil {
				fix = "its prefix cache is on: if several engines answer at " + w.Addr + ", give each worker the address of one, or ranks"
			}
			r.bad(Error, fix, "%s found 0 of %d tokens cached of a prompt that it had just computed", w.Name, u.Prompt)
		case w.canary.sent && u.Details != nil:
			r.ok("%s found %d of %d tokens cached", w.Name, u.Details.Cached, u.Prompt)
		case on != nil:
			r.ok("%s says that it is on", w.Name)
		default:
			r.unchecked("%s does not report it", w.Name)
		}
	})
}

// countsCached checks that responses count cached tokens (SL0104).
func countsCached(s *collected, r *report) {
	s.canaries(r, func(w *worker, c *canary) {
		if c.second.Details == nil && (c.first.Details == nil || c.first.Details.Cached == 0) {
			r.bad(Warning, "start it with --enable-prompt-tokens-details (vLLM), --enable-cache-report (SGLang)",
				"%s: the usage in its answers does not report cached tokens, so predictions are not checked against them", w.Name)
			return
		}
		r.ok("%s", w.Name)
	})
}

// roles checks that every model and role has a worker that gets requests (SL0105).
func roles(s *collected, r *report) {
	if s.running == nil {
		r.unchecked("%s", s.notFoundReason)
		return
	}
	for _, m := range s.cfg.Models {
		well, of := 0, map[string]int{}
		for _, row := range s.rows() {
			if row.Model == m.Name && row.Health == nil && row.Events != "not ready" {
				well++
				of[row.Role]++
			}
		}
		prefill, encode := of["prefill"], of["encode"]
		switch {
		case well == 0:
			r.bad(Error, "start a worker of it; if there is one, correct model of its entry, or the finder's group",
				"%s: no worker gets requests", m.Name)
		case well == prefill+encode:
			r.bad(Error,
				"start workers with role: decode or without a role (Dynamo: of dynamo.component); those with role: prefill "+
					"(Dynamo: of prefill_component) compute no answers",
				"%s: %d workers prefill, %d encode, none decodes", m.Name, prefill, encode)
		case prefill == 0 && of["decode"] > 0:
			r.bad(Warning, "start workers with role: prefill; if all are to do whole requests, leave role out",
				"%s: %d workers have the role decode, none prefills for them: they do it themselves", m.Name, of["decode"])
		default:
			r.ok("%s: %d worker-ranks, %d of them prefill", m.Name, well, prefill)
		}
	}
}

// loads checks that workers report their load (SL0106).
func loads(s *collected, r *report) {
	if s.cfg.LoadEvery == 0 {
		r.bad(Warning, "load_every: 1s", "load_every is 0: requests from other senders are not known")
		return
	}
	s.asked(r, func(w *worker) {
		if w.rules.Load.Path == "" || w.Events.Load != "" {
			return
		}
		at := slices.IndexFunc(w.facts.Unknown, func(u rules.Unknown) bool { return u.What == "requests" })
		fix := "let Sightline fetch http://" + w.Addr + w.rules.Load.Path + " without a key, or give worker_access: {api_key_file: …} " +
			"(SGLang: --enable-metrics; TensorRT-LLM: enable_iter_perf_stats)"
		stale := func(rows []findings.Worker) bool {
			return slices.ContainsFunc(w.of(rows), func(row findings.Worker) bool { return row.Report == nil && row.Health == nil })
		}
		switch {
		case w.facts.Requests == nil && at >= 0:
			r.bad(Warning, fix, "%s: %s", w.Name, w.facts.Unknown[at].Why)
		case w.facts.Requests == nil:
			r.bad(Warning, fix, "%s: its metrics page does not report its requests", w.Name)
		case w.Ranks > 1 && w.toldBy(s.rows()) > 0 && w.toldBy(s.rows()) < w.Ranks && max(1, w.facts.Ranks) != w.Ranks:
			const fix = "ranks: %d of this worker (leave it out for one), or start it with --data-parallel-size %d"
			r.bad(Warning, fmt.Sprintf(fix, max(1, w.facts.Ranks), w.Ranks),
				"%s: ranks is %d, and only %d of them report their load", w.Name, w.Ranks, w.toldBy(s.rows()))
		case stale(s.rows()) && (s.running.later == nil || stale(s.running.later)): // a single look may catch a busy worker late
			r.bad(Warning, fix, "%s reports its load to this check, but the running Sightline has no current one", w.Name)
		default:
			r.ok("%s: %d requests", w.Name, *w.facts.Requests)
		}
	})
}

// of returns a worker's rows among those of the running Sightline.
func (w *worker) of(rows []findings.Worker) (list []findings.Worker) {
	for _, row := range rows {
		if row.Name == w.Name || strings.HasPrefix(row.Name, w.Name+"/") {
			list = append(list, row)
		}
	}
	return list
}

// toldBy returns how many of a worker's ranks have reported their load.
func (w *worker) toldBy(rows []findings.Worker) (n int) {
	for _, row := range w.of(rows) {
		if row.Report != nil {
			n++
		}
	}
	return n
}

func hostOf(addr string) string {
	host, _, _ := net.SplitHostPort(addr)
	return host
}
