package extproc

import (
	"bytes"
	"strings"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/internal/denied"
	"github.com/sightline-router/sightline/router"
)

// An engine keeps its answers of /v1/responses to itself, so a request that names one by its id must go to the worker that gave
// it: GET, DELETE and cancel of /v1/responses/ID, and requests with a previous_response_id. The engine creates the id and writes
// it at the beginning of the response, so on this path only Envoy is asked for response bodies. (With a full-duplex body it
// cannot be asked: a route of its own configures that.) The stream ends once the id is read, before the client has it, so a
// request that names the id always comes later. The router remembers the ids (followAnswer in router/shortlist.go).

const (
	maxResponseID = 256
	// maxBeginning limits how much of a response is searched for its id. vLLM and SGLang write it first.
	maxBeginning = 64 << 10
	// maxLooks limits how often the beginning is searched: on average each byte is read at most this many times, however small a
	// worker's pieces are. Of pieces of one size the first 127 are all looked at.
	maxLooks = 64
)

// sendBodyAndAnswer requests the body, and later the response body as it comes.
var sendBodyAndAnswer = encode(&extprocv3.ProcessingResponse{
	Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}},
	ModeOverride: &modev3.ProcessingMode{
		RequestBodyMode:    modev3.ProcessingMode_BUFFERED,
		ResponseHeaderMode: modev3.ProcessingMode_SEND,
		ResponseBodyMode:   modev3.ProcessingMode_STREAMED,
	},
})

// stored returns the id in /v1/responses/ID and in paths below it; empty for other paths.
func (h *head) stored() string {
	rest, ok := strings.CutPrefix(h.path, denied.Responses+"/")
	id, _, _ := strings.Cut(rest, "/")
	if !ok || len(id) > maxResponseID {
		return ""
	}
	return id
}

// cancels reports whether the path is /v1/responses/ID/cancel, whose body engines do not read. Others below /v1/responses they do:
// vLLM 0.32 reads a request at /v1/responses/render.
func (h *head) cancels() bool {
	id := h.stored()
	return id != "" && h.path == denied.Responses+"/"+id+"/cancel"
}

// learnAnswerID looks for the id in the next piece of a response, and reports it with the worker that served the response.
func (c *call) learnAnswerID(piece *extprocv3.HttpBody) {
	if !c.wantsAnswerID {
		return
	}
	c.responseBegin = append(c.responseBegin, piece.GetBody()[:min(len(piece.GetBody()), maxBeginning-len(c.responseBegin))]...)
	last := len(c.responseBegin) == maxBeginning || piece.GetEndOfStream()
	if !last && c.searched+len(c.responseBegin) > maxLooks*len(c.responseBegin) {
		return
	}
	c.searched += len(c.responseBegin)
	id := answerID(c.responseBegin)
	if id == "" && !last {
		return
	}
	c.wantsAnswerID, c.responseBegin = false, nil
	if id != "" {
		o := outcome(c.id, router.Started)
		o.Addr, o.Answer = c.served, id
		c.observeSafely(o)
	}
}

// answerID reads the id from the beginning of a response: a JSON object, or the events of a stream, which have the response as
// "response". It returns "" if the id is missing or incomplete.
func answerID(b []byte) string {
	b = bytes.TrimLeft(b, " \t\r\n")
	if bytes.HasPrefix(b, []byte("{")) {
		return wholeID(b, "id")
	}
	for line := range bytes.SplitSeq(b, []byte("\n")) {
		data, _ := bytes.CutPrefix(line, []byte("data:"))
		if id := wholeID(data, "response.id"); id != "" {
			return id
		}
	}
	return ""
}

// wholeID returns a complete, non-empty string.
func wholeID(b []byte, path string) string {
	v := gjson.GetBytes(b, path)
	if v.Type != gjson.String || !strings.HasSuffix(v.Raw, `"`) || len(v.Raw) <= 2 || len(v.Str) > maxResponseID {
		return ""
	}
	return v.Str
}
