package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/envoytest"
	"github.com/sightline-router/sightline/lab/sim"
)

// firstTold returns the first problem of a code within two minutes, while send is called again and again, and whether it is the first
// of all.
func firstTold(t *testing.T, l *lab.Lab, code string, send func(i int)) (one gjson.Result, first bool) {
	t.Helper()
	began, page := time.Now(), []byte(nil)
	for i := 0; time.Since(began) < 2*time.Minute; i++ {
		send(i)
		page, _ = lab.Get("http://" + l.Admin + "/problems")
		if one := gjson.GetBytes(page, fmt.Sprintf("#(code==%q)", code)); one.Exists() {
			t.Logf("after %v: %s", time.Since(began).Round(time.Second), one.Raw)
			return one, gjson.GetBytes(page, "0.code").Str == code
		}
	}
	t.Fatalf("/problems does not say %s within two minutes: %s", code, page)
	return
}

// another runs a second Envoy before a lab, with an edited configuration, and returns its URL.
func another(t *testing.T, o envoy.Options, edit func(string) string) string {
	t.Helper()
	o.Listen, o.Admin = freeAddr(t), freeAddr(t)
	text, err := envoy.Generate(o)
	if err != nil {
		t.Fatal(err)
	}
	changed := edit(string(text))
	if changed == string(text) {
		t.Fatal("nothing was edited")
	}
	e, err := envoytest.Run(t.Context(), binary(t), []byte(changed), o.Admin, &lockedBuffer{}, "--concurrency", "1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Stop)
	return "http://" + o.Listen
}

func question(url string, i int) int {
	body := fmt.Sprintf(`{"model":%q,"max_tokens":2,"messages":[{"role":"user","content":"%d: %s"}]}`, lab.ModelName, i, strings.Repeat("why ", 100))
	resp, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// TestRouteTimeout: a route's timeout in Envoy that is shorter than a prefill fails every request, and nothing else is wrong. Page, log,
// metrics and doctor say so first.
func TestRouteTimeout(t *testing.T) {
	t.Parallel()
	var front envoy.Options
	var log *lockedBuffer
	l := startLab(t, func(o *lab.Options) {
		o.Workers, o.Speed, log = 2, 1, o.Log.(*lockedBuffer)
		o.Front = func(o *envoy.Options) { front = *o }
		o.Config = func(keys map[string]any) { keys["log_level"] = "warn" }
	})
	for _, w := range l.Sims {
		w.SetSlow(100)
	}
	url := another(t, front, func(text string) string { return strings.ReplaceAll(text, "timeout: 0s", "timeout: 0.03s") })
	one, first := firstTold(t, l, "SL0001", func(i int) {
		question(url, i)
	})
	if !first || one.Get("severity").Str != "error" || !strings.Contains(one.Get("what").Str, "504") ||
		!strings.Contains(one.Get("fix").Str, "timeout") {
		t.Errorf("first of all: %t; got %s, want an error with 504 and the timeout", first, one.Raw)
	}
	if page, err := lab.Get("http://" + l.Admin + "/"); err != nil || !strings.Contains(string(page), "SL0001") {
		t.Errorf(`the page does not say it: got %v, want no error, strings.Contains(string(page), "SL0001")`, err)
	}
	if metric(t, l, "sightline_findings", `code="SL0001"`) == 0 {
		t.Error("no metric counts it")
	}
	eventually(t, "the log says it", func() bool { return strings.Contains(log.String(), "SL0001") })
	checks, status := doctored(t, l.Self(), l.Config(), "--no-canary")
	said := false
	for _, c := range checks {
		said = said || c.Code == "SL0001" && strings.Contains(strings.Join(c.Evidence, " "), "504")
	}
	if !said || status != 1 {
		t.Errorf("doctor: status %d, said %t, want 1 and SL0001", status, said)
	}
}

// TestTokenRotatedHereOnly: the token is replaced in Sightline's file and not in Envoy's: every request goes on undecided. Once Envoy's is
// the same, nothing is said any more.
func TestTokenRotatedHereOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ours, theirs := filepath.Join(dir, "ours"), filepath.Join(dir, "theirs")
	write := func(file, token string) {
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(ours, "0123456789abcdef-old")
	write(theirs, "0123456789abcdef-old")
	l := startLab(t, func(o *lab.Options) {
		o.Workers = 2
		o.Front = func(o *envoy.Options) { o.SightlineTokenFile = theirs }
		o.Config = func(keys map[string]any) {
			keys["listen_token_file"] = ours
			keys["envoy"].(map[string]any)["sightline_token_file"] = theirs
		}
	})
	send := func(i int) { question(l.URL, i); time.Sleep(50 * time.Millisecond) }
	for i := range 5 {
		send(i)
	}
	if page, _ := lab.Get("http://" + l.Admin + "/problems"); string(page) != "[]\n" {
		t.Errorf("before: got %s, want nothing", page)
	}
	write(ours, "0123456789abcdef-new")
	one, first := firstTold(t, l, "SL0004", send)
	if !first || one.Get("severity").Str != "error" || !strings.Contains(one.Get("what").Str, "127.0.0.1") ||
		!strings.Contains(one.Get("what").Str, "token") || !strings.Contains(one.Get("fix").Str, "listen_token_file") {
		t.Errorf("first of all: %t; got %s, want an error with who and why", first, one.Raw)
	}
	checks, status := doctored(t, l.Self(), l.Config(), "--no-canary")
	said := false
	for _, c := range checks {
		said = said || c.Code == "SL0004" && strings.Contains(strings.Join(c.Evidence, " "), "token")
	}
	if !said || status != 1 {
		t.Errorf("doctor: status %d, said %t, want 1 and SL0004", status, said)
	}
	write(ours, "0123456789abcdef-old")
	eventually(t, "SL0004 ends with its cause", func() bool {
		send(0)
		page, err := lab.Get("http://" + l.Admin + "/problems")
		return err == nil && !strings.Contains(string(page), "SL0004")
	})
}

// TestSlowImageHost: an image host that answers after four seconds is named, and no worker is.
func TestSlowImageHost(t *testing.T) {
	t.Parallel()
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(4 * time.Second)
		w.Header().Set("Content-Type", "image/jpeg")
		_, _ = w.Write(photo(5))
	}))
	t.Cleanup(host.Close)
	l := startLab(t, func(o *lab.Options) {
		o.Workers = 2
		o.Sim = func(_ int, c *sim.Config) {}
		o.Config = func(keys map[string]any) {
			keys["media"] = map[string]any{"allow": []string{"127.0.0.0/8"}}
		}
	})
	done := make(chan int)
	one, _ := firstTold(t, l, "SL0509", func(i int) {
		for k := range 8 {
			go func() {
				content := fmt.Sprintf("%d, %d: what is it? %s", i, k, strings.Repeat("why ", 100))
				parts, _ := json.Marshal([]any{map[string]any{"type": "text", "text": content},
					map[string]any{"type": "image_url", "image_url": map[string]any{"url": fmt.Sprintf("%s/%d-%d.jpg", host.URL, i, k)}}})
				body := fmt.Sprintf(`{"model":%q,"max_tokens":2,"messages":[{"role":"user","content":%s}]}`, lab.ModelName, parts)
				resp, err := http.Post(l.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
				if err == nil {
					resp.Body.Close()
				}
				question(l.URL, 100*i+k)
				done <- 0
			}()
		}
		for range 8 {
			<-done
		}
	})
	if !strings.Contains(one.Get("what").Str, "127.0.0.1") {
		t.Errorf("got %s, want the host", one.Raw)
	}
	if page, _ := lab.Get("http://" + l.Admin + "/problems"); gjson.GetBytes(page, `#(code=="SL0110")`).Exists() {
		t.Errorf("a worker is blamed: %s", page)
	}
}
