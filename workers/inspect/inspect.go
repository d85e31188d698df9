// Package inspect asks one worker what it is: engine, release, models, block size, event sockets.
//
//	GET /v1/models  ─▶ whose server it is (owned_by), the names it serves, --model if the engine reports it
//	GET /version    ─▶ the release
//	GET its metrics ─▶ the KV cache's settings (vLLM), requests in flight
//	engine-specific requests (rules.Describe) ─▶ event sockets, arguments
//
// No request changes anything at the worker, except Canary's, which makes it compute one token. What could not be learned is
// listed. The worker is not trusted: each answer is bounded, in time by the given client (rules.NewClient: no proxies, no
// redirects), and in size here.
package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/workers/health"
)

const (
	maxPage   = 16 << 20 // vLLM's metrics have some 200 KB per data-parallel rank
	maxAnswer = 1 << 20
)

// dynamoOwner is the owned_by of NVIDIA Dynamo's front end (lib/llm/src/http/service/openai.rs).
const dynamoOwner = "nvidia"

// ErrNoHTTP is why the workers behind a front end of Dynamo are not asked.
var ErrNoHTTP = errors.New("Dynamo's workers answer no HTTP")

// Ask asks the worker at addr (host:port). An error means that it returned no list of models: little but its address is known.
func Ask(ctx context.Context, client *http.Client, addr string) (f rules.Facts, err error) {
	f.Addr = addr
	err = guard.Call(func() error { return ask(ctx, client, &f, false) })
	return f, err
}

// AskOpenly is Ask without what reveals keys: the settings of SGLang and TensorRT-LLM.
func AskOpenly(ctx context.Context, client *http.Client, addr string) (f rules.Facts, err error) {
	f.Addr = addr
	err = guard.Call(func() error { return ask(ctx, client, &f, true) })
	return f, err
}

// Each calls do for each of the list, eight at a time.
func Each[T any](list []T, do func(i int, one T)) {
	var all sync.WaitGroup
	room := make(chan struct{}, 8)
	for i, one := range list {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			do(i, one)
		})
	}
	all.Wait()
}

// UnusableError is about a server that has answered, and that no waiting makes a worker that can be used.
type UnusableError struct{ error }

func (e *UnusableError) Unwrap() error { return e.error }

// Unusable makes an error one about a server that no waiting makes usable.
func Unusable(err error) error { return &UnusableError{err} }

// Usable returns why a server that answered cannot be used as a worker; nil: it can. anyEngine: of an engine that is not known too.
func Usable(f *rules.Facts, anyEngine bool) error {
	why := ""
	switch {
	case f.FrontEnd:
		why = "it is NVIDIA Dynamo's front end, whose workers are found by its discovery folder (want a configuration with the section " +
			"dynamo: sightline init --dynamo DIR, its DYN_FILE_KV)"
	case f.Engine == "" && !anyEngine:
		why = f.Unknown[len(f.Unknown)-1].Why
	case len(f.Served) == 0:
		why = "it serves no model that can be named"
	default:
		return nil
	}
	return Unusable(errors.New(why))
}

// HasEvents reports whether a worker has KV events that can be received, as far as it says.
func HasEvents(f *rules.Facts) bool {
	return f.FindsEvents || len(f.Events) > 0 || engine.RulesOf(f.Engine, f.Version).EventsOverHTTP
}

func ask(ctx context.Context, client *http.Client, f *rules.Facts, openly bool) error {
	if err := rules.Models(ctx, client, f); err != nil {
		if _, answered := errors.AsType[*rules.StatusError](err); answered && openly { // vLLM's --api-key guards /v1 alone
			release(ctx, client, f)
		}
		return err
	}
	f.FrontEnd = f.Owner == dynamoOwner
	if f.FrontEnd {
		f.Lacks("engine", ErrNoHTTP)
		return nil
	}
	f.Engine = engine.ByOwner(f.Owner)
	if f.Engine == "" {
		f.Lacks("engine", fmt.Errorf("owned_by of /v1/models is %.100q, which is none of vLLM's, SGLang's and TensorRT-LLM's", f.Owner))
		return nil
	}
	r := engine.RulesOf(f.Engine, "")
	if openly && !r.ReportsSettings {
		return nil
	}
	if len(f.Served) > 0 && r.ReportsSettings {
		f.EngineModel = f.Served[0].Root
	}
	page, _, err := rules.Get(ctx, client, f.Addr, r.Load.Path, "every engine with metrics switched on", maxPage)
	if err != nil {
		page = nil
		f.Lacks("requests", err)
	} else if n, ok := health.Requests(&r.Load, page); ok {
		f.Requests = &n
	}
	r.Describe(ctx, client, page, f)
	if f.Version == "" {
		release(ctx, client, f)
	}
	if find := engine.RulesOf(f.Engine, f.Version).FindEvents; find != nil {
		_, err := find(ctx, client, f.Addr, f.Host(), f.Ranks)
		f.FindsEvents = err == nil
	}
	return nil
}

func release(ctx context.Context, client *http.Client, f *rules.Facts) {
	if err := rules.Release(ctx, client, f); err != nil {
		f.Lacks("version", err)
	}
}

// Canary makes the worker compute a token of the same short text, twice, and records whether responses count the cached tokens:
// some engines omit a 0.
func Canary(ctx context.Context, client *http.Client, f *rules.Facts) error {
	if len(f.Served) == 0 {
		return errors.New("it serves no model")
	}
	text := strings.Repeat("one two three four ", min(1024, max(16, f.BlockSize)))
	body, err := json.Marshal(map[string]any{"model": f.Served[0].ID, "prompt": text, "max_tokens": 1})
	if err != nil {
		return err
	}
	counts := false
	for range 2 {
		u, err := Post(ctx, client, f.Addr, "/v1/completions", body)
		if err != nil {
			return err
		}
		counts = counts || u.Details != nil
	}
	if counts || f.CountsCached == nil { // a known no stays, as does a yes
		f.CountsCached = &counts
	}
	return nil
}

// ErrNoUsage means that an answer does not say how many tokens it has.
var ErrNoUsage = errors.New("want an answer with its usage")

// Usage is a response's token usage; Details is nil if the server was not told to count cached tokens.
type Usage struct {
	Prompt  int `json:"prompt_tokens"`
	Details *struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// Post sends a request and returns its response's usage.
func Post(ctx context.Context, client *http.Client, addr, path string, body []byte) (Usage, error) {
	var answer struct {
		Usage Usage `json:"usage"`
	}
	err := rules.PostJSON(ctx, client, addr, path, body, maxAnswer, &answer)
	if err == nil && answer.Usage.Prompt < 1 {
		err = fmt.Errorf("POST %s: %w", path, ErrNoUsage)
	}
	return answer.Usage, err
}
