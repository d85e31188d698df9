package vllm

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
	const two = `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657","buffer_steps":10000,"hwm":100000,"topic":"kv"},
		"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://10.0.0.9:41001","replay_endpoint":null,"topic":""}}`
	const at = `{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d"}`
	node := fmt.Sprintf(`{"10":`+at+`,"9":`+at+`,"8":`+at+`}`, 5567, 5566, 5565)
	for name, c := range map[string]struct {
		status, rank       int
		body, pub, replay  string
		noEvents, mustFail bool
	}{
		"rank 0":                               {200, 0, two, "tcp://10.0.0.5:5557", "tcp://10.0.0.5:5657", false, false},
		"rank 1":                               {200, 1, two, "tcp://10.0.0.5:41001", "", false, false},
		"no such rank":                         {200, 2, two, "", "", false, true},
		"a node that begins with rank 8":       {200, 0, node, "tcp://10.0.0.5:5565", "", false, false},
		"its next rank":                        {200, 1, node, "tcp://10.0.0.5:5566", "", false, false},
		"its last rank, in the order of ranks": {200, 2, node, "tcp://10.0.0.5:5567", "", false, false},
		"none of its ranks":                    {200, 8, node, "", "", false, true},
		"ranks that do not follow one another": {200, 0, fmt.Sprintf(`{"8":`+at+`,"10":`+at+`}`, 1, 2), "", "", false, true},
		"keys that are no ranks":               {200, 0, fmt.Sprintf(`{"default":`+at+`}`, 1), "", "", false, true},
		"events off":                           {200, 0, `{"0":{"enable_kv_cache_events":false,"publisher":"null"}}`, "", "", true, true},
		"render only":                          {200, 0, `{}`, "", "", true, true},
		"an older server":                      {404, 0, `{"detail":"Not Found"}`, "", "", false, true},
		"no port":                              {200, 0, `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"inproc://x"}}`, "", "", false, true},
		"no JSON":                              {200, 0, `secret`, "", "", false, true},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/kv_event_sources" {
				t.Errorf("asked for %s, want %q", r.URL.Path, "/kv_event_sources")
			}
			w.WriteHeader(c.status)
			_, _ = w.Write([]byte(c.body))
		}))
		list, err := findEvents(t.Context(), s.Client(), strings.TrimPrefix(s.URL, "http://"), "10.0.0.5", 1)
		s.Close()
		if err == nil && len(list) <= c.rank {
			if !c.mustFail {
				t.Errorf("%s: got %d ranks, want one of number %d", name, len(list), c.rank)
			}
			continue
		}
		var got rules.EventSource
		if err == nil {
			got = list[c.rank]
		}
		if (err != nil) != c.mustFail || errors.Is(err, rules.ErrNoEvents) != c.noEvents || err != nil &&
			strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		} else if err == nil && (got.Pub != c.pub || got.Replay != c.replay) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestClaimedRanksAreBounded: of a server that claims more ranks than MaxClaimedRanks the first are read.
func TestClaimedRanksAreBounded(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for i := range 1 + 4*rules.MaxClaimedRanks {
			fmt.Fprintf(w, `%c"%d":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d"}`, "{,"[min(i, 1)], i, 20000+i)
		}
		fmt.Fprint(w, "}")
	}))
	defer s.Close()
	list, err := findEvents(t.Context(), s.Client(), strings.TrimPrefix(s.URL, "http://"), "10.0.0.5", 1)
	if last := fmt.Sprint("tcp://10.0.0.5:", 20000+rules.MaxClaimedRanks-1); err != nil || len(list) != rules.MaxClaimedRanks ||
		list[len(list)-1].Pub != last {
		t.Errorf("got %d ranks, %v, want %d, the last at %s", len(list), err, rules.MaxClaimedRanks, last)
	}
}
