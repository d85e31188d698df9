package config

import (
	"regexp"
	"strings"
)

// learned says what replaces a flag that only some prompts depend on.
const learned = "what such a flag changes is learned from the workers' events (leave the key out)"

// authFile says what replaces a key of each way to authenticate to NATS.
const authFile = "one file says it, whatever is in it: credentials, an nkey's seed, user:password or a token (want auth: FILE)"

// account says what replaces the keys for an API server outside of a pod.
const account = "a pod's ServiceAccount has it, and kubectl proxy needs none (leave the key out)"

// removed maps former keys, without indices, to what to do instead. Below a model a class's key counts as the model's.
var removed = map[string]string{
	"models.client_uuid": "vLLM serves the features of the first image seen under a uuid, so a client's never reaches a worker " +
		"(leave the key out)",
	"models.enable_mm_embeds": "requests with embeddings go to a worker whatever its flag, which refuses them itself (leave the key out)",
	"models.prefill_rate":     "the rate is learned from a worker's events within seconds (leave the key out)",
	"index.partition":         "each Sightline holds the whole index: 1.2 GiB of index.max_bytes hold 50 million blocks (leave the key out)",
	"metrics":                 "other routers' names of metrics are recording rules, examples/prometheus/names.yml (leave the key out)",

	"standalone":       "its workers are workers like others (want workers, each with events.zmq and events.load)",
	"route.mode":       "both protocols are always spoken (leave the key out, or set x-sightline-mode in a route's gRPC metadata)",
	"route.pool":       "a route names it (want x-sightline-pool in its gRPC metadata)",
	"route.header":     "a route names it (want x-sightline-header in its gRPC metadata)",
	"nats.credentials": authFile, "nats.nkey": authFile, "nats.user": authFile, "nats.password_file": authFile, "nats.token_file": authFile,
	"workers.events.topic": "all topics are read (leave the key out)",
	"workers.events.from":  "a publisher connects from its worker's address alone (leave the key out, or have an agent beside the worker)",
	"kubernetes.ca_file":   account, "kubernetes.token_file": account,
	"kubernetes.namespace":  "it stands before the pool's name (want pool: NAMESPACE/NAME; groups have a namespace of their own)",
	"tracing.insecure":      "the address says it (want endpoint: http://HOST:PORT for plain text)",
	"replicas.api_key_file": "the first token of listen_token_file is sent (leave the key out)",
	"dynamo.plane":          "it is NATS if nats.url is given, else ZeroMQ (leave the key out)",
	"dynamo.endpoint":       "it stands beside the component (want component: COMPONENT/ENDPOINT, if it is not generate)",
	"zones.distance":        "it is the distance to all zones that zones.to does not name (want to: {\"*\": 2ms})",
	"ready_after":           "a start waits for event streams for 30 s at most (leave the key out)",
	"decision_log.key_file": "pseudonyms have the secret of the block hashes (want index.key_file)",
	"models.max_loras":      "workers report it, and SGLang's is taken to be 8 (leave the key out)",
	"mode":                  "a share says it: without it all is steered, as with enforce (want enforce: 0% for observe)",
	"nats.dir":              "nats.config says where streams are (want jetstream { store_dir: DIR } in the file that it names)",
	"nats.prefix":           "a NATS server, or an account of it, has one deployment (leave the key out)",
	"nats.stream":           "Sightline creates the agents' stream, a file of 256 MiB; create another first (leave the key out)",

	"audit": "it is always on (leave the key out)",
	"audit_text": "clients' text is shown nowhere; sightline explain --against shows which tokens differ of a request of yours " +
		"(leave the key out)",
	"probe":                        "it is always on (leave the key out)",
	"health_every":                 "health is always asked every 5 s (leave the key out)",
	"load_every":                   "load is always asked every second (leave the key out)",
	"body_timeout":                 "it is always 5 minutes; request_timeout of your Envoy may be shorter (leave the key out)",
	"index.predicted_ttl":          "it is always 20 s (leave the key out)",
	"decision_log.max_bytes":       "a file is always renamed at 64 MiB, and five are kept (leave the key out)",
	"decision_log.keep":            "five renamed files are always kept (leave the key out)",
	"media.max_bytes":              "an image always has 64 MiB at most (leave the key out)",
	"media.relay.ttl":              "it is always 2 minutes (leave the key out)",
	"media.relay.max_bytes":        "it is always 256 MiB (leave the key out)",
	"models.interleave_mm_strings": learned, "models.enable_tower_connector_lora": learned, "models.reasoning_effort_map": learned,
	"models.anthropic_disabled_thinking_effort": learned, "models.time_zone": learned, "models.exclude_tools_when_tool_choice_none": learned,
	"models.enable_auto_tool_choice": learned,
	"models.mm_processor_cache_gb":   "clients' names of media never reach a worker, so it changes nothing (leave the key out)",
	"models.allowed_media_domains":   "the engine itself refuses other hosts (leave the key out; media.domains is Sightline's own list)",
	"models.max_file_size_mb":        "larger files than 50 MiB are not read (leave the key out)",
	"models.enable_eagle":            "one key says it for SGLang and Dynamo (want speculative_algorithm: EAGLE)",
	"models.offload_rate":            "events show it (leave the key out)",
	"models.session_ids":             "requests without an X-Session-ID always get one (leave the key out)",
}

var (
	indices    = regexp.MustCompile(`\[\d+\]`)
	sharedKeys = strings.NewReplacer("models.classes.", "models.", "kubernetes.workers.", "workers.", "dynamo.nats.", "nats.")
)

// noLonger returns what to do instead of a former key; "" if the key never was one. Keys of explain's --set lack their section.
func noLonger(path string) string {
	path = sharedKeys.Replace(indices.ReplaceAllString(path, ""))
	if what := removed[path]; what != "" {
		return what
	}
	return removed["models."+path]
}
