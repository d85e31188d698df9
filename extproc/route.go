package extproc

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sightline-router/sightline/internal/denied"
)

// Mode selects the headers that tell Envoy where a request goes.
type Mode string

const (
	// Auto supports both modes. A stream with a full-duplex body or a subset hint is assumed to be from a gateway that follows
	// the endpoint-picker protocol strictly.
	Auto Mode = ""
	// Sightline: x-target-worker and related headers, for our own envoy.yaml. Without a choice the request goes on unchanged.
	Sightline Mode = "sightline"
	// EndpointPicker: the protocol of Gateway API's Inference Extension, version 1.0.0. Every request gets an endpoint or a 503;
	// the stream stays open for the response, which names the endpoint that served it.
	EndpointPicker Mode = "epp"
)

// ParseMode parses a mode's name.
func ParseMode(s string) (Mode, error) {
	switch m := Mode(s); m {
	case Auto, Sightline, EndpointPicker:
		return m, nil
	}
	return Auto, fmt.Errorf("mode %q is not known (want sightline or epp, or leave it out)", s)
}

// Route has the settings of one Envoy route. Envoy sends them in the initial metadata of a stream (grpc_initial_metadata of
// ExtProcPerRoute, or grpc_service.initial_metadata for all routes); missing ones are taken from Options.Route.
type Route struct {
	Mode Mode   // metadata key x-sightline-mode
	Pool string // x-sightline-pool: only workers of this model; "": of the model that the body names
	// Header is the request header for the first choice's ip:port (x-sightline-header); the second choice uses the same name with
	// -2. "": x-target-worker. It is not used in the endpoint-picker protocol, whose names are fixed.
	Header string
	// Path is a prefix that the route removes before a worker sees the request (x-sightline-path), such as /qwen.
	Path string
	// OneAddress names only the first choice in the endpoint-picker protocol, for data planes that take one address (ORIGINAL_DST by a
	// header, as Envoy AI Gateway's): to them a list is no address. Without it the first list that fails shows it.
	OneAddress bool
	NamePod    bool // the response has the name of the pod that served it, in the endpoint-picker protocol
}

// Names of a route's settings in gRPC metadata.
const (
	keyMode   = "x-sightline-mode"
	keyPool   = "x-sightline-pool"
	keyHeader = "x-sightline-header"
	keyPath   = "x-sightline-path"
)

// The endpoint-picker protocol's names. The subset hint restricts the choice. It is accepted from the metadata, and from a header
// only if the stream is known to be from a gateway.
const (
	HeaderEndpoint = "x-gateway-destination-endpoint"
	HeaderSubset   = "x-gateway-destination-endpoint-subset"
	keyServed      = "x-gateway-destination-endpoint-served"
	spaceLB        = "envoy.lb"
	spaceSubset    = "envoy.lb.subset_hint"
)

// streamSettings are the settings of one stream: its route, and what its first message says.
type streamSettings struct {
	Route
	strict         bool     // strict endpoint-picker protocol
	only           []string // the subset hint: ip:port or ip; nil: none
	duplex         bool     // request bodies are streamed through us and must be returned
	answers        bool     // Envoy sends response bodies without being asked
	duplexResponse bool     // response bodies must be returned
	one            bool     // only one address may be named
	foreign        []string // steering headers of the client that we never set; none behind our own envoy.yaml
}

// settingsOf reads a stream's settings. An invalid setting is complained about and keeps its default.
func (s *Server) settingsOf(ctx context.Context, first *extprocv3.ProcessingRequest) streamSettings {
	t := streamSettings{Route: s.opt.Route}
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		read := func(key, or string) string {
			if v := md.Get(key); len(v) > 0 {
				return v[0]
			}
			return or
		}
		mode, err := ParseMode(read(keyMode, string(t.Mode)))
		if err != nil {
			s.complain("route mode", "grpc_initial_metadata "+keyMode+": "+err.Error())
			mode = t.Mode
		}
		t.Mode, t.Pool, t.Header, t.Path = mode, read(keyPool, t.Pool), read(keyHeader, t.Header), read(keyPath, t.Path)
	}
	t.Header = cmp.Or(t.Header, HeaderWorker)
	pc := first.GetProtocolConfig()
	t.duplex = pc.GetRequestBodyMode() == modev3.ProcessingMode_FULL_DUPLEX_STREAMED
	t.answers = pc.GetResponseBodyMode() != modev3.ProcessingMode_NONE
	t.duplexResponse = pc.GetResponseBodyMode() == modev3.ProcessingMode_FULL_DUPLEX_STREAMED
	t.one = t.OneAddress || s.lists.Load() == listsFail
	t.foreign = t.steered(first.GetRequestHeaders().GetHeaders().GetHeaders())
	if t.Mode == Sightline {
		return t
	}
	hint := first.GetMetadataContext().GetFilterMetadata()[spaceSubset].GetFields()[HeaderSubset]
	t.strict = t.Mode == EndpointPicker || t.duplex || hint != nil
	if hint != nil {
		t.only = subset(hint)
	} else if v, given := subsetHeader(first.GetRequestHeaders()); t.strict && given {
		t.only = subset(structpb.NewStringValue(v))
	}
	return t
}

// steered lists the names of client headers that are in package denied's table and that no answer sets or removes by itself. A
// request id stays if it cannot hold an address: most gateways create one themselves.
func (t *streamSettings) steered(hs []*corev3.HeaderValue) (names []string) {
	own := []string{HeaderID, HeaderReason, HeaderEndpoint, HeaderSubset, t.Header, t.secondHeader()}
	for _, kv := range hs {
		name := kv.GetKey()
		if !strings.HasPrefix(name, "x-") { // all names of the table do, few of a request's
			continue
		}
		answered := slices.Contains(own, name) || slices.Contains(choiceHeaders, name) || name == "x-request-id" && isToken(value(kv))
		listed := func(h denied.Header) bool { return h.Match(name) }
		if !answered && slices.ContainsFunc(denied.Headers, listed) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// isToken reports whether s has only letters, digits and hyphens.
func isToken(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}

// maxSubset limits the endpoints of a hint that are read; a gateway's pool is smaller.
const maxSubset = 4096

// subset parses a hint: a list of strings, a comma-separated string, or a list of those. Each element is ip:port, or an ip for
// all its ports; blanks and empty elements are ignored. The result is never nil: an empty hint allows nothing.
func subset(hint *structpb.Value) []string {
	out := []string{}
	add := func(text string) {
		for e := range strings.SplitSeq(text, ",") {
			e = strings.TrimSpace(e)
			if e != "" && len(out) < maxSubset {
				out = append(out, canonical(e))
			}
		}
	}
	add(hint.GetStringValue())
	for _, v := range hint.GetListValue().GetValues() {
		add(v.GetStringValue())
	}
	return out
}

// canonical formats an endpoint like workers' addresses. What is not an address is returned unchanged, and matches no worker.
func canonical(endpoint string) string {
	if ap, err := netip.ParseAddrPort(endpoint); err == nil {
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()).String()
	}
	if a, err := netip.ParseAddr(strings.Trim(endpoint, "[]")); err == nil {
		return a.Unmap().String()
	}
	return endpoint
}

// subsetHeader returns the hint from the request headers; several headers are joined into one list.
func subsetHeader(h *extprocv3.HttpHeaders) (v string, given bool) {
	for _, kv := range h.GetHeaders().GetHeaders() {
		if strings.EqualFold(kv.GetKey(), HeaderSubset) {
			v, given = v+","+value(kv), true
		}
	}
	return v, given
}
