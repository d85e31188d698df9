package probe

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

type answers map[string]string

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(a[r.URL.Path])), Request: r}, nil
}

// FuzzAnswers checks that, whatever a worker answers to a probe, the findings are limited in number and length, and nothing
// panics.
func FuzzAnswers(f *testing.F) {
	f.Add(`{"data":[{"id":"m","root":"m","max_model_len":9},{"id":"a","parent":"m"}]}`, `{"version":"0.32.0"}`,
		"vllm:cache_config_info{block_size=\"32\"} 1\n", `{"tokens":[1,2,3]}`)
	f.Add(`{"data":[`+strings.TrimSuffix(strings.Repeat(`{"id":"m","parent":"x"},`, 2000), ",")+`]}`, `{"version":"v"}`,
		"", `{"tokens":[4294967296]}`)
	f.Add(`[]`, `7`, "vllm:cache_config_info{block_size=\"", `{"tokens":null}`)
	m := load(f, nil)
	f.Fuzz(func(t *testing.T, models, version, page, tokens string) {
		p := New(Options{})
		p.client.Transport = answers{"/v1/models": models, "/version": version, "/metrics": page, "/tokenize": tokens}
		found, _ := p.probeWorker(t.Context(), &Worker{Name: "w", Addr: "10.0.0.1:8000", Model: "m", Names: []string{"m"}, Ours: m})
		if len(found) == 0 || len(found) > 2*1024 {
			t.Fatalf("%d findings, want some, at most %d", len(found), 2*1024)
		}
		for _, one := range found {
			if len(one.Detail) > 2000 {
				t.Fatalf("a detail of %d bytes, want at most 2000", len(one.Detail))
			}
		}
	})
}
