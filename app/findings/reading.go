package findings

import (
	"fmt"
	"slices"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/workers/probe"
)

// ruleFix says what to do about a rule that has stepped aside.
func ruleFix(rule string) string {
	settings := "what SL0204 names"
	switch rule {
	case audit.RuleText.String(), audit.RuleParameters.String():
		settings = "what SL0201 names"
	case audit.RuleKeys.String():
		settings = "adapters and cache_salt"
	}
	return settings + ": as the worker has it, then reload. If it is so already, the rule is wrong for this model or release: " +
		"report the first difference"
}

const (
	ownFiles = "dir: the very files that the worker loaded, of the same commit (revision on both sides); chat_template, " +
		"chat_template_content_format and default_chat_template_kwargs as it was started; see " +
		"\"sightline explain --against\""
	fixMedia = "mm_processor_kwargs, media_io_kwargs, mm_hasher_algorithm, engine_model and engine_version: as the worker was started"
)

// auditCauses are where a verdict of the audit leads.
var auditCauses = map[audit.Verdict]struct{ code, severity, fix string }{
	audit.Nothing:   {"SL0301", "warning", "see SL0303, SL0309 and the worker's event flags"},
	audit.Token:     {"SL0201", "error", ownFiles},
	audit.Block:     {"SL0201", "error", ownFiles},
	audit.Keys:      {"SL0201", "error", "adapters, cache_salt and media_names: as the worker reads them"},
	audit.Span:      {"SL0204", "error", fixMedia},
	audit.MediaName: {"SL0204", "error", fixMedia},
	audit.BlockSize: {"SL0107", "error", "start the worker with one block size; other blocks are not kept"},
}

// ofStreams adds workers whose events come late, or over another worker's socket.
func (f *Facts) ofStreams(l *list) {
	for i := range f.Late {
		late := &f.Late[i]
		if at := slices.IndexFunc(f.Workers, func(w Worker) bool { return w.Name == late.Worker }); at >= 0 &&
			late.Ended.Before(f.Workers[at].BehindAt.Add(catchesUp)) {
			continue // they waited for a stream that was away
		}
		l.add(Finding{Code: "SL0303", Severity: "warning", kind: "behind", From: "audit", Since: late.Since,
			What: "KV events come late, so what its cache holds is known late", Fix: fixLate}, late.Worker,
			fmt.Sprintf("%v after the requests' ends", late.By))
	}
	for i := range f.Misplaced {
		m := &f.Misplaced[i]
		l.add(Finding{Code: "SL0308", Severity: "error", kind: "misplaced", From: "audit", Since: m.Since,
			What: "its requests are reported by another worker's event socket, so hits are predicted at the wrong worker",
			Fix: "exchange events.zmq and events.replay of these workers (with agents: --worker, or --zmq and --replay): each the address " +
				"and port of its own worker's --kv-events-config"}, m.Worker,
			fmt.Sprintf("%d of its last requests came over the socket of %s", m.Requests, m.Over))
	}
}

// streamTold reports whether a worker's stream is a problem of its own, so that what is compared there says nothing else.
func (f *Facts) streamTold(worker string, v audit.Verdict) bool {
	return slices.ContainsFunc(f.Misplaced, func(m audit.Misplaced) bool { return m.Worker == worker || m.Over == worker }) ||
		v == audit.Nothing && slices.Contains(f.SomeLate, worker)
}

// mayBeLate is how long it takes until it shows whether events only come late.
const mayBeLate = 15 * time.Second

// catchesUp is how long after its stream was not live a worker's events may still be missing.
const catchesUp = 10 * time.Second

// ofAudit adds the requests that were stored otherwise than predicted, by verdict. That nothing was stored says nothing of a worker whose
// stream is known to be away, or was then.
func (f *Facts) ofAudit(l *list) {
	live, behind := map[string]bool{}, map[string]time.Time{}
	for i := range f.Workers {
		w := &f.Workers[i]
		live[w.Name] = w.Events == "live" && w.Health == nil
		behind[w.Name] = w.BehindAt
	}
	list := slices.DeleteFunc(slices.Clone(f.Audited), func(a audit.Finding) bool {
		if a.Verdict != audit.Nothing || a.At.IsZero() {
			return false
		}
		why := f.NATS != "" || len(f.Workers) > 0 && !live[a.Worker] || a.At.Before(behind[a.Worker].Add(catchesUp))
		return why || f.Now.Sub(a.At) > recentAge
	})
	for _, c := range Causes(list, f.Now.Add(-auditAge)) {
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
			after = mayBeLate
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

// ofProbes adds what a worker says of itself and that is not as configured, or otherwise than Sightline reads it.
func (f *Facts) ofProbes(l *list) {
	for _, r := range f.Probes {
		differs := func(what string) bool {
			return slices.ContainsFunc(r.Findings, func(f probe.Finding) bool { return f.What == what && f.Verdict == probe.Differs })
		}
		seen := map[string]bool{}
		for _, found := range r.Findings {
			p := ofProbe(found.What, r.Engine)
			image := p.Code == "SL0204"
			switch {
			case found.Verdict == probe.Equal:
				seen[p.Code] = true
			case image && found.Verdict == probe.Refused:
				seen[p.Code] = true
				l.add(Finding{Code: p.Code, Severity: "note", kind: "refused", From: "probe", Since: r.At, What: "refuses a request with an image",
					Fix: "--limit-mm-per-prompt: the same at all workers, with room for the images that clients send"}, r.Worker, found.Detail)
			case found.Verdict != probe.Differs && found.Verdict != probe.Configuration:
			case image && differs("one turn") || found.What != "text" && p.Code == "SL0201" && differs("text"): // for the same reason
			case found.What == probe.Events && l.has("SL0301", "no events", r.Worker): // its events' finder says so already
			default:
				seen[p.Code] = true
				p.kind, p.From, p.Since, p.What = "probe "+found.What, "probe", r.At, fmt.Sprintf("not as configured (%s)", found.What)
				detail := found.Detail
				if d := found.Difference; d != nil {
					detail = "first difference " + d.String()
				}
				l.add(p, r.Worker, detail)
			}
		}
		for _, code := range []string{"SL0201", "SL0204"} {
			if seen[code] {
				l.ok(code, "%s: compared", r.Worker)
			} else {
				l.unchecked(code, "%s has no /tokenize for it, or no rule reads it (SL0206)", r.Worker)
			}
		}
	}
}

// ofProbe returns where a subject of the probe leads if a worker differs in it.
func ofProbe(what, engine string) Finding {
	code, severity, fix := "SL0201", "error", ownFiles
	switch what {
	case "name", "engine_model":
		code, fix = "SL0103", "--served-model-name of the worker, or name and engine_model of its model"
	case "adapters":
		code, severity, fix = "SL0103", "warning", "adapters: as every worker of the model lists them; load the same ones on all"
	case probe.Events:
		code, fix = "SL0301", startEvents(engine)
	case probe.PrefixCaching:
		code, fix = "SL0102", fixCaching
	case "ranks":
		code, fix = "SL0303", "ranks: as many as the worker has"
	case "engine":
		code, fix = "SL0107", "engine: the worker's"+ofClass+"; "+rules.Page.Fix()+" (Dynamo's front ends are named by dynamo.frontends)"
	case "engine_version", "max_model_len", "revision":
		code, severity, fix = "SL0107", "warning", what+": the worker's"+ofClass
	case probe.Cache:
		code, severity, fix = "SL0503", "warning", fixSmall
	case probe.Image, probe.LargeImage:
		code, fix = "SL0204", fixMedia
	}
	return Finding{Code: code, Severity: severity, Fix: fix}
}
