package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

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
	mux.HandleFunc("POST "+responsesPath, w.generate)
	mux.HandleFunc("POST "+messagesPath, w.generate)
	mux.HandleFunc("POST /tokenize", w.tokenize)
	mux.HandleFunc("GET /v1/models", w.models)
	mux.HandleFunc("POST /v1/load_lora_adapter", w.loadAdapter) // with VLLM_ALLOW_RUNTIME_LORA_UPDATING
	mux.HandleFunc("POST /v1/unload_lora_adapter", w.loadAdapter)
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
		if w.cfg.TellsConfig {
			mux.HandleFunc("GET /server_info", w.config)
		}
		if w.rules.EventSources {
			mux.HandleFunc("GET /kv_event_sources", w.eventSources)
		}
	case SGLang:
		mux.HandleFunc("GET /metrics", w.sglangMetrics) // with --enable-metrics
		path := "GET /server_info"
		if w.cfg.Version == oldSGLang {
			path = "GET /get_server_info"
		}
		mux.HandleFunc(path, w.serverInfo)
	case TRTLLM, TRTLLMZMQ:
		mux.HandleFunc("GET /prometheus/metrics", w.trtllmMetrics) // with enable_iter_perf_stats
		mux.HandleFunc("GET /server_info", func(rw http.ResponseWriter, _ *http.Request) {
			answerJSON(rw, map[string]any{"tokens_per_block": w.cfg.BlockSize, "kv_cache_hash_algo": "v1_block_key", "max_batch_size": w.cfg.MaxSeqs,
				"disaggregated_params": nil})
		})
	}
	if w.cfg.Engine == TRTLLM {
		mux.HandleFunc("POST /kv_cache_events", w.drained)
	}
	mux.HandleFunc("GET /sim/blocks", func(rw http.ResponseWriter, _ *http.Request) { answerJSON(rw, w.Blocks()) })
	mux.HandleFunc("GET /sim/stats", func(rw http.ResponseWriter, _ *http.Request) { answerJSON(rw, w.Stats()) })
	mux.HandleFunc("POST /sim/fault", func(rw http.ResponseWriter, r *http.Request) {
		fault, err := ParseFault(r.FormValue("mode"))
		if err != nil {
			http.Error(rw, "mode: "+err.Error(), http.StatusBadRequest)
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
	mux.HandleFunc("POST /sim/clock", func(rw http.ResponseWriter, r *http.Request) {
		by, err := time.ParseDuration(r.FormValue("by"))
		if err != nil {
			http.Error(rw, "by: want how far it is ahead, such as -5s", http.StatusBadRequest)
			return
		}
		for _, e := range w.engines {
			if p, is := e.pub.(*publisher); is {
				p.skew.Store(int64(by))
			}
		}
	})
	return w.withFaults(mux)
}

// withFaults fails as SetFault says.
func (w *Worker) withFaults(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Server", "sightline-simulated")
		fault := Fault(w.fault.Load())
		generates := r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/v1/")
		if generates && w.asked.Add(1) == int64(w.cfg.FaultAfter)+1 && w.cfg.FaultAfter > 0 {
			w.SetFault(w.cfg.Fault)
			fault = w.cfg.Fault
		}
		switch {
		case strings.HasPrefix(r.URL.Path, "/sim/"), !generates && fault&Deaf == 0:
		case fault&^Deaf == Refuse:
			rw.WriteHeader(http.StatusServiceUnavailable)
			return
		case fault&^Deaf == Unauthorized:
			refuse(rw, &Refusal{Status: http.StatusUnauthorized, Message: "Unauthorized"})
			return
		case fault&^Deaf == ErrorPage:
			rw.Header().Set("Content-Type", "text/html")
			rw.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(rw, "<html><body><h1>502 Bad Gateway</h1></body></html>")
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
			if a.Name == model.Str && w.loaded[i].Load() {
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

// models lists what is served: vLLM with --model as root, SGLang with the served name, TensorRT-LLM without either.
func (w *Worker) models(rw http.ResponseWriter, _ *http.Request) {
	type model struct {
		ID          string  `json:"id"`
		Object      string  `json:"object"`
		OwnedBy     string  `json:"owned_by"`
		Root        string  `json:"root,omitempty"`
		Parent      *string `json:"parent"`
		MaxModelLen *int    `json:"max_model_len,omitempty"`
	}
	base := model{w.cfg.ServedName, "model", "vllm", w.cfg.Model, nil, &w.cfg.MaxModelLen}
	switch w.cfg.Engine {
	case SGLang:
		base.OwnedBy, base.Root = "sglang", base.ID
	case TRTLLM, TRTLLMZMQ, Standalone:
		base.OwnedBy, base.Root, base.MaxModelLen = "tensorrt_llm", "", nil
	}
	list := []model{base}
	for i, a := range w.cfg.Adapters {
		if !w.loaded[i].Load() {
			continue
		}
		list = append(list, model{a.Name, "model", base.OwnedBy, a.Path, &w.cfg.ServedName, nil})
	}
	answerJSON(rw, map[string]any{"object": "list", "data": list})
}

// loadAdapter loads or unloads an adapter by its name, and to load it by its path.
func (w *Worker) loadAdapter(rw http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, maxBody))
	name, path, load := gjson.GetBytes(raw, "lora_name").Str, gjson.GetBytes(raw, "lora_path").Str, strings.HasPrefix(r.URL.Path, "/v1/load")
	for i, a := range w.cfg.Adapters {
		if err == nil && a.Name == name && w.loaded[i].Load() != load && (!load || a.Path == path) {
			w.loaded[i].Store(load)
			return
		}
	}
	refuse(rw, &Refusal{Status: http.StatusNotFound, Type: "NotFoundError",
		Message: fmt.Sprintf("The lora adapter '%s' cannot be found.", name)})
}

// serverInfo is SGLang's: its arguments, keys in clear among them, and where events are. Before 0.5.22 only the arguments say so.
func (w *Worker) serverInfo(rw http.ResponseWriter, _ *http.Request) {
	info := map[string]any{"model_path": w.cfg.Model, "served_model_name": w.cfg.ServedName, "api_key": "sk-secret", "revision": nil,
		"page_size": w.cfg.BlockSize, "dp_size": w.cfg.Ranks, "disable_radix_cache": false, "enable_cache_report": !w.cfg.Bare,
		"enable_priority_scheduling": w.cfg.Priority == ByPriority, "disable_priority_preemption": true,
		"enable_metrics": w.cfg.Priority != ByPriority,
		"chat_template":  nil, "speculative_algorithm": nil, "version": w.cfg.Version, "kv_events_config": nil, "internal_states": []any{}}
	if p := w.engines[0].pub.(*publisher); !w.cfg.Bare {
		pub, replay := p.pub.port(), p.back.port()
		info["kv_events_config"] = fmt.Sprintf(`{"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d","topic":%q}`,
			pub, replay, w.cfg.Topic)
		if w.cfg.Version != oldSGLang {
			info["kv_events"] = map[string]any{
				"publisher": "zmq", "topic": w.cfg.Topic, "endpoint_port_base": pub, "replay_endpoint_port_base": replay,
				"block_size": w.cfg.BlockSize, "dp_size": w.cfg.Ranks,
			}
		}
	}
	answerJSON(rw, info)
}

func (w *Worker) eventSources(rw http.ResponseWriter, _ *http.Request) {
	sources := map[string]any{}
	for _, e := range w.engines {
		p := e.pub.(*publisher)
		if w.cfg.Bare {
			sources[strconv.Itoa(w.cfg.FirstRank+e.rank)] = map[string]any{"enable_kv_cache_events": false, "publisher": "null"}
			continue
		}
		sources[strconv.Itoa(w.cfg.FirstRank+e.rank)] = map[string]any{
			"enable_kv_cache_events": true, "publisher": "zmq", "topic": w.cfg.Topic,
			"endpoint":        fmt.Sprintf("tcp://*:%d", p.pub.port()),
			"replay_endpoint": fmt.Sprintf("tcp://*:%d", p.back.port()),
			"buffer_steps":    w.cfg.BufferSteps, "hwm": highWater, "max_queue_size": highWater,
		}
	}
	answerJSON(rw, sources)
}
