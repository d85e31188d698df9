package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// maxBody bounds a request.
const maxBody = 128 << 20

// Refusal is an error answer in vLLM's form. Zero fields: 400, BadRequestError.
type Refusal struct {
	Status  int
	Type    string
	Param   string
	Message string
}

func (r *Refusal) Error() string { return r.Message }

func (w *Worker) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", w.generate)
	mux.HandleFunc("POST /v1/completions", w.generate)
	mux.HandleFunc("POST /v1/messages", w.generate) // answered in the form of completions
	mux.HandleFunc("POST /tokenize", w.tokenize)
	mux.HandleFunc("GET /v1/models", w.models)
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	if w.cfg.Engine != SGLang { // which has none
		mux.HandleFunc("GET /version", func(rw http.ResponseWriter, _ *http.Request) {
			answerJSON(rw, map[string]string{"version": w.cfg.Version})
		})
	}
	switch w.cfg.Engine {
	case VLLM:
		mux.HandleFunc("GET /metrics", w.metrics)
		mux.HandleFunc("POST /reset_prefix_cache", func(rw http.ResponseWriter, _ *http.Request) {
			answerJSON(rw, map[string]bool{"success": w.ResetPrefixCache()})
		})
		if w.rules.EventSources {
			mux.HandleFunc("GET /kv_event_sources", w.eventSources)
		}
	case SGLang:
		mux.HandleFunc("GET /metrics", w.sglangMetrics) // with --enable-metrics
		if w.cfg.Version != oldSGLang {
			mux.HandleFunc("GET /server_info", w.serverInfo)
		}
	case TRTLLM, TRTLLMZMQ:
		mux.HandleFunc("GET /prometheus/metrics", w.trtllmMetrics) // with enable_iter_perf_stats
	}
	if w.cfg.Engine == TRTLLM {
		mux.HandleFunc("POST /kv_cache_events", w.drained)
	}
	mux.HandleFunc("GET /sim/blocks", func(rw http.ResponseWriter, _ *http.Request) { answerJSON(rw, w.Blocks()) })
	mux.HandleFunc("GET /sim/stats", func(rw http.ResponseWriter, _ *http.Request) { answerJSON(rw, w.Stats()) })
	mux.HandleFunc("POST /sim/fault", func(rw http.ResponseWriter, r *http.Request) {
		fault := Fault(slices.Index(faultNames, r.FormValue("mode")))
		if fault < 0 {
			http.Error(rw, "mode: want one of "+strings.Join(faultNames, ", "), http.StatusBadRequest)
			return
		}
		if r.FormValue("deaf") != "" {
			fault |= Deaf
		}
		w.SetFault(fault)
	})
	mux.HandleFunc("POST /sim/slow", func(rw http.ResponseWriter, r *http.Request) {
		by, err := strconv.ParseFloat(r.FormValue("by"), 64)
		if err != nil || !(by > 0 && by < 1e6) {
			http.Error(rw, "by: want how many times slower", http.StatusBadRequest)
			return
		}
		w.SetSlow(by)
	})
	return w.withFaults(mux)
}

// withFaults fails as SetFault says.
func (w *Worker) withFaults(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		fault := Fault(w.fault.Load())
		generates := r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/v1/")
		if generates {
			w.asked.Add(1)
		}
		switch {
		case strings.HasPrefix(r.URL.Path, "/sim/"), !generates && fault&Deaf == 0:
		case fault&^Deaf == Refuse:
			rw.WriteHeader(http.StatusServiceUnavailable)
			return
		case fault&^Deaf == Hang:
			_, _ = io.Copy(io.Discard, r.Body) // a disconnect shows only once the body is read
			<-r.Context().Done()
			return
		}
		next.ServeHTTP(rw, r)
	})
}

func answerJSON(rw http.ResponseWriter, v any) {
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(v)
}

// refuse answers an error as vLLM words it.
func refuse(rw http.ResponseWriter, err error) {
	var r *Refusal
	if !errors.As(err, &r) {
		r = &Refusal{Message: err.Error()}
	}
	body := Refusal{Status: r.Status, Type: r.Type, Param: r.Param, Message: r.Message}
	setDefault(&body.Status, http.StatusBadRequest)
	setDefault(&body.Type, "BadRequestError")
	var param any
	if body.Param != "" {
		param = body.Param
	}
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(body.Status)
	_ = json.NewEncoder(rw).Encode(map[string]any{"error": map[string]any{
		"message": body.Message, "type": body.Type, "param": param, "code": body.Status,
	}})
}

// readBody reads a JSON request and checks its model.
func (w *Worker) readBody(rw http.ResponseWriter, r *http.Request) (raw []byte, body gjson.Result, adapter int, err error) {
	raw, err = io.ReadAll(http.MaxBytesReader(rw, r.Body, maxBody))
	if err != nil {
		return nil, body, 0, &Refusal{Message: "cannot read the request body: " + err.Error()}
	}
	if !gjson.ValidBytes(raw) {
		return nil, body, 0, &Refusal{Message: "JSON decode error"}
	}
	body = gjson.ParseBytes(raw)
	if !body.IsObject() {
		return nil, body, 0, &Refusal{Message: "Input should be a valid dictionary"}
	}
	switch model := body.Get("model"); {
	case !model.Exists() || model.Type == gjson.Null || model.Str == w.cfg.ServedName:
		return raw, body, 0, nil
	default:
		for i, a := range w.cfg.Adapters {
			if a.Name == model.Str {
				return raw, body, i + 1, nil
			}
		}
		return nil, body, 0, &Refusal{Status: http.StatusNotFound, Type: "NotFoundError", Param: "model",
			Message: fmt.Sprintf("The model `%s` does not exist.", model.String())}
	}
}

func (w *Worker) tokenize(rw http.ResponseWriter, r *http.Request) {
	raw, body, _, err := w.readBody(rw, r)
	if err != nil {
		refuse(rw, err)
		return
	}
	path := "/v1/completions"
	if body.Get("messages").Exists() {
		path = "/v1/chat/completions"
	}
	prompts, err := w.cfg.Prompt(r.Context(), path, raw)
	if err != nil || len(prompts) == 0 {
		refuse(rw, errors.Join(err, errNoPrompt))
		return
	}
	answerJSON(rw, map[string]any{"count": len(prompts[0].Tokens), "max_model_len": w.cfg.MaxModelLen, "tokens": prompts[0].Tokens})
}

func (w *Worker) models(rw http.ResponseWriter, _ *http.Request) {
	type model struct {
		ID          string  `json:"id"`
		Object      string  `json:"object"`
		OwnedBy     string  `json:"owned_by"`
		Root        string  `json:"root"`
		Parent      *string `json:"parent"`
		MaxModelLen *int    `json:"max_model_len"`
	}
	list := []model{{w.cfg.ServedName, "model", "vllm", w.cfg.Model, nil, &w.cfg.MaxModelLen}}
	for _, a := range w.cfg.Adapters {
		list = append(list, model{a.Name, "model", "vllm", a.Path, &w.cfg.ServedName, nil})
	}
	answerJSON(rw, map[string]any{"object": "list", "data": list})
}

// serverInfo is SGLang's, as far as it concerns events.
func (w *Worker) serverInfo(rw http.ResponseWriter, _ *http.Request) {
	p := w.engines[0].pub.(*publisher)
	answerJSON(rw, map[string]any{"page_size": w.cfg.BlockSize, "kv_events": map[string]any{
		"publisher": "zmq", "topic": w.cfg.Topic, "endpoint_port_base": p.pub.port(), "replay_endpoint_port_base": p.back.port(),
		"block_size": w.cfg.BlockSize, "dp_size": w.cfg.Ranks,
	}})
}

func (w *Worker) eventSources(rw http.ResponseWriter, _ *http.Request) {
	sources := map[string]any{}
	for _, e := range w.engines {
		p := e.pub.(*publisher)
		sources[strconv.Itoa(e.rank)] = map[string]any{
			"enable_kv_cache_events": true, "publisher": "zmq", "topic": w.cfg.Topic,
			"endpoint":        fmt.Sprintf("tcp://*:%d", p.pub.port()),
			"replay_endpoint": fmt.Sprintf("tcp://*:%d", p.back.port()),
			"buffer_steps":    w.cfg.BufferSteps, "hwm": highWater, "max_queue_size": highWater,
		}
	}
	answerJSON(rw, sources)
}
