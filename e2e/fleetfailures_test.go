package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/lab"
)

// mixed makes chat requests: texts of their own, streamed and whole, and conversations of eight clients that begin with an
// image and grow.
func mixed(model string) func(i int) (body string, stream bool) {
	var images []string
	for i := range uint64(8) {
		images = append(images, dataURL(photo(700+i)))
	}
	return func(i int) (string, bool) {
		stream := i%2 == 0
		var messages []any
		if i%4 == 0 {
			client, turns := i/4%8, i/32%6
			messages = append(messages, user(fmt.Sprintf("Client %d: what is to be seen?", client), images[client]))
			for turn := range turns {
				messages = append(messages, map[string]any{"role": "assistant", "content": fmt.Sprintf("Many things, such as number %d.", turn)},
					user(strings.Repeat(fmt.Sprintf("Go on with part %d, please. ", turn), 8)))
			}
		} else {
			messages = append(messages, user(strings.Repeat(fmt.Sprintf("Letter %d says that there is nothing new here. ", i), 25)))
		}
		body, _ := json.Marshal(map[string]any{"model": model, "max_tokens": 4, "stream": stream, "messages": messages})
		return string(body), stream
	}
}

// Four workers under a steady load, of which one after another fails, each in another way. Whatever fails, the others
// answer; who has recovered is used again, and nothing stays booked.
func TestFleetFailures(t *testing.T) {
	var fleet []*engineProcess
	for i := range 4 {
		fleet = append(fleet, startEngine(t, fmt.Sprint("worker-", i+1), "0.32.0", simCommand(t, 0.5)))
	}
	for _, e := range fleet {
		e.healthy(t)
	}
	workers, _ := workersOf(fleet)
	g := startGateway(t, map[string]any{"log_level": "warn", "workers": workers,
		"models": []any{map[string]any{"name": lab.ModelName, "dir": absolute(t, modelDir)}}},
		func(o *envoy.Options) { o.Workers = addrsOf(fleet) })
	g.ready(len(fleet))

	// What failed, by the phase in which it did.
	var mu sync.Mutex
	phase, failed := "all well", map[string][]string{}
	enter := func(name string) { mu.Lock(); phase = name; mu.Unlock() }
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	request := mixed(lab.ModelName)
	l := startLoad(t, 40, func(i int) reply {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second) // clients lose patience
		defer cancel()
		body, stream := request(i)
		req, _ := http.NewRequestWithContext(ctx, "POST", g.url+"/v1/chat/completions", strings.NewReader(body))
		req.Header.Set("content-type", "application/json")
		r := do(client, req)
		if whole := !stream || bytes.Contains(r.body, []byte("[DONE]")); r.err != nil || r.status != http.StatusOK || !whole {
			mu.Lock()
			failed[phase] = append(failed[phase], fmt.Sprintf("stream %v: status %d, %v, %.120s", stream, r.status, r.err, r.body))
			mu.Unlock()
		}
		return r
	})
	// shares is what each worker gets of the next n requests, times its fair share.
	shares := func(n int) (list []float64) {
		l.mu.Lock()
		sent := l.sent
		l.mu.Unlock()
		for _, e := range fleet {
			list = append(list, -float64(e.asked(t)))
		}
		l.more(n)
		l.mu.Lock()
		sent = l.sent - sent
		l.mu.Unlock()
		for i, e := range fleet {
			list[i] = (list[i] + float64(e.asked(t))) * float64(len(fleet)) / float64(sent)
		}
		return list
	}
	t.Logf("shares while all are well: %.2f", shares(80))

	enter("503")
	refusing := 1
	fleet[refusing].told(t, "fault?mode=refuse")
	eventually(t, "it is known to refuse", func() bool { // within two seconds, on a machine that is not busy
		return gjson.Get(g.page("/workers"), fmt.Sprintf("#(name==%q).health", fleet[refusing].name)).Str != ""
	})
	enter("503, once it is known")
	part := shares(200)[refusing] / float64(len(fleet))
	t.Logf("a worker that answers 503 and says that it is healthy gets %.1f %% of the requests once it is known", 100*part)
	if part > 0.01 {
		t.Error("want 1 % at most")
	}
	fleet[refusing].told(t, "fault?mode=healthy")

	enter("slow")
	slow := 2
	fleet[slow].told(t, "slow?by=10")
	l.more(100)
	part = shares(200)[slow]
	t.Logf("a worker that is ten times slower gets %.2f times its fair share within ten seconds", part)
	if part > 0.6 {
		t.Error("want 0.6 at most")
	}
	fleet[slow].told(t, "slow?by=1")

	enter("killed")
	killed := 3
	fleet[killed].stop()
	l.more(60)
	fleet[killed].start(t)
	fleet[killed].healthy(t)

	enter("hangs")
	hanging := 0
	fleet[hanging].told(t, "fault?mode=hang&deaf=1")
	began := time.Now()
	l.more(100)
	part = shares(100)[hanging] // what it has not answered is load
	t.Logf("a worker that hangs gets %.2f times its fair share after two and a half seconds", part)
	if part > 1 {
		t.Errorf("it draws traffic: got %v, want at most 1", part)
	}
	eventually(t, "it is put aside", func() bool {
		return gjson.Get(g.page("/workers"), fmt.Sprintf("#(name==%q).health", fleet[hanging].name)).Str != ""
	})
	enter("hangs, and is put aside")
	took := time.Since(began).Round(time.Second)
	part = shares(40)[hanging]
	t.Logf("it is put aside after %v, and gets %.2f then", took, part)
	if part > 0 {
		t.Error("want nothing")
	}
	fleet[hanging].told(t, "fault?mode=healthy")

	began = time.Now()
	for list := []float64{0}; slices.Min(list) < 0.5; {
		list = shares(100)
		if time.Since(began) > 40*time.Second {
			t.Fatalf("shares 40 s after all are well again: %.2f", list)
		}
	}
	t.Logf("all have at least half of their fair share again after %v", time.Since(began).Round(time.Second))
	l.stop()

	eventually(t, "nothing is booked", func() bool {
		return metricOf(t, g.admin, "sightline_requests_open", "") == 0 && inFlight(t, g.admin) == 0
	})
	for phase, list := range failed {
		streams, late, lost := 0, 0, 0
		for _, what := range list {
			if strings.HasPrefix(what, "stream true") {
				streams++
			}
			if strings.HasPrefix(what, "stream true") || strings.Contains(what, "before headers. reset reason: connection termination") {
				lost++
			}
			if strings.Contains(what, "context deadline exceeded") {
				late++
			}
		}
		t.Logf("%s: %d failed, %d of them streams, %d without an answer in 15 s, such as: %s", phase, len(list), streams, late, list[0])
		switch {
		case phase == "503" && len(list) <= 200: // before it is known: Envoy sends statuses on, since engines answer bad requests so
		case phase == "503, once it is known" && len(list) <= 3:
		case phase == "killed" && lost == len(list) && len(list) <= 20: // the worker had read them, so nobody may send them again
		case strings.HasPrefix(phase, "hangs") && late == len(list) && len(list) <= 300: // those that it had, and what came before it was known
		default:
			t.Errorf("%s: that is too much", phase)
		}
	}
}
