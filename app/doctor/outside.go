package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/envoy/check"
	arms "github.com/sightline-router/sightline/router/report"
)

// ofEnvoy returns a check that reports the findings of one code.
func ofEnvoy(code string) func(*collected, *report) {
	return func(s *collected, r *report) {
		if s.envoyErr != nil {
			if s.envoyAsked && code == "SL0410" {
				r.bad(Error, "give --envoy an envoy.yaml, a config dump or the address of an Envoy's admin page", "%v", s.envoyErr)
				return
			}
			r.unchecked("%v", s.envoyErr)
			return
		}
		for _, f := range s.envoy {
			if !strings.Contains(f.Code, code) {
				continue
			}
			says := fmt.Sprintf("%s at %s: %s (want %s)", f.Name, f.Where, f.Got, f.Want)
			switch f.Severity {
			case check.Error:
				r.bad(Error, f.Fix, "%s", says)
			case check.Warning:
				r.bad(Warning, f.Fix, "%s", says)
			default:
				r.ok("%s", says)
			}
		}
		for _, p := range s.missingParts {
			if code == "SL0410" {
				r.bad(Error, "sightline envoy -c … --for … prints what is missing, and with --apply the file with it",
					"missing: %s, at %s: %s", p.Name, p.Where, p.Why)
			}
		}
		if r.Verdict == "" {
			r.ok("nothing is found in the configuration")
		}
	}
}

// bodies checks that Envoy accepts bodies as large as Sightline does (SL0401), also by what the canary found.
func bodies(s *collected, r *report) {
	ofEnvoy("SL0401")(s, r)
	if t := &s.through; t.failed > 0 {
		r.bad(Error,
			"per_connection_buffer_limit_bytes of the listener, request_body_buffer_limit of the virtual host, and the worker's "+
				"own limit: body_limit and more",
			"a body of %v is refused (%s), one of %v passes", config.Size(t.failed), t.status, config.Size(t.passed))
	} else if t.passed > 0 {
		r.ok("a body of %v passes", config.Size(t.passed))
	} else if t.unasked != "" {
		r.unchecked("a body sent through Envoy: %s", t.unasked)
	}
}

// steered checks that clients cannot choose a worker (SL0407).
func steered(s *collected, r *report) {
	ofEnvoy("SL0407")(s, r)
	if t := &s.through; t.steered != nil {
		r.bad(Error, "early_header_mutation_extensions as \"sightline envoy\" prints them", "%v", t.steered)
	} else if t.asked && t.err == nil {
		r.ok("forged headers change nothing")
	} else if t.unasked != "" {
		r.unchecked("forged headers: %s", t.unasked)
	}
}

// obeyed checks that Envoy sends requests where Sightline chose (SL0408).
func obeyed(s *collected, r *report) {
	ofEnvoy("SL0408")(s, r)
	t := &s.through
	if t.err != nil {
		fix := "see Envoy's log and its routes; a worker's answer to the same request is in SL0109"
		if refused, ok := errors.AsType[*statusError](t.err); ok && refused.rbac && !refused.worker {
			fix = "the RBAC filter of Envoy's listener: let requests for inference through to the chosen workers"
		}
		r.bad(Error, fix,
			"the canary through Envoy at %s: %v", cmp.Or(s.o.URL, s.cfg.Envoy.Listen), t.err)
	}
	went := 0
	defer func() {
		if t.unasked == "" {
			return
		}
		if went == 0 && r.Verdict == OK { // what is configured does not show that it is so
			r.Verdict, r.Evidence = "", nil
		}
		r.unchecked("no request was sent through Envoy: %s", t.unasked)
	}()
	if s.running == nil {
		return
	}
	other, ours, at := 0, false, ""
	for _, d := range s.decisions() {
		ours = ours || d.At.After(s.began) && t.asked && d.PromptTokens > 0
		if d.Used == "" || d.Addr == "" || d.Arm == arms.Unsteered { // observe, or a part of enforce
			continue
		}
		went++
		if d.Used != d.Addr {
			other, at = other+1, fmt.Sprintf("%s instead of %s", d.Used, d.Addr)
		}
	}
	switch {
	case t.asked && t.err == nil && !ours:
		fix := "the ext_proc filter on the route that requests for inference take (\"sightline envoy --for\" prints it)"
		if s.life.dead(s.cfg.Admin, true) != "" {
			fix = "see SL0505"
		}
		r.bad(Error, fix, "Envoy answered the canary without asking Sightline")
	case 10*other > went:
		r.bad(Error,
			"workers' cluster: override_host that reads x-target-worker, or ORIGINAL_DST by that header, as \"sightline envoy --for\" prints it",
			"%d of the last %d requests went elsewhere than chosen, such as %s", other, went, at)
	case went > 0:
		r.ok("%d of the last %d requests went to the chosen worker", went-other, went)
	}
}

// tooLate returns how many requests Envoy forwarded before they were decided, if they are more than one in twenty.
func (s *collected) tooLate() float64 {
	n := s.count("sightline_extproc_errors_total", "what=decided too late")
	if 20*n < s.count("sightline_decisions_total")+n {
		return 0
	}
	return n
}

// waits checks that Envoy waits for Sightline as long as configured (SL0403), in its configuration and in what came of it.
func waits(s *collected, r *report) {
	ofEnvoy("SL0403")(s, r)
	if n := s.tooLate(); n > 0 {
		const fix = "message_timeout: %v of the ext_proc filter, or more in both files; with that, Sightline lacks CPU time"
		r.bad(Error, fmt.Sprintf(fix, s.cfg.Envoy.MessageTimeout),
			"%g requests went on undecided and uncleaned, because Envoy had waited as long as it may", n)
	}
}

func accessLog(s *collected, r *report) {
	ofEnvoy("SL0409")(s, r)
	if s.tooLate() > 0 && r.Verdict != Error { // entries of requests that Envoy forwarded before the decision have no id to be found by
		r.Verdict, r.Evidence = "", nil
		r.unchecked("Envoy does not wait for decisions, so its entries belong to no request (SL0403)")
		return
	}
	if s.count("sightline_access_log_silent") > 0 {
		r.bad(Error, findings.FixAccessLog,
			"requests are decided and no entry of Envoy's access log comes: load is a guess, failing workers are not noticed")
	} else if s.count("sightline_access_log_ends_missing") > 0 {
		r.bad(Error, "the connection manager's access logger that \"sightline envoy\" prints, to all Sightlines",
			"Envoy's access log reports where requests go but not their ends: their status and tokens are unknown, they may count as "+
				"in flight for half an hour")
	} else if n := s.count("sightline_access_log_entries_total", "kind=ended"); n > 0 {
		r.ok("%g ends were reported", n)
	}
}

// feeds checks that events feed the index, up to the length of prompts (SL0502).
func feeds(s *collected, r *report) {
	for i := range s.cfg.Workers {
		w := &s.cfg.Workers[i]
		from := ""
		for _, e := range []struct {
			given bool
			name  string
		}{{w.Events.ZMQ != "", "its socket"}, {w.Events.Auto, "its socket, wherever it says"}, {w.Events.NATS, "an agent"},
			{w.Events.HTTP != "", "its HTTP queue"}} {
			if e.given {
				from = e.name
			}
		}
		if from == "" {
			r.bad(Warning, `events: {auto: true}, {zmq: …, replay: …}, {nats: true} or {http: …}`,
				"%s: no events are configured: its contents are guessed from the requests sent there", w.Name)
		} else {
			r.ok("%s: fed by %s", w.Name, from)
		}
	}
	_, _, fix := findings.OfProbe("max_model_len")
	for _, list := range s.found("max_model_len") {
		for _, f := range list {
			r.bad(Warning, fix, "%s", f.Detail)
		}
	}
	for _, row := range s.rows() {
		if row.Events == "none" && !slices.ContainsFunc(s.cfg.Workers, func(w config.Worker) bool { return w.Name == row.Name }) {
			r.bad(Warning, "events: {auto: true} of its group", "%s: the running Sightline receives no events from it", row.Name)
		}
	}
	if r.Verdict == "" {
		r.unchecked("no worker is configured by address")
	}
}

// bytesOfBlock is the size of a worker's block in the index: 20 to 27 bytes (docs/scaling.md).
const bytesOfBlock = 27

// room checks that the index has room for the blocks of the workers' caches (SL0503).
func room(s *collected, r *report) {
	blocks := 0
	s.asked(r, func(w *worker) { blocks += w.facts.Blocks * max(1, w.Ranks) })
	limit := int64(s.cfg.Index.MaxBytes)
	lost := s.count("sightline_index_lost_blocks_total")
	switch need := int64(blocks) * bytesOfBlock; {
	case need > limit:
		r.bad(Warning, fmt.Sprintf("index: {max_bytes: %dMiB}", need>>20+1),
			"workers' caches have %d blocks, some %v of the index, and index.max_bytes is %v: the least useful blocks are evicted",
			blocks, mib(need), s.cfg.Index.MaxBytes)
	case lost > 0:
		r.bad(Warning, "index: {max_bytes: …}, larger", "the running Sightline had no room for %g blocks", lost)
	case blocks > 0:
		r.ok("%d blocks, some %v of %v", blocks, mib(need), s.cfg.Index.MaxBytes)
	}
	for _, w := range s.workers {
		if held := w.facts.Blocks * w.facts.BlockSize; held > 0 && w.facts.MaxModelLen > held {
			r.bad(Warning, "--max-model-len or --gpu-memory-utilization of the worker",
				"%s: its KV cache holds %d tokens, a prompt may have %d", w.Name, held, w.facts.MaxModelLen)
		}
	}
	if r.Verdict == "" {
		r.unchecked("workers do not report how many blocks they have")
	}
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// replicas checks that several replicas do not share what only one may have (SL0504).
func replicas(s *collected, r *report) {
	n := max(len(s.cfg.Envoy.Sightlines), len(s.cfg.Replicas.Addresses))
	if n < 2 && len(s.cfg.Replicas.Addresses) == 0 {
		r.ok("there is one")
		return
	}
	for _, w := range s.cfg.Workers {
		if w.Events.HTTP != "" {
			r.bad(Error, "an agent beside the worker, and events: {nats: true}",
				"%s: events.http takes its events away from the other %d Sightlines", w.Name, n-1)
		}
	}
	if s.cfg.NATS.Listen != "" {
		r.bad(Error, "nats: {url: …}: one server for all", "nats.listen is this Sightline's own server: agents publish to one of %d", n)
	}
	if host, _, _ := net.SplitHostPort(strings.TrimPrefix(s.cfg.NATS.URL, "nats://")); hostOf(host) == "127.0.0.1" {
		r.bad(Warning, "nats: {url: …} that all reach", "nats.url is on loopback")
	}
	if s.cfg.Media.Relay.Listen != "" && s.cfg.Media.Relay.KeyFile == "" && s.cfg.Media.Relay.URL != "" {
		r.ok("the relay's URL must be this very process's, as there is no key_file")
	}
	as := &s.cfg.Replicas.Access
	if ca := s.cfg.TLS.Cert != "" && as.CA == ""; ca && !s.cfg.NATS.Given() {
		r.bad(Warning, "replicas: {ca: …}, with cert and key where tls.client_ca asks for them",
			"listen speaks TLS, and replicas is not set up for TLS to the others: they share nothing")
	}
	if s.cfg.ListenTokenFile != "" && as.APIKeyFile == "" && !s.cfg.NATS.Given() {
		r.bad(Warning, "replicas: {api_key_file: …} with a token of listen_token_file",
			"listen requires a token, and none is sent to the others: they share nothing")
	}
	if r.Verdict == "" {
		r.ok("each receives all events itself, and the others' decisions from them")
	}
}

func ready(s *collected, r *report) {
	if dead := s.life.dead(s.cfg.Admin, s.running != nil || s.answersAtAdmin); dead != "" {
		fix := "start it, or end what is frozen and start it again; if it runs elsewhere: --admin URL, and envoy.sightlines"
		switch running := s.running != nil && len(s.life.silent) == 0; {
		case running && s.running.notReady != "":
			fix = findings.FixNotReady
		case running:
			fix = "in Envoy's cluster of Sightline: the address of listen, and TLS if listen has it (tls), else none (\"sightline envoy\" prints it)"
		}
		r.bad(Error, fix, "%s", dead)
	} else if l := &s.life; l.hosts > l.healthy {
		r.bad(Warning, "see the log of the others, and whether Envoy reaches them",
			"Envoy at %s has %d Sightlines, %d of them healthy", l.envoy, l.hosts, l.healthy)
	}
	switch {
	case s.running == nil && s.o.Admin != "" && !s.o.Pre:
		r.bad(Error, "start it, or correct --admin (beyond loopback it wants the configuration's admin_token)", "%s", s.notFoundReason)
	case s.running == nil && s.answersAtAdmin:
		r.bad(Error, "see its log; admin must be Sightline's own port, and admin_token the one that it was started with",
			"what listens at admin, %q, does not answer as Sightline does: %s", s.cfg.Admin, s.notFoundReason)
	case s.running == nil && len(s.life.answered) > 0 && s.cfg.Admin != "":
		r.bad(Warning, "--admin URL, or see what keeps this machine from the admin port: half of the checks ask it",
			"Sightline answers at %s and not at admin: %s", strings.Join(s.life.answered, ", "), s.notFoundReason)
	case s.running == nil:
		r.unchecked("%s", s.notFoundReason)
	case s.running.notReady != "":
		if s.life.healthy == 0 || r.Verdict == "" {
			r.bad(Error, findings.FixNotReady, "%s", s.running.notReady)
		}
	default:
		r.ok("%d worker-ranks", len(s.rows()))
	}
}

// asks is of what only the running Sightline knows: its problems are there already.
func asks(s *collected, r *report) {
	switch {
	case s.running == nil:
		r.unchecked("%s", s.notFoundReason)
	case r.Verdict == "":
		r.ok("the running Sightline says so")
	}
}

// certificates reads the configuration's own ones, since an expired one may keep everybody from asking Sightline (SL0510).
func certificates(s *collected, r *report) {
	for _, e := range s.cfg.Expiring(time.Now()) {
		r.bad(map[bool]Verdict{true: Error, false: Warning}[e.Ended], findings.FixCertificates, "%s", e.Text)
	}
	if r.Verdict == "" {
		r.ok("those that the configuration names")
	}
}

func reachNATS(s *collected, r *report) {
	switch {
	case s.o.Pre:
		r.unchecked("--pre looks at files alone")
	case s.cfg.NATS.URL == "" && s.cfg.NATS.Listen != "":
		if n := s.count("sightline_nats_refused_total"); n > 0 {
			r.bad(Error, "use the credentials that \"sightline credentials\" makes, on both sides",
				"it denied Sightline or an agent access %g times; the log has its messages", n)
			return
		}
		r.ok("it is embedded in Sightline (nats.listen)")
	case s.natsErr != nil && s.cfg.Dynamo.Plane == "nats":
		r.bad(Error, "correct the key that it names, or start the server", "%v", s.natsErr)
	case s.cfg.Dynamo.Plane == "nats" && s.cfg.NATS.URL == "":
		r.ok("the one of Dynamo's event plane is reachable")
	case s.cfg.NATS.URL == "":
		r.ok("none is configured")
	case s.natsErr != nil:
		r.bad(Error, findings.FixNATS+"; Sightline makes the streams when it starts", "%v", s.natsErr)
	default:
		for _, one := range s.nats {
			r.ok("%s: %d messages, %s", one.Config.Name, one.State.Msgs, mib(int64(one.State.Bytes)))
		}
	}
}

func agents(s *collected, r *report) {
	for i := range s.agents {
		a := &s.agents[i]
		if a.err != nil {
			r.bad(Error, "start it with --admin, or correct --agent", "%s: %v", a.at, a.err)
		}
		for _, rank := range a.state.Ranks {
			if rank.NotReady != "" {
				r.bad(Error, "see its log, and its --zmq, --replay and --nats", "%s, of worker %s, rank %d: %s", a.at,
					a.state.Worker, rank.Rank, rank.NotReady)
			} else {
				r.ok("%s, of worker %s, rank %d: %d messages received", a.at, a.state.Worker, rank.Rank, rank.Heard.Batches)
			}
		}
	}
	for _, w := range s.cfg.Workers {
		for _, row := range s.rows() {
			if w.Events.NATS && row.Name == w.Name && row.Events != "live" && row.Events != "not ready" {
				r.bad(Error, "start its agent: sightline agent --worker "+w.Name+" …, and look at its /readyz",
					"%s: no agent publishes its events: %s", w.Name, row.Events)
			}
		}
	}
	if r.Verdict == "" && !slices.ContainsFunc(s.cfg.Workers, func(w config.Worker) bool { return w.Events.NATS }) {
		r.ok("none is configured")
	} else if r.Verdict == "" && s.running != nil {
		r.ok("all are received")
	} else if r.Verdict == "" {
		r.unchecked("none is given (--agent URL), and %s", s.notFoundReason)
	}
}
