package findings

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/router"
)

// recentAge is how long a request counts.
const recentAge = time.Minute

// From when on symptoms are findings.
const (
	fewFailed  = 3                // requests, at least
	someFailed = 0.05             // of all
	mostFailed = 0.5              // of all: an error
	slowFirst  = 10 * time.Second // to the first token
	someSlow   = 0.2              // of all
	settled    = 15 * time.Second // after the start Envoy has found this Sightline
	refusedFor = 10 * time.Minute // a refused call counts, unless its sender was admitted since
)

const ofCluster = " of the workers' cluster in Envoy"

// envoyFlags has what Envoy's response flags mean, and what to do; the first that is set counts.
var envoyFlags = []struct{ flags, means, fix string }{
	{"UT", "Envoy's timeout ended before the answer", "timeout of the route in Envoy, and per_try_timeout of its retries: 0s, as " +
		"\"sightline envoy\" prints, or longer than the longest answer"},
	{"SI", "Envoy's idle timeout ended the request", "stream_idle_timeout and idle_timeout of Envoy's route: longer than a prefill takes"},
	{"DT UMSDR", "Envoy's max_stream_duration ended the request", "max_stream_duration in Envoy: longer than the longest answer"},
	{"UO", "Envoy's circuit breaker is open", "circuit_breakers" + ofCluster + ", as \"sightline envoy\" prints: SL0410"},
	{"NR", "Envoy has no route", "the routes in Envoy: their paths, hosts and headers"},
	{"NC", "Envoy does not know the route's cluster", "the route's cluster in Envoy"},
	{"UH", "Envoy has no healthy worker", "the health checks and addresses" + ofCluster + ": SL0408"},
	{"DF", "Envoy cannot resolve a name", "the addresses" + ofCluster},
	{"UF", "Envoy gets no connection", "address, port and TLS" + ofCluster + ", and the network between them"},
	{"UPE", "the worker does not speak Envoy's protocol", "HTTP/1.1 or HTTP/2 and TLS" + ofCluster},
	{"UC", "the connection broke", "see the worker's log, and what is between it and Envoy"},
	{"UR", "the worker reset the request", "see the worker's log"},
	{"LR", "Envoy reset the request", "see Envoy's log"},
	{"OM", "Envoy is overloaded", "the overload manager's limits in Envoy"},
	{"UAEX", "external authorization refused it", "the ext_authz filter in Envoy"},
	{"RL", "Envoy's rate limit refused it", "the rate limit in Envoy"},
	{"FI", "Envoy's fault filter ended it", "the fault filter in Envoy"},
}

// failures are requests that ended alike.
type failures struct {
	code              int
	flags, means, fix string
	count             int
	workers           []string
}

// failure says how a request failed; ok: it did not, or its client left.
func failure(code int, flags string) (f failures, ok bool) {
	f = failures{code: code, flags: flags, means: "by the worker", fix: "see the logs of the workers that are named"}
	known := false
	if set := strings.Split(flags, ","); !slices.Contains(set, "DC") && !slices.Contains(set, "DR") {
		for _, one := range envoyFlags {
			if slices.ContainsFunc(strings.Fields(one.flags), func(flag string) bool { return slices.Contains(set, flag) }) {
				f.means, f.fix, known = one.means, one.fix, true
				break
			}
		}
	}
	return f, code < 400 && !known
}

// ofFailures adds the share of requests that fail, whatever the cause. Refusals of Sightline's own are other findings. Of what clients may
// cause themselves, such as 400, there must be much.
func (f *Facts) ofFailures(l *list, nameOf map[string]string) {
	var groups []failures
	total := 0
	count := func(code int, flags, why, addr string) {
		total++
		one, ok := failure(code, flags)
		if ok {
			return
		}
		if flags == "" && addr == "" {
			one.means, one.fix = "by Envoy"+map[bool]string{true: ": " + why}[why != ""], "the filters and routes of Envoy's listener"
		}
		at := slices.IndexFunc(groups, func(o failures) bool { return o.code == one.code && o.means == one.means })
		if at < 0 {
			groups = append(groups, one)
			at = len(groups) - 1
		}
		groups[at].count++
		if name := cmp.Or(nameOf[addr], addr); name != "" && !slices.Contains(groups[at].workers, name) {
			groups[at].workers = append(groups[at].workers, name)
		}
	}
	for i := range f.Recent {
		if r := &f.Recent[i]; r.Lasted > 0 && !(r.Reason == router.RefusedByUs && r.Used == "") {
			count(r.Code, r.Flags, "", r.Used)
		}
	}
	for _, s := range f.Strays {
		if f.Now.Sub(s.At) <= recentAge && (s.Addr == "" || nameOf[s.Addr] != "") {
			count(s.Code, s.Flags, s.Why, s.Addr)
		}
	}
	failed := 0
	groups = slices.DeleteFunc(groups, func(g failures) bool {
		theirs := g.code >= 400 && g.code < 500 && g.flags == "" // a client's fault, perhaps
		return theirs && (float64(g.count) < mostFailed*float64(total) || g.count < 3*fewFailed)
	})
	slices.SortStableFunc(groups, func(a, b failures) int { return b.count - a.count })
	var says []string
	for _, g := range groups {
		failed += g.count
		text := fmt.Sprintf("%d with %d, %s", g.count, g.code, g.means)
		if g.flags != "" {
			text += " (" + g.flags + ")"
		}
		if n := len(g.workers); n > 0 {
			slices.Sort(g.workers)
			text += " at " + strings.Join(g.workers[:min(n, named)], ", ")
			if n > named {
				text += fmt.Sprintf(" and %d more", n-named)
			}
		}
		says = append(says, text)
	}
	share := float64(failed) / float64(max(1, total))
	if failed < fewFailed || share < someFailed {
		return
	}
	severity := "warning"
	if share >= mostFailed {
		severity = "error"
	}
	l.add(Finding{Code: "SL0001", Severity: severity, kind: "failing", From: "requests", Fix: groups[0].fix,
		What: fmt.Sprintf("%d of the last %d requests failed: %s", failed, total, strings.Join(says[:min(len(says), named)], "; "))}, "", "")
}

// ofSlowTokens adds the share of answers that begin late. A streamed answer's first byte may come before its first token (vLLM), so what
// it took beyond ten tokens a second counts too.
func (f *Facts) ofSlowTokens(l *list) {
	total, slow, fetching := 0, 0, 0
	for i := range f.Recent {
		r := &f.Recent[i]
		if r.Lasted == 0 || r.Used == "" {
			continue
		}
		total++
		waited := r.Lasted - time.Duration(r.OutputTokens)*100*time.Millisecond
		if r.Streams && r.FirstByte >= slowFirst || (r.OutputTokens > 0 || r.Code == 0) && waited >= slowFirst {
			slow++
			if r.Fetches {
				fetching++
			}
		}
	}
	if slow < fewFailed || float64(slow) < someSlow*float64(total) {
		return
	}
	text := fmt.Sprintf("%d of the last %d answers began more than %v late", slow, total, slowFirst)
	if fetching > 0 {
		text += fmt.Sprintf(", %d of them with images that the engine downloads (SL0509)", fetching)
	}
	l.add(Finding{Code: "SL0002", Severity: "warning", kind: "slow", From: "requests", What: text,
		Fix: "see what else is said here: workers that are slow, out or full (SL0109, SL0110), image hosts; else more workers"}, "", "")
}

// ofUndecided adds requests that reached workers without a decision, and calls that were refused.
func (f *Facts) ofUndecided(l *list, nameOf map[string]string) {
	n, decided := 0, 0
	for _, s := range f.Strays {
		if nameOf[s.Addr] != "" && f.Now.Sub(s.At) <= recentAge && s.At.Sub(f.Began) > settled {
			n++
		}
	}
	for i := range f.Recent {
		if f.Recent[i].Used != "" {
			decided++
		}
	}
	if n >= fewFailed {
		severity := "warning"
		if float64(n) >= someFailed*float64(n+decided) {
			severity = "error"
		}
		l.add(Finding{Code: "SL0003", Severity: severity, kind: "undecided", From: "access log",
			What: fmt.Sprintf("%d of the last %d requests reached workers undecided and uncleaned", n, n+decided),
			Fix:  "if SL0004 is there too, that; else the ext_proc filter on every route to workers (docs/envoy.md)"}, "", "")
	}
	if late := f.TooLate; late >= fewFailed && float64(late) >= someFailed*float64(late+decided) {
		l.add(Finding{Code: "SL0003", Severity: "error", kind: "too late", From: "requests",
			What: fmt.Sprintf("%d requests went on undecided and uncleaned, because Envoy had waited as long as it may", late),
			Fix:  "message_timeout of the ext_proc filter: as envoy.message_timeout, or more in both files; with that, Sightline lacks CPU time"},
			"", "")
	}
	type same struct{ from, what, why string }
	calls := map[same]int{}
	for _, c := range f.Refused {
		if f.Now.Sub(c.At) <= refusedFor {
			calls[same{c.From, c.What, c.Why}]++
		}
	}
	var says []string
	severity, fix := "warning", ""
	for c, n := range calls {
		says = append(says, fmt.Sprintf("%s from %s: %s (%d times)", c.what, c.from, c.why, n))
		if c.what != "connections" || decided == 0 {
			severity = "error"
		}
		if c.what == "connections" {
			fix = cmp.Or(fix, "tls of Sightline and the transport_socket of its cluster in Envoy: both with TLS or none, each with the authority "+
				"that the other's certificate is of")
		} else {
			fix = "listen_token_file: the token that Envoy sends as authorization to ext_proc and access log; during a rotation the old one " +
				"and the new one, one a line"
		}
	}
	if len(says) > 0 {
		slices.Sort(says)
		l.add(Finding{Code: "SL0004", Severity: severity, kind: "refused", From: "listen", Fix: fix,
			What: "calls are refused at listen, so requests go on undecided and uncleaned: " +
				strings.Join(says[:min(len(says), named)], "; ")}, "", "")
	}
}

// ofRequests adds what the last requests show: refusals for lack of room, and workers whose clients leave without an answer or wait.
func (f *Facts) ofRequests(l *list) {
	refused, left, answered := 0, map[string]int{}, map[string]bool{}
	longest, waiting, oldest := map[string]time.Duration{}, map[string]int{}, map[string]time.Duration{}
	lastEnd := map[string]time.Time{}
	var ends []router.Recent
	for i := range f.Recent {
		switch r := &f.Recent[i]; {
		case r.Code == http.StatusTooManyRequests && r.Used == "":
			refused++
		case r.Fetches && r.Code == 0: // it may wait for an image host, in the engine
		case r.Code == 0 && r.Lasted >= longWait && !answered[r.Used]:
			left[r.Used]++
			longest[r.Used] = max(longest[r.Used], r.Lasted)
		case r.Code != 0:
			answered[r.Used] = true
			if end := r.At.Add(r.Lasted); end.After(lastEnd[r.Used]) {
				lastEnd[r.Used] = end
			}
			if r.FirstByte > 0 && r.Used != "" {
				ends = append(ends, *r)
			}
		case r.Lasted == 0 && r.Used != "" && f.Now.Sub(r.At) >= hanging:
			waiting[r.Used]++
			oldest[r.Used] = max(oldest[r.Used], f.Now.Sub(r.At))
		}
	}
	if refused > 0 {
		l.add(Finding{Code: "SL0110", Severity: "warning", kind: "full", From: "requests",
			What: fmt.Sprintf("%d of the last requests got 429: all workers had reached max_in_flight", refused),
			Fix:  "more workers, or a larger max_in_flight"}, "", "")
	}
	noAnswers := Finding{Code: "SL0110", Severity: "warning", kind: "no answers", From: "requests", What: "clients get no answer",
		Fix: "see its log: it may hang; requests go on to it as long as it answers health checks"}
	for i := range f.Workers {
		w := &f.Workers[i]
		still := w.Events == "live" && !w.EventAt.IsZero() && f.Now.Sub(w.EventAt) >= hanging && f.Now.Sub(lastEnd[w.Addr]) >= hanging
		if n := left[w.Addr]; n >= fewLeft {
			l.add(noAnswers, w.Name, fmt.Sprintf("the last %d left, after up to %v", n, longest[w.Addr].Round(time.Second)))
		} else if n := waiting[w.Addr]; n >= fewLeft && still {
			l.add(noAnswers, w.Name, fmt.Sprintf("%d wait, for up to %v, and it stores nothing", n, oldest[w.Addr].Round(time.Second)))
		}
		if times, first := slower(ends, w); times > 0 {
			l.add(Finding{Code: "SL0110", Severity: "warning", kind: "slow", From: "requests", What: "answers begin late there",
				Fix: "see its GPU, and what else runs beside it"}, w.Name,
				fmt.Sprintf("%.0f times later than elsewhere, after %v", times, first.Round(100*time.Millisecond)))
		}
	}
}

// slower returns by how much later a worker's answers begin than those of other workers of its model, for each token to compute; 0: not
// much, or they are too few to tell.
func slower(ends []router.Recent, w *Worker) (times float64, first time.Duration) {
	var mine, others []float64
	var waits []time.Duration
	for i := range ends {
		r := &ends[i]
		first := r.FirstByte - r.Took // what Sightline took is not the worker's
		if r.Fetches || first <= 0 {
			continue // nor is what an image host took
		}
		each := first.Seconds() / float64(max(r.PromptTokens-r.CachedTokens, usualTokens))
		switch {
		case r.Used == w.Addr:
			mine, waits = append(mine, each), append(waits, first)
		case r.Model == w.Model:
			others = append(others, each)
		}
	}
	if len(mine) < fewAnswers || len(others) < fewAnswers {
		return 0, 0
	}
	slices.Sort(mine)
	slices.Sort(others)
	slices.Sort(waits)
	times, first = mine[len(mine)/2]/others[len(others)/2], waits[len(waits)/2]
	if times < muchSlower || first < longFirst {
		return 0, 0
	}
	return times, first
}

// What makes a worker slow, or suspected of hanging.
const (
	fewAnswers  = 8           // answers of it, and of others, that are enough for a median
	muchSlower  = 5           // times as long as the others' median, for each token to compute
	longFirst   = time.Second // to the first byte, at least
	usualTokens = 512         // that a request with fewer tokens to compute counts as

	fewLeft  = 3                // requests, one after another, whose clients left without an answer
	longWait = 2 * time.Second  // of these clients
	hanging  = 20 * time.Second // requests wait, none of the worker's ends, and nothing is stored
)

// failingHost is how many downloads from a host fail in a row before it is a problem, and slowHost after what time it answers.
const (
	failingHost = 3
	slowHost    = 2 * time.Second
)

// ofHosts adds image hosts whose downloads fail or are slow. Any client can name a host that fails, which is a note: no request waits for
// it.
func (f *Facts) ofHosts(l *list) {
	var failing, slow []string
	for _, h := range f.Hosts {
		if h.InARow >= failingHost && f.Now.Sub(h.At) <= 2*recentAge {
			failing = append(failing, fmt.Sprintf("%q: %s, %d times in a row", h.Host, h.Last, h.InARow))
		} else if h.Took >= slowHost && f.Now.Sub(h.TookAt) <= 2*recentAge {
			slow = append(slow, fmt.Sprintf("%q: after %v", h.Host, h.Took.Round(100*time.Millisecond)))
		}
	}
	add := func(kind, severity, what, fix string, list []string) {
		if len(list) == 0 {
			return
		}
		text := strings.Join(list[:min(len(list), named)], "; ")
		if more := len(list) - named; more > 0 {
			text += fmt.Sprintf("; and %d more (/hosts)", more)
		}
		l.add(Finding{Code: "SL0509", Severity: severity, kind: kind, From: "requests", What: what + text, Fix: fix}, "", "")
	}
	add("hosts", "note", "images cannot be downloaded, and are known by their URLs alone: ",
		"see whether Sightline reaches the host: its name, a network policy, HTTPS_PROXY", failing)
	add("slow hosts", "warning", "images come late, and requests with them begin as late at any worker: ",
		"see the host and the way to it; or send images as data URLs", slow)
}
