package bench

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// FuzzAsk: no response stream makes its reader panic, and one without an error is complete.
func FuzzAsk(f *testing.F) {
	f.Add("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: " +
		"{\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1,\"prompt_tokens_details\":{\"cached_tokens\":2}}}\n\ndata: [DONE]\n")
	f.Add("data: {\"error\":{}}\n")
	f.Add("data: {\"choices\":{\"0\":[]},\"usage\":{\"prompt_tokens\":1e99}}\ndata: [DONE]")
	f.Fuzz(func(t *testing.T, stream string) {
		a, err := Ask(t.Context(), func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(stream))}, nil
		}, "http://w", nil, nil)
		if err == nil && (!strings.Contains(stream, "data: [DONE]") || a.End < a.First) {
			t.Fatalf("%+v", a)
		}
	})
}
