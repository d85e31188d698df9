package rules

import (
	"bytes"
	"errors"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Facts are what one server reports of itself. A nil or zero field was not reported; Unknown gives the reason where that is
// unexpected. The server is not trusted: text that is long or not printable and impossible numbers are dropped.
type Facts struct {
	Addr      string   `json:"addr"`                // host:port of the server
	Engine    string   `json:"engine,omitempty"`    // the configuration's name of it; "": unknown
	Owner     string   `json:"owner,omitempty"`     // owned_by of its first model
	FrontEnd  bool     `json:"front_end,omitempty"` // it is an NVIDIA Dynamo front end; the workers behind it are not asked
	Simulated bool     `json:"simulated,omitempty"` // a simulated worker of Sightline's own tests
	Version   string   `json:"version,omitempty"`   // such as 0.32.0
	Served    []Served `json:"served,omitempty"`    // in the server's order

	EngineModel  string `json:"engine_model,omitempty"` // its --model: a repository's name or a path
	Revision     string `json:"revision,omitempty"`
	ChatTemplate string `json:"chat_template,omitempty"`
	Speculative  string `json:"speculative_algorithm,omitempty"`
	MaxModelLen  int    `json:"max_model_len,omitempty"`
	Ranks        int    `json:"ranks,omitempty"` // data-parallel ranks

	BlockSize      int    `json:"block_size,omitempty"`       // tokens per KV block, as in effect; see Rules.BlocksByGroup
	BlockSizeGiven *bool  `json:"block_size_given,omitempty"` // whether a block size was asked for; the engine may have taken another
	Blocks         int    `json:"blocks,omitempty"`
	PrefixCaching  *bool  `json:"prefix_caching,omitempty"`
	HashAlgo       string `json:"hash_algo,omitempty"`
	MatchUnit      int    `json:"prefix_match_unit,omitempty"` // tokens; cache hits are multiples of it
	MambaCacheMode string `json:"mamba_cache_mode,omitempty"`

	Publishes    *bool         `json:"publishes,omitempty"`     // it publishes KV events over ZeroMQ
	Events       []EventSource `json:"events,omitempty"`        // its event sockets by rank
	FindsEvents  bool          `json:"finds_events,omitempty"`  // it answers where it publishes (Rules.FindEvents)
	CountsCached *bool         `json:"counts_cached,omitempty"` // usage reports the cached tokens

	Changed  bool      `json:"-"`                  // it said otherwise before: of as many workers each, others' names and classes stay
	Requests *int      `json:"requests,omitempty"` // running and waiting
	Unknown  []Unknown `json:"unknown,omitempty"`
}

// Served is one model of /v1/models. One with a Parent is a LoRA adapter of that model.
type Served struct {
	ID     string `json:"id"`
	Root   string `json:"root,omitempty"`
	Parent string `json:"parent,omitempty"`
	MaxLen int    `json:"max_model_len,omitempty"`
}

// Unknown is a fact that could not be learned, named as in Facts' JSON.
type Unknown struct {
	What string `json:"what"`
	Why  string `json:"why"`
	Err  error  `json:"-"`
}

// Lacks records that a fact could not be learned. A 401 or 403 means that the server wants a key.
func (f *Facts) Lacks(what string, err error) {
	why := err.Error()
	if status, is := errors.AsType[*StatusError](err); is && WantsKey(status.Status) {
		why = status.Query + " wants a key (worker_access.api_key_file)"
	}
	f.Unknown = append(f.Unknown, Unknown{what, why, err})
}

// Differs reports whether a server's later answer describes it otherwise. An answer that merely lacks more does not: a busy server leaves
// queries unanswered. Neither does its load.
func (f *Facts) Differs(later *Facts) bool {
	a, b := *f, *later
	a.Requests, a.Unknown, b.Requests, b.Unknown = nil, nil, nil, nil
	a.Changed, b.Changed = false, false
	lost := func(u Unknown) bool {
		return !slices.ContainsFunc(f.Unknown, func(old Unknown) bool { return old.What == u.What })
	}
	same := reflect.DeepEqual(a.Served, b.Served) && (b.Version == "" || b.Version == a.Version)
	on := b.Publishes == nil || *b.Publishes
	if same && (slices.ContainsFunc(later.Unknown, lost) || on && a.FindsEvents && !b.FindsEvents) {
		return false
	}
	return !reflect.DeepEqual(a, b)
}

// Host returns the host at which the server's sockets can be dialled.
func (f *Facts) Host() string {
	host, _, _ := net.SplitHostPort(f.Addr)
	return host
}

// MaxClaimedRanks bounds the data-parallel ranks that a server may claim: each is dialled.
const MaxClaimedRanks = 256

const (
	maxText = 1 << 10
	maxInt  = 1 << 40
)

// CleanText returns a text received from a server, or "" if it is longer than a kilobyte or not printable.
func CleanText(s string) string {
	if len(s) > maxText || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return ""
	}
	return s
}

// CleanCount returns a count received from a server, or 0 if it is out of range.
func CleanCount(n int) int {
	if n < 0 || n > maxInt {
		return 0
	}
	return n
}

// Label returns a label's value, or "" if it is missing or Python's None.
func Label(labels map[string]string, name string) string {
	if v := CleanText(labels[name]); v != "None" {
		return v
	}
	return ""
}

// LabelCount returns a label that holds a count, or 0 if it does not.
func LabelCount(labels map[string]string, name string) int {
	n, _ := strconv.Atoi(Label(labels, name))
	return CleanCount(n)
}

// LabelBool returns a label that holds Python's True or False, or nil if it holds neither.
func LabelBool(labels map[string]string, name string) *bool {
	v := Label(labels, name)
	if v != "True" && v != "False" {
		return nil
	}
	is := v == "True"
	return &is
}

// Labels returns the labels of a metric's first series in Prometheus' text form, or nil if the metric is missing.
func Labels(page []byte, metric string) map[string]string {
	start := []byte(metric + "{")
	for metric != "" && len(page) > 0 {
		line, rest, _ := bytes.Cut(page, []byte("\n"))
		page = rest
		if !bytes.HasPrefix(line, start) {
			continue
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(append(bytes.Clone(line), '\n')))
		if err != nil || families[metric] == nil {
			return nil
		}
		labels := map[string]string{}
		for _, l := range families[metric].Metric[0].Label {
			labels[l.GetName()] = l.GetValue()
		}
		return labels
	}
	return nil
}
