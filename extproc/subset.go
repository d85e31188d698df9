package extproc

import (
	"net/netip"
	"strings"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

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
