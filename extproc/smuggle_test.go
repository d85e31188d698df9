package extproc

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/mem"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/lab/smuggle"
)

// TestNothingIsSmuggled checks that of random hostile requests none that passes the gate and the cleaning has anything left that
// steers an engine's server. SIGHTLINE_SMUGGLE is their number (make smuggle N=…), SIGHTLINE_SEED the seed.
func TestNothingIsSmuggled(t *testing.T) {
	number := func(name string, or int) int {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
		return or
	}
	n, seed := number("SIGHTLINE_SMUGGLE", 20_000), uint64(number("SIGHTLINE_SEED", 1))
	e := smuggle.Start(t)
	const batch = 500
	counts := map[string]int{}
	sent := make(chan []smuggle.Request, 4) // as the worker would get them
	asked := make(chan []smuggle.Request, 4)
	failed := make(chan error, 1)
	go func() {
		defer close(sent)
		var s body.Skeleton
		for from := 0; from < n; from += batch {
			var list, raw []smuggle.Request
			for i := range batch {
				r := rand.New(rand.NewPCG(seed, uint64(from+i)))
				q := smuggle.Hostile(r)
				what, passed := pass(q, r, &s)
				counts[what]++
				if passed != nil {
					raw, list = append(raw, q), append(list, smuggle.Request{Path: q.Path, Body: passed})
				}
			}
			asked <- raw
			sent <- list
		}
	}()
	go func() {
		defer close(failed)
		for list := range sent {
			if err := e.Send(list); err != nil {
				failed <- err
				return
			}
		}
	}()
	passed, read := 0, 0
	for range (n + batch - 1) / batch {
		raw := <-asked
		found, some, err := e.Answer()
		if err != nil {
			t.Fatal(err)
		}
		passed, read = passed+len(raw), read+some
		for _, f := range found {
			t.Errorf("got %s finding %s: %+v %q, want no reader to find one", f.Reader, f.Field, raw[f.At].Path, raw[f.At].Body)
		}
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	t.Logf("smuggle: %d requests from seed %d, %d passed on, %d read as JSON by an engine's server at an endpoint; %v",
		n, seed, passed, read, counts)
	if read*20 < n || counts["cleaned"]*20 < n {
		t.Errorf("hardly any request reached an engine: the test says little; got %d, %d, want at least %d, at least %d",
			read*20, counts["cleaned"]*20, n, n)
	}
}

// pass returns the body that a worker would get, nil for none, and what happened to the request.
func pass(q smuggle.Request, r *rand.Rand, s *body.Skeleton) (what string, out []byte) {
	headers := []*corev3.HeaderValue{{Key: ":method", Value: "POST"}, {Key: ":path", Value: q.Path}}
	for k, v := range map[string]string{"content-type": q.Type, "content-encoding": q.Encoding} {
		if v != "" {
			headers = append(headers, &corev3.HeaderValue{Key: k, Value: v})
		}
	}
	h := readHead(headers, false, "")
	switch g, _ := h.judge(DefaultMaxBody, new(Tenants)); g {
	case unreadable:
		return "refused by the gate", nil
	case notOurs:
		return "not ours", q.Body
	}
	var parts [][]byte
	var slices mem.BufferSlice
	for rest := q.Body; ; {
		k := len(rest)
		if r.IntN(3) == 0 {
			k = r.IntN(len(rest) + 1)
		}
		parts, slices = append(parts, rest[:k]), append(slices, mem.SliceBuffer(rest[:k]))
		rest = rest[k:]
		if len(rest) == 0 {
			break
		}
	}
	var req body.Request
	cuts, err := body.Clean(parts, s, body.Read(parts, s, &req), nil, false, nil)
	if err != nil {
		return "refused by the cleaner", nil
	}
	edited, err := splice(slices, cuts)
	if err != nil {
		panic(fmt.Sprintf("%v: %q", err, q.Body))
	}
	what = "cleaned"
	if len(cuts) == 0 {
		what = "clean"
	}
	return what, bytes.Clone(edited.Materialize())
}
