package health

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestAdaptersAreFollowed checks that adapters are followed as they come, go and are loaded from elsewhere, and that an invalid
// answer changes nothing.
func TestAdaptersAreFollowed(t *testing.T) {
	list := func(adapters ...string) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(rw, `{"data":[{"id":"base","root":"/base"}`)
			for _, a := range adapters {
				name, path, _ := strings.Cut(a, "=")
				fmt.Fprintf(rw, `,{"id":%q,"root":%q,"parent":"base"}`, name, path)
			}
			fmt.Fprint(rw, `]}`)
		}
	}
	w := newWard(t, Options{Health: time.Millisecond}, 0, func(http.ResponseWriter, *http.Request) {})
	for i, step := range []struct {
		answer http.HandlerFunc
		want   map[string]string
		log    string
		moved  float64
	}{
		{list(), map[string]string{}, "", 0},
		{list("a=/1", "b=/2"), map[string]string{"a": "/1", "b": "/2"}, "a worker has loaded adapters", 0},
		{func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, "{") }, map[string]string{"a": "/1", "b": "/2"}, "", 0},
		{func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(500) }, map[string]string{"a": "/1", "b": "/2"}, "", 0},
		{list("a=/1"), map[string]string{"a": "/1"}, "a worker has unloaded adapters", 0},
		{list("a=/3", "\n=/1"), map[string]string{"a": "/3"}, "a worker has reloaded adapters", 1},
		{list(), map[string]string{}, "", 1},
	} {
		w.log.TakeAll()
		w.mu.Lock()
		w.models = step.answer
		w.mu.Unlock()
		w.hears(6)
		w.until(fmt.Sprint("step ", i), func() bool {
			got := w.worker.Adapters()
			return got != nil && maps.Equal(got, step.want)
		})
		moved := func() float64 { return testutil.ToFloat64(w.nurse.reloaded.WithLabelValues("w")) }
		said := func() int { return w.log.FilterMessageSnippet(step.log).Len() }
		w.until(fmt.Sprint("the words of step ", i), func() bool { // after the adapters
			return moved() == step.moved && (step.log == "" || said() > 0)
		})
		if step.log != "" && said() != 1 {
			t.Errorf("step %d: %q was said %d times, want once", i, step.log, said())
		}
	}
}

// TestAdaptersInUse checks that the metrics give the adapters in use and the room: among several series, the one that was set
// last.
func TestAdaptersInUse(t *testing.T) {
	told, err := parsePage(loadOf("vllm"), strings.NewReader(`vllm:num_requests_running{engine="0"} 2
# TYPE vllm:lora_requests_info gauge
vllm:lora_requests_info{max_lora="4",running_lora_adapters="c",waiting_lora_adapters=""} 1.70000001e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a, b",waiting_lora_adapters="d"} 1.70000003e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 1.70000002e+09
`))
	if err != nil || fmt.Sprint(told.usedAdapters) != "[a b d]" || told.adapterCapacity != 4 || told.ranks[0].running != 2 {
		t.Errorf("%+v, %v: got %q, want no error, %q, adapterCapacity 4, ranks[0].running 2", told, err, fmt.Sprint(told.usedAdapters), "[a b d]")
	}
}
