package check

import (
	"slices"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/envoy"
)

const ownFilter = `          - name: mine
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              grpc_service: { GRPC, timeout: 1s, initial_metadata: [{ key: x-sightline-client, value: x }, { key: authorization, value: t }] }
              processing_mode: { request_body_mode: BUFFERED }
`

const ownCluster = `  - name: sl
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: { http2_protocol_options: {} }
    load_assignment:
      cluster_name: sl
      endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 9002 } } } }] }]
`

// TestLogsReachSightline: the logs that are added go where the file's filter asks, and one that names a missing cluster is led there.
func TestLogsReachSightline(t *testing.T) {
	const router = "          - name: envoy.filters.http.router\n"
	with := func(grpc string) string {
		filter := ""
		if grpc != "" {
			filter = strings.Replace(ownFilter, "GRPC", grpc, 1)
		}
		return strings.Replace(user, router, filter+router, 1) + ownCluster
	}
	for _, c := range []struct{ text, sightline, logs, added string }{
		{with("envoy_grpc: { cluster_name: sl }"), "127.0.0.1:9002", "cluster_name: sl\n", ""},
		{with(""), "127.0.0.1:9002", "cluster_name: sl\n", ""}, // its address is there, and nobody asks it yet
		{with("google_grpc: { target_uri: \"127.0.0.1:9002\", stat_prefix: x }"), "127.0.0.1:9002", "target_uri: 127.0.0.1:9002\n", ""},
		{user, "127.0.0.1:9002", "cluster_name: sightline\n", "cluster sightline"},
		{with("envoy_grpc: { cluster_name: sl }"), "127.0.0.1:9002,127.0.0.1:9003", "cluster_name: sightline_log_0\n", "cluster sightline_log_1"},
	} {
		asks := strings.Contains(c.text, "envoy_grpc")
		w := Want{Options: envoy.Default()}
		w.Workers, w.Sightline = nil, c.sightline
		b := read(t, c.text)
		pieces := must(Missing(b, w))
		seen := 0
		for _, p := range pieces {
			if !strings.HasPrefix(p.Name, "log of") {
				continue
			}
			seen++
			if !strings.HasSuffix(p.Name, " 2") && !strings.Contains(p.YAML, c.logs) || strings.Contains(p.YAML, "timeout: 1s") ||
				strings.Contains(p.YAML, "x-sightline-client") {
				t.Errorf("%s: got\n%s\nwant %s", p.Name, p.YAML, c.logs)
			}
		}
		if seen != 2*strings.Count(c.sightline, ":") {
			t.Errorf("got %d logs, want both at each of %s", seen, c.sightline)
		}
		named := func(p Piece) bool {
			return strings.HasPrefix(p.Name, "cluster ") && (c.added == "" || p.Name == c.added)
		}
		if slices.ContainsFunc(pieces, named) != (c.added != "") {
			t.Errorf("%s: got %v, want the cluster %q", c.sightline, pieces, c.added)
		}
		text, kept, err := Edit(b, pieces)
		if err != nil || !kept {
			t.Fatalf("got %v, %v, want lines that are added", kept, err)
		}
		if c.added != "" {
			continue
		}
		gone := strings.ReplaceAll(string(text), "cluster_name: sl\n", "cluster_name: sightline_gone\n")
		if !asks {
			continue
		}
		b = read(t, gone)
		fits := slices.ContainsFunc(must(Missing(b, w)), func(p Piece) bool {
			return p.Name == "log to Sightline" && strings.Contains(p.YAML, "cluster_name: sl")
		})
		found := slices.ContainsFunc(Run(b, w), func(f Finding) bool { return f.Name == "cluster_unknown" && f.Got == "sightline_gone" })
		if !found || !fits {
			t.Errorf("a log to a missing cluster: got found %v, mended %v, want both", found, fits)
		}
	}
}
