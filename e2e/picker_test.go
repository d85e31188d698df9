package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/envoy/check"
	"github.com/sightline-router/sightline/extproc"
)

// asPool turns the printed configuration into what a gateway makes of an InferencePool, in Istio's form: bodies stream
// through the picker both ways, the choice is read from the metadata alone, and the load balancer tells who served. The
// access log for Sightline is silenced. The subset hint comes from a header of this test's.
func asPool(t *testing.T, printed string) string {
	t.Helper()
	for _, edit := range [][2]string{
		{"{ key: x-sightline-mode, value: sightline }", "{ key: x-sightline-mode, value: epp }"},
		{"request_trailer_mode: SEND, response_header_mode: SKIP }",
			"request_trailer_mode: SEND, response_header_mode: SEND, response_body_mode: FULL_DUPLEX_STREAMED, response_trailer_mode: SEND }"},
		{"metadata_options: { receiving", "metadata_options: { forwarding_namespaces: { untyped: [envoy.lb, envoy.lb.subset_hint] }, receiving"},
		{"untyped: [sightline] }", "untyped: [sightline, envoy.lb] }"},
		{"override_host_sources: [{ metadata: { key: sightline, path: [{ key: endpoints }] } }]",
			"override_host_sources: [{ metadata: { key: envoy.lb, path: [{ key: x-gateway-destination-endpoint }] } }]\n" +
				"            selected_host_key: { key: envoy.lb, path: [{ key: x-gateway-destination-endpoint-served }] }"},
		{"name: x-sightline-id, present_match", "name: x-nobody, present_match"},
		{"          http_filters:\n", `          http_filters:
          - name: envoy.filters.http.header_to_metadata
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
              request_rules:
              - header: x-hint
                on_header_present: { metadata_namespace: envoy.lb.subset_hint, key: x-gateway-destination-endpoint-subset, type: STRING }
                remove: true
`},
	} {
		if !strings.Contains(printed, edit[0]) {
			t.Fatalf("the printed configuration has no %q", edit[0])
		}
		printed = strings.ReplaceAll(printed, edit[0], edit[1])
	}
	return withPatience(t, printed)
}

// The endpoint-picker protocol through a real Envoy.
func TestEndpointPicker(t *testing.T) {
	t.Parallel()
	w := startEdited(t, 3, func(o *envoy.Options) {
		o.FullDuplex, o.OverrideHost = true, true
	}, func(printed string) string { return asPool(t, printed) })
	s := w.runSightline(extproc.Options{})
	served := func(r reply, want int) {
		t.Helper()
		story := fmt.Sprintf("started worker %d, ended nowhere 200", want)
		if r.err != nil || r.status != 200 || r.Worker != w.workers[want].addr {
			t.Fatalf("%v, status %d from %q, want worker %d of %v", r.err, r.status, r.Worker, want, w.addrs())
		}
		// After a retry the first choice counts until the response tells who served.
		eventually(t, story+": Sightline hears who served", func() bool { return strings.HasSuffix(w.story(s.of(r.id())), story) })
	}
	all := w.addrs()
	long := `"pad":"` + strings.Repeat("x", 300_000) + `EDITME"`
	for i, addr := range all {
		for _, c := range []*http.Client{w.client, w.h2} {
			body := chat(script{Targets: []string{addr}, Edit: "edited"}, long)
			r := w.send(c, "POST", "/v1/chat/completions", body, nil)
			served(r, i)
			if r.Length != len(body) {
				t.Errorf("%d bytes at the worker, want %d", r.Length, len(body))
			}
			served(w.send(c, "POST", "/v1/chat/completions", chat(script{Targets: []string{addr}}),
				http.Header{"X-Gateway-Destination-Endpoint": {all[(i+1)%3]}}), i)
		}
	}
	ask := func(told script, hint string) reply { return w.post(chat(told), http.Header{"X-Hint": {hint}}) }
	served(ask(script{Targets: all}, all[2]+", "+all[1]), 1) // the best of those allowed
	for _, c := range []struct {
		name string
		want int
		reply
	}{
		{"none of the subset", 503, ask(script{Targets: all[:1]}, all[1])},
		{"no target", 503, w.post(chat(script{}), nil)},
		{"shed", 429, w.post(chat(script{Refuse: 429}), nil)},
	} {
		if c.err != nil || c.status != c.want || c.header.Get("content-type") != "application/json" || c.header.Get("retry-after") != "1" {
			t.Errorf("%s: %v, status %d, want %d; %v, %s", c.name, c.err, c.status, c.want, c.header, c.reply.body)
		}
	}
	w.workers[0].kill()
	served(w.post(chat(script{Targets: all[:2]}), nil), 1) // after a retry
	// Full duplex fails open only once Envoy has put the picker aside, which its health check does.
	s.stop()
	eventually(t, "requests with a body pass without a picker", func() bool {
		r := w.post(chat(script{Targets: all}), nil)
		return r.err == nil && r.status == 200 && r.id() == "" && slices.Contains(all[1:], r.Worker)
	})
}

// A gateway whose pool is a cluster that takes one address from the header, as Envoy AI Gateway makes it: the first list is no address,
// and shows Sightline to name one from then on. What doctor reads of this Envoy tells beforehand.
func TestPickerOfOneAddress(t *testing.T) {
	w := startEdited(t, 2, func(o *envoy.Options) { o.FullDuplex = true }, func(printed string) string {
		for _, edit := range [][2]string{
			{"{ key: x-sightline-mode, value: sightline }", "{ key: x-sightline-mode, value: epp }"},
			{"request_trailer_mode: SEND, response_header_mode: SKIP }",
				"request_trailer_mode: SEND, response_header_mode: SEND, response_body_mode: FULL_DUPLEX_STREAMED, response_trailer_mode: SEND }"},
			{"http_header_name: x-target-worker }", "http_header_name: x-gateway-destination-endpoint }"},
			{"{ name: x-target-worker, present_match: true }", "{ name: x-gateway-destination-endpoint, present_match: true }"},
			{"route: { cluster: workers, timeout: 0s }", "route: { cluster: workers_picked, timeout: 0s }"},
			{"name: x-sightline-id, present_match", "name: x-nobody, present_match"},
		} {
			if !strings.Contains(printed, edit[0]) {
				t.Fatalf("the printed configuration has no %q", edit[0])
			}
			printed = strings.ReplaceAll(printed, edit[0], edit[1])
		}
		b, err := check.Read([]byte(printed))
		if err != nil {
			t.Fatal(err)
		}
		for _, told := range []bool{false, true} {
			found := slices.ContainsFunc(check.Run(b, check.Want{Options: envoy.Default(), Picker: true, OneAddress: told}),
				func(f check.Finding) bool { return f.Name == "choice_not_read" && f.Severity == check.Warning })
			if found == told {
				t.Errorf("route.one_address is %t, found: got %t, want other than %v", told, found, told)
			}
		}
		return withPatience(t, printed)
	})
	w.runSightline(extproc.Options{})
	all := w.addrs()
	if r := w.post(chat(script{Targets: all}), nil); r.status != 503 {
		t.Fatalf("a list of addresses: %v, status %d from %q: this Envoy takes it, want 503", r.err, r.status, r.Worker)
	}
	for i := range all {
		targets := []string{all[i], all[1-i]}
		if r := w.post(chat(script{Targets: targets}), nil); r.err != nil || r.status != 200 || r.Worker != all[i] {
			t.Errorf("%v, status %d from %q, want %s", r.err, r.status, r.Worker, all[i])
		}
	}
}
