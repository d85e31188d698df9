package rules

import (
	"bytes"
	"errors"
	"net"
	"strconv"
	"strings"
	"unicode"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Facts are what one server said of itself when it was asked. A nil or zero field was not told; Unknown says why, where that is
// not a matter of course. Answers are a stranger's: what is no plain short text or no possible number is not taken.
type Facts struct {
	Addr      string   `json:"addr"`                // host:port that was asked
	Engine    string   `json:"engine,omitempty"`    // as the configuration calls it; "": none that is known here
	Owner     string   `json:"owner,omitempty"`     // owned_by of its first model
	FrontEnd  bool     `json:"front_end,omitempty"` // NVIDIA Dynamo's, with workers behind it that are not asked
	Simulated bool     `json:"simulated,omitempty"` // a worker of Sightline's own tests
	Version   string   `json:"version,omitempty"`   // such as 0.32.0
	Served    []Served `json:"served,omitempty"`    // as it lists them

	EngineModel  string `json:"engine_model,omitempty"` // its --model: a repository's name or a path
	Revision     string `json:"revision,omitempty"`
	ChatTemplate string `json:"chat_template,omitempty"`
	Speculative  string `json:"speculative_algorithm,omitempty"`
	MaxModelLen  int    `json:"max_model_len,omitempty"`
	Ranks        int    `json:"ranks,omitempty"` // data-parallel

	BlockSize      int    `json:"block_size,omitempty"`       // tokens a KV block, as it is
	BlockSizeGiven *bool  `json:"block_size_given,omitempty"` // a block size was asked for; the engine may have taken another
	Blocks         int    `json:"blocks,omitempty"`
	PrefixCaching  *bool  `json:"prefix_caching,omitempty"`
	HashAlgo       string `json:"hash_algo,omitempty"`
	MatchUnit      int    `json:"prefix_match_unit,omitempty"` // tokens; hits are multiples of it
	MambaCacheMode string `json:"mamba_cache_mode,omitempty"`

	Publishes    *bool         `json:"publishes,omitempty"`     // KV events, over ZeroMQ
	Events       []EventSource `json:"events,omitempty"`        // where, by rank
	CountsCached *bool         `json:"counts_cached,omitempty"` // usage has the cached tokens

	Requests *int      `json:"requests,omitempty"` // running and waiting
	Unknown  []Unknown `json:"unknown,omitempty"`
}

// Served is one model of /v1/models; one with a Parent is a LoRA adapter of that.
type Served struct {
	ID     string `json:"id"`
	Root   string `json:"root,omitempty"`
	Parent string `json:"parent,omitempty"`
	MaxLen int    `json:"max_model_len,omitempty"`
}

// Unknown is something that could not be learnt, named as in Facts' JSON.
type Unknown struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// Lacks notes that something could not be learnt. A server that answers 401 or 403 wants a key.
func (f *Facts) Lacks(what string, err error) {
	var status *StatusError
	why := err.Error()
	if errors.As(err, &status) && (status.Status == 401 || status.Status == 403) {
		why = "GET " + status.Path + " wants a key"
	}
	f.Unknown = append(f.Unknown, Unknown{what, why})
}

// Host is where the server's sockets can be dialled.
func (f *Facts) Host() string {
	host, _, _ := net.SplitHostPort(f.Addr)
	return host
}

const (
	maxText = 1 << 10
	maxInt  = 1 << 40
)

// Plain gives a text of a server's, "" if it is longer than a kilobyte or not printable.
func Plain(s string) string {
	if len(s) > maxText || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return ""
	}
	return s
}

// Count gives a number of a server's that counts something, 0 for one that cannot.
func Count(n int) int {
	if n < 0 || n > maxInt {
		return 0
	}
	return n
}

// Label gives a label's value, "" where it is not there or Python's None.
func Label(labels map[string]string, name string) string {
	if v := Plain(labels[name]); v != "None" {
		return v
	}
	return ""
}

// LabelCount is a label that counts, 0 where it does not.
func LabelCount(labels map[string]string, name string) int {
	n, _ := strconv.Atoi(Label(labels, name))
	return Count(n)
}

// LabelBool is a label that is True or False in Python's writing, nil where it is neither.
func LabelBool(labels map[string]string, name string) *bool {
	v := Label(labels, name)
	if v != "True" && v != "False" {
		return nil
	}
	is := v == "True"
	return &is
}

// Labels are those of the first series of a metric on a page in Prometheus' text form; nil if it is not there.
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
