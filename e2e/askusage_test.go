package e2e

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
)

// TestAskUsage: with envoy.ask_usage a stream whose client leaves open whether it wants the usage ends with it, so that the prediction is
// compared with the engine's count; one whose client does not want it is as it was.
func TestAskUsage(t *testing.T) {
	t.Parallel()
	l := startLab(t, func(o *lab.Options) {
		o.Config = func(keys map[string]any) {
			envoy := keys["envoy"].(map[string]any)
			envoy["token_usage"], envoy["ask_usage"] = true, true
		}
	})
	long := strings.Repeat("What is in the harbour of this town? ", 20)
	stream := func(more string) (last, decision gjson.Result) {
		t.Helper()
		res, err := http.Post(l.URL+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"`+lab.ModelName+
			`","max_tokens":3,"stream":true`+more+`,"messages":[{"role":"user","content":"`+long+`"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		res.Body.Close()
		chunks := strings.Split(strings.TrimSuffix(string(text), "\n\ndata: [DONE]\n\n"), "\n\n")
		last = gjson.Parse(strings.TrimPrefix(chunks[len(chunks)-1], "data: "))
		if err != nil || res.StatusCode != http.StatusOK || !last.IsObject() {
			t.Fatalf("got status %d, %v: %s; want 200 and a last chunk that is an object", res.StatusCode, err, text)
		}
		quiet(t, l)
		return last, lastDecision(t, l)
	}
	eventually(t, "a stream whose hit is counted", func() bool {
		last, d := stream("")
		cached := last.Get("usage.prompt_tokens_details.cached_tokens").Int()
		return last.Get("choices.#").Int() == 0 && cached > 0 && d.Get("cached_tokens").Int() == cached &&
			d.Get("reported_cached_tokens").Int() == cached
	})
	if last, d := stream(`,"stream_options":{"include_usage":false}`); last.Get("usage").Exists() || last.Get("choices.#").Int() != 1 {
		t.Errorf("a client that wants no usage got %s: %s", last, d)
	}
}
