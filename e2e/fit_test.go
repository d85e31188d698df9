package e2e

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/envoytest"
)

// ownEnvoy is a user's envoy.yaml; VLLM is the cluster that a route leads to.
type ownEnvoy struct {
	hosts   string // virtual hosts; "": one, all to VLLM
	filters string // before the router
	kind    string // the workers' cluster; "": STATIC, by address
	path    string // before /v1 in requests
	second  bool   // a second listener, for something else
	own     string // the cluster of an ext_proc filter that asks Sightline already
	still   string // what is found wrong afterwards, for a person to decide
}

var ownEnvoys = map[string]ownEnvoy{
	"round robin": {},
	"Sightline by another name": {own: "sl", filters: `
          - name: envoy.filters.http.ext_proc
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              grpc_service: { envoy_grpc: { cluster_name: sl }, timeout: 1s }
              failure_mode_allow: true
              message_timeout: 2s
              allow_mode_override: true
              processing_mode: { request_header_mode: SEND, response_header_mode: SEND, request_body_mode: BUFFERED, response_body_mode: NONE }`,
		still: "sightline_health"},
	"authentication and a buffer": {filters: `
          - name: jwt
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication
              providers: { all: { issuer: me, local_jwks: { inline_string: '{"keys":[{"kty":"oct","kid":"k","k":"c2VjcmV0","alg":"HS256"}]}' } } }
              rules: [{ match: { prefix: / }, requires: { allow_missing_or_failed: {} } }]
          - name: envoy.filters.http.ext_authz
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz
              http_service: { server_uri: { uri: "http://web", cluster: web, timeout: 5s } }
          - name: envoy.filters.http.buffer
            typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max_request_bytes: 134217728 }`},
	"an ext_proc of its own": {filters: `
          - name: envoy.filters.http.ext_proc
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              grpc_service: { envoy_grpc: { cluster_name: theirs } }
              failure_mode_allow: true
              processing_mode: { request_body_mode: NONE }`},
	"anchors, single values and camelCase": {hosts: `
              name: all
              domains: "*"
              routes:
              - match: { prefix: /v1 } # ours
                route: &to { cluster: VLLM }
              - match: { pathSeparatedPrefix: /v2 }
                route: *to`},
	"workers by name, and another site": {kind: "STRICT_DNS", hosts: `
            - name: site
              domains: [site.example.com]
              routes: [{ match: { prefix: / }, route: { cluster: web } }]
            - name: all
              domains: ["*"]
              routes: [{ match: { prefix: / }, route: { cluster: VLLM } }]`},
	"several listeners and hosts": {second: true, path: "/models/a", hosts: `
            - name: models
              domains: [127.0.0.1, "127.0.0.1:*"]
              routes:
              - match: { path_separated_prefix: /models/a }
                route: { cluster: VLLM, regex_rewrite: { pattern: { regex: ^/models/a }, substitution: "" }, timeout: 60s }
              - match: { prefix: / }
                route: { cluster: web }
            - name: site
              domains: ["*"]
              routes: [{ match: { prefix: / }, route: { cluster: web } }]`, still: "route_timeout"},
}

// yaml is the whole file.
func (o ownEnvoy) yaml(listen, second, admin, web, sightline string, workers []string) string {
	address := func(addr string) string {
		host, port, _ := net.SplitHostPort(addr)
		if o.kind == "STRICT_DNS" {
			host = "localhost"
		}
		return fmt.Sprintf("address: { socket_address: { address: %q, port_value: %s } }", host, port)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "admin: { %s }\nstatic_resources:\n  listeners:\n", ownEnvoy{}.address(admin))
	listener := func(addr, hosts string) {
		fmt.Fprintf(&b, `  - name: %q
    %s
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: mine
          route_config:
            virtual_hosts:%s
          http_filters:%s
          - name: envoy.filters.http.router
            typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
`, addr, ownEnvoy{}.address(addr), strings.ReplaceAll(hosts, "VLLM", "vllm"), o.filters)
	}
	const all = `
            - name: all
              domains: ["*"]
              routes: [{ match: { prefix: / }, route: { cluster: %s } }]`
	listener(listen, cmp.Or(o.hosts, fmt.Sprintf(all, "vllm")))
	if o.second {
		listener(second, fmt.Sprintf(all, "web"))
	}
	cluster := func(name, kind string, addrs ...string) {
		fmt.Fprintf(&b, "  - name: %s\n    type: %s\n    load_assignment:\n      cluster_name: %s\n      endpoints:\n      - lb_endpoints:\n",
			name, kind, name)
		for _, a := range addrs {
			fmt.Fprintf(&b, "        - endpoint: { %s }\n", address(a))
		}
	}
	b.WriteString("  clusters:\n")
	cluster("vllm", cmp.Or(o.kind, "STATIC"), workers...)
	o.kind = ""
	cluster("web", "STATIC", web)
	cluster("theirs", "STATIC", "127.0.0.1:1")
	if o.own != "" {
		cluster(o.own, "STATIC", sightline)
		b.WriteString("    typed_extension_protocol_options:\n      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:\n" +
			"        \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions\n" +
			"        explicit_http_config: { http2_protocol_options: {} }\n")
	}
	return b.String()
}

func (ownEnvoy) address(addr string) string {
	host, port, _ := net.SplitHostPort(addr)
	return fmt.Sprintf("address: { socket_address: { address: %q, port_value: %s } }", host, port)
}

var missing = regexp.MustCompile(`(?m)^# missing: ([a-z_ 0-9]+)\.`)

// Sightline comes into an Envoy that is there: the file with the pieces in it runs, a repeated image goes to the worker that
// has it, a client's header does not, and then nothing is missing.
func TestIntoAnEnvoyThatIsThere(t *testing.T) {
	t.Parallel()
	var keys map[string]any
	l := startLab(t, func(o *lab.Options) { o.Config = func(k map[string]any) { keys = maps.Clone(k) } })
	asked, _ := keys["envoy"].(map[string]any)
	keys["envoy"] = maps.Clone(asked)
	keys["envoy"].(map[string]any)["token_usage"] = true // as "sightline init" writes it
	text, err := yaml.Marshal(keys)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "sightline.yaml")
	write := func(file string, text []byte) string {
		t.Helper()
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	write(config, text)
	fits := func(from string, more ...string) (status int, out, warned string) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		cmd := exec.Command(l.Self(), append([]string{"envoy", "-c", config, "--for", from}, more...)...)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		var exit *exec.ExitError
		if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
	}
	var workers []string
	for _, w := range l.Sims {
		workers = append(workers, w.Addr())
	}
	sent := http.Header{"X-Request-Id": {"mine-1"}, "X-Tenant-Id": {"t"}, "X-Session-Token": {"s"}, "X-Envoy-Mine": {"e"},
		"X-Target-Worker": {"w"}}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for k := range sent {
			if r.Header.Get(k) != sent.Get(k) {
				fmt.Fprintf(w, "%s: %q, ", k, r.Header[k])
			}
		}
		fmt.Fprint(w, "web")
	}))
	defer web.Close()

	run := func(t *testing.T, text []byte, admin string) *envoytest.Process {
		t.Helper()
		var log lockedBuffer
		p, err := envoytest.Run(t.Context(), binary(t), text, admin, &log, "--concurrency", "2")
		if err != nil {
			t.Fatalf("%v\n%s", err, &log)
		}
		t.Cleanup(p.Stop)
		return p
	}
	for i, name := range slices.Sorted(maps.Keys(ownEnvoys)) {
		t.Run(name, func(t *testing.T) {
			o := ownEnvoys[name]
			listen, admin := freeAddr(t), freeAddr(t)
			mine := write(filepath.Join(dir, fmt.Sprint(i, ".yaml")),
				[]byte(o.yaml(listen, freeAddr(t), admin, web.Listener.Addr().String(), fmt.Sprint(keys["listen"]), workers)))
			status, before, _ := fits(mine)
			wanted := missing.FindAllString(before, -1)
			if status != 1 || len(wanted) < 8 {
				t.Fatalf("status %d:\n%s", status, before)
			}
			if name == "round robin" { // the same is seen from a running one
				text, err := os.ReadFile(mine)
				if err != nil {
					t.Fatal(err)
				}
				p := run(t, text, admin)
				if status, out, warned := fits("http://" + admin); status != 1 || !slices.Equal(missing.FindAllString(out, -1), wanted) {
					t.Errorf("running: status %d, %s\n%s\nwant %v", status, warned, out, wanted)
				}
				p.Stop()
			}
			_, applied, still := fits(mine, "--apply")
			if (o.still != "") != strings.Contains(still, ": "+o.still+" at ") || strings.Count(still, "# error")+
				strings.Count(still, "# warning") != min(len(o.still), 1) {
				t.Errorf("still wrong: %s", still)
			}
			ours := write(filepath.Join(dir, fmt.Sprint(i, "-applied.yaml")), []byte(applied))
			if status, out, _ := fits(ours); status != min(len(o.still), 1) || missing.MatchString(out) {
				t.Errorf("status %d, still missing:\n%s", status, out)
			}
			was, err := os.ReadFile(mine)
			if err != nil {
				t.Fatal(err)
			}
			if status, back, warned := fits(ours, "--remove"); status != 0 || back != string(was) {
				t.Errorf("removed again: status %d, %s\n%s\nwant\n%s", status, warned, back, was)
			}
			if !regexp.MustCompile(`^\d+ findings: \d+ applied, ` + fmt.Sprint(min(len(o.still), 1)) + ` yours, \d+ notes\n`).MatchString(still) {
				t.Errorf("the first line: %s", still)
			}
			if _, again, _ := fits(ours, "--apply"); again != applied {
				t.Errorf("a second time:\n%s", again)
			}
			run(t, []byte(applied), admin)
			if status, out, warned := fits("http://" + admin); status != min(len(o.still), 1) || missing.MatchString(out) {
				t.Errorf("running: status %d, %s\n%s", status, warned, out)
			}

			l.URL = "http://" + listen + o.path
			entries := func(kind string) float64 {
				return metricOf(t, l.Admin, "sightline_access_log_entries_total", `kind="`+kind+`"`)
			}
			started, ended := entries("started"), entries("ended")
			url := dataURL(photo(uint64(400 + i)))
			first := ask(t, l, "What is this?", url)
			if first.status != http.StatusOK || first.worker < 0 {
				t.Fatalf("got %+v, want status %d, worker at least 0", first, http.StatusOK)
			}
			awaitExact(t, l, first.worker, first.prompt)
			parts := []any{imagePart(url, nil), map[string]any{"type": "text", "text": "And this?"}}
			for _, forged := range workers {
				header := http.Header{"X-Target-Worker": {forged}, "X-Gateway-Destination-Endpoint": {forged}, "X-Envoy-Original-Dst-Host": {forged}}
				r := post(t, l, map[string]any{"messages": []any{map[string]any{"role": "user", "content": parts}}}, header)
				if r.status != http.StatusOK || r.worker != first.worker || r.cached < 380 {
					t.Errorf("%s in headers: got %+v, the first went to %d, want status %d, worker %d, cached at least 380",
						forged, r, first.worker, http.StatusOK, first.worker)
				}
				eventually(t, "the engine's count has come back", func() bool {
					last, err := lab.Get("http://" + l.Admin + "/decisions?n=1")
					return err == nil && gjson.GetBytes(last, "0.reported_cached_tokens").Int() == int64(r.cached)
				})
			}
			eventually(t, "the access logs have told both ends of each request", func() bool {
				n := float64(1 + len(workers))
				return entries("started") == started+n && entries("ended") == ended+n && metricOf(t, l.Admin, "sightline_requests_open", "") == 0
			})
			if strings.Contains(o.hosts, "cluster: web") { // the other service has its clients' headers
				req, err := http.NewRequest(http.MethodPost, "http://"+listen+"/v1/chat/completions", strings.NewReader("{}"))
				if err != nil {
					t.Fatal(err)
				}
				req.Header = sent
				if o.path == "" {
					req.Host = "site.example.com"
				}
				if r := do(http.DefaultClient, req); r.err != nil || string(r.body) != "web" {
					t.Errorf("%q, %v from the other service: got %q, want no error, %q", r.body, r.err, string(r.body), "web")
				}
			}
		})
	}
}
