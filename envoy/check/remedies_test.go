package check

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/sightline-router/sightline/envoy"
)

// unneeded are members of the printed configuration that an Envoy of somebody's own need not have, as regular expressions for the
// ends of their paths, and the reasons.
var unneeded = map[string]string{
	`name|stat_prefix|log_name|transport_api_version|cluster_name|domains`: "labels, and what Envoy itself demands",
	`stats_eviction_interval|virtual_clusters|access_log\[[02]\]\.typed_config|access_log\[.\]\.filter`: "counters and " +
		"lines for people, and which requests are logged",
	`admin|admin\..*|listeners\[0\]\.address`: "the operator's " +
		"addresses; what the admin page accepts is asked of those who have one (TestMistakes)",
	`normalize_path|upgrade_configs|request_headers_timeout|http2_protocol_options`: "how clients are " +
		"served is the operator's choice; HTTP/2 windows have good defaults",
	`common_config\.grpc_stream_retry_policy|buffer_size_bytes`:                      "the log's stream is opened again anyway",
	`HCM\.(common_http_protocol_options|http_protocol_options|stream_flush_timeout)`: "likewise: idle clients, HTTP/1.0, clients that do not read",
	`include_request_attempt_count`:                                                  "read by the composite cluster alone",
	`retry_policy\.(num_retries|retry_host_predicate|host_selection_retry_max_attempts|retry_back_off)`: "one retry is " +
		"Envoy's default, and override_host takes the next choice for it",
	`routes\[0\]\..*`: "a length above body_limit: the buffer limit answers 413 as well",
	`routes\[1\]\.match\.headers`: "which requests are asked about is the operator's; Sightline " +
		"passes what is none of its own",
	`routes\[[2-9]\]\..*`:                             "routes beside inference are the operator's",
	`grpc_service\.envoy_grpc`:                        "Envoy's demand",
	`initial_metadata\[0\](\.(key|value))?`:           "names Sightline, as its cluster does",
	`typed_config\.route_cache_action`:                "only a route for a header is chosen anew",
	`processing_mode\.request_header_mode`:            "SEND is Envoy's default",
	`processing_mode\.response_header_mode`:           "Sightline ends the stream before",
	`http_filters\[0\]\.typed_config\.mutation_rules`: "without rules Sightline may set all that it needs; they limit one that is taken over",
	`status_on_error`:                                 "500 instead of 503",
	`clusters\[0\]\.(connect_timeout|type|load_assignment|circuit_breakers\.thresholds\[0\]\.max_connections)`: "how Sightline is reached; its health check finds a hanging one",
	`clusters\[0\]\.health_checks\[0\]\..*`:                      "times of the check; the kind is Envoy's demand",
	`healthy_panic_threshold\.value`:                             "0 when it is left out",
	`update_merge_window`:                                        "a second without decisions after a restart",
	`clusters\[1\]\.(type|health_checks|outlier_detection)`:      "one of the two finds a dead worker, and Sightline does",
	`override_host_sources\[0\]\.metadata\.path|fallback_policy`: "Envoy's demand",
	`overload_manager`:                                           "limits of memory and connections are the operator's choice",
	`http_filters\[0\]\.typed_config\.(allow_mode_override|response_attributes)`: "without them other requests are buffered too, and " +
		"which worker keeps a response is not known (docs/envoy.md)",
	`explicit_http_config`:            "Envoy's demand",
	`layers\[1\](\.admin_layer)?`:     "for changes at the admin page, as Envoy has without layers",
	`http_filters\[1\]\.typed_config`: "Envoy's demand",
}

// TestRemedies: every member of the printed configuration, taken away, is found or added again, or stands above with the reason
// why not.
func TestRemedies(t *testing.T) {
	t.Parallel()
	file := printed(t)
	w := Want{Options: envoy.Default()}
	seen := 0
	var below func(v any, at path)
	below = func(v any, at path) {
		switch v := v.(type) {
		case yaml.MapSlice:
			for _, m := range v {
				key, _ := m.Key.(string)
				here := at.to(key)
				if excused(here.String()) {
					continue
				}
				seen++
				if !lacks(t, set(file, at, drop(v, key)), w) {
					t.Errorf("without %s: nothing is found", here)
					continue
				}
				below(m.Value, here)
			}
		case []any:
			for i := range v {
				if here := at.to(i); inLists.MatchString(here.String()) && !excused(here.String()) {
					seen++
					if !lacks(t, set(file, at, slices.Delete(slices.Clone(v), i, i+1)), w) {
						t.Errorf("without %s: nothing is found", here)
					}
				}
				below(v[i], at.to(i))
			}
		}
	}
	below(file, nil)
	if seen < 60 {
		t.Errorf("only %d members were taken away, want at least 60", seen)
	}
}

// lacks reports whether something is found in a configuration.
func lacks(t *testing.T, file any, w Want) bool {
	t.Helper()
	text, err := yaml.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Read(text)
	if err != nil {
		return true
	}
	c := look(b, w)
	return len(c.findings)+len(c.wishes) > 0
}

func drop(m yaml.MapSlice, key string) yaml.MapSlice {
	return slices.DeleteFunc(slices.Clone(m), func(i yaml.MapItem) bool { return i.Key == key })
}

func excused(at string) bool {
	at = strings.Replace(at, genManager.String(), "HCM", 1)
	for end := range unneeded {
		if regexp.MustCompile(`(^|[.\]])(` + end + `)$`).MatchString(at) {
			return true
		}
	}
	return false
}

func printed(t *testing.T) (file any) {
	t.Helper()
	text, err := os.ReadFile("../override_host.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalWithOptions(text, &file, yaml.UseOrderedMap()); err != nil {
		t.Fatal(err)
	}
	return file
}

// inLists are places of lists' elements that are taken away one by one.
var inLists = regexp.MustCompile(`grpc_service\.initial_metadata\[`)
