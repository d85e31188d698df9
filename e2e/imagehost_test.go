package e2e

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

// An image host gives the engine another image than Sightline, again and again, behind a text and an image that others use: what
// the engine then does not find, and what its events call that image, changes nothing for others. Nothing that it sends is logged.
func TestImageHostThatDeceives(t *testing.T) {
	t.Parallel()
	for engine, block := range map[sim.Engine]int{sim.VLLM: 16, sim.TRTLLM: 32} {
		reason := map[sim.Engine]string{sim.VLLM: "exact", sim.TRTLLM: "predicted"}[engine]
		t.Run(string(engine), func(t *testing.T) {
			log := &lockedBuffer{}
			change := func(o *lab.Options) {
				o.Workers, o.Log = 1, log
				o.Sim = func(_ int, c *sim.Config) { c.BlockSize = block }
				theirs := o.Config
				o.Config = func(keys map[string]any) {
					if theirs != nil {
						theirs(keys)
					}
					keys["media"] = map[string]any{"allow": []string{"127.0.0.1/32"}, "budget": "20s"}
					keys["envoy"].(map[string]any)["message_timeout"] = "60s"
				}
			}
			var l *lab.Lab
			if engine == sim.VLLM {
				l = startLab(t, change)
			} else {
				l = startEngines(t, engine, block, change)
			}
			mine, theirs := pngURL(31), [...]string{pngURL(32), pngURL(33), pngURL(34), pngURL(35)}
			host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				file, more := mine, "after the picture's end"
				if strings.HasPrefix(r.UserAgent(), "vLLM/") { // all simulated engines
					file, more = theirs[r.URL.Path[1]-'0'], ""
				}
				raw, _ := base64.StdEncoding.DecodeString(file[strings.IndexByte(file, ',')+1:])
				c, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s%s", len(raw), raw, more)
			}))
			t.Cleanup(host.Close)
			text := strings.Repeat("Look at the picture that follows and say what is to be seen in it. ", 20)
			ask := func(text, question, url string) result {
				t.Helper()
				before := map[string]any{"type": "text", "text": text}
				r := post(t, l,
					map[string]any{"messages": []any{map[string]any{"role": "user", "content": []any{before, imagePart(url, nil),
						map[string]any{"type": "text", "text": question}}}}}, nil)
				if r.status != http.StatusOK {
					t.Fatalf("got %+v, want status %d", r, http.StatusOK)
				}
				settled(t, l)
				return r
			}
			ask(text, "Seen before it is asked for?", mine)
			ask(text, "What is it? Tell me all of it, at length.", mine)
			ask(text, "What is it?", mine)
			known := lastDecision(t, l)
			deceived := 0
			for i := range 8 { // by four images at the others' text, and by one that comes in each of four new prompts
				before, image := text, i/2
				if i%2 == 1 {
					before, image = fmt.Sprint(i, " is a number. ", text), 0
				}
				r := ask(before,
					fmt.Sprintf("Deceived for the %d. time, in a question of its own that is long enough to fill a block of the engine's?", i),
					fmt.Sprint(host.URL, "/", image, ".png"))
				if d := lastDecision(t, l); int(d.Get("cached_tokens").Int()) > r.cached+block {
					deceived++
				}
			}
			if deceived < 3 {
				t.Errorf("only %d of 8 predictions were wrong: nothing was tried, want at least 3", deceived)
			}
			r := ask(text, "And what is it now?", mine)
			d := lastDecision(t, l)
			if n := int(d.Get("cached_tokens").Int()); d.Get("reason").Str != reason || n != r.cached ||
				n < int(known.Get("cached_tokens").Int())-block {
				t.Errorf("%d tokens cached, predicted %s; before the attack %s", r.cached, d.Raw, known.Raw)
			}
			if n := metric(t, l, "sightline_blocks_corrected_total", ""); n != 0 {
				t.Errorf("%v blocks were taken out of the index, want 0", n)
			}
			if strings.Contains(log.String(), "picture's end") {
				t.Errorf("what the host sent is in the log:\n%s", log)
			}
		})
	}
}
