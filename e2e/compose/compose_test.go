// Package compose tests examples/compose as it runs: run.sh beside this file starts it (make e2e-compose).
package compose

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
)

// setup is the running example, by its published ports.
type setup struct {
	*testing.T
	envoy, sightline string
}

func running(t *testing.T) setup {
	if os.Getenv("SIGHTLINE_COMPOSE") == "" {
		t.Skip("needs the example running: make e2e-compose")
	}
	at := func(key string) string { return "http://127.0.0.1:" + os.Getenv(key) }
	page := strings.Replace(at("SIGHTLINE_PORT"), "//", "//operator:example-of-compose@", 1) // admin_token in sightline.yaml
	return setup{t, at("ENVOY_PORT"), page}
}

func (s setup) docker(args ...string) {
	s.Helper()
	words := append(strings.Fields(os.Getenv("COMPOSE")), args...)
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		s.Fatalf("%v: %v\n%s", words, err, out)
	}
}

func get(url string) string {
	resp, err := http.Get(url)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	page, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return ""
	}
	return string(page)
}

// eventually waits as long as containers may take to start on a busy machine.
func (s setup) eventually(what string, ok func() bool) {
	s.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("never: %s; workers: %s", what, get(s.sightline+"/workers"))
		}
	}
}

// workers are those that are live, by name.
func (s setup) workers() (live []string) {
	for _, w := range gjson.Parse(get(s.sightline + "/workers")).Array() {
		if w.Get("events").Str == "live" {
			live = append(live, w.Get("name").Str)
		}
	}
	return live
}

func (s setup) wantWorkers(n int) {
	s.Helper()
	s.eventually(fmt.Sprint(n, " live workers"), func() bool { return len(s.workers()) == n })
}

// wantDecided waits for the first request that a Sightline decides which was started again.
func (s setup) wantDecided() {
	s.Helper()
	s.eventually("a decision", func() bool {
		s.ask("anybody there?")
		return len(gjson.Parse(get(s.sightline+"/decisions")).Array()) > 0
	})
}

// ask sends a conversation about a topic, with an image, and gives the prompt's tokens and those found cached.
func (s setup) ask(topic string) (prompt, cached int64) {
	s.Helper()
	body, err := json.Marshal(map[string]any{"model": "sim-vl", "max_tokens": 2,
		"messages": []any{map[string]any{"role": "user", "content": []any{
			map[string]any{"type": "image_url", "image_url": map[string]any{"url": imageURL(topic)}},
			map[string]any{"type": "text", "text": strings.Repeat(topic+" ", 100)}}}}})
	if err != nil {
		s.Fatal(err)
	}
	resp, err := http.Post(s.envoy+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	page, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		s.Fatalf("status %d: %s", resp.StatusCode, page)
	}
	u := gjson.GetBytes(page, "usage")
	return u.Get("prompt_tokens").Int(), u.Get("prompt_tokens_details.cached_tokens").Int()
}

// imageURL is a PNG of its own for each topic, as a data URL.
func imageURL(topic string) string {
	img := image.NewGray(image.Rect(0, 0, 224, 224))
	for i := range img.Pix {
		img.Pix[i] = topic[i%len(topic)]
	}
	var b bytes.Buffer
	_ = png.Encode(&b, img)
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(b.Bytes())
}

// Each topic comes back to the worker that has it, image and all.
func (s setup) wantHits(prefix string) {
	s.Helper()
	for round := range 3 {
		for i := range 6 {
			topic := fmt.Sprint(prefix, i)
			prompt, cached := s.ask(topic)
			if round > 0 && cached < prompt-32 {
				s.Errorf("round %d: %s: got %d of %d tokens cached, want at least %d; decided: %s; workers: %s", round, topic, cached, prompt,
					prompt-32, get(s.sightline+"/decisions?n=3"), get(s.sightline+"/workers"))
			}
		}
	}
}

func TestCompose(t *testing.T) {
	s := running(t)
	s.wantWorkers(3)
	s.wantDecided()
	s.wantHits("first")

	t.Log("Sightline is killed: requests go on; it comes back and knows the caches")
	s.docker("kill", "sightline")
	for i := range 20 {
		s.ask(fmt.Sprint("without", i))
	}
	s.docker("up", "-d", "sightline")
	s.wantWorkers(3)
	s.wantDecided()
	for i := range 6 {
		if prompt, cached := s.ask(fmt.Sprint("first", i)); cached < prompt-32 {
			t.Errorf("after the restart: first%d: got %d of %d tokens were cached, want at least %d", i, cached, prompt, prompt-32)
		}
	}

	t.Log("a worker leaves: no request fails, and Sightline forgets it")
	s.docker("rm", "-sf", "worker-2")
	for i := range 20 {
		s.ask(fmt.Sprint("two", i))
	}
	if list := get(s.sightline + "/problems"); strings.Contains(list, "SL0408") {
		s.Errorf("worker-2 is gone: got problems %s, want nothing of SL0408: what it failed was tried again elsewhere", list)
	}
	s.eventually("worker-2 has left", func() bool { return !strings.Contains(get(s.sightline+"/workers"), `"worker-2"`) })
	s.wantHits("second")

	t.Log("it comes back, at whatever address")
	s.docker("up", "-d", "worker-2")
	s.wantWorkers(3)
	s.wantHits("third")
}
