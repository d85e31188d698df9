package fit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/envoy"
)

func read(t testing.TB, text string) Bootstrap {
	t.Helper()
	b, err := Read([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What the generator prints fits, in every variant.
func TestGeneratedFits(t *testing.T) {
	files, err := filepath.Glob("../*.yaml")
	if err != nil || len(files) < 9 {
		t.Fatal(err, files)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b, w := read(t, string(text)), Want{Options: envoy.Default()}
		w.Workers = nil // each has its own
		if strings.Contains(file, "1.36") {
			b.Envoy = "1.36.2"
		}
		if pieces, err := Missing(b, w); err != nil || len(pieces) > 0 {
			t.Errorf("%s lacks %v %v", file, pieces, err)
		}
		for _, f := range Check(b, w) {
			t.Errorf("%s: %+v", file, f)
		}
	}
}

const user = `
admin: { address: { socket_address: { address: 127.0.0.1, port_value: 9901 } } }
static_resources:
  listeners:
  - name: ingress
    address: { socket_address: { address: 127.0.0.1, port_value: 10000 } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: { prefix: / }
                route: { cluster: vllm }
          http_filters:
          - name: envoy.filters.http.router
            typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
  clusters:
  - name: vllm
    type: STATIC
    load_assignment:
      cluster_name: vllm
      endpoints:
      - lb_endpoints:
        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 8001 } } }
        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 8002 } } }
`

// What is missing, put in, is there; and nothing else is wrong.
func TestApply(t *testing.T) {
	b, w := read(t, user), Want{Options: envoy.Default()}
	w.Workers = nil
	pieces, err := Missing(b, w)
	if err != nil || len(pieces) < 8 {
		t.Fatalf("%v: %v", err, pieces)
	}
	out, err := Apply(b, pieces)
	if err != nil {
		t.Fatal(err)
	}
	b = read(t, string(out))
	if pieces, err := Missing(b, w); err != nil || len(pieces) > 0 {
		t.Errorf("still lacks %v %v", pieces, err)
	}
	for _, f := range Check(b, w) {
		if f.Severity != Note {
			t.Errorf("%+v", f)
		}
	}
}
