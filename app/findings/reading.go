package findings

import (
	"fmt"
	"slices"
	"time"

	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/workers/probe"
)

// ruleFix says what to do about a rule that has stepped aside.
func ruleFix(rule string) string {
	settings := "what SL0204 names"
	switch rule {
	case audit.RuleText.String(), audit.RuleParameters.String():
		settings = "what SL0201 and SL0202 name"
	case audit.RuleKeys.String():
		settings = "adapters and cache_salt"
	}
	return settings + ": as the worker has it, then reload. If it is so already, the rule is wrong for this model or release: " +
		"report the first difference"
}

const ownFiles = "the worker's own model files, chat_template, its content format and arguments; see SL0202 and " +
	"\"sightline explain --against\""

// auditCauses are where a verdict of the audit leads.
var auditCauses = map[audit.Verdict]struct{ code, severity, fix string }{
	audit.Nothing: {"SL0301", "warning", "see SL0303, SL0309 and the worker's event flags"},
	audit.Token:   {"SL0201", "error", ownFiles},
	audit.Block:   {"SL0201", "error", ownFiles},
	audit.Keys:    {"SL0201", "error", "adapters, cache_salt and media_names: as the worker reads them"},
	audit.Span:    {"SL0204", "error", "mm_processor_kwargs, media_io_kwargs and engine_version: as the worker was started"},
	audit.MediaName: {"SL0204", "error", "mm_hasher_algorithm, engine_model, media_io_kwargs and engine_version: as the worker was " +
		"started"},
	audit.BlockSize: {"SL0101", "error", "start the worker with one block size; other blocks are not kept"},
}

// ofStreams adds workers whose events come late, or over another worker's socket.
func (f *Facts) ofStreams(l *table) {
	for i := range f.Late {
		late := &f.Late[i]
		l.add(Finding{Code: "SL0303", Severity: "warning", kind: "behind", From: "audit", Since: late.Since,
			What: "KV events come late, so what its cache holds is known late", Fix: "see the network to its event socket, how busy its " +
				"publisher and agent are; until then index.predicted_ttl: longer than that"}, late.Worker,
			fmt.Sprintf("%v after the requests' ends", late.By))
	}
	for i := range f.Misplaced {
		m := &f.Misplaced[i]
		l.add(Finding{Code: "SL0308", Severity: "error", kind: "misplaced", From: "audit", Since: m.Since, Fix: FixMisplaced,
			What: "its requests are reported by another worker's event socket, so hits are predicted at the wrong worker"}, m.Worker,
			fmt.Sprintf("%d of its last requests came over the socket of %s", m.Requests, m.Over))
	}
}

// streamTold reports whether a worker's stream is a problem of its own, so that what is compared there says nothing else.
func (f *Facts) streamTold(worker string, v audit.Verdict) bool {
	return slices.ContainsFunc(f.Misplaced, func(m audit.Misplaced) bool { return m.Worker == worker || m.Over == worker }) ||
		v == audit.Nothing && slices.ContainsFunc(f.Late, func(l audit.Late) bool { return l.Worker == worker })
}

// ofAudit adds the requests that were stored otherwise than predicted, by verdict.
func (f *Facts) ofAudit(l *table) {
	for _, c := range Causes(f.Audited, f.Now.Add(-auditAge)) {
		verdict := c.Verdict
		if verdict == audit.Block && c.InMedium {
			verdict = audit.MediaName
		}
		cause, ok := auditCauses[verdict]
		if !ok || f.streamTold(c.Worker, c.Verdict) {
			continue
		}
		after := time.Duration(0)
		if c.Verdict == audit.Nothing {
			after = 8 * time.Second // until it shows whether they only come late
		}
		l.add(Finding{Code: cause.code, Severity: cause.severity, kind: "audit " + string(c.Verdict), From: "audit", Fix: cause.fix,
			Since: c.First, after: after, What: fmt.Sprintf("requests are stored otherwise than predicted (%s)", c.Verdict)}, c.Worker, c.text())
	}
}

// Cause is what several findings of the audit have in common: the worker and the verdict.
type Cause struct {
	audit.Finding           // the newest
	Count         int       `json:"count"`
	First         time.Time `json:"first"`
}

func (c *Cause) text() string {
	if c.Count > 1 {
		return fmt.Sprintf("%s (%d requests)", c.Says, c.Count)
	}
	return c.Says
}

// Causes returns the causes of findings since a time, those of the newest findings first.
func Causes(findings []audit.Finding, since time.Time) (list []Cause) {
	for _, f := range findings {
		if !f.At.IsZero() && f.At.Before(since) {
			continue
		}
		at := slices.IndexFunc(list, func(c Cause) bool { return c.Worker == f.Worker && c.Model == f.Model && c.Verdict == f.Verdict })
		if at < 0 {
			list = append(list, Cause{Finding: f})
			at = len(list) - 1
		}
		list[at].Count++
		list[at].First = f.At
	}
	return list
}

// ofProbes adds what a worker says of itself and that is not as configured.
func (f *Facts) ofProbes(l *table) {
	for _, r := range f.Probes {
		texts := slices.ContainsFunc(r.Findings, func(f probe.Finding) bool { return f.What == "one turn" && f.Verdict == probe.Differs })
		for _, found := range r.Findings {
			if found.Verdict != probe.Differs && found.Verdict != probe.Configuration {
				continue
			}
			if texts && (found.What == probe.Image || found.What == probe.LargeImage) {
				continue // for the same reason
			}
			asked := func(p *Finding) bool { return p.kind == "no events" && slices.Contains(p.Workers, r.Worker) }
			if found.What == probe.Events && slices.ContainsFunc(*l, asked) {
				continue // its events' finder says so already
			}
			code, severity, fix := OfProbe(found.What)
			detail := found.Detail
			if d := found.Difference; d != nil {
				detail = "first difference " + d.String()
			}
			l.add(Finding{Code: code, Severity: severity, kind: "probe " + found.What, From: "probe", Since: r.At, Fix: fix,
				What: fmt.Sprintf("not as configured (%s)", found.What)}, r.Worker, detail)
		}
	}
}

// OfProbe returns where a subject of the probe leads if a worker differs in it.
func OfProbe(what string) (code, severity, fix string) {
	switch what {
	case "name", "engine_model":
		return "SL0103", "error", "--served-model-name of the worker, or name and engine_model of its model"
	case "engine":
		return "SL0107", "error", "engine: the worker's, of its model or of a class for it"
	case probe.Events:
		return "SL0301", "error", FixNoEvents
	case probe.PrefixCaching:
		return "SL0102", "error", FixCaching
	case "ranks":
		return "SL0303", "error", "ranks: as many as the worker has"
	case "engine_version":
		return "SL0107", "warning", "engine_version: the worker's, of its model or of a class for it"
	case "adapters":
		return "SL0108", "warning", "adapters: as every worker of the model lists them; load the same ones on all"
	case "max_model_len":
		return "SL0502", "warning", "max_model_len: the worker's, or leave it out: only the beginning of longer prompts is known"
	case "text":
		return "SL0202", "error", "dir: the very files that the worker loaded, of the same commit (pin revision on both sides)"
	case probe.Image, probe.LargeImage:
		return "SL0204", "error", "mm_processor_kwargs, media_io_kwargs, mm_hasher_algorithm, engine_model and engine_version: as the " +
			"worker was started"
	}
	return "SL0201", "error", "chat_template, chat_template_content_format and default_chat_template_kwargs: as the worker was started"
}
