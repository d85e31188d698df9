package sim

import (
	"fmt"
	"math"
	"net/http"
	"strconv"

	"github.com/tidwall/gjson"
)

// Priority is how a vLLM or SGLang worker takes requests' priorities.
type Priority int

const (
	NoPriority      Priority = iota // it serves as they come: vLLM's fcfs, SGLang's default
	ByPriority                      // --scheduling-policy priority; --enable-priority-scheduling --disable-priority-preemption
	RefusesPriority                 // SGLang's --abort-on-priority-when-disabled
)

// priorityOf returns a request's place, the lowest first: of vLLM (0.30, entrypoints/generate/base/serving.py) the header's, else the
// body's, else 0; of SGLang (0.5.23, srt/entrypoints/request_headers.py) the same, negated, and without one the last.
func (w *Worker) priorityOf(r *http.Request, body gjson.Result) (int64, error) {
	header, none := "X-Vllm-Priority", int64(0)
	if w.cfg.Engine == SGLang {
		header, none = "X-Override-Priority", math.MaxInt64
	}
	n, given := body.Get("priority").Int(), body.Get("priority").Exists()
	if text := r.Header.Get(header); text != "" {
		value, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, &Refusal{Message: fmt.Sprintf("invalid %s header %q", header, text)}
		}
		n, given = value, true
	}
	switch {
	case given && w.cfg.Priority == RefusesPriority:
		return 0, &Refusal{Message: "Using priority is disabled for this server. Please send a new request without a priority."}
	case !given:
		return none, nil
	case w.cfg.Engine == SGLang:
		return -n, nil
	}
	return n, nil
}

// config answers vLLM's GET /server_info?config_format=json of a server in development mode.
func (w *Worker) config(rw http.ResponseWriter, _ *http.Request) {
	policy := "fcfs"
	if w.cfg.Priority == ByPriority {
		policy = "priority"
	}
	answerJSON(rw, map[string]any{"vllm_config": map[string]any{"scheduler_config": map[string]any{"policy": policy}}})
}
