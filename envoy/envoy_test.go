package envoy

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stats/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/composite/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/common/matching/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/matcher/action/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ai_protocol_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/upstream_codec/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/override_host/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/round_robin/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/rbac/matchers/upstream_ip_port/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/fixed_heap/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"github.com/goccy/go-yaml"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// configurations returns the options for which output is tested: every variant, on every release, and some more.
func configurations() map[string]Options {
	change := func(f func(*Options)) Options { o := Default(); f(&o); return o }
	out := map[string]Options{
		"IPv6": change(func(o *Options) { o.Listen, o.Workers = "[::]:10000", []string{"[fd00::1]:8000", "[fd00::2]:8000"} }),
		"names": change(func(o *Options) {
			o.Workers = []string{"worker-0.workers:8000", "worker-1.workers:8000"}
			o.Allow = []Range{{netip.MustParsePrefix("10.0.0.0/8"), 8000, 8010}, {netip.MustParsePrefix("192.168.0.0/16"), 8000, 8000}}
		}),
		"three Sightlines": change(func(o *Options) {
			o.Sightline = "10.0.0.2:9002, 10.0.0.3:9002,unix:/run/sightline.sock"
			o.SightlineTLS = &TLS{CA: "/ca.pem"}
		}),
		"one worker":    change(func(o *Options) { o.Workers = o.Workers[:1] }),
		"no worker yet": change(func(o *Options) { o.Pools = []Pool{{Name: "m", Header: "X-Model=m"}} }),
	}
	for _, v := range VariantNames() {
		for _, release := range []string{"", "1.36", "1.39"} {
			o := Default()
			if err := o.Apply(v); err != nil {
				panic(err)
			}
			o.Version = release
			out[v+" "+release] = o
		}
	}
	return out
}

// TestCommittedFiles: the committed files, which readers see, equal the program's output.
func TestCommittedFiles(t *testing.T) {
	for _, v := range VariantNames() {
		file, o := v+".yaml", Default()
		if v == "composite" {
			file = "envoy.yaml"
		}
		if err := o.Apply(v); err != nil {
			t.Fatal(err)
		}
		committed(t, file, o)
	}
	o := Default()
	o.Version = "1.36"
	committed(t, "envoy-1.36.yaml", o)
}

func committed(t *testing.T, file string, o Options) {
	t.Helper()
	want, err := Generate(o)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s is not what Generate prints; run UPDATE=1 go test ./envoy -run TestCommittedFiles", file)
	}
}

// TestAgainstTheAPI: every message of the configuration, including packed ones, is valid by Envoy's API; unknown fields are errors.
func TestAgainstTheAPI(t *testing.T) {
	for name, o := range configurations() {
		t.Run(name, func(t *testing.T) {
			text, err := Generate(o)
			if err != nil {
				t.Fatal(err)
			}
			js, err := yaml.YAMLToJSON(text)
			if err != nil {
				t.Fatal(err)
			}
			var b bootstrapv3.Bootstrap
			if err := protojson.Unmarshal(js, &b); err != nil {
				t.Fatal(err)
			}
			if err := b.ValidateAll(); err != nil {
				t.Error(err)
			}
			if n := validatePacked(t, b.ProtoReflect(), ""); n < 14 {
				t.Errorf("%d packed messages checked, want all of them (14 and more)", n)
			}
		})
	}
}

// validatePacked unpacks every Any below m, validates it, and counts them.
func validatePacked(t *testing.T, m protoreflect.Message, path string) (n int) {
	t.Helper()
	if packed, ok := m.Interface().(*anypb.Any); ok {
		inner, err := packed.UnmarshalNew()
		if err != nil {
			t.Fatalf("%s: got %v, want no error", path, err)
		}
		if v, ok := inner.(interface{ ValidateAll() error }); ok {
			if err := v.ValidateAll(); err != nil {
				t.Errorf("%s: got %v, want no error", path, err)
			}
		}
		return 1 + validatePacked(t, inner.ProtoReflect(), path)
	}
	visit := func(v protoreflect.Value, path string) { n += validatePacked(t, v.Message(), path) }
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := path + "." + string(f.Name())
		switch {
		case f.IsMap():
			if f.MapValue().Message() != nil {
				v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool { visit(v, at+"."+k.String()); return true })
			}
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				visit(v.List().Get(i), fmt.Sprintf("%s[%d]", at, i))
			}
		default:
			visit(v, at)
		}
		return true
	})
	return n
}

func TestWrongOptions(t *testing.T) {
	for want, f := range map[string]func(*Options){
		`envoy.listen "10000"`:                    func(o *Options) { o.Listen = "10000" },
		`envoy.admin "localhost:1": want an IP`:   func(o *Options) { o.Admin = "localhost:1" },
		`listen ":9002"`:                          func(o *Options) { o.Sightline = ":9002" },
		`envoy.sightlines "10.0.0.2:9002": twice`: func(o *Options) { o.Sightline = "10.0.0.2:9002,10.0.0.2:9002" },
		`envoy.sightlines "":`:                    func(o *Options) { o.Sightline = "10.0.0.2:9002," },
		`listen "unix:s"`:                         func(o *Options) { o.Sightline = "unix:s" },
		`listen "unix:/a b"`:                      func(o *Options) { o.Sightline = "unix:/a b" },
		`workers: none`:                           func(o *Options) { o.Workers = nil },
		`workers[1] "10.0.0.5"`:                   func(o *Options) { o.Workers = []string{"10.0.0.4:1", "10.0.0.5"} },
		`workers[0] "a}b:1"`:                      func(o *Options) { o.Workers = []string{"a}b:1"} },
		`workers[0] "x:70000"`:                    func(o *Options) { o.Workers = []string{"x:70000"} },
		`--envoy-version "2.0"`:                   func(o *Options) { o.Version = "2.0" },
		`--envoy-version "1.35"`:                  func(o *Options) { o.Version = "1.35" },
		`envoy.pools[0].path, host, header: none`: func(o *Options) { o.Pools = []Pool{{Name: "m"}} },
		`envoy.pools[0].model "a b"`:              func(o *Options) { o.Pools = []Pool{{Name: "a b", Path: "/x"}} },
		`envoy.pools[0].path "/x\""`:              func(o *Options) { o.Pools = []Pool{{Name: "m", Path: "/x\""}} },
		`envoy.pools[0].host "h:1"`:               func(o *Options) { o.Pools = []Pool{{Name: "m", Host: "h:1"}} },
		`envoy.pools[0].header "h"`:               func(o *Options) { o.Pools = []Pool{{Name: "m", Header: "h"}} },
		`envoy.pools[1].model "a-b": too like`:    func(o *Options) { o.Pools = []Pool{{Name: "a_b", Path: "/x"}, {Name: "a-b", Path: "/y"}} },
		`envoy.worker_tls: ca "x"`:                func(o *Options) { o.WorkerTLS = &TLS{CA: "x"} },
		`envoy.sightline_tls: names: none`:        func(o *Options) { o.Sightline, o.SightlineTLS = "unix:/s", &TLS{CA: "/x"} },
		`envoy.worker_networks: empty`:            func(o *Options) { o.Workers = []string{"name:8000"} },
		`envoy.worker_networks[0]`:                func(o *Options) { o.Allow = []Range{{netip.MustParsePrefix("10.0.0.0/8"), 9, 8}} },
		`body_limit: 0`:                           func(o *Options) { o.BodyLimit = 0 },
		`heap limit: 5 bytes`:                     func(o *Options) { o.HeapLimit = 5 },
	} {
		o := Default()
		f(&o)
		if _, err := Generate(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

func TestExactly(t *testing.T) {
	var workers []hostPort
	for _, w := range []string{"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.1:8002", "10.0.0.1:8001", "10.0.0.1:9000", "10.0.0.1:8001"} {
		h, err := split("", w, true)
		if err != nil {
			t.Fatal(err)
		}
		workers = append(workers, h)
	}
	want := "[{10.0.0.1/32 8000 8002} {10.0.0.1/32 9000 9000} {10.0.0.2/32 8000 8000}]"
	if got := fmt.Sprint(exactly(workers)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestBinaryFromTheEnvironment(t *testing.T) {
	t.Setenv("ENVOY", "/nowhere/envoy")
	if _, err := Binary(t.Context(), t.TempDir(), t.Logf); err == nil || !strings.Contains(err.Error(), "$ENVOY") {
		t.Errorf("error %v, want one that names $ENVOY", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("ENVOY", self)
	if got, err := Binary(t.Context(), t.TempDir(), t.Logf); err != nil || got != self {
		t.Errorf("%q, %v; want %q", got, err, self)
	}
}
