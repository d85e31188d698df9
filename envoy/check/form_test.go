package check

import (
	"fmt"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/internal/document"
)

// TestForms: a cluster's member is read as Envoy 1.40.0 reads it (envoy --mode validate took the first column, and refused the ones with
// an error here).
func TestForms(t *testing.T) {
	for _, c := range []struct{ member, want string }{
		{"name: a", `name:"a"`},
		{`name: "12"`, `name:"12"`},
		{"name: 1.10", `name:"1.10"`},
		{"name: 12", `line 1: name: 12, want a text`},
		{"name: yes", `line 1: name: yes, want a text`},
		{"name: [a]", `line 1: name: a list, want a string`},
		{"name: { x: 1 }", `line 1: name: an object, want a string`},
		{"connectTimeout: 1s", `connect_timeout:{seconds:1}`},
		{"connect_timeout: 0.25s", `connect_timeout:{nanos:250000000}`},
		{"connect_timeout: { seconds: 1 }", `connect_timeout:{seconds:1}`},
		{"connect_timeout: 250ms", `line 1: connect_timeout: "250ms", want a time in seconds`},
		{"connect_timeout: 1", `line 1: connect_timeout: 1, want a time in seconds`},
		{"type: strict_dns", `type:STRICT_DNS`},
		{"type: 1", `type:STRICT_DNS`},
		{`type: "1"`, `type:STRICT_DNS`},
		{"type: OF_A_LATER_ENVOY", ``},
		{"respect_dns_ttl: yes", `respect_dns_ttl:true`},
		{`respect_dns_ttl: "true"`, `respect_dns_ttl:true`},
		{"respect_dns_ttl: Off", ``},
		{"respect_dns_ttl: 1", `line 1: respect_dns_ttl: 1, want true or false`},
		{"max_requests_per_connection: 10", `max_requests_per_connection:{value:10}`},
		{"max_requests_per_connection: 10.0", `max_requests_per_connection:{value:10}`},
		{"max_requests_per_connection: 1e3", `max_requests_per_connection:{value:1000}`},
		{"max_requests_per_connection: 0x10", `max_requests_per_connection:{value:16}`},
		{"max_requests_per_connection: 010", `max_requests_per_connection:{value:8}`},
		{`max_requests_per_connection: "10"`, `max_requests_per_connection:{value:10}`},
		{"max_requests_per_connection: { value: 10 }", `max_requests_per_connection:{value:10}`},
		{"max_requests_per_connection: 1_000", `line 1: max_requests_per_connection: "1_000", want a whole number`},
		{"max_requests_per_connection: -1", `line 1: max_requests_per_connection: -1, want a whole number`},
		{"max_requests_per_connection: ~", ``},
		{"health_checks: { timeout: 1s }", `health_checks:{timeout:{seconds:1}}`},
		{"health_checks: [{ timeout: 1s }, ~]", `health_checks:{timeout:{seconds:1}} health_checks:{}`},
		{`health_checks: ""`, `line 1: health_checks[0]: "", want an object`},
		{"load_assignment: [{ cluster_name: a }]", `line 1: load_assignment: a list, want an object`},
		{"!ignore x: 1", ``},
		{"unknown: 1", ``},
		{"metadata: { filter_metadata: { x: { y: 1, z: [~, yes] } } }",
			`metadata:{filter_metadata:{key:"x" value:{fields:{key:"y" value:{number_value:1}} fields:{key:"z" value:{list_value:` +
				`{values:{null_value:NULL_VALUE} values:{bool_value:true}}}}}}}`},
		{"common_lb_config: { healthy_panic_threshold: { value: \"20.5\" } }", `common_lb_config:{healthy_panic_threshold:{value:20.5}}`},
		{"transport_socket: { name: x, typed_config: { \"@type\": a.b/mine.Unknown, y: 1 } }",
			`transport_socket:{name:"x" typed_config:{type_url:"a.b/mine.Unknown"}}`},
		{"transport_socket: { typed_config: { \"@type\": type.googleapis.com/google.protobuf.Duration, value: 1s } }",
			`transport_socket:{typed_config:{[type.googleapis.com/google.protobuf.Duration]:{seconds:1}}}`},
		{"transport_socket: { typed_config: { \"@type\": type.googleapis.com/xds.type.v3.TypedStruct, type_url: " +
			"type.googleapis.com/envoy.config.core.v3.Address, value: { pipe: { path: /s } } } }",
			`transport_socket:{typed_config:{[type.googleapis.com/envoy.config.core.v3.Address]:{pipe:{path:"/s"}}}}`},
		{"<<: { name: a }", `line 1: <<: Envoy does not merge`},
	} {
		root, err := document.Parse([]byte(c.member))
		if err != nil {
			t.Fatal(err)
		}
		var m clusterv3.Cluster
		err = fill(m.ProtoReflect(), root, nil)
		got := strings.ReplaceAll(prototext.MarshalOptions{}.Format(&m), "  ", " ")
		if err != nil {
			got = err.Error()
		}
		if err == nil && got != c.want || err != nil && (c.want == "" || !strings.HasPrefix(got, c.want)) {
			t.Errorf("%s: got %s, want %s", c.member, got, c.want)
		}
	}
}

// TestFormsOfAFile: pieces fit into a file whose lists are single values and whose names are in camelCase, and
// into a message given as a Struct.
func TestFormsOfAFile(t *testing.T) {
	odd := strings.NewReplacer("static_resources:\n  listeners:\n  - name: ingress\n    address",
		"staticResources:\n  listeners:\n    name: ingress\n    address",
		"filter_chains:\n    - filters:", "filterChains:\n      filters:", `domains: ["*"]`, `domains: "*"`,
		"              - match: { prefix: / }\n                route:",
		"                match: { prefix: / }\n                route:", "load_assignment:", "loadAssignment:").Replace(user)
	struc := strings.Replace(user, `typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }`,
		`typed_config: { "@type": type.googleapis.com/xds.type.v3.TypedStruct, type_url: `+
			`type.googleapis.com/envoy.extensions.filters.http.router.v3.Router, value: {} }`, 1)
	for _, text := range []string{odd, struc} {
		if text == user {
			t.Fatalf("the file is the plain one: got %q, want other than %q", text, user)
		}
		b, w := read(t, text), Want{Options: envoy.Default()}
		w.Workers = nil
		pieces := must(Missing(b, w))
		if want := len(must(Missing(read(t, user), w))); len(pieces) != want {
			t.Errorf("got %d pieces, want %d as of the plain file", len(pieces), want)
		}
		edited, kept, err := Edit(b, pieces)
		if err != nil || !kept {
			t.Fatalf("got %v, %v, want lines that are added\n%s", kept, err, edited)
		}
		if lacks := must(Missing(read(t, string(edited)), w)); len(lacks) > 0 {
			t.Errorf("got %v lacking still, want nothing\n%s", lacks, edited)
		}
		if back, _ := Remove(edited); string(back) != text {
			t.Errorf("removed: got\n%s\nwant\n%s", back, text)
		}
	}
}

// TestAnchors: a file's anchors, aliases and comments stay, the pieces have their effect, and they are removed byte by byte; what would
// change a place that does not need it is refused.
func TestAnchors(t *testing.T) {
	const route = "              - match: { prefix: / }\n                route: { cluster: vllm }\n"
	with := func(routes string) string { return "# mine\n" + strings.Replace(user, route, routes, 1) }
	for name, text := range map[string]string{
		"of two routes": with("              - match: { prefix: /v1 } # ours\n                route: &to { cluster: vllm }\n" +
			"              - match: { prefix: / }\n                route: *to\n"),
		"in lines": with("              - match: { prefix: /v1 }\n                route: &to\n                  cluster: vllm\n" +
			"              - match: { prefix: / }\n                route: *to # again\n"),
		"of two hosts": with(strings.Replace(route, "route: {", "route: &to {", 1) + "            - name: b\n              domains: [b]\n" +
			"              routes:\n" + strings.Replace(route, "{ cluster: vllm }", "*to", 1)),
		"aside": "!ignore shared: &to { cluster: vllm }\n" + with("              - match: { prefix: / }\n                route: *to\n"),
		"unrelated": with("              - match: { prefix: /, headers: &h [{ name: x, present_match: true }] }\n" +
			"                route: { cluster: vllm }\n" +
			"              - match: { prefix: /, headers: *h }\n                route: { cluster: vllm }\n"),
	} {
		b, w := read(t, text), Want{Options: envoy.Default()}
		w.Workers = nil
		edited, kept, err := Edit(b, must(Missing(b, w)))
		if err != nil || !kept {
			t.Errorf("%s: got %v, %v, want lines that are added", name, kept, err)
			continue
		}
		again := read(t, string(edited))
		if lacks := must(Missing(again, w)); len(lacks) > 0 {
			t.Errorf("%s: got %v lacking still, want nothing\n%s", name, lacks, edited)
		}
		if back, _ := Remove(edited); string(back) != text {
			t.Errorf("%s: removed: got\n%s\nwant\n%s", name, back, text)
		}
	}
	shared := strings.Replace(user, "load_assignment:\n", "load_assignment: &all\n", 1) +
		"  - name: other\n    type: STATIC\n    load_assignment: *all\n"
	inner := with("              - match: { prefix: /v1 }\n" +
		"                route: { cluster: vllm, metadata_match: &m { filter_metadata: {} } }\n" +
		"              - match: { prefix: / }\n                route: { cluster: vllm, metadata_match: *m }\n")
	for _, text := range []string{shared, inner} {
		b, w := read(t, text), Want{Options: envoy.Default()}
		w.Workers = nil
		edited, kept, err := Edit(b, must(Missing(b, w)))
		if err == nil && !kept || err != nil && !strings.Contains(err.Error(), "&") {
			t.Errorf("got %v, %v, want lines that are added or the anchor's name\n%s", kept, err, edited)
		}
	}
}

// TestLarge: a file of 20,000 clusters is read, and a text that is nested too deep is refused, whatever it is nested by.
func TestLarge(t *testing.T) {
	var b strings.Builder
	b.WriteString(user)
	for i := range 20_000 {
		fmt.Fprintf(&b, "  - name: c%d\n    type: STATIC\n    connect_timeout: 1s\n    load_assignment: { cluster_name: c%d }\n", i, i)
	}
	large, w := read(t, b.String()), Want{Options: envoy.Default()}
	w.Workers = nil
	edited, kept, err := Edit(large, must(Missing(large, w)))
	if err != nil || !kept || len(edited) <= b.Len() {
		t.Errorf("got %v, %v, want lines that are added", kept, err)
	}
	for _, deep := range []string{strings.Repeat("[", 400_000), strings.Repeat("{a: ", 400_000), strings.Repeat("- ", 400_000),
		strings.Repeat("? ", 100_000), strings.Repeat("[", 200) + strings.Repeat("]", 200), "a: &a [*a]"} {
		if _, err := Read([]byte(deep)); err == nil || !strings.HasPrefix(err.Error(), "line ") && !strings.Contains(err.Error(), "max depth") {
			t.Errorf("%.20s: got error %v, want one that names the depth", deep, err)
		}
	}
}
