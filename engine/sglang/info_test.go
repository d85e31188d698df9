package sglang

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/engine/rules"
)

func TestAsk(t *testing.T) {
	for _, c := range []struct {
		status             int
		body, pub, replay  string
		noEvents, mustFail bool
	}{
		{200, `{"api_key":"secret","page_size":16,"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":32557,"topic":"","block_size":16,"dp_size":2,"replay_endpoint_port_base":32657}}`,
			"tcp://10.0.0.5:32558", "tcp://10.0.0.5:32658", false, false},
		{200, `{"kv_events":{"publisher":"zmq","endpoint_port_base":5557}}`, "tcp://10.0.0.5:5558", "", false, false},
		{200, `{"page_size":16}`, "", "", true, true},
		{200, `{"kv_events":{"publisher":"null","endpoint_port_base":1}}`, "", "", true, true},
		{404, `{}`, "", "", false, true},
		{200, `secret`, "", "", false, true},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/server_info" {
				t.Errorf("asked for %s, want %q", r.URL.Path, "/server_info")
			}
			w.WriteHeader(c.status)
			fmt.Fprint(w, c.body)
		}))
		info, err := FetchServerInfo(t.Context(), s.Client(), strings.TrimPrefix(s.URL, "http://"))
		s.Close()
		if (err != nil) != c.mustFail || errors.Is(err, rules.ErrNoEvents) != c.noEvents || err != nil &&
			strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", c.body, err)
		}
		if err != nil {
			continue
		}
		if pub, replay := info.Endpoints("10.0.0.5", 1); pub != c.pub || replay != c.replay {
			t.Errorf("%s: got %s, %s, want %q, %q", c.body, pub, replay, c.pub, c.replay)
		}
	}
}
